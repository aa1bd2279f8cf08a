// Why packets were not forwarded: rates, sums, and the last minute of each reason.

import { History } from "./rates.js";
import { DataTable } from "./tables.js";
import { byId, count, el, pps, svg } from "./text.js";

const WENT = {
  drop: ["dropped", "drop"],
  lost: ["lost", "lost"],
  taken: ["to user space", "pass"],
  slow: ["to the kernel, limited", "up"],
  exception: ["to the kernel, limited", "up"],
  control: ["to the kernel, limited", "pass"],
  pass: ["to the kernel", "pass"],
};
const SPARK = { width: 120, height: 22, seconds: 60 };

const histories = new Map();
let of = "";
let last = null;

const went = (reason) => WENT[reason.class] ?? [reason.class, "pass"];

function spark(row) {
  const { points, gap } = histories.get(row.key) ?? { points: [], gap: 0 };
  const now = points.at(-1)?.at ?? 0;
  const greatest = Math.max(1e-9, ...points.map((point) => point.values));
  const x = (at) => (SPARK.width * (1 - (now - at) / SPARK.seconds)).toFixed(1);
  const y = (value) => (SPARK.height - 2 - (value / greatest) * (SPARK.height - 4)).toFixed(1);
  const path = points.map((point, i) => `${i === 0 || point.at - points[i - 1].at > gap ? "M" : "L"}${x(point.at)} ${y(point.values)}`).join("");
  return svg("svg", { class: "spark", viewBox: `0 0 ${SPARK.width} ${SPARK.height}`, role: "img", "aria-label": "the last minute" },
    svg("line", { x1: 0, x2: SPARK.width, y1: SPARK.height - 2, y2: SPARK.height - 2 }), path ? svg("path", { d: path }) : null);
}

const table = new DataTable("reasons-table", {
  what: "reason",
  empty: "No packet was counted here.",
  order: { column: 2, ascending: false },
  columns: [
    { title: "Reason", className: "name", text: (row) => row.reason },
    { title: "Packets went", text: (row) => went(row)[0], cell: (row) => el("span", { class: `badge ${went(row)[1]}` }, went(row)[0]) },
    // Without any rate, the greatest sum comes first.
    { title: "Rate", value: (row) => (row.rate ?? 0) + row.packets * 1e-18, text: (row) => pps(row.rate) },
    { title: "In total", value: (row) => row.packets, text: (row) => count(row.packets) },
    { title: "Last minute", isFixed: true, isLive: true, text: () => "", cell: spark },
    { title: "Meaning", className: "wide", isFixed: true, text: (row) => row.text },
  ],
});

/** The reports with reasons, by the names of the selection. */
function sources(status) {
  const all = new Map([["", status.reasons]]);
  for (const router of status.routers) all.set(`router ${router.router}`, router.reasons);
  for (const port of status.ports) all.set(`port ${port.port}`, [...port.unclassified, ...port.lost]);
  return all;
}

function options(names) {
  const select = byId("reasons-of");
  const key = JSON.stringify(names);
  if (select.key === key) return;
  select.key = key;
  select.replaceChildren(...names.map((name) => el("option", { value: name }, name || "all routers and ports")));
  if (!names.includes(of)) of = "";
  select.value = of;
}

/** Counters of reasons, by `reason:WHOSE:NAME`. */
export function reasonCounters(status) {
  const found = [];
  for (const [whose, reasons] of sources(status)) {
    for (const { reason, packets } of reasons) found.push([`reason:${whose}:${reason}`, { packets }]);
  }
  return found;
}

/** Shows the table. `rate`: of a counter; `at`: when the counters were read. */
export function showReasons(status, rate, at) {
  const all = sources(status);
  options([...all.keys()]);
  const keys = new Set();
  for (const [whose, reasons] of all) {
    for (const { reason } of reasons) {
      const key = `reason:${whose}:${reason}`;
      keys.add(key);
      if (!histories.has(key)) histories.set(key, new History(SPARK.seconds));
      const known = rate(key, "packets");
      if (known !== null) histories.get(key).add(at, known);
    }
  }
  for (const key of histories.keys()) if (!keys.has(key)) histories.delete(key);
  last = { all, rate };
  draw();
}

function draw() {
  const rows = (last.all.get(of) ?? []).map((reason) => {
    const key = `reason:${of}:${reason.reason}`;
    return { ...reason, key, rate: last.rate(key, "packets") };
  });
  table.show(rows);
}

byId("reasons-of").addEventListener("change", (event) => {
  of = event.target.value;
  if (last) draw();
});
