// The first section: what is not fast, what is wrong, and the sums of all routers.
//
// Its first line is made as in cli/text/status.rs, except that only conditions count as problems. So problems of paths and workers
// that are no conditions are left out.

import { howMuch, slowReason } from "./fast.js";
import { bps, brief, byId, count, el, percent, plural, pps, setText, si, span, versions } from "./text.js";

const MOST = 20;
/** The most names in a sentence about several things. */
const NAMES = 3;

/** What is not on the fast path, the widest effect first: what kind of thing, its name, and a sentence. */
function findings(status) {
  const routers = status.routers.filter((router) => router.interfaces > 0);
  const found = [];
  const add = (kind, name, text) => found.push({ kind, name, text });
  const addSlow = (kind, name, whyNot) => {
    const slow = slowReason(whyNot);
    if (slow) add(kind, name, `${slow.which} on the kernel path: ${brief(slow.why)}`);
  };
  if (status.flows.rules > 0 && !status.flows.in_charge) add("", "", "flow rules are not in charge, so packets are routed");
  for (const router of routers) addSlow("router", router.router, router.why_not);
  for (const router of routers) {
    const which = versions(router.ruled.ipv4, router.ruled.ipv6);
    if (which) add("router", router.router, `some ${which} packets on the kernel path: firewall rules may affect them`);
  }
  for (const router of routers) {
    for (const left of router.left_to_kernel) {
      addSlow("interface", router.router === "host" ? left.interface : `${router.router}/${left.interface}`, left.why_not);
    }
  }
  for (const port of status.ports) {
    if (port.note?.code === "generic_mode") add("port", port.port, "generic mode, which is slow");
  }
  return found;
}

/** Sentences about what is not on the fast path. Equal sentences about several things are one. */
export function notFast(status) {
  const groups = new Map();
  for (const { kind, name, text } of findings(status)) {
    const key = JSON.stringify([kind, text]);
    if (!groups.has(key)) groups.set(key, { kind, text, names: [] });
    groups.get(key).names.push(name);
  }
  return [...groups.values()].map(({ kind, text, names }) => {
    const more = names.length > NAMES ? ` and ${names.length - NAMES} more` : "";
    return kind === "" ? text : `${kind}${names.length > 1 ? "s" : ""} ${names.slice(0, NAMES).join(", ")}${more}: ${text}`;
  });
}

function allFast(status) {
  const routers = status.routers.filter((router) => router.interfaces > 0);
  if (routers.length === 0) return "no router has an interface on a port";
  const isFast = (version) => routers.some((router) => howMuch(router, version) !== "kernel");
  const which = versions(isFast("ipv4"), isFast("ipv6"));
  if (!which) return "Linux forwards nothing between the ports (net.ipv4.ip_forward)";
  const be = which.includes("and") ? "are" : "is";
  return routers.length === 1 ? `${which} of the router ${be} on the fast path` : `${which} of all ${routers.length} routers ${be} on the fast path`;
}

function items(list, found, className) {
  const shown = found.slice(0, MOST).map((text) => el("li", { class: className(text) }, typeof text === "string" ? text : text.sentence));
  if (found.length > MOST) shown.push(el("li", { class: "rest" }, `${found.length - MOST} more`));
  list.replaceChildren(...shown);
}

/** Shows a list only if it differs from what is shown. */
function list(name, found, className) {
  const [box, where] = [byId(`${name}-box`), byId(name)];
  const key = JSON.stringify(found.slice(0, MOST + 1)) + found.length;
  box.hidden = found.length === 0;
  if (where.key !== key) items(where, found, className);
  where.key = key;
}

export function showHeadline(status) {
  const slow = notFast(status);
  const problems = status.conditions.filter((condition) => !condition.is_note);
  const [state, word, text] = !status.ready
    ? ["bad", "NOT READY", status.problem?.text ?? "the reason is not known"]
    : slow.length > 0
      ? ["slow", "FORWARDING", slow[0] + (slow.length > 1 ? `; ${slow.length - 1} more below` : "")]
      : problems.length > 0
        ? ["slow", "FORWARDING", `problem: ${problems[0].sentence}`]
        : ["good", "FORWARDING", allFast(status)];
  byId("headline").dataset.state = state;
  setText(byId("headline-state"), word);
  setText(byId("headline-text"), text);
  const age = status.heartbeat.age_s;
  setText(byId("instance"), status.instance ? `/ ${status.instance}` : "");
  setText(byId("daemon"), `millrace ${status.version}, process ${status.pid}, up ${span(status.uptime_s)}. Tables confirmed ${age === null ? "never" : `${age.toFixed(1)} s ago`}: ` +
    `${plural(status.routes.ipv4, "IPv4 route")}, ${plural(status.routes.ipv6, "IPv6 route")}, ${plural(status.neighbours, "neighbour")}.`);
  document.title = `${status.ready ? "" : "NOT READY – "}Millrace${status.instance ? ` ${status.instance}` : ""}`;
  list("slow", slow, () => "slow");
  const conditions = [...problems, ...status.conditions.filter((condition) => condition.is_note)];
  // The age of a condition is left out, because it differs with every answer.
  list("conditions", conditions.map(({ sentence, is_note }) => ({ sentence, is_note })), (condition) => (condition.is_note ? "note" : "problem"));
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
