import { Chart, series } from "./chart.js";
import { ask, complain, empty, fill, h, notice, show, table } from "./dom.js";
import { bytes, count, plural, rate, span } from "./format.js";
import { listen } from "./store.js";

const EACH = 2000;
const MINUTES = 5;
const SILENT = 10;
const seconds = (value) => value.toFixed(2);

// What verify looks for, as docs/pipeline.md has it.
const KINDS = {
  hole: "messages that are not there, between messages that are",
  repeat: "messages that come a second time",
  disorder: "messages behind others that should follow them",
  number: "a publisher's own numbers that do not increase with the sequence",
  time: "a message that is older than one before it",
  disagreement: "the same number, but not the same message, in the logs of two hubs",
};

// A chart of one figure of each job, from the samples.
class JobChart extends Chart {
  constructor(title, figure, options = {}) {
    super(title, { caption: true, ...options });
    this.figure = figure;
  }

  take(samples) {
    const figures = (sample) => Object.fromEntries(Object.entries(sample.jobs ?? {})
      .filter(([, job]) => this.figure in job).map(([name, job]) => [name, job[this.figure]]));
    this.update(samples.map((sample) => sample.time), series(samples, figures, null));
  }
}

export default {
  title: "Pipeline",
  open(main) {
    const said = h("div", {});
    const jobs = h("div", {});
    const findings = h("section", { class: "sheet", "aria-label": "Findings of verify" });
    const tops = h("div", {});
    const charts = [new JobChart("Rows a second, by job", "rows_per_second"), new JobChart("Seconds a micro-batch takes, by job", "batch_seconds", { format: seconds }),
      new JobChart("Messages behind the head, by job", "behind")];
    const drawn = h("div", { class: "three", hidden: true }, charts.map((chart) => h("section", { class: "sheet" }, chart.element)));
    const counted = new Chart("Messages a second", { caption: true });
    const lagged = new Chart("Seconds until Spark has a message, by percentile", { caption: true, format: seconds });
    const measures = h("div", { class: "pair", hidden: true }, counted.element, lagged.element);
    main.append(h("p", { class: "lead" }, "The Spark jobs that read the sequence, and what they found."), said,
      h("section", { class: "sheet", "aria-label": "Jobs" }, h("h2", {}, "Jobs"), jobs), drawn,
      h("section", { class: "sheet", "aria-label": "Measured" }, h("h2", {}, "Measured"), measures, tops), findings);

    const stop = listen(({ status, samples }) => {
      const pipeline = status?.pipeline;
      const running = Object.entries(pipeline?.jobs ?? {});
      const silent = pipeline && pipeline.age > SILENT;
      const recent = samples.slice(-MINUTES * 60);
      show(jobs,
        silent ? notice(`The pipeline has not reported for ${span(pipeline.age)}. Is it still running?`) : null,
        running.filter(([, job]) => job.error && job.state !== "running").map(([name, job]) => notice(`${name}: ${job.error}`)),
        running.length ? [about(pipeline), table("Spark's own progress, job by job", [
          ["Job", ([name]) => name],
          ["State", ([, job]) => h("span", { class: "pill", "data-tone": silent ? "wary" : job.state === "running" ? "good" : "bad" }, job.state ?? "unknown")],
          ["Rows/s", ([, job]) => rate(job.rows_per_second ?? 0), { n: true }],
          ["Last batch", ([, job]) => (job.batch_seconds === undefined ? "" : `${plural(job.rows ?? 0, "row")} in ${seconds(job.batch_seconds)} s`), { n: true, narrow: true }],
          ["Behind", ([, job]) => (job.behind === null || job.behind === undefined ? "" : count(job.behind)), { n: true }],
        ], running)] : empty("No Spark job reports to this hub. Hub and pipeline together:", "headrace up"));
      drawn.hidden = !recent.some((sample) => Object.keys(sample.jobs ?? {}).length);
      for (const chart of charts) chart.take(recent);
      const windows = Object.entries(status?.measure ?? {});
      const times = recent.map((sample) => sample.time);
      const measured = (name) => recent.map((sample) => sample.measured[name] ?? null);
      measures.hidden = !windows.length;
      counted.update(times, { messages: measured("rate") });
      lagged.update(times, Object.fromEntries(["p50", "p90", "p99"].map((name) => [name, measured(name)])));
      show(tops, windows.length ? table("The newest window of each length", [
        ["Window", ([name]) => h("a", { href: `#/services?id=measure/${name}` }, name)],
        ["Messages", ([, each]) => count(each.messages ?? 0), { n: true }],
        ["Bytes", ([, each]) => bytes(each.bytes ?? 0), { n: true }],
        ["Publishers", ([, each]) => count(each.publishers ?? 0), { n: true, narrow: true }],
        ["Top topics", ([, each]) => (each.topics ?? []).slice(0, 3).map(({ topic }) => topic || "none").join(", "), { narrow: true }],
      ], windows) : pipeline?.jobs?.measure && !silent ? empty("The job measure runs. It tells of messages as soon as there are some.")
        : empty("The job measure has not reported here yet. To run it:", "headrace pipeline run measure"));
    });

    async function look() {
      try {
        const { services } = await ask("/api/services?contains=verify&count=20");
        const known = services.some((service) => service.id === "verify");
        const value = known ? (await ask("/api/service?id=verify")).value : null;
        show(findings, h("h2", {}, "Findings of verify"), value === null
          ? empty("The job verify has not reported here yet. To run it:", "headrace pipeline run verify") : account(value));
        fill(said);
      } catch (error) {
        complain(said, error);
      }
    }

    look();
    const timer = setInterval(look, EACH);
    return () => { clearInterval(timer); stop(); };
  },
};

// Where the pipeline runs; Spark's own pages, where there are some.
function about({ master, ui }) {
  return master ? h("p", { class: "faint" }, `On ${master}.`, ui && /^https?:/.test(ui) ? [" Spark has ", h("a", { href: ui }, "pages of its own"), "."] : null) : null;
}

// What verify says it found. Anybody may publish under that name: what is no account is shown as it is.
function account(text) {
  let found;
  try {
    found = JSON.parse(text);
  } catch { /* Then it is text. */ }
  if (!Number.isInteger(found?.findings) || typeof found.kinds !== "object") return h("pre", { tabindex: "0" }, text);
  if (!found.findings) return h("p", { class: "notice", "data-tone": "good" }, "Nothing is missing, repeated or out of order.");
  const { newest } = found;
  return [
    h("p", { class: "notice", "data-tone": "bad" }, `${plural(found.findings, "finding")}. The files under the job's path have each with its evidence.`),
    table("By kind", [
      ["Kind", ([name]) => name], ["What that is", ([name]) => KINDS[name] ?? "", { narrow: true }], ["Findings", ([, number]) => count(number), { n: true }],
    ], Object.entries(found.kinds)),
    newest ? h("p", {}, `The newest: ${newest.kind}, `, h("a", { href: `#/stream?seq=${newest.first}` }, `message ${count(newest.first)}`),
      newest.last > newest.first ? ` to ${count(newest.last)}` : "", newest.server ? ` of ${newest.server}` : "", `: ${newest.evidence}`) : null,
  ];
}
