// Elements and numbers as text. Names of routers, interfaces and ports are chosen by others, so everything that the API
// answers becomes a text node, never markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** An HTML element. `on…` attributes are listeners; strings among the children become text. */
export function el(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

export const byId = (id) => document.getElementById(id);

/** Sets a text only if it differs, so that selections and screen readers are left alone. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Sets attributes that differ; null removes one. */
export function setAttributes(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null) element.removeAttribute(name);
    else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, String(value));
  }
}

const UNKNOWN = "–";
const PREFIXES = ["", "k", "M", "G", "T", "P"];

/** A number with three significant digits and an SI prefix: `1.23 M`. */
export function si(value, unit) {
  if (value === null || !Number.isFinite(value)) return UNKNOWN;
  let scaled = Math.abs(value);
  let prefix = 0;
  while (scaled >= 999.5 && prefix < PREFIXES.length - 1) {
    scaled /= 1000;
    prefix += 1;
  }
  // Below a thousand, a whole number has no decimals, and a fraction of a packet has one.
  const digits = prefix === 0 ? (scaled > 0 && scaled < 9.95 && scaled % 1 !== 0 ? 1 : 0) : scaled < 9.995 ? 2 : scaled < 99.95 ? 1 : 0;
  return `${value < 0 ? "-" : ""}${scaled.toFixed(digits)} ${PREFIXES[prefix]}${unit}`;
}

/** Packets per second. */
export const pps = (rate) => si(rate, "pps");

/** Bits per second, of bytes per second. */
export const bps = (bytes) => si(bytes === null ? null : bytes * 8, "bit/s");

/** A whole number with thin spaces: `1 234 567`. */
export function count(value) {
  if (value === null || value === undefined) return UNKNOWN;
  return String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

/** A fraction in percent. */
export function percent(fraction) {
  if (fraction === null || fraction === undefined || !Number.isFinite(fraction)) return UNKNOWN;
  const value = Math.max(0, fraction * 100);
  return `${value < 9.95 && value > 0 ? value.toFixed(1) : value.toFixed(0)} %`;
}

/** Seconds as `3 d 4 h`, `5 min 6 s` or `7 s`. */
export function span(seconds) {
  if (!Number.isFinite(seconds)) return UNKNOWN;
  const s = Math.max(0, Math.floor(seconds));
  const parts = [[Math.floor(s / 86400), "d"], [Math.floor(s / 3600) % 24, "h"], [Math.floor(s / 60) % 60, "min"], [s % 60, "s"]];
  const first = parts.findIndex(([n]) => n > 0);
  if (first < 0) return "0 s";
  return parts.slice(first, first + 2).filter(([n], i) => i === 0 || n > 0).map(([n, unit]) => `${n} ${unit}`).join(" ");
}

const two = (n) => String(n).padStart(2, "0");

/** `2026-11-29 14:05:09`, in the time zone of the browser. */
export function dateAndTime(date) {
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${time(date)}`;
}

/** `14:05:09`. */
export function time(date) {
  return [date.getHours(), date.getMinutes(), date.getSeconds()].map(two).join(":");
}

/** `1 port`, `2 ports`. */
export const plural = (n, what) => `${count(n)} ${what}${n === 1 ? "" : "s"}`;

/** `IPv4 and IPv6`, `IPv4`, `IPv6`, or null. */
export function versions(ipv4, ipv6) {
  if (ipv4 && ipv6) return "IPv4 and IPv6";
  return ipv4 ? "IPv4" : ipv6 ? "IPv6" : null;
}

/** What a cause says, without the command that helps. */
export const brief = (why) => why.text.split("; ")[0];

/** A text without what follows a limit. */
export const shorten = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
