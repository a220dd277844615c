import { Chart } from "./chart.js";
import { ask, change, complain, empty, fact, fill, h, notice, show, table } from "./dom.js";
import { attributesOf, bytes, count, rate } from "./format.js";
import { listen } from "./store.js";

const EACH = 3000;
const MINUTES = 5;

// A range whose one end is the largest number there is has only the other.
function range(low, high) {
  if (high >= Number.MAX_VALUE) return low <= -Number.MAX_VALUE ? "any number" : `≥ ${low}`;
  return low <= -Number.MAX_VALUE ? `≤ ${high}` : `${low}\u2060…\u2060${high}`;
}

// The small language of `extra`, as words: {"not": {"in": ["a", 7]}} is `is not "a" or 7`.
function extraWords(name, extra) {
  const [[word, value]] = Object.entries(extra);
  const list = (values) => values.map((each) => JSON.stringify(each)).join(" or ");
  if (word === "in") return `${name} is ${list(value)}`;
  if (word === "prefix") return `${name} begins with ${JSON.stringify(value)}`;
  if (word === "exists") return value ? `${name} exists` : `${name} is missing`;
  if (word === "inside") return `${name} and ${value.y} are in a ${value.circle ? "circle" : "polygon"}`;
  if (word === "any") return `(${value.map((each) => extraWords(name, each)).join(", or ")})`;
  if (word === "not" && value.in) return `${name} is not ${list(value.in)}`;
  return `not (${extraWords(name, value)})`;
}

function words(predicates) {
  return Object.entries(predicates).map(([name, field]) => {
    if (field.use === 1) return `${name} is ${JSON.stringify(field.strval)}`;
    if (field.use === 2) return field.low === field.high ? `${name} is ${field.low}` : `${name} ${range(field.low, field.high)}`;
    return extraWords(name, JSON.parse(field.extra));
  }).join(" and ");
}

export default {
  title: "Subscriptions",
  open(main) {
    const said = h("div", {});
    const found = h("div", {});
    const facts = h("dl", { class: "facts" });
    const matched = new Chart("Matched, per second");
    const search = h("input", { type: "search", placeholder: "part of a client's id", "aria-label": "Find a client", oninput: () => list() });
    const who = h("div", { "aria-live": "polite" });
    const trying = h("form", { class: "stack", onsubmit: tryOut },
      h("label", {}, "Attributes", h("input", { name: "attributes", autocomplete: "off", placeholder: "city=Praha x=5", size: 40 })),
      h("div", { class: "row" }, h("label", {}, "Topic", h("input", { name: "topic", autocomplete: "off" })),
        h("button", { type: "submit", class: "primary" }, "Who would get this?")));
    main.append(h("p", { class: "lead" }, "Content subscriptions."), said, facts,
      h("div", { class: "grid wide-first" }, h("section", { class: "sheet stack", "aria-label": "Subscriptions" }, search, found),
        h("div", {}, h("section", { class: "sheet" }, h("h2", {}, "Try a message"), trying, who),
          h("section", { class: "sheet" }, h("h2", {}, "Matched"), matched.element))));

    // Messages sent to a client since it connected; two answers give its rate.
    const before = new Map();

    function rates(subscriptions) {
      const at = performance.now() / 1000;
      for (const row of subscriptions) {
        const last = before.get(row.client);
        row.rate = row.sent === null || !last || row.sent < last.sent ? null : (row.sent - last.sent) / (at - last.at);
      }
      // A client may have several subscriptions.
      for (const { client, sent } of subscriptions) before.set(client, { sent: sent ?? 0, at });
    }

    async function list() {
      try {
        const { subscriptions, total } = await ask(`/api/subscriptions?contains=${encodeURIComponent(search.value.trim())}`);
        fill(said);
        rates(subscriptions);
        show(found, total && !subscriptions.length ? empty("No client has that in its id.") : total ? table(`${count(subscriptions.length)} of ${count(total)}`, [
          ["Client", (row) => h("code", {}, row.client)],
          ["Name", (row) => row.name || "—", { narrow: true }],
          ["Wants", (row) => words(row.fields)],
          ["Sent", (row) => (row.sent === null ? "–" : count(row.sent)), { n: true, narrow: true }],
          ["Per second", (row) => (row.rate === null ? "–" : rate(row.rate)), { n: true }],
          ["State", (row) => h("span", { class: "pill", "data-tone": row.connected ? "good" : "wary" }, row.connected ? "connected" : "away"), { narrow: true }],
        ], subscriptions) : empty("Nobody subscribes by content yet. From a terminal:", "headrace sub --where city=Praha --where x=0..10"));
      } catch (error) {
        complain(said, error);
      }
    }

    async function tryOut(event) {
      event.preventDefault();
      let attributes;
      try {
        attributes = attributesOf(trying.elements.attributes.value);
      } catch (error) {
        fill(who, notice(error.message, "bad"));
        return;
      }
      try {
        const { clients, total } = await change("/api/subscriptions/try", { topic: trying.elements.topic.value, attributes });
        fill(who, total ? table(`${count(total)} would get it`, [["Client", (client) => h("code", {}, client)]], clients)
          : empty("Nobody would get it."));
      } catch (error) {
        fill(who, notice(error.message, "bad"));
      }
    }

    const stop = listen(({ status, samples }) => {
      if (!status) return;
      const recent = samples.slice(-MINUTES * 60);
      const last = recent.at(-1)?.matched ?? {};
      const memory = status.subscribers?.subscription_bytes;
      const spark = status.matching?.engine === "spark";
      matched.update(recent.map((sample) => sample.time), {
        "messages looked at": recent.map((sample) => sample.matched.messages ?? 0),
        "matches": recent.map((sample) => sample.matched.clients ?? 0),
      });
      show(facts, fact("Subscriptions", count(status.matching.subscriptions), memory ? `${bytes(memory)} of index` : ""),
        fact("Matches", rate(last.clients ?? 0), "a second"),
        fact("A message goes to", last.messages ? (last.clients / last.messages).toFixed(2) : "–", "subscribers, on average"),
        fact("Matched by", spark ? "Spark" : "the hub", spark ? "the job match" : `${rate(last.messages ?? 0)} messages/s looked at`));
    });
    list();
    const timer = setInterval(list, EACH);
    return () => { clearInterval(timer); stop(); };
  },
};
