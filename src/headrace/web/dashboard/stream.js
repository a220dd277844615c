import { ask, change, empty, fill, h, notice, table } from "./dom.js";
import { count, hex, moment, payloadBytes, payloadLine } from "./format.js";

const MOST = 300;

function query(filters) {
  const asked = new URLSearchParams(Object.entries(filters).filter(([, value]) => value));
  return asked.size ? `&${asked}` : "";
}

// A payload in three forms; the first that says something is shown.
export function payloadView(message, key = "payload") {
  const binary = payloadBytes(message, key);
  const text = message[key];
  let json = null;
  try {
    json = text === undefined ? null : JSON.stringify(JSON.parse(text), null, 2);
  } catch { /* Then it is text. */ }
  const forms = { JSON: json, Text: text ?? null, Hex: hex(binary) };
  const shown = h("pre", { tabindex: "0" });
  const tabs = h("div", { class: "tabs", role: "tablist", "aria-label": "Payload as" });
  const choose = (name) => {
    shown.textContent = forms[name] || "(empty)";
    for (const tab of tabs.children) tab.setAttribute("aria-selected", String(tab.textContent === name));
  };
  for (const name of Object.keys(forms)) {
    if (forms[name] !== null) tabs.append(h("button", { type: "button", role: "tab", onclick: () => choose(name) }, name));
  }
  choose(Object.keys(forms).find((name) => forms[name] !== null));
  const cut = message.size > binary.length;
  return h("div", {}, tabs, shown, cut ? h("p", { class: "faint" }, `The first ${count(binary.length)} of ${count(message.size)} bytes.`) : null);
}

