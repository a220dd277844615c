import { ask, change, complain, empty, fill, h, notice, show, table } from "./dom.js";
import { bytes, count, span } from "./format.js";

const EACH = 2000;

export default {
  title: "Connections",
  open(main) {
    let closed = false;
    // Bytes of the last look, for rates.
    let before = new Map();
    let looked = 0;
    const search = h("input", { type: "search", placeholder: "part of an address, a door or a name", "aria-label": "Find a connection", oninput: () => list() });
    const said = h("div", {});
    const told = h("div", { "aria-live": "polite" });
    const found = h("div", {});
    main.append(h("p", { class: "lead" }, "Who is connected, at which door, and how much goes in and out."), said, told,
      h("section", { class: "sheet stack", "aria-label": "Connections" }, search, found));

    async function list() {
      try {
        const { connections, total } = await ask(`/api/connections?contains=${encodeURIComponent(search.value.trim())}`);
        if (closed) return;
        fill(said);
        const now = performance.now();
        const seconds = (now - looked) / 1000;
        const rates = new Map(connections.map((each) => {
          const [received, sent] = before.get(each.connection) ?? [each.received, each.sent];
          return [each.connection, [(each.received - received) / seconds, (each.sent - sent) / seconds]];
        }));
        before = new Map(connections.map((each) => [each.connection, [each.received, each.sent]]));
        looked = now;
        show(found, connections.length ? table(`${count(connections.length)} of ${count(total)}, the fullest queue first`, [
          ["Door", (row) => row.door],
          ["Peer", (row) => h("code", {}, row.peer)],
          ["Who", (row) => row.principal, { narrow: true }],
          ["Since", (row) => span(row.seconds), { n: true, narrow: true }],
          ["In/s", (row) => bytes(rates.get(row.connection)[0]), { n: true, narrow: true }],
          ["Out/s", (row) => bytes(rates.get(row.connection)[1]), { n: true, narrow: true }],
          ["Waiting", (row) => bytes(row.queued), { n: true }],
          ["", (row) => h("button", { type: "button", "data-key": `close-${row.connection}`, "aria-label": `Close the connection of ${row.peer}`, onclick: () => end(row) }, "Close")],
        ], connections) : empty(search.value ? "None has that." : "Nobody is connected."));
      } catch (error) {
        complain(said, error);
      }
    }

    async function end({ connection, peer }) {
      if (!confirm(`Close the connection of ${peer}? Most clients connect again.`)) return;
      try {
        await change("/api/connections/close", { connection });
        fill(told, notice(`The connection of ${peer} is closed.`));
        list();
      } catch (error) {
        fill(told, notice(error.message, "bad"));
      }
    }

    list();
    const timer = setInterval(list, EACH);
    return () => { closed = true; clearInterval(timer); };
  },
};
