import { ask, change, complain, empty, fill, h, notice, show, table } from "./dom.js";
import { brief, count, moment, payloadLine, plural, rate } from "./format.js";

const EACH = 2000;

// What a consumer takes, as words.
function terms({ topic, origin, where }) {
  return [topic ? `topic ${topic}` : "", origin ? `from ${origin.join(" or ")}` : "", where ? `where ${Object.keys(where).join(", ")}` : ""]
    .filter(Boolean).join(", ") || "everything";
}

export default {
  title: "Consumers",
  open(main, given) {
    let chosen = given.get("name");
    let closed = false;
    // Floors of the last look, for rates.
    let before = new Map();
    let looked = 0;
    const search = h("input", { type: "search", placeholder: "part of a name", "aria-label": "Find a consumer", oninput: () => list() });
    const said = h("div", {});
    const found = h("div", {});
    const told = h("div", { "aria-live": "polite" });
    const detail = h("section", { class: "sheet stack", "aria-label": "Consumer" });
    main.append(h("p", { class: "lead" }, "Durable consumers: how far each has come, and what it gave up."), said,
      h("div", { class: "grid" }, h("section", { class: "sheet stack", "aria-label": "Consumers" }, search, found), detail));

    async function list() {
      try {
        const { consumers, total } = await ask(`/api/consumers?contains=${encodeURIComponent(search.value)}`);
        if (closed) return;
        fill(said);
        const now = performance.now();
        const rates = new Map(consumers.map((each) => [each.consumer, before.has(each.consumer) ? Math.max(0, each.floor - before.get(each.consumer)) * 1000 / (now - looked) : 0]));
        before = new Map(consumers.map((each) => [each.consumer, each.floor]));
        looked = now;
        show(found, total ? consumers.length ? table(`${count(consumers.length)} of ${count(total)}`, [
          ["Consumer", (row) => h("button", { class: "link", type: "button", "data-key": `name-${row.consumer}`, "aria-current": row.consumer === chosen ? "true" : null, onclick: () => choose(row.consumer) }, row.consumer)],
          ["Behind", (row) => `${row.behind_exact ? "" : "≤ "}${count(row.behind)}`, { n: true }],
          ["Members", (row) => count(row.members), { n: true }],
          ["Done/s", (row) => rate(rates.get(row.consumer)), { n: true, narrow: true }],
          ["Dead", (row) => count(row.dead), { n: true, narrow: true }],
          ["Lost", (row) => count(row.lost), { n: true, narrow: true }],
        ], consumers) : empty("No consumer has that in its name.")
          : empty("There are no durable consumers yet. In Python:", 'async with link.consumer("billing", topic="orders/*") as billing: …'));
        const one = consumers.find((each) => each.consumer === chosen);
        if (one) draw(one);
        else if (!detail.childElementCount) fill(detail, empty("A consumer that you choose is shown here."));
      } catch (error) {
        complain(said, error);
      }
    }

    function choose(name) {
      chosen = name;
      fill(told);
      letters(name);
      list();
    }

    const facts = h("dl", { class: "envelope" });
    const dead = h("div", {});
    const where = h("input", { name: "to", autocomplete: "off", placeholder: "number, earliest or now", required: true, "aria-label": "Continue with" });
    const moving = h("form", { class: "row", onsubmit: (event) => { event.preventDefault(); move(); } }, where, h("button", { type: "submit" }, "Move it there"));
    const removing = h("div", { class: "row" }, h("button", { type: "button", onclick: remove }, "Remove it"));

    function draw(consumer) {
      show(facts, [["Takes", terms(consumer.terms)], ["Done up to", count(consumer.floor)], ["Behind", `${consumer.behind_exact ? "" : "at most "}${plural(consumer.behind, "message")}`],
        ["Members", count(consumer.members)], ["Tries", consumer.terms.max_tries ? `at most ${consumer.terms.max_tries}, each ${consumer.terms.ack_seconds} s` : `any number, each ${consumer.terms.ack_seconds} s`],
        ["Given up", `${plural(consumer.dead, "message")}, under ${consumer.terms.dead_letter}`], ["Lost to retention", plural(consumer.lost, "message")]]
        .flatMap(([name, text]) => [h("dt", {}, name), h("dd", {}, text)]));
      if (!detail.contains(facts)) fill(detail, h("h2", {}, consumer.consumer), facts, moving, removing, told, h("h2", {}, "Dead letters"), dead);
      detail.querySelector("h2").textContent = consumer.consumer;
    }

    async function act(path, content, done) {
      try {
        const answer = await change(path, content);
        fill(told, notice(done(answer)));
        list();
      } catch (error) {
        fill(told, notice(error.message, "bad"));
      }
    }

    function move() {
      const text = where.value.trim();
      const to = /^\d+$/.test(text) ? Number(text) : text;
      act("/api/consumers/reset", { consumer: chosen, to }, () => `${chosen} continues there.`);
    }

    function remove() {
      if (!confirm(`Remove the consumer ${chosen}? Where it has come to is forgotten; messages stay.`)) return;
      const name = chosen;
      chosen = null;
      act("/api/consumers/remove", { consumer: name }, () => `${name} is removed.`);
      fill(detail, told);
    }

    async function letters(name) {
      try {
        const { consumers } = await ask(`/api/consumers?contains=${encodeURIComponent(name)}`);
        const topic = consumers.find((each) => each.consumer === name)?.terms.dead_letter;
        if (!topic) return;
        const { messages } = await ask(`/api/messages?count=20&topic=${encodeURIComponent(topic)}`);
        if (chosen !== name) return;
        show(dead, messages.length ? table("The newest, which nobody could handle", [
          ["Number", (row) => h("a", { href: `#/stream?seq=${row.seq}` }, count(row.seq)), { n: true }],
          ["Time", (row) => h("time", { title: moment(row.time) }, brief(row.time)), { narrow: true }],
          ["Payload", (row) => h("div", { class: "clip" }, payloadLine(row))],
          ["Tries", (row) => row.attributes["dead.tries"] ?? row.numbers["dead.tries"] ?? "", { n: true, narrow: true }],
          ["", (row) => h("button", { type: "button", "data-key": `again-${row.seq}`, onclick: () => act("/api/consumers/redeliver", { consumer: name, seq: row.seq }, ({ seq }) => `Published again, as message ${count(seq)}.`) }, "Publish again")],
        ], messages.reverse()) : empty("None."));
      } catch (error) {
        complain(dead, error);
      }
    }

    list().then(() => { if (chosen && !closed) letters(chosen); });
    const timer = setInterval(list, EACH);
    return () => { closed = true; clearInterval(timer); };
  },
};
