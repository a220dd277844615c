// Elements without a framework: h("td", { class: "n" }, "12"). Text is always text, never markup.
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...real(children));
  return element;
}

const real = (children) => children.flat().filter((child) => child !== null && child !== undefined && child !== false);

export function fill(element, ...children) {
  element.replaceChildren(...real(children));
  return element;
}

// Do what draws an element anew, and leave the reader where they were: on what had the focus, and as far as they had scrolled.
// What has the focus is found again by its data-key, or else by its place.
export function inPlace(element, draw) {
  const active = document.activeElement;
  const path = [];
  if (active !== element && element.contains(active)) {
    for (let each = active; each !== element; each = each.parentElement) path.unshift([...each.parentElement.children].indexOf(each));
  }
  const scrolled = [...element.querySelectorAll(".scroll, pre")].map((each) => [each.scrollLeft, each.scrollTop]);
  draw();
  [...element.querySelectorAll(".scroll, pre")].forEach((each, place) => { [each.scrollLeft, each.scrollTop] = scrolled[place] ?? [0, 0]; });
  if (!path.length || document.activeElement === active) return;
  const key = active.dataset.key;
  const found = (key && element.querySelector(`[data-key="${CSS.escape(key)}"]`)) || path.reduce((each, place) => each?.children[place], element);
  found?.focus({ preventScroll: true });
}

// Content that is drawn again and again. What is the same stays as it is, so that it can be selected and stood upon.
export function show(element, ...children) {
  const fresh = element.cloneNode(false);
  fresh.append(...real(children));
  if (!fresh.isEqualNode(element)) inPlace(element, () => element.replaceChildren(...fresh.childNodes));
  return element;
}

export function fact(label, value, note = "", tone = "") {
  return h("div", { class: "fact", "data-tone": tone || null }, h("dt", {}, label),
    h("dd", {}, value, h("small", {}, note)));
}

export function empty(text, command = "") {
  return h("div", { class: "empty" }, h("div", {}, text), command ? h("pre", { tabindex: "0" }, command) : null);
}

export function notice(text, tone = "") {
  return h("p", { class: "notice", role: tone === "bad" ? "alert" : "status", "data-tone": tone || null }, text);
}

// Say what went wrong with a question; that the hub does not answer at all is said once, above every page.
export function complain(element, error) {
  fill(element, error.unanswered ? null : notice(error.message, "bad"));
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
    throw Object.assign(new Error("The hub does not answer. Is it running?"), { unanswered: true });
  }
  // The session is over, or there was none. The login page itself is told why it was refused.
  if (response.status === 401 && path !== "/login") location.replace(`/login${location.hash}`);
  const body = await response.text();
  const isJson = (response.headers.get("Content-Type") || "").startsWith("application/json");
  const parsed = isJson && body ? JSON.parse(body) : body;
  if (!response.ok) throw new Error((isJson && parsed.error) || body.trim() || `The hub answered ${response.status}.`);
  return parsed;
}

export const change = (path, content) => ask(path, {
  method: "POST", headers: { "X-Headrace": "1", "Content-Type": "application/json" }, body: JSON.stringify(content),
});
