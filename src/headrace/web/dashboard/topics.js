import { ask, complain, empty, fill, h, show, table } from "./dom.js";
import { brief, bytes, count, moment, rate, span } from "./format.js";

const EACH = 3000;

export default {
  title: "Topics",
  open(main) {
    let closed = false;
    const search = h("input", { type: "search", placeholder: "pattern, as in orders/*", "aria-label": "Find topics", oninput: () => list() });
    const said = h("div", {});
    const found = h("div", {});
    main.append(h("p", { class: "lead" }, "The topics of the newest messages, and who reads them."), said,
      h("section", { class: "sheet stack", "aria-label": "Topics" }, search, found));

    async function list() {
      try {
        const asked = search.value.trim();
        const { topics, total, first, last, seconds } = await ask(`/api/topics?topic=${encodeURIComponent(asked)}`);
        if (closed || asked !== search.value.trim()) return;
        fill(said);
        show(found, topics.length ? table(`${count(topics.length)} of ${count(total)}, in messages ${count(first)} to ${count(last)}, ${span(seconds)}`, [
          ["Topic", (row) => h("a", { href: `#/stream?topic=${encodeURIComponent(row.topic)}`, "data-key": `topic-${row.topic}` }, row.topic || "(none)")],
          ["Messages", (row) => count(row.messages), { n: true }],
          ["Per second", (row) => rate(row.rate), { n: true }],
          ["Bytes", (row) => bytes(row.bytes), { n: true, narrow: true }],
          ["Newest", (row) => h("a", { href: `#/stream?seq=${row.newest}`, title: moment(row.time) }, `${count(row.newest)}, ${brief(row.time)}`), { narrow: true }],
          ["Consumers", (row) => row.readers.map((name, place) => [place ? ", " : "", h("a", { href: `#/consumers?name=${encodeURIComponent(name)}` }, name)]).flat(), { narrow: true }],
        ], topics) : empty(asked ? "No topic of the newest messages matches." : "Nothing has been published yet. From a terminal:", asked ? "" : "headrace pub hello --topic greetings"));
      } catch (error) {
        complain(said, error);
      }
    }

    list();
    const timer = setInterval(list, EACH);
    return () => { closed = true; clearInterval(timer); };
  },
};
