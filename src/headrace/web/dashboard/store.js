// What the hub says of itself, kept current by server-sent events; pages listen to it.
import { ask } from "./dom.js";

const MOST = 600;
const listeners = new Set();

export const hub = { status: null, samples: [], state: "waiting" };

export function listen(listener) {
  listeners.add(listener);
  if (hub.status) listener(hub);
  return () => listeners.delete(listener);
}

function tell() {
  for (const listener of listeners) listener(hub);
}

export async function begin(stateChanged) {
  const turn = (state) => { hub.state = state; stateChanged(state); tell(); };
  try {
    hub.samples = await ask("/api/history");
  } catch {
    hub.samples = [];
  }
  const source = new EventSource("/api/events");
  source.addEventListener("open", () => turn("live"));
  source.addEventListener("error", () => turn("lost"));
  source.addEventListener("status", (event) => {
    hub.status = JSON.parse(event.data);
    tell();
  });
  source.addEventListener("sample", (event) => {
    const sample = JSON.parse(event.data);
    // A hub that was started anew begins its history anew.
    if (hub.samples.length && sample.time <= hub.samples.at(-1).time) return;
    hub.samples = [...hub.samples, sample].slice(-MOST);
  });
}
