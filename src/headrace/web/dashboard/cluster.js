import { empty, fact, h, notice, show, table } from "./dom.js";
import { count, span } from "./format.js";
import { listen } from "./store.js";

export const MODES = { WRK: "working", DSC: "discovering", ERR: "failed", FRONTEND: "frontend" };
// What a mode means, for whoever meets the word first.
export const MEANINGS = { WRK: "takes messages", DSC: "looks for the others, or for the log", ERR: "accepts no message", FRONTEND: "passes its upstream's sequence on" };
const tone = (mode) => ({ WRK: "good", DSC: "wary", ERR: "bad" })[mode] || "wary";

const heard = (node) => node.age !== null && node.age !== undefined;

const PEERS = "10.0.0.1:7878,10.0.0.2:7878,10.0.0.3:7878";
const START = `headrace serve --set node.name=a --set listen.parcel=10.0.0.1:7878 \\\n  --cluster mill --peers ${PEERS}`;

// What a hub without a cluster is, and how it would become one of several.
function alone({ upstream, doors }) {
  if (upstream) return empty("This hub is a frontend: it takes its sequence, with the same numbers, from its upstream, and has no vote.");
  return [
    h("h2", {}, "This hub is alone"),
    h("p", {}, "It numbers every message itself and keeps the only copy of the log. That is fine for one machine; three hubs keep one sequence together and go on when one is lost."),
    h("p", {}, "On three machines, each with a name and an address of its own:"), h("pre", { tabindex: "0" }, START),
    h("p", {}, "To try it on this one, in a copy of the repository:"), h("pre", { tabindex: "0" }, "python examples/cluster/run.py"),
    doors.parcel ? h("p", { class: "faint" }, "The sequence number can be asked for by parcel at ", h("code", {}, doors.parcel), ".") : null,
  ];
}

export default {
  title: "Cluster",
  open(main) {
    const said = h("div", {});
    const facts = h("dl", { class: "facts" });
    const nodes = h("section", { class: "sheet", "aria-label": "Nodes" });
    main.append(h("p", { class: "lead" }, "The hubs that keep this sequence together."), said, facts, nodes);
    return listen(({ status }) => {
      if (!status) return;
      const { cluster, upstream } = status;
      const there = cluster?.nodes?.filter((node) => heard(node) && node.mode === "WRK").length;
      show(said, cluster?.problem ? notice(`${cluster.problem}.`, "bad") : null);
      show(facts, fact("This node", status.node.name, `id ${status.node.id}`), fact("Mode", MODES[status.mode] ?? status.mode, MEANINGS[status.mode] ?? "", status.mode === "ERR" ? "bad" : ""),
        fact("Head", count(status.head), status.tail > status.head ? `${count(status.tail - status.head)} not yet committed` : ""),
        cluster ? fact("View", count(cluster.view), cluster.primary ? `primary ${cluster.primary}` : "no primary") : null,
        upstream ? fact("Upstream", upstream.url ?? String(upstream), upstream.connected === false ? "not reached" : "", upstream.connected === false ? "bad" : "") : null);
      show(nodes, cluster?.nodes?.length ? table(`${cluster.name || "The cluster"}: ${there} of ${cluster.nodes.length} nodes are working`, [
        ["Node", (node) => node.name], ["Address", (node) => h("code", {}, node.host)],
        ["Mode", (node) => (heard(node) ? h("span", { class: "pill", "data-tone": tone(node.mode), title: node.mode }, MODES[node.mode] ?? node.mode) : h("span", { class: "pill", "data-tone": "bad" }, "silent"))],
        ["Role", (node) => (heard(node) ? node.role ?? "" : ""), { narrow: true }],
        ["Has", (node) => (heard(node) && node.head !== null ? count(node.head) : "–"), { n: true, narrow: true }],
        ["Last heard", (node) => (node.name === status.node.name ? "itself" : heard(node) ? `${span(node.age)} ago` : "not now"), { n: true }],
      ], cluster.nodes) : alone(status));
    });
  },
};