export default {
  title: "Stream",
  open(main, given) {
    let source = null;
    let rows = [];
    let oldest = 1;
    let live = true;
    const field = (label, name, attributes = {}) => {
      const input = h("input", { name, value: given.get(name) || "", autocomplete: "off", ...attributes });
      return h("label", {}, label, input);
    };
    const filters = h("form", { class: "row", "aria-label": "Filter", onsubmit: (event) => { event.preventDefault(); begin(); } },
      field("Topic", "topic", { placeholder: "orders/* or **", size: 18 }),
      h("label", {}, "Came by", h("select", { name: "origin" }, h("option", { value: "" }, "any protocol"),
        ["fyrehose", "spp", "attribute", "tube", "spark", "http", "log"].map((name) => h("option", { value: name }, name)))),
      h("button", { type: "submit" }, "Filter"));
    if (given.get("origin")) filters.elements.origin.value = given.get("origin");
    const jump = h("form", { class: "row", "aria-label": "Go to", onsubmit: (event) => { event.preventDefault(); goTo(); } },
      field("Sequence number", "seq", { inputmode: "numeric", size: 12 }),
      h("label", {}, "or time", h("input", { name: "when", type: "datetime-local", step: "1" })),
      h("button", { type: "submit" }, "Go"));
    const toggle = h("button", { type: "button", "aria-pressed": "true", onclick: () => (live ? pause() : begin()) }, "Pause");
    const said = h("div", {});
    const list = h("section", { class: "sheet list", "aria-label": "Messages" });
    const detail = h("section", { class: "sheet opened", hidden: true, "aria-live": "polite", "aria-label": "Message" });
    const more = h("button", { type: "button", onclick: () => older() }, "Older");

    const publishing = h("details", { class: "sheet" }, h("summary", {}, "Publish a message"),
      h("form", { class: "stack", onsubmit: publish },
        h("div", { class: "row" }, h("label", {}, "Topic", h("input", { name: "topic", autocomplete: "off", size: 24 })),
          h("label", {}, "Attributes", h("input", { name: "attributes", autocomplete: "off", size: 32, placeholder: "city=Praha speed=61" }))),
        h("label", {}, "Payload", h("textarea", { name: "payload", required: true })),
        h("div", { class: "row" }, h("button", { class: "primary", type: "submit" }, "Publish"), h("output", { name: "told", role: "status" }))));
    main.append(h("div", { class: "sheet row spread" }, filters, jump, toggle), said, h("div", { class: "beside" }, detail, list), publishing);

    const chosen = () => ({ topic: filters.elements.topic.value.trim(), origin: filters.elements.origin.value });

    function draw(fresh = new Set()) {
      if (!rows.length) {
        const filtered = chosen().topic || chosen().origin;
        fill(list, filtered ? empty("No message passes this filter yet.")
          : empty("No messages yet. Publish one below, or from a terminal:", "headrace pub 'hello, world' --topic greetings"));
        return;
      }
      fill(list, table(live ? "Newest first, live" : "Newest first", [
        ["Number", (row) => h("button", { class: "link", type: "button", onclick: () => open(row.seq) }, count(row.seq)), { n: true }],
        ["Time", (row) => moment(row.time), { narrow: true }],
        ["Came by", (row) => row.origin, { narrow: true }],
        ["Topic", (row) => row.topic || h("span", { class: "faint" }, "none")],
        ["Payload", (row) => h("div", { class: "clip" }, payloadLine(row))],
        ["Bytes", (row) => count(row.size), { n: true, narrow: true }],
      ], rows, (row) => ({ class: fresh.has(row.seq) ? "fresh" : null })), h("div", { class: "row" }, oldest > 1 ? more : null));
    }

    function fail(error) {
      fill(said, notice(error.message, "bad"));
    }

    function pause() {
      live = false;
      source?.close();
      source = null;
      toggle.textContent = "Live";
      toggle.setAttribute("aria-pressed", "false");
      draw();
    }

    async function begin() {
      source?.close();
      fill(said);
      live = true;
      toggle.textContent = "Pause";
      toggle.setAttribute("aria-pressed", "true");
      let found;
      try {
        found = await ask(`/api/messages?count=100${query(chosen())}`);
      } catch (error) {
        fail(error);
        return;
      }
      rows = found.messages.reverse();
      oldest = found.first;
      draw();
      source = new EventSource(`/api/tail?from=${found.last + 1}${query(chosen())}`);
      source.addEventListener("messages", (event) => {
        const { messages, left_out } = JSON.parse(event.data);
        const known = rows.length ? rows[0].seq : 0;
        const fresh = messages.filter((message) => message.seq > known).reverse();
        rows = [...fresh, ...rows].slice(0, MOST);
        fill(said, left_out ? notice("More comes than can be read; only the newest are shown. Pause, or filter by topic.") : null);
        draw(new Set(fresh.map((message) => message.seq)));
      });
    }

    async function older() {
      try {
        const found = await ask(`/api/messages?count=100&before=${oldest}${query(chosen())}`);
        if (live) pause();
        rows = [...rows, ...found.messages.reverse()];
        oldest = found.first;
        draw();
      } catch (error) {
        fail(error);
      }
    }

    async function goTo() {
      const seq = jump.elements.seq.value.replace(/[^0-9]/g, "");
      const when = jump.elements.when.value;
      if (!seq && !when) return;
      pause();
      try {
        const place = seq ? `from=${seq}` : `time=${new Date(when).getTime() * 1000}`;
        const found = await ask(`/api/messages?count=100&${place}${query(chosen())}`);
        rows = found.messages.reverse();
        oldest = found.first;
        fill(said, rows.length ? null : notice("No message there, or after it."));
        draw();
        if (seq && rows.some((row) => row.seq === Number(seq))) open(Number(seq));
      } catch (error) {
        fail(error);
      }
    }

    async function open(seq) {
      let message;
      try {
        message = await ask(`/api/messages/${seq}`);
      } catch (error) {
        fail(error);
        return;
      }
      const pairs = [["Sequence", count(message.seq)], ["Time", moment(message.time)], ["Came by", message.origin],
        ["Publisher", message.publisher || "unknown"], ["Its number", message.number ?? "none"], ["Node", message.node],
        ["Topic", message.topic || "none"], ["Bytes", count(message.size)],
        ...Object.entries(message.attributes).map(([name, value]) => [name, JSON.stringify(value)]),
        ...Object.entries(message.numbers)];
      fill(detail, h("div", { class: "row spread" }, h("h2", {}, `Message ${count(message.seq)}`),
        h("button", { type: "button", onclick: () => { detail.hidden = true; } }, "Close")),
      h("dl", { class: "envelope" }, pairs.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, String(value))])),
      payloadView(message));
      detail.hidden = false;
      detail.scrollIntoView({ block: "nearest" });
    }

    async function publish(event) {
      event.preventDefault();
      const form = event.target;
      const told = form.elements.told;
      const attributes = {};
      for (const part of form.elements.attributes.value.split(/\s+/).filter(Boolean)) {
        const [name, ...rest] = part.split("=");
        const value = rest.join("=");
        if (!rest.length) { told.textContent = `${part}: expected name=value`; return; }
        attributes[name] = value !== "" && Number.isFinite(Number(value)) ? Number(value) : value;
      }
      try {
        const { seq } = await change("/api/messages", { topic: form.elements.topic.value, payload: form.elements.payload.value, attributes });
        told.textContent = `It is message ${count(seq)}.`;
        form.elements.payload.value = "";
      } catch (error) {
        told.textContent = error.message;
      }
    }

    if (given.get("seq")) { jump.elements.seq.value = given.get("seq"); goTo(); } else begin();
    return () => source?.close();
  },
};
