// Charts of the last minutes. Lines differ by colour, dashes and markers, and the legend names them with their values.

import { Choice } from "./rates.js";
import { bps, byId, el, plural, pps, setText, si, svg, time } from "./text.js";

const SECONDS = 300;
const LINES = 8;
/** Seconds between two markers of a line. */
const MARK_EVERY = 30;
const BOX = { width: 640, height: 230, left: 62, right: 14, top: 10, bottom: 26 };

/** Markers, drawn around a point. */
const MARKS = [
  "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0",
  "M-3.2 -3.2h6.4v6.4h-6.4z",
  "M0 -4.2l4.2 7.2h-8.4z",
  "M0 -4.6l4.6 4.6l-4.6 4.6l-4.6 -4.6z",
  "M-3.5 -3.5l7 7M-3.5 3.5l7 -7",
  "M0 4.2l4.2 -7.2h-8.4z",
  "M-4.2 0h8.4M0 -4.2v8.4",
  "M-4.5 -2h9v4h-9z",
];

const choice = new Choice();
/** Which number of line a port has, so that it keeps its colour. */
const slots = new Map();
const hidden = new Set();
let direction = "rx";
/** Seconds before now that the cross marks; null: there is none. */
let cross = null;
let last = null;

/** Values for the lines of an axis: multiples of 1, 2 or 5, from 0 to at least this. */
function ticks(greatest) {
  const least = Math.max(greatest, 1) / 4;
  const power = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= least);
  return Array.from({ length: Math.max(2, Math.ceil(Math.max(greatest, 1) / step) + 1) }, (_, i) => i * step);
}

/** A value of an axis, without zeros at its end: `2.5 k`. */
function short(value) {
  const [number, prefix] = si(value, "").split(" ");
  return `${Number(number)} ${prefix}`.trim();
}

/** The ports that have lines, each with the number of its line, and the others. */
function lines(ports, points) {
  const total = new Map();
  for (const { values } of points) {
    for (const [port, value] of values) total.set(port, (total.get(port) ?? 0) + (value.rx_packets ?? 0) + (value.tx_packets ?? 0));
  }
  const most = ports.length > LINES ? LINES - 1 : LINES;
  const shown = choice.choose(ports, most, (port) => port, (port) => total.get(port) ?? 0);
  for (const port of slots.keys()) if (!shown.includes(port)) slots.delete(port);
  for (const port of shown) {
    if (!slots.has(port)) slots.set(port, [...MARKS.keys()].find((n) => ![...slots.values()].includes(n)));
  }
  const rest = ports.filter((port) => !shown.includes(port));
  const all = shown.map((port) => ({ key: port, name: port, slot: slots.get(port), ports: [port] }));
  if (rest.length > 0) all.push({ key: "", name: plural(rest.length, "other port"), slot: [...MARKS.keys()].find((n) => ![...slots.values()].includes(n)), ports: rest });
  return all;
}

function valueAt(point, line, what) {
  const field = `${direction}_${what}`;
  const known = line.ports.map((port) => point.values.get(port)?.[field] ?? null).filter((value) => value !== null);
  if (known.length === 0) return null;
  return known.reduce((sum, value) => sum + value, 0) * (what === "bytes" ? 8 : 1);
}

class Chart {
  constructor(id, what, unit) {
    this.what = what;
    this.unit = unit;
    this.picture = svg("svg", { class: "chart", viewBox: `0 0 ${BOX.width} ${BOX.height}`, role: "img", tabindex: 0 });
    byId(id).append(this.picture);
    // The picture is as wide as its place, and texts are not stretched.
    new ResizeObserver(([entry]) => {
      this.width = Math.max(280, entry.contentRect.width);
      this.picture.setAttribute("viewBox", `0 0 ${this.width} ${BOX.height}`);
      if (last) draw();
    }).observe(this.picture);
    this.width = BOX.width;
    this.picture.addEventListener("pointermove", (event) => this.#point(event));
    this.picture.addEventListener("pointerleave", () => mark(null));
    this.picture.addEventListener("blur", () => mark(null));
    this.picture.addEventListener("keydown", (event) => this.#key(event));
  }

  #point(event) {
    const { left, width } = this.picture.getBoundingClientRect();
    const x = ((event.clientX - left) / width) * this.width;
    const part = (x - BOX.left) / (this.width - BOX.left - BOX.right);
    mark(part < 0 || part > 1 ? null : Math.round((1 - part) * SECONDS));
  }

  #key(event) {
    const steps = { ArrowLeft: 5, ArrowRight: -5, Home: SECONDS, End: -SECONDS };
    if (event.key === "Escape") mark(null);
    if (!(event.key in steps)) return;
    event.preventDefault();
    mark(Math.min(SECONDS, Math.max(0, (cross ?? 0) + steps[event.key])));
  }

  x(at, now) {
    return BOX.left + (1 - (now - at) / SECONDS) * (this.width - BOX.left - BOX.right);
  }

  y(value, top) {
    return BOX.height - BOX.bottom - (value / top) * (BOX.height - BOX.top - BOX.bottom);
  }

