// Numbers and times as people read them.
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (value) => whole.format(value);

export function rate(value) {
  if (value >= 10000) return short.format(value);
  return value >= 100 || Number.isInteger(value) ? whole.format(value) : value.toFixed(1);
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return `${unit && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

export function span(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${Math.round(seconds / 86400)} days`;
}

export function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString("en-GB");
}

// A message's time: microseconds since 1970.
export function moment(microseconds) {
  const date = new Date(microseconds / 1000);
  return `${date.toLocaleDateString("sv")} ${date.toLocaleTimeString("en-GB")}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}

// The same as short as it can be said: today's without the date.
export function brief(microseconds) {
  const [day, time] = moment(microseconds).split(" ");
  return day === new Date().toLocaleDateString("sv") ? time : `${day} ${time}`;
}

// One colour for each protocol, in every chart and list; its door has the same.
const COLOURS = { fyrehose: 1, spp: 2, attribute: 3, publisher: 3, sdk: 3, tube: 4, spark: 5, http: 6, replay: 7, consumer: 8, "dead letter": 8 };

export const colourNumber = (name) => COLOURS[name] ?? COLOURS[name.split(/[ _/]/)[0]] ?? null;

export const plural = (number, what) => `${count(number)} ${what}${number === 1 ? "" : "s"}`;

// Attributes as people write them: city=Praha speed=61 street="Na Příkopě" zip="11000" (in quotes it is text).
// A comma between two of them is welcome; one inside a value could be either, so the value has to be quoted.
export function attributesOf(text) {
  const found = {};
  for (const [given] of text.matchAll(/(?:[^\s"]|"[^"]*"?)+/g)) {
    const part = given.replace(/,$/, "");
    if (!part) continue;
    const at = part.indexOf("=");
    if (at < 1 || /[<>!^~|]/.test(part.slice(0, at))) throw new Error(`${part}: expected name=value, as in city=Praha x=5.5`);
    const name = part.slice(0, at);
    const value = part.slice(at + 1);
    if (value.includes(",") && !value.startsWith('"')) throw new Error(`${part}: put a blank between attributes, or quotes around the value: ${name}="${value}"`);
    if (/^[^"]*(\||\.\.)/.test(value)) throw new Error(`${part}: an attribute has one value; if this is its text, put quotes around it: ${name}="${value}"`);
    if (Object.hasOwn(found, name)) throw new Error(`${part}: ${name} is given twice`);
    if (value.startsWith('"') && !(value.length > 1 && value.endsWith('"'))) throw new Error(`${part}: the quote does not end`);
    if (value.startsWith('"')) found[name] = value.slice(1, -1);
    else found[name] = value !== "" && Number.isFinite(Number(value)) ? Number(value) : value;
  }
  return found;
}

export function hex(binary) {
  const lines = [];
  for (let at = 0; at < binary.length; at += 16) {
    const part = binary.slice(at, at + 16);
    const codes = Array.from(part, (byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const text = Array.from(part, (byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${codes.padEnd(47)}  ${text}`);
  }
  return lines.join("\n");
}

// A payload as the API gives it: text, or base64 where it is not UTF-8.
export function payloadBytes(message, key = "payload") {
  if (message[key] !== undefined) return new TextEncoder().encode(message[key]);
  return Uint8Array.from(atob(message[`${key}_base64`] || ""), (character) => character.charCodeAt(0));
}

export function payloadLine(message, key = "payload") {
  if (message[key] !== undefined) return message[key].replace(/\s+/g, " ");
  return `0x${Array.from(payloadBytes(message, key).slice(0, 48), (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}
