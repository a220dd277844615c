import { ask, complain, empty, h, show, table } from "./dom.js";
import { bytes, count } from "./format.js";
import { listen } from "./store.js";

const shown = (value) => (Array.isArray(value) ? value.join(", ") : value !== null && typeof value === "object" ? JSON.stringify(value) : value === null ? "off" : String(value));

export default {
  title: "Settings",
  open(main) {
    let all = [];
    const search = h("input", { type: "search", placeholder: "part of a name or of what it means", "aria-label": "Find a setting", oninput: () => list() });
    const changed = h("input", { type: "checkbox", onchange: () => list() });
    const said = h("div", {});
    const found = h("div", {});
    const holds = h("section", { class: "sheet", "aria-label": "Holds and retention" });
    main.append(h("p", { class: "lead" }, "The settings in effect, and where each came from. They are changed in the configuration file."), said, holds,
      h("section", { class: "sheet stack", "aria-label": "Settings" }, h("div", { class: "row" }, search, h("label", { class: "check" }, changed, "Only what is not the default")), found));

    function list() {
      const part = search.value.trim().toLowerCase();
      const rows = all.filter((row) => (!changed.checked || row.source !== "default") && (row.setting.includes(part) || row.doc.toLowerCase().includes(part)));
      show(found, rows.length ? table(`${count(rows.length)} of ${count(all.length)}`, [
        ["Setting", (row) => h("code", {}, row.setting)],
        ["Value", (row) => h("code", {}, shown(row.value))],
        ["From", (row) => row.source, { narrow: true }],
        ["Meaning", (row) => row.doc.replaceAll("`", ""), { narrow: true }],
      ], rows) : empty("No setting has that."));
    }

    ask("/api/settings").then(({ settings }) => { all = settings; list(); }).catch((error) => complain(said, error));
    return listen(({ status }) => {
      if (!status) return;
      const held = Object.entries(status.holds);
      show(holds, h("h2", {}, "Holds and retention"),
        h("p", {}, status.first > status.head
            ? "There are no messages yet."
            : `Messages ${count(status.first)} to ${count(status.head)} are kept, ${bytes(status.disk.bytes)}.`),
        held.length ? table("What keeps the log from being trimmed, up to log.retain_bytes", [
          ["Held by", ([name]) => name],
          ["From", ([, seq]) => count(seq), { n: true }],
          ["Messages", ([, seq]) => count(Math.max(0, status.head + 1 - seq)), { n: true }],
        ], held) : empty("Nothing is held: retention alone decides."));
    });
  },
};
