import { ask, change, complain, empty, fill, h, notice, show, table } from "./dom.js";
import { attributesOf, brief, colourNumber, count, hex, moment, payloadBytes, payloadLine, plural } from "./format.js";
import { hub } from "./store.js";

const MOST = 300;
const AGAIN = 2000;
const ORIGINS = ["fyrehose", "spp", "attribute", "tube", "spark", "replay", "http", "consumer"];

// The form of a payload that was chosen last; the next is shown in it too, if it has it.
let preferred = null;

function query(filters) {
  const asked = new URLSearchParams(Object.entries(filters).filter(([, value]) => value));
  return asked.size ? `&${asked}` : "";
}

// A payload in three forms; the first that says something is shown, unless another was chosen.
export function payloadView(message, key = "payload") {
  const binary = payloadBytes(message, key);
  const text = message[key];
  let json = null;
  try {
    json = text === undefined ? null : JSON.stringify(JSON.parse(text), null, 2);
  } catch { /* Then it is text. */ }
  const forms = Object.fromEntries(Object.entries({ JSON: json, Text: text ?? null, Hex: hex(binary) }).filter(([, form]) => form !== null));
  const names = Object.keys(forms);
  const shown = h("pre", { tabindex: "0", role: "tabpanel", "aria-label": "Payload" });
  const tabs = h("div", { class: "tabs", role: "tablist", "aria-label": "Payload as" });
  const choose = (name) => {
    shown.textContent = forms[name] || "(empty)";
    for (const tab of tabs.children) {
      tab.setAttribute("aria-selected", String(tab.textContent === name));
      tab.tabIndex = tab.textContent === name ? 0 : -1;
    }
  };
  const pick = (name) => { preferred = name; choose(name); };
  for (const name of names) tabs.append(h("button", { type: "button", role: "tab", "data-key": `as-${name}`, onclick: () => pick(name) }, name));
  // One stop for the tab key, and arrows between the tabs: what people who use neither mouse nor eyes expect.
  tabs.addEventListener("keydown", (event) => {
    const at = [...tabs.children].indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: names.length - 1 }[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    const tab = tabs.children[(to + names.length) % names.length];
    pick(tab.textContent);
    tab.focus();
  });
  choose(names.includes(preferred) ? preferred : names[0]);
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
    let opened = null;
    let timer = null;
    let asked = 0; // Answers come in any order: only the newest question's counts.
    const field = (label, name, attributes = {}) => {
      const input = h("input", { name, value: given.get(name) || "", autocomplete: "off", ...attributes });
      return h("label", {}, label, input);
    };
    const filters = h("form", { class: "row", "aria-label": "Filter", onsubmit: (event) => { event.preventDefault(); filter(); } },
      field("Topic", "topic", { placeholder: "orders/* or **", size: 18 }),
      h("label", {}, "Came by", h("select", { name: "origin" }, h("option", { value: "" }, "any protocol"),
        ORIGINS.map((name) => h("option", { value: name }, name)))),
      field("Text", "text", { placeholder: "in the payload", size: 14 }),
      field("Attributes", "where", { placeholder: "city=Praha x=5", size: 16 }),
      h("button", { type: "submit" }, "Filter"));
    if (given.get("origin")) filters.elements.origin.value = given.get("origin");
    const jump = h("form", { class: "row", "aria-label": "Go to", onsubmit: (event) => { event.preventDefault(); goTo(); } },
      field("Sequence number", "seq", { inputmode: "numeric", size: 12 }),
      h("label", {}, "or time", h("input", { name: "when", type: "datetime-local", step: "1" })),
      h("button", { type: "submit" }, "Go"));
    const toggle = h("button", { type: "button", onclick: () => (live ? pause() : begin()) }, "Pause");
    const said = h("div", {});
    const list = h("section", { class: "sheet list", "aria-label": "Messages" });
    const detail = h("section", { class: "sheet opened", hidden: true, "aria-label": "Message" });

    const publishing = h("details", { class: "sheet", "data-needs": "publish" }, h("summary", {}, "Publish a message"),
      h("form", { class: "stack", onsubmit: publish },
        h("div", { class: "row" }, h("label", {}, "Topic", h("input", { name: "topic", autocomplete: "off", size: 24 })),
          h("label", {}, "Attributes", h("input", { name: "attributes", autocomplete: "off", size: 32, placeholder: 'city=Praha street="Na Hradbách"' }))),
        h("label", {}, "Payload", h("textarea", { name: "payload", required: true })),
        h("div", { class: "row" }, h("button", { class: "primary", type: "submit" }, "Publish"), h("output", { name: "told", role: "status" }))));
    main.append(publishing, h("div", { class: "sheet row spread" }, filters, jump, toggle), said, h("div", { class: "beside" }, detail, list));

    const written = () => Object.fromEntries(["topic", "origin", "text", "where"].map((name) => [name, filters.elements[name].value.trim()]));

    // What the hub is asked for: attributes go as JSON, so that a number is a number.
    function chosen() {
      const { where, ...others } = written();
      return { ...others, where: where ? JSON.stringify(attributesOf(where)) : "" };
    }

    function filter() {
      try {
        chosen();
      } catch (error) {
        fail(error);
        return;
      }
      keep();
      begin();
    }

    // The address says what is filtered, so that it can be passed on.
    function keep() {
      const words = query(written()).slice(1);
      window.history.replaceState(null, "", `#/stream${words ? `?${words}` : ""}`);
    }

    function draw(fresh = new Set()) {
      if (!rows.length) {
        const filtered = Object.values(written()).some(Boolean);
        show(list, filtered ? empty("No message passes this filter yet.")
          : empty("No messages yet. Publish one above, or from a terminal:", "headrace pub 'hello, world' --topic greetings"));
        return;
      }
      show(list, table(live ? "Newest first, live" : "Newest first", [
        ["Number", (row) => h("button", { class: "link", type: "button", "data-key": `seq-${row.seq}`, "aria-current": row.seq === opened ? "true" : null, onclick: () => open(row.seq) }, count(row.seq)), { n: true }],
        ["Time", (row) => h("time", { title: moment(row.time) }, brief(row.time)), { narrow: true }],
        ["Came by", (row) => h("span", { class: "came", "data-colour": colourNumber(row.origin) }, row.origin), { narrow: true }],
        ["Topic", (row) => row.topic || h("span", { class: "faint" }, "none")],
        ["Payload", (row) => h("div", { class: "clip" }, payloadLine(row))],
        ["Bytes", (row) => count(row.size), { n: true, narrow: true }],
      ], rows, (row) => ({ class: fresh.has(row.seq) ? "fresh" : null })), h("div", { class: "row" },
        oldest > 1 ? h("button", { type: "button", "data-key": "older", onclick: older }, "Older") : null,
        live ? null : h("button", { type: "button", "data-key": "newer", onclick: newer }, "Newer")));
    }

    function fail(error) {
      complain(said, error);
    }

    // Whoever wanted to see what comes wants it when the hub is back, too.
    function beginAgain() {
      source?.close();
      source = null;
      clearTimeout(timer);
      timer = setTimeout(() => { if (live) begin(); }, AGAIN);
    }

    function pause() {
      live = false;
      clearTimeout(timer);
      source?.close();
      source = null;
      fill(said);
      toggle.textContent = "Live";
      draw();
    }

    async function begin() {
      source?.close();
      source = null;
      fill(said);
      live = true;
      toggle.textContent = "Pause";
      const turn = ++asked;
      let found;
      try {
        found = await ask(`/api/messages?count=100${query(chosen())}`);
      } catch (error) {
        if (turn !== asked) return;
        fail(error);
        beginAgain();
        return;
      }
      if (!live || turn !== asked) return;
      rows = found.messages.reverse();
      oldest = found.first;
      draw();
      source = new EventSource(`/api/tail?from=${found.last + 1}${query(chosen())}`);
      source.addEventListener("error", beginAgain);
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

    async function newer() {
      try {
        const found = await ask(`/api/messages?count=100&from=${(rows[0]?.seq ?? 0) + 1}${query(chosen())}`);
        rows = [...found.messages.reverse(), ...rows];
        fill(said, found.messages.length ? null : notice("There is nothing newer yet."));
        draw(new Set(found.messages.map((message) => message.seq)));
      } catch (error) {
        fail(error);
      }
    }

    async function goTo() {
      const seq = jump.elements.seq.value.replace(/[^0-9]/g, "");
      const when = jump.elements.when.value;
      if (!seq && !when) return;
      pause();
      const turn = ++asked;
      try {
        const place = seq ? `from=${seq}` : `time=${new Date(when).getTime() * 1000}`;
        const found = await ask(`/api/messages?count=100&${place}${query(chosen())}`);
        if (turn !== asked) return;
        rows = found.messages.reverse();
        oldest = found.first;
        const { head } = hub.status ?? {};
        fill(said, rows.length ? null : notice(seq && head !== undefined && Number(seq) > head ? `There is no message ${count(Number(seq))} yet: the newest is ${count(head)}.` : "No message there, or after it."));
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
      opened = seq;
      // The address is the message's own, so that it can be passed on.
      window.history.replaceState(null, "", `#/stream?seq=${seq}`);
      const pairs = [["Sequence", count(message.seq)], ["Time", moment(message.time)], ["Came by", message.origin],
        ["Publisher", message.publisher || "unknown"], ["Its number", message.number ?? "none"], ["Node", message.node],
        ["Topic", message.topic || "none"], ["Bytes", count(message.size)]];
      const attributes = [...Object.entries(message.attributes).map(([name, value]) => [name, JSON.stringify(value)]), ...Object.entries(message.numbers)];
      const listed = (all) => h("dl", { class: "envelope" }, all.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, String(value))]));
      const heading = h("h2", { tabindex: "-1" }, `Message ${count(message.seq)}`);
      fill(detail, h("div", { class: "row spread" }, heading, h("button", { type: "button", onclick: close }, "Close")), listed(pairs),
        attributes.length ? [h("h3", {}, plural(attributes.length, "attribute")), listed(attributes)] : null, h("h3", {}, "Payload"), payloadView(message));
      detail.hidden = false;
      draw();
      detail.scrollIntoView({ block: "nearest" });
      heading.focus({ preventScroll: true });
    }

    // The focus goes back to where the message was opened from.
    function close() {
      const from = `seq-${opened}`;
      detail.hidden = true;
      opened = null;
      keep();
      draw();
      (list.querySelector(`[data-key="${from}"]`) ?? toggle).focus();
    }

    async function publish(event) {
      event.preventDefault();
      const form = event.target;
      const told = form.elements.told;
      let attributes;
      try {
        attributes = attributesOf(form.elements.attributes.value);
      } catch (error) {
        told.textContent = error.message;
        return;
      }
      try {
        const { seq } = await change("/api/messages", { topic: form.elements.topic.value, payload: form.elements.payload.value, attributes });
        fill(told, "It is message ", h("a", { href: `#/stream?seq=${seq}` }, count(seq)), ".");
        form.elements.payload.value = "";
      } catch (error) {
        told.textContent = error.message;
      }
    }

    const escape = (event) => { if (event.key === "Escape" && !detail.hidden) close(); };
    document.addEventListener("keydown", escape);
    if (given.get("seq")) { jump.elements.seq.value = given.get("seq"); goTo(); } else begin();
    return () => { live = false; clearTimeout(timer); source?.close(); document.removeEventListener("keydown", escape); };
  },
};