  draw(all, { points, gap }, now) {
    const shown = all.filter((line) => !hidden.has(line.key));
    const values = shown.map((line) => points.map((point) => ({ at: point.at, value: valueAt(point, line, this.what) })));
    const greatest = Math.max(0, ...values.flat().map(({ value }) => value ?? 0));
    const axis = ticks(greatest * 1.02);
    const top = axis.at(-1);
    const parts = [...this.#axes(axis, now)];
    shown.forEach((line, i) => parts.push(...this.#line(line, values[i], top, now, gap)));
    if (cross !== null) {
      const x = this.x(now - cross, now);
      parts.push(svg("path", { class: "cross", d: `M${x} ${BOX.top}V${BOX.height - BOX.bottom}` }));
    }
    this.picture.replaceChildren(...parts);
    const way = direction === "rx" ? "received" : "sent";
    const newest = shown.map((line, i) => `${line.name} ${si(values[i].at(-1)?.value ?? null, this.unit)}`).join(", ");
    this.picture.setAttribute("aria-label", `${this.unit} ${way} by port in the last five minutes, now: ${newest}. Arrow keys move a mark; the legend has its values.`);
  }

  #axes(axis, now) {
    const right = this.width - BOX.right;
    const parts = [];
    for (const value of axis) {
      const y = this.y(value, axis.at(-1));
      parts.push(svg("path", { class: "grid", d: `M${BOX.left} ${y}H${right}` }));
      parts.push(svg("text", { class: "axis-text", x: BOX.left - 7, y: y + 4, "text-anchor": "end" }, short(value)));
    }
    parts.push(svg("text", { class: "axis-text", x: 4, y: BOX.height - 7 }, this.unit));
    for (let minute = 0; minute <= SECONDS / 60; minute += 1) {
      const x = this.x(now - minute * 60, now);
      parts.push(svg("path", { class: "grid", d: `M${x} ${BOX.height - BOX.bottom}v4` }));
      const anchor = minute === 0 ? "end" : "middle";
      parts.push(svg("text", { class: "axis-text", x: minute === 0 ? right : x, y: BOX.height - 7, "text-anchor": anchor }, minute === 0 ? "now" : `−${minute} min`));
    }
    return parts;
  }

  #line(line, values, top, now, gap) {
    let path = "";
    let before = null;
    let marked = null;
    const marks = [];
    for (const { at, value } of values) {
      if (value === null || at < now - SECONDS) {
        before = value === null ? null : before;
        continue;
      }
      const [x, y] = [this.x(at, now).toFixed(1), this.y(value, top).toFixed(1)];
      path += `${before === null || at - before > gap ? "M" : "L"}${x} ${y}`;
      before = at;
      // Markers stay on their points as the chart moves, and those of two lines are apart.
      const turn = Math.floor((at + line.slot * 4) / MARK_EVERY);
      if (turn !== marked && marked !== null) marks.push([x, y]);
      marked = turn;
    }
    if (path === "") return [];
    return [
      svg("path", { class: `series s${line.slot}`, d: path }),
      ...marks.map(([x, y]) => svg("path", { class: `mark s${line.slot}`, d: MARKS[line.slot], transform: `translate(${x} ${y})` })),
    ];
  }
}

const charts = [new Chart("chart-packets", "packets", "pps"), new Chart("chart-bits", "bytes", "bit/s")];

function mark(seconds) {
  if (seconds === cross) return;
  cross = seconds;
  if (last) draw();
}

const rows = new Map();

function legend(all, point) {
  const where = byId("rates-legend");
  const kept = new Set(all.map((line) => `${line.slot} ${line.name}`));
  for (const [key, { button }] of rows) if (!kept.has(key)) button.remove(), rows.delete(key);
  for (const line of all) {
    const key = `${line.slot} ${line.name}`;
    if (!rows.has(key)) {
      const values = [el("span", { class: "value" }), el("span", { class: "value" })];
      const sample = svg("svg", { viewBox: "0 0 44 14", "aria-hidden": "true" },
        svg("path", { class: `series s${line.slot}`, d: "M0 7h44" }),
        svg("path", { class: `mark s${line.slot}`, d: MARKS[line.slot], transform: "translate(22 7)" }));
      const toggle = () => {
        if (!hidden.delete(line.key)) hidden.add(line.key);
        draw();
      };
      const button = el("button", { type: "button", title: "Show or hide this line", onclick: toggle }, sample, el("span", { class: "name" }, line.name), ...values);
      where.append(button);
      rows.set(key, { button, values });
    }
    const { button, values } = rows.get(key);
    button.setAttribute("aria-pressed", String(!hidden.has(line.key)));
    const bits = point && valueAt(point, line, "bytes");
    setText(values[0], pps(point ? valueAt(point, line, "packets") : null));
    setText(values[1], bps(bits === null || bits === undefined ? null : bits / 8));
  }
}

function draw() {
  const { ports, points, gap, now, date } = last;
  const all = lines(ports, points);
  for (const chart of charts) chart.draw(all, { points, gap }, now);
  const wanted = now - (cross ?? 0);
  const nearest = points.reduce((best, point) => (best === null || Math.abs(point.at - wanted) < Math.abs(best.at - wanted) ? point : best), null);
  const point = nearest && Math.abs(nearest.at - wanted) <= gap ? nearest : null;
  legend(all, point);
  const values = cross === null ? "current values" : `values at ${time(new Date(date - cross * 1000))}`;
  setText(byId("rates-note"), `The legend shows ${values}. Packets that flow rules forward without routing are not counted.`);
}

/** Shows the charts. `history`: of maps from ports to rates; `now`: on its clock. */
export function showCharts(ports, history, now) {
  last = { ports, points: history.points, gap: history.gap, now, date: Date.now() };
  draw();
}

for (const [id, way] of [["rates-in", "rx"], ["rates-out", "tx"]]) {
  byId(id).addEventListener("click", () => {
    direction = way;
    byId("rates-in").setAttribute("aria-pressed", String(way === "rx"));
    byId("rates-out").setAttribute("aria-pressed", String(way === "tx"));
    if (last) draw();
  });
}
