// Elements without a framework: h("td", { class: "n" }, "12"). Text is always text, never markup.
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function fill(element, ...children) {
  element.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function fact(label, value, note = "", tone = "") {
  return h("div", { class: "fact", "data-tone": tone || null }, h("dt", {}, label),
    h("dd", {}, value, h("small", {}, note)));
}

export function empty(text, command = "") {
  return h("div", { class: "empty" }, h("div", {}, text), command ? h("pre", {}, command) : null);
}

export function notice(text, tone = "") {
  return h("p", { class: "notice", role: tone === "bad" ? "alert" : "status", "data-tone": tone || null }, text);
}

// A table whose columns are [heading, cell(row), {n: numeric, narrow: hidden on phones}].
export function table(caption, columns, rows, attributes = () => ({})) {
  const classes = (options = {}) => [options.n ? "n" : "", options.narrow ? "hide-narrow" : ""].join(" ").trim() || null;
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("caption", {}, caption),
      h("thead", {}, h("tr", {}, columns.map(([heading, , options]) => h("th", { scope: "col", class: classes(options) }, heading)))),
      h("tbody", {}, rows.map((row) => h("tr", attributes(row),
        columns.map(([, cell, options]) => h("td", { class: classes(options) }, cell(row))))))));
}

// Ask the hub; an answer that is none becomes an Error that says why.
export async function ask(path, options = {}) {
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Error("The hub does not answer. Is it running?");
  }
  const body = await response.text();
  const isJson = (response.headers.get("Content-Type") || "").startsWith("application/json");
  const parsed = isJson && body ? JSON.parse(body) : body;
  if (!response.ok) throw new Error((isJson && parsed.error) || body.trim() || `The hub answered ${response.status}.`);
  return parsed;
}

export const change = (path, content) => ask(path, {
  method: "POST", headers: { "X-Headrace": "1", "Content-Type": "application/json" }, body: JSON.stringify(content),
});
