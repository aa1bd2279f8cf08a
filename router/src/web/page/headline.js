// The first section: what is not fast, what is wrong, and the sums of all routers. `summary` of the status has the sentences.

import { bps, byId, count, el, percent, plural, pps, setText, si, span } from "./text.js";

const MOST = 20;

/** `found`: texts and their classes. */
function items(list, found) {
  const shown = found.slice(0, MOST).map(([text, className]) => el("li", { class: className }, text));
  if (found.length > MOST) shown.push(el("li", { class: "rest" }, `${found.length - MOST} more`));
  list.replaceChildren(...shown);
}

/** Shows a list only if it differs from what is shown. */
function list(name, found) {
  const [box, where] = [byId(`${name}-box`), byId(name)];
  const key = JSON.stringify(found.slice(0, MOST + 1)) + found.length;
  box.hidden = found.length === 0;
  if (where.key !== key) items(where, found);
  where.key = key;
}

const STATES = { not_ready: ["bad", "NOT READY"], slow: ["slow", "FORWARDING"], problem: ["slow", "FORWARDING"], idle: ["good", "FORWARDING"], fast: ["good", "FORWARDING"] };

export function showHeadline(status) {
  const { state: how, text: first, not_fast: slow, problems, notes } = status.summary;
  const [state, word] = STATES[how] ?? ["bad", "UNKNOWN"];
  const more = slow.length > 1 ? `; ${slow.length - 1} more below` : "";
  const text = how === "slow" ? first + more : how === "problem" ? `problem: ${first}` : first;
  byId("headline").dataset.state = state;
  setText(byId("headline-state"), word);
  setText(byId("headline-text"), text);
  const age = status.heartbeat.age_s;
  setText(byId("instance"), status.instance ? `/ ${status.instance}` : "");
  setText(byId("daemon"), `millrace ${status.version}, process ${status.pid}, up ${span(status.uptime_s)}. Tables confirmed ${age === null ? "never" : `${age.toFixed(1)} s ago`}: ` +
    `${plural(status.routes.ipv4, "IPv4 route")}, ${plural(status.routes.ipv6, "IPv6 route")}, ${plural(status.neighbours, "neighbour")}.`);
  document.title = `${status.ready ? "" : "NOT READY – "}Millrace${status.instance ? ` ${status.instance}` : ""}`;
  list("slow", slow.map((text) => [text, "slow"]));
  // The age of a problem is left out, because it differs with every answer.
  list("conditions", [...problems.map(({ text }) => [text, "problem"]), ...notes.map(({ text }) => [text, "note"])]);
}

const tiles = new Map();

function tile(label, value, more) {
  let parts = tiles.get(label);
  if (!parts) {
    parts = [el("div", { class: "value" }), el("div", { class: "more-text" })];
    byId("tiles").append(el("div", { class: "tile" }, el("div", { class: "label" }, label), ...parts));
    tiles.set(label, parts);
  }
  setText(parts[0], value);
  setText(parts[1], more);
}

/** The sums of all routers. `rate` is a rate of a field of `packets`. */
export function showTiles(status, rate, cores) {
  tile("Forwarded", pps(rate("forwarded")), bps(rate("forwarded_bytes")));
  tile("To the kernel", pps(rate("passed")), `${count(status.packets.passed)} in total`);
  tile("Dropped", pps(rate("dropped")), `${count(status.packets.dropped)} in total`);
  tile("Lost at egress", pps(rate("lost")), `${count(status.lost)} in total`);
  tile("Cost of a packet", si(status.ns_per_packet, "ns"), "without transmission");
  if (cores) {
    // Where queues are left alone, cores have no role.
    const busy = cores.cores.filter((core) => ["forward", "both"].includes(core.role) || core.forwarding >= 0.01);
    const load = cores.cores.reduce((sum, core) => sum + core.forwarding, 0);
    tile("Cores that forward", `${busy.length} of ${cores.cores.length}`, `${percent(load)} of one core in total`);
  }
}
