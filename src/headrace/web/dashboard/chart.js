// A line chart of the last minutes, as SVG. Series are { name: [values] }, one value for each time, null where there is none.
import { fill, h } from "./dom.js";
import { clock, colourNumber, rate } from "./format.js";

const NS = "http://www.w3.org/2000/svg";
const HEIGHT = 176, LEFT = 52, BOTTOM = 18, TOP = 8;
const GAP = 5; // Seconds without a sample, past which a line is broken: nobody knows what was then.

function s(tag, attributes, text = "") {
  const element = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text) element.textContent = text;
  return element;
}

// The round number at or above a value, where an axis ends; bytes are round in powers of two.
export function ceiling(value, binary) {
  if (value <= 1) return 1;
  if (binary) return 2 ** Math.ceil(Math.log2(value));
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((step) => step * power).find((step) => step >= value);
}

export class Chart {
  constructor(title, { format = rate, unit = "", binary = false, caption = false } = {}) {
    this.title = title;
    this.binary = binary;
    this.width = 640;
    this.format = format;
    this.unit = unit;
    this.colours = new Map();
    this.svg = s("svg", { role: "img", "aria-label": title });
    this.legend = h("ul", { class: "legend" });
    this.element = h("figure", { class: "chart" }, caption ? h("figcaption", {}, title) : null, this.svg, this.legend);
    this.hovered = null;
    this.svg.addEventListener("pointermove", (event) => {
      const box = this.svg.getBoundingClientRect();
      this.hovered = ((event.clientX - box.left) / box.width * this.width - LEFT) / (this.width - LEFT);
      this.draw();
    });
    this.svg.addEventListener("pointerleave", () => { this.hovered = null; this.draw(); });
    this.times = [];
    this.series = {};
    // Drawn in the page's own pixels, so that text is never stretched.
    new ResizeObserver(([entry]) => {
      this.width = Math.max(200, Math.round(entry.contentRect.width));
      this.draw();
    }).observe(this.svg);
  }

  update(times, series) {
    this.times = times;
    this.series = series;
    this.draw();
  }

  colour(name) {
    // A series keeps its colour however many others come and go.
    if (!this.colours.has(name)) this.colours.set(name, `var(--c${colourNumber(name) ?? this.colours.size % 8 + 1})`);
    return this.colours.get(name);
  }

  value(name, at) {
    const value = this.series[name][at];
    return value === null || value === undefined ? "–" : `${this.format(value)}${this.unit}`;
  }

  draw() {
    const { times, series, width } = this;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const names = Object.keys(series);
    const [first, last] = [times[0] ?? 0, times.at(-1) ?? 0];
    const top = ceiling(Math.max(0, ...names.flatMap((name) => series[name])), this.binary);
    const x = (index) => LEFT + (last > first ? (times[index] - first) / (last - first) : 1) * (width - LEFT);
    const y = (value) => TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM);
    this.svg.replaceChildren();
    for (const part of [0, 0.5, 1]) {
      this.svg.append(s("line", { class: "axis", x1: LEFT, x2: width, y1: y(top * part), y2: y(top * part) }),
        s("text", { x: LEFT - 6, y: y(top * part) + 4, "text-anchor": "end" }, this.format(top * part)));
    }
    if (last > first) {
      this.svg.append(s("text", { x: LEFT, y: HEIGHT - 2 }, clock(first)),
        s("text", { x: width, y: HEIGHT - 2, "text-anchor": "end" }, clock(last)));
    }
    for (const name of names) {
      let drawn = -1;
      const path = series[name].map((value, index) => {
        if (value === null) return "";
        const joined = drawn === index - 1 && index && times[index] - times[drawn] <= GAP;
        drawn = index;
        return `${joined ? "L" : "M"}${x(index).toFixed(1)} ${y(value).toFixed(1)}`;
      }).join("");
      this.svg.append(s("path", { d: path, stroke: this.colour(name) }));
    }
    let at = times.length - 1;
    if (this.hovered !== null && last > first) {
      const wanted = first + this.hovered * (last - first);
      at = times.reduce((best, time, index) => (Math.abs(time - wanted) < Math.abs(times[best] - wanted) ? index : best), 0);
      this.svg.append(s("line", { class: "mark", x1: x(at), x2: x(at), y1: TOP, y2: HEIGHT - BOTTOM }));
    }
    const then = this.hovered !== null && times.length ? [h("li", { class: "when" }, clock(times[at]))] : [];
    fill(this.legend, names.map((name) => {
      const item = h("li", {}, `${name} `, h("b", {}, this.value(name, at)));
      item.style.setProperty("--swatch", this.colour(name));
      return item;
    }), then);
    const latest = names.map((name) => `${name} ${this.value(name, times.length - 1)}`).join(", ");
    this.svg.setAttribute("aria-label", `${this.title}: ${latest || "nothing yet"}`);
  }
}

// Samples as series: every name that occurs, and where it is absent what stands for that.
export function series(samples, pick, absent = 0) {
  const names = new Set(samples.flatMap((sample) => Object.keys(pick(sample))));
  return Object.fromEntries([...names].sort().map((name) => [name, samples.map((sample) => pick(sample)[name] ?? absent)]));
}
