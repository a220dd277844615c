import { ask, complain, empty, fill, h, inPlace, notice, show, table } from "./dom.js";
import { brief, bytes, count, moment, payloadLine } from "./format.js";
import { payloadView } from "./stream.js";

const EACH = 2000;

export default {
  title: "Services",
  open(main, given) {
    let source = null;
    let again = null;
    let closed = false;
    let chosen = given.get("id");
    const search = h("input", { type: "search", placeholder: "part of a name", "aria-label": "Find a service", oninput: () => list() });
    const said = h("div", {});
    const found = h("div", {});
    // Values change many times a second: a screen reader is told which service is shown, and reads it when asked to.
    const told = h("p", { class: "unseen", role: "status" });
    const detail = h("section", { class: "sheet", "aria-label": "Service" });
    main.append(h("p", { class: "lead" }, "Named live objects: the value of each, and its last changes."), said, told,
      h("div", { class: "grid" }, h("section", { class: "sheet stack", "aria-label": "Services" }, search, found), detail));

    async function list() {
      try {
        const { services, total } = await ask(`/api/services?contains=${encodeURIComponent(search.value)}`);
        if (closed) return;
        fill(said);
        if (!total) {
          show(found, empty("There are no services yet. Create one by changing it:", "headrace services put fleet/42 '{\"speed\": 61}'"));
          show(detail, empty("A service that you choose is shown here, live."));
          return;
        }
        if (!chosen && services.length) watch(services[0].id);
        show(found, services.length ? table(`${count(services.length)} of ${count(total)}`, [
          ["Service", (row) => h("button", { class: "link", type: "button", "data-key": `id-${row.id}`, "aria-current": row.id === chosen ? "true" : null, onclick: () => choose(row.id) }, row.id)],
          ["Kind", (row) => row.kind, { narrow: true }],
          ["Value", (row) => h("div", { class: "clip" }, payloadLine(row, "value"))],
          ["Changed at", (row) => count(row.seq), { n: true, narrow: true }],
        ], services) : empty("No service has that in its name."));
      } catch (error) {
        complain(said, error);
      }
    }

    function choose(id) {
      watch(id);
      told.textContent = `${id} is shown beside the list.`;
      list();
      // On a phone it is below the list, and beside a long one it is far up.
      const { top } = detail.getBoundingClientRect();
      if (top < 0 || top > window.innerHeight * 0.6) detail.scrollIntoView();
    }

    function watch(id) {
      source?.close();
      clearTimeout(again);
      chosen = id;
      const value = h("div", {});
      const facts = h("dl", { class: "envelope" });
      const changes = h("div", {});
      fill(detail, h("h2", {}, id), facts, value, h("h2", {}, "Changes"), changes);
      source = new EventSource(`/api/service/events?id=${encodeURIComponent(id)}`);
      source.addEventListener("service", (event) => {
        const service = JSON.parse(event.data);
        fill(facts, [["Kind", service.kind], ["Created at", count(service.created)], ["Changed at", count(service.seq)], ["Size", bytes(service.size)]]
          .flatMap(([name, text]) => [h("dt", {}, name), h("dd", {}, text)]));
        inPlace(value, () => fill(value, payloadView(service, "value")));
        history(id, changes);
      });
      source.addEventListener("error", async () => {
        // Where the browser does not try again, the hub has said no; why, it says to who asks plainly.
        if (source.readyState !== EventSource.CLOSED || chosen !== id) return;
        try {
          await ask(`/api/service?id=${encodeURIComponent(id)}`);
          watch(id);
        } catch (error) {
          complain(value, error);
          again = setTimeout(() => { if (chosen === id) watch(id); }, EACH);
        }
      });
      source.addEventListener("removed", () => {
        source.close();
        fill(value, notice("This service has been removed."));
      });
    }

    async function history(id, place) {
      // A service's changes are the messages whose topic is its name; a pattern's stars would mean more than that.
      if (id.includes("*")) return;
      try {
        const { messages, first } = await ask(`/api/messages?count=20&topic=${encodeURIComponent(id)}`);
        show(place, messages.length ? table("The last changes, newest first", [
          ["Number", (row) => h("a", { href: `#/stream?seq=${row.seq}`, "data-key": `seq-${row.seq}` }, count(row.seq)), { n: true }],
          ["Time", (row) => h("time", { title: moment(row.time) }, brief(row.time)), { narrow: true }],
          ["Change", (row) => h("div", { class: "clip" }, payloadLine(row))],
        ], messages.reverse()) : empty(`No change since message ${count(first)}.`));
      } catch (error) {
        complain(place, error);
      }
    }

    list().then(() => { if (given.get("id") && !closed) watch(given.get("id")); });
    const timer = setInterval(list, EACH);
    return () => { closed = true; chosen = null; clearInterval(timer); clearTimeout(again); source?.close(); };
  },
};
