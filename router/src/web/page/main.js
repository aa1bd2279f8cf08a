// Asks the daemon once a second, and shows what it answers.

import { showCharts } from "./charts.js";
import { addEvents, eventsPath, forgetEvents } from "./events.js";
import { offer } from "./explain.js";
import { showHeadline, showTiles } from "./headline.js";
import { Poll, Refused } from "./poll.js";
import { Counters, History } from "./rates.js";
import { reasonCounters, showReasons } from "./reasons.js";
import { coresTable, interfaceKey, interfacesTable, portsTable, queuesTable, routersTable } from "./tables.js";
import { showTopology } from "./topology.js";
import { byId, el, setText, time } from "./text.js";

const EVERY_MS = 1000;

const counters = new Counters();
const interfaceRates = new Counters();
const coreRates = new Counters();
const history = new History(300);
const rate = (key, field) => counters.rate(key, field);
const tables = { routers: routersTable(rate), interfaces: interfacesTable(interfaceRates), ports: portsTable(rate), queues: queuesTable(), cores: coresTable() };
const known = { status: null, cores: null, interfaces: [] };
let answered = null;

function readings(status) {
  const packets = (of) => ({ ...of.packets });
  return new Map([
    ["all", { ...packets(status), lost: status.lost }],
    ...status.routers.map((router) => [`router:${router.router}`, packets(router)]),
    ...status.ports.map((port) => [`port:${port.port}`, port]),
    ...reasonCounters(status),
  ]);
}

function remember(status) {
  const fields = ["rx_packets", "rx_bytes", "tx_packets", "tx_bytes"];
  const ofPort = ({ port }) => [port, Object.fromEntries(fields.map((field) => [field, rate(`port:${port}`, field)]))];
  history.add(status.at_s, new Map(status.ports.map(ofPort)));
}

function onStatus(status) {
  const before = known.status;
  if (before && before.version !== status.version) offerReload(status.version);
  if (before && before.pid !== status.pid) forgetEvents();
  known.status = status;
  answered = new Date();
  counters.take(status.at_s, readings(status));
  remember(status);
  isLive();
  showHeadline(status);
  showTiles(status, (field) => rate("all", field), known.cores);
  showReasons(status, rate, status.at_s);
  showCharts(status.ports.map((port) => port.port), history, status.at_s);
  tables.routers.show(status.routers);
  tables.ports.show(status.ports);
  offer(status);
  topology();
}

/** Rates since the last answer, in place of those of the last control period of the daemon, which is short. */
function overSecond(cores) {
  coreRates.take(cores.at_s, new Map([
    ...cores.queues.map((queue) => [`queue:${queue.port}/${queue.queue}`, queue]),
    ...cores.cores.map((core) => [`core:${core.core}`, core]),
  ]));
  const queues = cores.queues.map((queue) => {
    const of = (field) => coreRates.rate(`queue:${queue.port}/${queue.queue}`, field);
    const [packets, ran, wakeups] = [of("packets"), of("ran_ns"), of("wakeups")];
    const isCounted = (queue.packets_per_s ?? null) !== null;
    return {
      ...queue,
      packets_per_s: isCounted ? (packets ?? queue.packets_per_s) : null,
      ran: ran === null ? queue.ran : ran / 1e9,
      wakeups_per_s: wakeups ?? queue.wakeups_per_s,
    };
  });
  const ofCore = (core) => {
    const forwarding = coreRates.rate(`core:${core.core}`, "forwarding_ns");
    return { ...core, forwarding: forwarding === null ? core.forwarding : forwarding / 1e9 };
  };
  return { ...cores, queues, cores: cores.cores.map(ofCore) };
}

function onCores(answer) {
  const cores = overSecond(answer);
  known.cores = cores;
  tables.queues.show(cores.queues);
  tables.cores.show(cores.cores);
  const allowed = cores.allowed === null ? "all cores may forward" : `cores ${cores.allowed.join(", ")} may forward`;
  setText(byId("cores-policy"), `Policy ${cores.policy}; ${allowed}`);
}

function onInterfaces(interfaces, at) {
  known.interfaces = interfaces;
  // This answer has no time of its own. It comes as soon as the counters have been read.
  interfaceRates.take(at / 1000, new Map(interfaces.map((one) => [interfaceKey(one), one])));
  tables.interfaces.show(interfaces);
}

function topology() {
  showTopology({ ...known, rate, interfaceRates });
}

function isLive() {
  byId("lost").hidden = true;
  byId("live").dataset.state = "live";
  setText(byId("live"), "live");
}

function isLost(error) {
  byId("live").dataset.state = "lost";
  setText(byId("live"), "no answer");
  byId("lost").hidden = false;
  // A daemon that refuses is there.
  const forwarding = error instanceof Refused ? "" : "; forwarding continues until the heartbeat expires";
  setText(byId("lost"), `${since(answered)}: ${error.message}. This page shows the last answer and asks again${forwarding}.`);
}

const since = (answered) => (answered ? `No answer since ${time(answered)}` : "No answer yet");

/**
 * The functions of a poll beside the status. While it fails, these sections say so. `what`: what is old.
 */
function noted(what, sections, heard) {
  const notes = sections.map((section) => {
    const note = el("p", { class: "stale", role: "status", hidden: true });
    byId(section).querySelector(".title").after(note);
    return note;
  });
  let last = null;
  return {
    heard: (answer, at) => {
      last = new Date();
      for (const note of notes) note.hidden = true;
      heard(answer, at);
    },
    failed: (error) => {
      for (const note of notes) {
        setText(note, `${what}: ${since(last).toLowerCase()}: ${error.message}`);
        note.hidden = false;
      }
    },
  };
}

function offerReload(version) {
  const reload = el("button", { type: "button", onclick: () => location.reload() }, "Reload this page");
  byId("overview").prepend(el("p", {}, `The daemon is now version ${version}. `, reload));
}

/** Marks the section that is being read. */
function followSections() {
  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const seen = new Set();
  const observer = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) isIntersecting ? seen.add(target.id) : seen.delete(target.id);
    const first = [...links.keys()].find((id) => seen.has(id));
    for (const [id, link] of links) id === first ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current");
  }, { rootMargin: "-25% 0px -60% 0px" });
  for (const id of links.keys()) observer.observe(byId(id));
}

followSections();
new Poll("v1/status", { every: EVERY_MS, heard: onStatus, failed: isLost });
new Poll("v1/cores", { every: EVERY_MS, ...noted("Queues and cores", ["topology", "cores"], onCores) });
new Poll("v1/interfaces", { every: EVERY_MS, ...noted("Interfaces", ["topology", "interfaces"], onInterfaces) });
new Poll(eventsPath, { every: EVERY_MS, ...noted("Events", ["events"], addEvents) });
