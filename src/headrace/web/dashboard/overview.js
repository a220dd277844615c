import { Chart, series } from "./chart.js";
import { MEANINGS, MODES } from "./cluster.js";
import { empty, fact, h, notice, show, table } from "./dom.js";
import { bytes, count, plural, rate, span } from "./format.js";
import { listen } from "./store.js";

const MINUTES = 5;

const sum = (rates) => Object.values(rates).reduce((total, value) => total + value, 0);

// The durable consumer or hold that is furthest behind: its name, and by how many messages, at most.
function furthest({ head, holds, consumers }) {
  const lags = Object.entries(holds).map(([name, seq]) => [name, consumers[name.replace(/^consumer\//, "")] ?? { behind: head + 1 - seq, behind_exact: true }]);
  return lags.sort(([, one], [, other]) => other.behind - one.behind)[0] ?? ["no consumer or hold", { behind: 0, behind_exact: true }];
}

function flat(counters, name) {
  const value = counters[name];
  if (value === undefined) return [];
  return typeof value === "object" ? Object.entries(value) : [["", value]];
}

export default {
  title: "Overview",
  open(main) {
    const incoming = new Chart("Messages in, per second, by protocol");
    const outgoing = new Chart("Messages out, per second, by door");
    const trouble = new Chart("Refusals, repairs and skips, per second");
    const disk = new Chart("Log on disk", { format: bytes, binary: true });
    const warnings = h("div", {});
    const facts = h("dl", { class: "facts" });
    const doors = h("section", { class: "sheet", "aria-label": "Doors" });
    const counts = h("section", { class: "sheet", "aria-label": "What went wrong" });
    const charts = h("div", { class: "grid" }, [["In", incoming], ["Out", outgoing], ["Refused and repaired", trouble], ["Disk", disk]]
      .map(([title, chart]) => h("section", { class: "sheet" }, h("h2", {}, title), chart.element)));
    main.append(warnings, facts, charts, h("div", { class: "grid" }, doors, counts));
    return listen(({ status, samples }) => {
      const recent = samples.slice(-MINUTES * 60);
      const last = recent.at(-1);
      const times = recent.map((sample) => sample.time);
      incoming.update(times, series(recent, (sample) => sample.received));
      outgoing.update(times, series(recent, (sample) => sample.delivered));
      trouble.update(times, series(recent, ({ refused, repaired, skipped, conflated }) => ({ refused, repaired, skipped, conflated })));
      disk.update(times, { bytes: recent.map((sample) => sample.bytes) });
      if (!status) return;
      const mode = MODES[status.mode] ?? status.mode;
      if (!status.disk) {
        // Without the right admin, a principal is told nothing of how the hub and its other clients are doing.
        charts.hidden = doors.hidden = counts.hidden = true;
        show(facts, fact("Head of the sequence", count(status.head)), fact("Mode", mode, status.node.name, status.mode === "ERR" ? "bad" : ""),
          fact("Up", span(status.uptime), `version ${status.version}`));
        return;
      }
      const kept = status.head - status.first + 1;
      const [slowest, lag] = furthest(status);
      show(facts,
        fact("Head of the sequence", count(status.head), status.tail > status.head ? `${count(status.tail - status.head)} not yet committed` : ""),
        fact("In", rate(last ? sum(last.received) : 0), "messages/s"),
        fact("Out", rate(last ? sum(last.delivered) : 0), "messages/s"),
        fact("Kept", count(kept), `${bytes(status.disk.bytes)} in ${plural(status.disk.segments, "segment")}`),
        fact("Furthest behind", `${lag.behind_exact ? "" : "≤ "}${count(lag.behind)}`, slowest, lag.behind > 1e6 ? "wary" : ""),
        fact("Connections", count(status.connections)),
        fact("Mode", mode, `${status.node.name}, ${MEANINGS[status.mode] ?? ""}, fsync ${status.fsync}`, status.mode === "ERR" ? "bad" : ""),
        fact("Up", span(status.uptime), `version ${status.version}`));
      show(warnings,
        status.head === 0 && !status.upstream ? h("section", { class: "sheet", "aria-label": "Begin" }, empty("Nothing has been published yet. A first message, from a terminal:", "headrace pub 'hello, world' --topic greetings"),
          h("p", { class: "centre faint" }, "Or use the form on the page ", h("a", { href: "#/stream" }, "Stream"), ". ", h("code", {}, "headrace demo"), " shows everything at work, in a minute.")) : null,
        status.alerts.map(({ problem, remedy, grave }) => notice(`${problem[0].toUpperCase()}${problem.slice(1)}. What to do: ${remedy}.`, grave ? "bad" : "")));
      show(doors, h("h2", {}, "Doors"), table("Where each door listens", [
        ["Door", ([name]) => name],
        ["Address", ([, address]) => h("code", {}, address)],
      ], Object.entries(status.doors)));
      const wrong = ["refused", "refused_messages", "skipped", "unavailable", "undeliverable", "dropped", "cut_off", "consumer_dead", "consumer_lost", "reader_lost", "consumers_expired", "rate_pauses", "memory_shortages", "slow_turns"]
        .flatMap((name) => flat(status.counters, name).map(([labels, value]) => [name.replaceAll("_", " "), labels, value]));
      show(counts, h("h2", {}, "Refused, dropped and lost"), wrong.length ? table("Since the hub started", [
        ["What", ([name]) => name],
        ["Where and why", ([, labels]) => labels.split("/").join(" · ")],
        ["Count", ([, , value]) => count(value), { n: true }],
      ], wrong) : empty("Nothing since the hub started."));
    });
  },
};
