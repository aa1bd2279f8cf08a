// Events: decisions about queues and cores, the newest first.

import { DataTable } from "./tables.js";
import { dateAndTime } from "./text.js";

/** As many as the daemon keeps. */
const MOST = 1024;

let events = [];

const cores = (list) => (list.length === 0 ? "no core" : `core${list.length > 1 ? "s" : ""} ${list.join(", ")}`);

function move({ from, to }) {
  const [before, after] = [cores(from), cores(to)];
  if (from.length === 0 && to.length === 0) return "";
  return before === after ? `stays on ${after}` : `${before} → ${after}`;
}

const table = new DataTable("events-table", {
  what: "event",
  filter: "events-filter",
  empty: "There is no event.",
  columns: [
    { title: "Time", className: "time", text: (event) => dateAndTime(new Date(event.unix_s * 1000)) },
    { title: "Queue", className: "name", text: (event) => (event.port === "" ? "" : `${event.port}/${event.queue}`) },
    { title: "Cores", text: move },
    { title: "Why", className: "wide", text: (event) => event.why },
  ],
});

/** The request for events that are not known yet. */
export const eventsPath = () => `v1/events?after=${events[0]?.number ?? 0}`;

/** Adds new events. */
export function addEvents(found) {
  const known = events[0]?.number ?? 0;
  const fresh = found.filter((event) => event.number > known).sort((a, b) => b.number - a.number);
  if (fresh.length === 0 && table.key) return;
  events = [...fresh, ...events].slice(0, MOST);
  table.show(events);
}

/** Another daemon counts its events from 1. */
export function forgetEvents() {
  events = [];
  table.show(events);
}
