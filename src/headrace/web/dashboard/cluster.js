import { empty, fact, fill, h, table } from "./dom.js";
import { count, span } from "./format.js";
import { listen } from "./store.js";

const tone = (mode) => ({ WRK: "good", DSC: "wary", ERR: "bad" })[mode] || "wary";

export default {
  title: "Cluster",
  open(main) {
    const facts = h("dl", { class: "facts" });
    const nodes = h("section", { class: "sheet", "aria-label": "Nodes" });
    main.append(h("p", { class: "lead" }, "The hubs that keep this sequence together."), facts, nodes);
    return listen(({ status }) => {
      if (!status) return;
      const { cluster, upstream } = status;
      fill(facts, fact("This node", status.node.name, `id ${status.node.id}`), fact("Mode", status.mode, "", status.mode === "ERR" ? "bad" : ""),
        fact("Head", count(status.head)), cluster ? fact("View", count(cluster.view), cluster.primary ? `primary ${cluster.primary}` : "no primary") : null,
        upstream ? fact("Upstream", upstream.url ?? String(upstream), upstream.connected === false ? "not reached" : "") : null);
      fill(nodes, cluster?.nodes?.length ? table("Nodes", [
        ["Node", (node) => node.name], ["Address", (node) => h("code", {}, node.host)],
        ["Mode", (node) => h("span", { class: "pill", "data-tone": tone(node.mode) }, node.mode)],
        ["Role", (node) => node.role ?? "", { narrow: true }],
        ["Has", (node) => (node.head === undefined ? "" : count(node.head)), { n: true, narrow: true }],
        ["Last heard", (node) => (node.age === undefined || node.age === null ? "itself" : `${span(node.age)} ago`), { n: true }],
      ], cluster.nodes) : empty(upstream ? "This hub is a frontend: it takes its sequence from its upstream and votes nowhere."
        : "This hub is alone. Three on one machine, to try it:", upstream ? "" : "headrace serve --cluster NAME --peers a:7878,b:7878,c:7878"));
    });
  },
};
