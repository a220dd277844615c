// Pages by the address's fragment: #/stream?topic=orders/*. A page is { title, open(main, query) -> close() }.
import { change, fill, h, notice, show } from "./dom.js";
import { begin, identify, listen } from "./store.js";
import cluster from "./cluster.js";
import connections from "./connections.js";
import consumers from "./consumers.js";
import overview from "./overview.js";
import pipeline from "./pipeline.js";
import services from "./services.js";
import settings from "./settings.js";
import sql from "./sql.js";
import stream from "./stream.js";
import subscriptions from "./subscriptions.js";
import topics from "./topics.js";

const pages = { overview, stream, topics, services, consumers, subscriptions, connections, cluster, pipeline, sql, settings };
// The right that a page needs as a whole.
const needs = { topics: "admin", consumers: "admin", subscriptions: "admin", connections: "admin", cluster: "admin", pipeline: "admin", settings: "admin" };
const main = document.getElementById("main");
const links = {};
let close = () => {};
let shown = null;

for (const [name, page] of Object.entries(pages)) {
  links[name] = h("a", { href: `#/${name}` }, page.title);
  document.getElementById("pages").append(h("li", { "data-needs": needs[name] }, links[name]));
}

// What we may not do is not offered: the style sheet hides whatever needs a right that we lack.
identify().then(({ name, session, anonymous, login, may }) => {
  document.body.dataset.lacks = Object.keys(may).filter((action) => !may[action]).join(" ");
  const leave = async () => { await change("/logout", {}); location.replace("/login"); };
  fill(document.getElementById("who"),
    anonymous ? null : h("span", { class: "who", title: name }, name),
    session ? h("button", { type: "button", class: "plain", onclick: leave }, "Log out") : null,
    anonymous && login ? h("a", { href: `/login${location.hash}` }, "Log in") : null);
});

function route() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const name = pages[path] ? path : "overview";
  close();
  for (const [each, link] of Object.entries(links)) {
    if (each === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${pages[name].title} · Headrace`;
  fill(main, h("h1", {}, pages[name].title));
  close = pages[name].open(main, new URLSearchParams(query)) || (() => {});
  // Who moves by keyboard or ear goes on at the new page; the first page leaves the focus where it is.
  if (shown !== null && shown !== name) main.focus({ preventScroll: true });
  shown = name;
}

const themes = { "": ["◐", "as the system has them"], light: ["☀", "light"], dark: ["☾", "dark"] };
const button = document.getElementById("theme");

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  button.textContent = themes[theme][0];
  button.setAttribute("aria-label", `Colours: ${themes[theme][1]}`);
}

let theme = "";
try {
  theme = localStorage.getItem("headrace-theme") || "";
} catch { /* A browser that keeps nothing shows the system's colours. */ }
setTheme(themes[theme] ? theme : "");
button.addEventListener("click", () => {
  const order = Object.keys(themes);
  theme = order[(order.indexOf(theme) + 1) % order.length];
  setTheme(theme);
  try {
    localStorage.setItem("headrace-theme", theme);
  } catch { /* Then it holds until the page is closed. */ }
});

const connection = document.getElementById("connection");
const lost = document.getElementById("lost");
begin(({ state, problem }) => {
  connection.dataset.state = state;
  connection.textContent = { live: "live", lost: "reconnecting", waiting: "connecting" }[state];
  show(lost, state === "lost" ? notice(`${problem} This page tries again by itself; what it shows is from before.`, "bad") : null);
});
const insecure = document.getElementById("insecure");
listen(({ status }) => {
  const doors = status?.insecure ?? [];
  show(insecure, doors.length ? notice(`Insecure: everyone who reaches ${doors.join(", ")} may do everything there.`, "bad") : null);
});
window.addEventListener("hashchange", route);
window.addEventListener("error", (event) => main.prepend(notice(`The page has failed: ${event.message}`, "bad")));
route();
