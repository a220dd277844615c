import { Chart } from "./chart.js";
import { ask, empty, fill, h, notice, table } from "./dom.js";
import { bytes, count, rate, span } from "./format.js";
import { listen } from "./store.js";

const EACH = 2000;
const MINUTES = 5;

export default {
  title: "Pipeline",
  open(main) {
    const jobs = h("section", { class: "sheet", "aria-label": "Jobs" });
    const said = h("div", {});
    const findings = h("section", { class: "sheet", "aria-label": "Findings of verify" });
    const tops = h("div", {});
    const counted = new Chart("Messages a second", { caption: true });
    const lagged = new Chart("Seconds until Spark has a message, by percentile", { caption: true, format: (value) => value.toFixed(2) });
    const measured = h("section", { class: "sheet", "aria-label": "Measured" }, h("h2", {}, "Measured"), counted.element, lagged.element, tops);
    main.append(h("p", { class: "lead" }, "The Spark jobs that read the sequence, and what they found."), said, jobs, h("div", { class: "grid" }, findings, measured));

    const stop = listen(({ status, samples }) => {
      const pipeline = status?.pipeline;
      const running = Object.entries(pipeline?.jobs ?? {});
      const silent = pipeline && pipeline.age > 10;
      fill(jobs, h("h2", {}, "Jobs"),
        silent ? notice(`The pipeline has not reported for ${span(pipeline.age)}. Is it still running?`) : null,
        running.length ? table("Spark's own progress, job by job", [
          ["Job", ([name]) => name],
          ["State", ([, job]) => h("span", { class: "pill", "data-tone": silent ? "wary" : job.state === "running" ? "good" : "bad" }, job.state ?? "unknown")],
          ["Rows/s", ([, job]) => rate(job.rows_per_second ?? 0), { n: true }],
          ["Last batch", ([, job]) => (job.batch_seconds === undefined ? "" : `${count(job.rows)} rows in ${job.batch_seconds.toFixed(2)} s`), { n: true, narrow: true }],
          ["Behind", ([, job]) => (job.behind === null || job.behind === undefined ? "" : count(job.behind)), { n: true }],
        ], running) : empty("No Spark job reports to this hub. Hub and pipeline together:", "headrace up"));
      const windows = Object.entries(status?.measure ?? {});
      const measured = samples.slice(-MINUTES * 60).filter((sample) => "rate" in (sample.measured ?? {}));
      const times = measured.map((sample) => sample.time);
      counted.update(times, { messages: measured.map((sample) => sample.measured.rate) });
      lagged.update(times, Object.fromEntries(["p50", "p90", "p99"]
        .map((name) => [name, measured.map((sample) => sample.measured[name] ?? 0)])));
      fill(tops, windows.length ? table("The newest window of each length", [
        ["Window", ([name]) => h("a", { href: `#/services?id=measure/${name}` }, name)],
        ["Messages", ([, each]) => count(each.messages ?? 0), { n: true }],
        ["Bytes", ([, each]) => bytes(each.bytes ?? 0), { n: true }],
        ["Publishers", ([, each]) => count(each.publishers ?? 0), { n: true, narrow: true }],
        ["Top topics", ([, each]) => (each.topics ?? []).slice(0, 3).map(({ topic }) => topic || "none").join(", "), { narrow: true }],
      ], windows) : empty("The job measure has not reported here yet. To run it:", "headrace pipeline run measure"));
    });

    async function look() {
      try {
        const { services } = await ask("/api/services?contains=verify&count=20");
        const verify = services.find((service) => service.id === "verify");
        const value = verify ? (await ask("/api/service?id=verify")).value : null;
        fill(findings, h("h2", {}, "Findings of verify"), value === null ? empty("The job verify has not reported here yet. To run it:", "headrace pipeline run verify") : h("pre", {}, pretty(value)));
        fill(said);
      } catch (error) {
        fill(said, notice(error.message, "bad"));
      }
    }

    look();
    const timer = setInterval(look, EACH);
    return () => { clearInterval(timer); stop(); };
  },
};

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

