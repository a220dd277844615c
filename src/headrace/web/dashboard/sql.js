import { change, complain, empty, fill, h, notice, table } from "./dom.js";
import { count } from "./format.js";

const MOST = 20; // Queries that are remembered.
const BARS = 24;
const EXAMPLES = [
  ["By topic", "select topic, count(*) as messages from messages group by 1 order by 2 desc limit 20"],
  ["By minute", "select date_trunc('minute', time) as minute, count(*) as messages from messages group by 1 order by 1 desc limit 60"],
  ["The newest", "select seq, time, origin, topic, decode(payload) as payload from messages order by seq desc limit 20"],
  ["The largest", "select seq, topic, octet_length(payload) as bytes from messages order by bytes desc limit 20"],
  ["By way in", "select origin, count(*) as messages, max(time) as newest from messages group by 1 order by 2 desc"],
];

// What was asked before, the newest first; a browser that keeps nothing has no history.
function remembered() {
  try {
    return JSON.parse(localStorage.getItem("headrace-sql") || "[]").filter((each) => typeof each === "string").slice(0, MOST);
  } catch {
    return [];
  }
}

function remember(query) {
  try {
    localStorage.setItem("headrace-sql", JSON.stringify([query, ...remembered().filter((each) => each !== query)].slice(0, MOST)));
  } catch { /* Then it is forgotten. */ }
}

const shown = (value) => (value === null ? "" : typeof value === "number" ? count(value) === String(value) || Number.isInteger(value) ? count(value) : String(value) : String(value));

// Bars of the first column of numbers by the first that is none, where that makes sense.
function chart({ columns, rows }) {
  const label = columns.findIndex(({ type }) => !/int|double|float|decimal/.test(type));
  const value = columns.findIndex(({ type, name }, place) => place !== label && /int|double|float|decimal/.test(type) && name !== "seq");
  const drawn = rows.slice(0, BARS).filter((row) => typeof row[value] === "number");
  if (label < 0 || value < 0 || drawn.length < 2) return null;
  const top = Math.max(...drawn.map((row) => row[value]), 0);
  if (!(top > 0)) return null;
  return h("figure", { class: "bars", role: "img", "aria-label": `${columns[value].name} by ${columns[label].name}` },
    h("figcaption", {}, `${columns[value].name} by ${columns[label].name}`),
    drawn.map((row) => {
      const bar = h("span", { class: "bar-value" });
      bar.style.setProperty("--part", Math.max(0, row[value]) / top);
      return h("div", { class: "bar-row" }, h("span", { class: "bar-name", title: shown(row[label]) }, shown(row[label]) || "(none)"), bar, h("b", {}, shown(row[value])));
    }));
}

export default {
  title: "SQL",
  open(main, given) {
    let closed = false;
    const query = h("textarea", { rows: "4", spellcheck: "false", "aria-label": "Query", class: "code" });
    query.value = given.get("q") || remembered()[0] || EXAMPLES[0][1];
    const button = h("button", { type: "submit" }, "Run");
    const past = h("select", { "aria-label": "History", onchange: () => { if (past.value) { query.value = past.value; past.value = ""; query.focus(); } } });
    const said = h("div", { "aria-live": "polite" });
    const found = h("div", {});
    const form = h("form", { class: "stack", onsubmit: (event) => { event.preventDefault(); run(); } }, query,
      h("div", { class: "row" }, button, past,
        EXAMPLES.map(([name, text]) => h("button", { type: "button", class: "plain", onclick: () => { query.value = text; run(); } }, name))));
    query.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); run(); } });
    main.append(h("p", { class: "lead" }, "The log in SQL: tables messages, services, consumers and subscriptions. A query changes nothing, and ends after 10 seconds. Ctrl-Enter runs it."),
      h("section", { class: "sheet", "aria-label": "Query" }, form), said, h("section", { "aria-label": "Answer" }, found));

    function history() {
      fill(past, h("option", { value: "" }, "History"), remembered().map((each) => h("option", { value: each }, each.replace(/\s+/g, " ").slice(0, 80))));
    }

    async function run() {
      const asked = query.value.trim();
      if (!asked || button.disabled) return;
      button.disabled = true;
      fill(said, notice("Running …"));
      try {
        const answer = await change("/api/sql", { query: asked });
        remember(asked);
        history();
        if (closed) return;
        fill(said);
        const more = answer.more ? ", of more" : "";
        fill(found, answer.rows.length ? [chart(answer),
          table(`${count(answer.rows.length)} ${answer.rows.length === 1 ? "row" : "rows"}${more}, exact up to message ${count(answer.head)}`,
            answer.columns.map(({ name, type }, place) => [name, (row) => shown(row[place]), { n: /^u?int|double|float|decimal/.test(type) }]), answer.rows)]
          : empty(`No rows; exact up to message ${count(answer.head)}.`));
      } catch (error) {
        if (closed) return;
        fill(found);
        complain(said, error);
      } finally {
        button.disabled = false;
      }
    }

    history();
    if (given.get("q")) run();
    return () => { closed = true; };
  },
};
