// What the hub says of itself, kept current by server-sent events; pages listen to it.
import { ask } from "./dom.js";

const MOST = 600;
const AGAIN = 2000;
const listeners = new Set();

export const hub = { status: null, samples: [], state: "waiting", problem: "" };

// Who we are, and what we may do; whoever cannot be asked is refused by the hub if need be.
export async function identify() {
  try {
    return await ask("/api/me");
  } catch {
    return { name: "", anonymous: true, session: false, login: false, may: {} };
  }
}

export function listen(listener) {
  listeners.add(listener);
  if (hub.status) listener(hub);
  return () => listeners.delete(listener);
}

function tell() {
  for (const listener of listeners) listener(hub);
}

export async function begin(stateChanged) {
  const turn = (state, problem = "") => { Object.assign(hub, { state, problem }); stateChanged(hub); tell(); };
  try {
    hub.samples = await ask("/api/history");
  } catch (error) {
    turn("lost", error.message);
    setTimeout(begin, AGAIN, stateChanged);
    return;
  }
  const source = new EventSource("/api/events");
  source.addEventListener("open", () => turn("live"));
  source.addEventListener("error", () => {
    // The browser would connect again by itself after a break, but not after a refusal; and what was missed is asked for anew.
    source.close();
    turn("lost", "The hub does not answer. Is it running?");
    setTimeout(begin, AGAIN, stateChanged);
  });
  source.addEventListener("status", (event) => {
    const status = JSON.parse(event.data);
    // Numbers mean other messages in another log: nothing that is shown holds any more.
    if (hub.status && hub.status.log !== status.log) location.reload();
    hub.status = status;
    tell();
  });
  source.addEventListener("sample", (event) => {
    const sample = JSON.parse(event.data);
    if (hub.samples.length && sample.time <= hub.samples.at(-1).time) return;
    hub.samples = [...hub.samples, sample].slice(-MOST);
  });
}
