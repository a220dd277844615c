import { ask, change, empty, fill, h, notice, table } from "./dom.js";
import { bytes, count, rate } from "./format.js";
import { hub, listen } from "./store.js";

const EACH = 3000;

// A range whose one end is the largest number there is has only the other.
function range(low, high) {
  if (high >= Number.MAX_VALUE) return low <= -Number.MAX_VALUE ? "any number" : `≥ ${low}`;
  return low <= -Number.MAX_VALUE ? `≤ ${high}` : `${low}\u2060…\u2060${high}`;
}

function words(predicates) {
  return Object.entries(predicates).map(([name, field]) => {
    if (field.use === 1) return `${name} = ${JSON.stringify(field.strval)}`;
    if (field.use === 2) return `${name} ${range(field.low, field.high)}`;
    return `${name} ${field.extra}`;
  }).join(" and ");
}

export default {
  title: "Subscriptions",
  open(main) {
    const said = h("div", {});
    const found = h("section", { class: "sheet", "aria-label": "Subscriptions" });
    const facts = h("p", { class: "lead" });
    const who = h("div", { "aria-live": "polite" });
    const trying = h("form", { class: "stack", onsubmit: tryOut },
      h("label", {}, "Attributes", h("input", { name: "attributes", autocomplete: "off", placeholder: "city=Praha x=5", size: 40 })),
      h("div", { class: "row" }, h("label", {}, "Topic", h("input", { name: "topic", autocomplete: "off" })),
        h("button", { type: "submit", class: "primary" }, "Who would get this?")));
    main.append(facts, said, h("div", { class: "grid" }, found, h("section", { class: "sheet" }, h("h2", {}, "Try a message"), trying, who)));

    async function list() {
      try {
        const { subscriptions, total } = await ask("/api/subscriptions");
        fill(said);
        fill(found, total ? table(`${count(subscriptions.length)} of ${count(total)}`, [
          ["Client", (row) => h("code", {}, row.client)],
          ["Wants", (row) => words(row.fields)],
          ["State", (row) => h("span", { class: "pill", "data-tone": row.connected ? "good" : "wary" }, row.connected ? "connected" : "away"), { narrow: true }],
        ], subscriptions) : empty("Nobody subscribes by content yet. From a terminal:", "headrace sub --where city=Praha --where x=0..10"));
      } catch (error) {
        fill(said, notice(error.message, "bad"));
      }
    }

    async function tryOut(event) {
      event.preventDefault();
      const attributes = {};
      for (const part of trying.elements.attributes.value.split(/\s+/).filter(Boolean)) {
        const at = part.indexOf("=");
        if (at < 1) { fill(who, notice(`${part}: expected name=value`, "bad")); return; }
        const value = part.slice(at + 1);
        attributes[part.slice(0, at)] = value !== "" && Number.isFinite(Number(value)) ? Number(value) : value;
      }
      try {
        const { clients, total } = await change("/api/subscriptions/try", { topic: trying.elements.topic.value, attributes });
        fill(who, total ? table(`${count(total)} would get it`, [["Client", (client) => h("code", {}, client)]], clients)
          : empty("Nobody would get it."));
      } catch (error) {
        fill(who, notice(error.message, "bad"));
      }
    }

    const stop = listen(({ samples }) => {
      const last = samples.at(-1);
      const memory = hub.status?.subscribers?.subscription_bytes;
      fill(facts, `Who subscribes what, by a message's attributes. ${memory ? `Their index here takes ${bytes(memory)}. ` : ""}${rate(last?.delivered.sdk ?? 0)} messages/s go to subscribers now; `
        + `matching is done by ${hub.status?.matching?.engine === "spark" ? "Spark" : "the hub"}.`);
    });
    list();
    const timer = setInterval(list, EACH);
    return () => { clearInterval(timer); stop(); };
  },
};
