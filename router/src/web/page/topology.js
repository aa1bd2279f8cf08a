// The picture of what is connected: routers - ports - queues - cores. Lines between routers and ports carry packets and bits; lines
// between queues and cores carry work.
//
// The picture is drawn again when something comes or goes. Otherwise only texts, widths and bars change.

import { ofRouter } from "./fast.js";
import { Choice } from "./rates.js";
import { bps, byId, percent, plural, pps, setAttributes, setText, shorten, svg } from "./text.js";

const WIDTH = 1240;
const TOP = 30;
const GAP = 14;
const COLUMNS = {
  routers: { x: 0, width: 185, title: "Routers" },
  ports: { x: 545, width: 215, title: "Ports" },
  queues: { x: 850, width: 110, title: "Queues" },
  cores: { x: 1070, width: 170, title: "Cores" },
};
const HEIGHT = { routers: 58, ports: 74, queues: 28, cores: 46 };
/** Room for the label of a line: its height, and its width beside a router. */
const LINE = 17;
const LABEL = 168;

const choices = { routers: new Choice(), ports: new Choice(), queues: new Choice(), cores: new Choice() };
let drawn = null;
let last = null;

/** The nodes of a column, and the number of those that are not drawn. */
function column(kind, all, most) {
  const shown = choices[kind].choose(all, most, (node) => node.key, (node) => node.weight ?? 0);
  return { kind, shown, left: all.length - shown.length };
}

function routerNodes(status, rate) {
  return status.routers.filter((router) => router.interfaces > 0).map((router) => {
    const fast = ofRouter(router);
    const forwarded = rate(`router:${router.router}`, "forwarded");
    return {
      key: `router:${router.router}`,
      name: router.router,
      weight: forwarded ?? 0,
      facts: [`forwards ${pps(forwarded)}`, fast.text],
      isSlow: fast.isSlow,
    };
  });
}

function portNodes(status, rate) {
  return status.ports.map((port) => {
    const of = (field) => rate(`port:${port.port}`, field);
    return {
      key: `port:${port.port}`,
      name: port.port,
      weight: (of("rx_packets") ?? 0) + (of("tx_packets") ?? 0),
      facts: [
        `in ${pps(of("rx_packets"))}, ${bps(of("rx_bytes"))}`,
        `out ${pps(of("tx_packets"))}, ${bps(of("tx_bytes"))}`,
        port.problems.length > 0 ? "not trusted" : `${port.mode} mode`,
      ],
      isSlow: port.problems.length > 0 || port.mode !== "native",
      isOff: port.mode === "detached",
    };
  });
}

function queueNodes(cores) {
  return cores.queues.map((queue) => ({
    key: `queue:${queue.port}/${queue.queue}`,
    name: `${shorten(queue.port, 9)}/${queue.queue}`,
    weight: (queue.packets_per_s ?? 0) + queue.ran,
    facts: [],
    queue,
  }));
}

function coreNodes(cores) {
  return cores.cores.map((core) => ({
    key: `core:${core.core}`,
    name: `core ${core.core}`,
    // Cores that forward come first, and after them those that may.
    weight: core.forwarding * 10 + (core.may_forward ? 1 : 0),
    facts: [`${percent(core.forwarding)} forwarding`],
    core,
  }));
}

/** Rates between each router and each port, from the interfaces. */
export function pairs(interfaces) {
  const found = new Map();
  for (const { router, port, interface: name } of interfaces) {
    if (port === null) continue;
    const key = JSON.stringify([router, port]);
    if (!found.has(key)) found.set(key, { router, port, names: [] });
    found.get(key).names.push(JSON.stringify([router, name]));
  }
  return [...found.values()];
}

function links(columns, data) {
  const shown = new Map(columns.flatMap(({ kind, shown: nodes }) => nodes.map((node) => [node.key, { ...node, kind }])));
  const found = [];
  for (const { router, port, names } of pairs(data.interfaces)) {
    const [from, to] = [`router:${router}`, `port:${port}`];
    if (!shown.has(from) || !shown.has(to)) continue;
    const of = (field) => data.interfaceRates.sum(names, field);
    found.push({ key: `${from} in ${to}`, from, to, way: "in", packets: of("rx_packets"), bytes: of("rx_bytes") });
    found.push({ key: `${from} out ${to}`, from, to, way: "out", packets: of("tx_packets"), bytes: of("tx_bytes") });
  }
  for (const { key, queue } of [...shown.values()].filter((node) => node.kind === "queues")) {
    const port = `port:${queue.port}`;
    if (shown.has(port)) found.push({ key: `${port} to ${key}`, from: port, to: key, way: "in", packets: queue.packets_per_s, isQuiet: true });
    const cores = queue.shared?.length > 0 ? queue.shared : queue.core === null ? [] : [queue.core];
    for (const core of cores) {
      const to = `core:${core}`;
      if (shown.has(to)) found.push({ key: `${key} to ${to}`, from: key, to, way: "work", packets: queue.packets_per_s ?? null, ran: queue.ran });
    }
  }
  return found;
}

/** Places nodes below each other, each as high as its lines need, and the columns in the middle of the picture. */
function place(columns, found) {
  const ends = new Map();
  for (const link of found) {
    for (const end of [link.from, link.to]) ends.set(end, (ends.get(end) ?? 0) + 1);
  }
  const places = new Map();
  const heights = columns.map(({ kind, shown }) => {
    let y = 0;
    for (const node of shown) {
      const lines = ["routers", "ports"].includes(kind) ? sideLines(node.key, found) : 1;
      const height = Math.max(HEIGHT[kind], lines * LINE + 8);
      places.set(node.key, { kind, y, height, x: COLUMNS[kind].x, width: COLUMNS[kind].width });
      y += height + GAP;
    }
    return Math.max(0, y - GAP);
  });
  const height = Math.max(80, ...heights);
  columns.forEach(({ shown }, i) => {
    for (const node of shown) places.get(node.key).y += TOP + (height - heights[i]) / 2;
  });
  return { places, height: height + TOP + 8 };
}

/** The greater number of lines on one of the sides of a node. */
function sideLines(key, found) {
  const left = found.filter((link) => link.to === key).length;
  return Math.max(left, found.filter((link) => link.from === key).length);
}

/** Where lines begin and end: at each side of a node, ordered by the other end. */
function route(found, places) {
  const sides = new Map();
  const middle = (key) => places.get(key).y + places.get(key).height / 2;
  for (const link of found) {
    for (const [key, other, side] of [[link.from, link.to, "right"], [link.to, link.from, "left"]]) {
      const name = `${key} ${side}`;
      if (!sides.has(name)) sides.set(name, []);
      sides.get(name).push({ link, key, side, order: middle(other) + (link.way === "out" ? 0.5 : 0) });
    }
  }
  for (const ends of sides.values()) {
    ends.sort((a, b) => a.order - b.order);
    ends.forEach(({ link, key, side }, i) => {
      const { x, y, width, height } = places.get(key);
      const step = Math.min(LINE, height / ends.length);
      const at = y + height / 2 + (i - (ends.length - 1) / 2) * step;
      const room = link.to.startsWith("port:") ? LABEL : 0;
      Object.assign(link, side === "right" ? { x1: x + width + room, y1: at } : { x2: x, y2: at });
    });
  }
}

function curve({ x1, y1, x2, y2 }) {
  const bend = (x2 - x1) / 2;
  return `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`;
}

function drawNode(node, { kind, x, y, width, height }) {
  const group = svg("g", { class: "node", transform: `translate(${x} ${y})` });
  const title = svg("title", {});
  const box = svg("rect", { class: "box", width, height, rx: 7 });
  const texts = [node.name, ...node.facts].map((_, i) => svg("text", { class: i === 0 ? "name" : "fact", x: 10, y: 0 }));
  const block = kind === "cores" ? 44 : texts.length * 15.5;
  texts.forEach((text, i) => text.setAttribute("y", (height - block) / 2 + 12.5 + i * 15.5));
  group.append(title, box, ...texts);
  const bars = kind === "cores" ? drawLoad(group, (height - block) / 2 + 33, width) : null;
  if (bars) texts[1].setAttribute("x", width - 10), texts[1].setAttribute("y", texts[0].getAttribute("y")), texts[1].setAttribute("text-anchor", "end");
  return { group, title, texts, bars };
}

function drawLoad(group, y, width) {
  const whole = width - 20;
  const bar = (name) => svg("rect", { class: name, x: 10, y: y - 8, width: 0, height: 10, rx: 2 });
  const [back, forwarding, other] = [bar("load-back"), bar("load-forwarding"), bar("load-other")];
  back.setAttribute("width", whole);
  group.append(back, forwarding, other);
  return { whole, forwarding, other };
}

function drawLink(link, layers) {
  const path = svg("path", { class: `link ${link.way}`, d: curve(link) });
  const title = svg("title", {});
  path.append(title);
  const isTraffic = link.way !== "work" && !link.isQuiet;
  const label = isTraffic
    ? svg("text", { class: "link-label", y: link.y1 + 4, "text-anchor": "end" }, svg("tspan", { x: link.x1 - LABEL / 2 }), svg("tspan", { x: link.x1 - 8 }))
    : link.way === "work"
      ? svg("text", { class: "link-label", x: link.x1 + (link.x2 - link.x1) * 0.3, y: link.y1 + (link.y2 - link.y1) * 0.22 + 4, "text-anchor": "middle" })
      : null;
  const head = isTraffic ? arrow(link) : null;
  layers.links.append(path);
  if (head) layers.links.append(head);
  if (label) layers.labels.append(label);
  return { path, title, label, head };
}

/** An arrowhead at the router if packets are received, at the port if they are sent; and a stub that leads past the label. */
function arrow({ way, x1, y1, x2, y2 }) {
  const router = x1 - LABEL;
  const head = way === "in" ? `M${router} ${y1}l9 -5v10z` : `M${x2} ${y2}l-9 -5v10z`;
  const stub = way === "in" ? "" : `M${router} ${y1 - 4}h4v8h-4z`;
  return svg("path", { class: `arrow ${way}`, d: head + stub });
}

function redraw(key, columns, found) {
  const { places, height } = place(columns, found);
  route(found, places);
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-labelledby": "topology-label" });
  picture.append(
    svg("title", { id: "topology-label" }),
    svg("defs", {}, svg("pattern", { id: "hatch", width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, svg("path", { d: "M0 0v5" }))),
  );
  const layers = { links: svg("g", {}), nodes: svg("g", {}), labels: svg("g", {}) };
  for (const { kind, shown } of columns) {
    const { x, width, title } = COLUMNS[kind];
    if (shown.length > 0) picture.append(svg("text", { class: "column-title", x: x + width / 2, y: 16, "text-anchor": "middle" }, title));
  }
  picture.append(layers.links, layers.nodes, layers.labels);
  const parts = new Map();
  for (const link of found) parts.set(link.key, drawLink(link, layers));
  for (const { shown } of columns) {
    for (const node of shown) {
      const drawnNode = drawNode(node, places.get(node.key));
      layers.nodes.append(drawnNode.group);
      parts.set(node.key, drawnNode);
    }
  }
  byId("topology-picture").replaceChildren(picture);
  drawn = { key, parts, label: picture.firstChild };
}

function updateNode(part, node) {
  part.group.setAttribute("class", `node${node.isSlow ? " slow" : ""}${node.isOff ? " off" : ""}`);
  [node.name, ...node.facts].forEach((text, i) => setText(part.texts[i], i === 0 ? shorten(text, 20) : text));
  setText(part.title, [node.name, ...node.facts].join("\n"));
  if (part.bars) {
    const { whole, forwarding, other } = part.bars;
    const first = Math.min(1, node.core.forwarding) * whole;
    const second = Math.min(whole - first, Math.max(0, node.core.other ?? 0) * whole);
    setAttributes(forwarding, { width: first.toFixed(1) });
    setAttributes(other, { x: (10 + first).toFixed(1), width: second.toFixed(1) });
    setText(part.title, `${node.name}: ${percent(node.core.forwarding)} forwarding, ${percent(node.core.other)} other work, role ${node.core.role}`);
  }
}

function updateLink(part, link, greatest) {
  const value = link.way === "work" ? Math.max(link.ran, 0) : (link.packets ?? 0);
  const most = link.way === "work" ? 1 : greatest;
  // Areas of lines grow with their rates, so that small rates are still seen.
  const isIdle = !(value > 0);
  const width = isIdle ? 1 : 1.5 + 11 * Math.sqrt(Math.min(1, value / Math.max(most, 1e-9)));
  setAttributes(part.path, { "stroke-width": width.toFixed(1), class: `link ${link.way}${isIdle ? " idle" : ""}` });
  const rates = link.bytes === undefined ? pps(link.packets) : `${pps(link.packets)}, ${bps(link.bytes)}`;
  setText(part.title, link.way === "work" ? `${rates}, ${percent(link.ran)} of the core` : rates);
  if (part.label && link.way === "work") setText(part.label, isIdle ? "" : percent(link.ran));
  else if (part.label) [pps(link.packets), bps(link.bytes)].forEach((text, i) => setText(part.label.children[i], isIdle ? "" : text));
  if (part.head) part.head.setAttribute("visibility", isIdle ? "hidden" : "visible");
}

/** Shows the picture. `data`: `status`, `cores`, `interfaces`, `rate`, `interfaceRates`. */
export function showTopology(data) {
  last = data;
  const most = Number(byId("topology-most").value);
  const columns = [
    column("routers", routerNodes(data.status, data.rate), most),
    column("ports", portNodes(data.status, data.rate), most),
    column("queues", data.cores ? queueNodes(data.cores) : [], most),
    column("cores", data.cores ? coreNodes(data.cores) : [], most),
  ];
  const found = links(columns, data);
  const key = JSON.stringify([columns.map(({ shown }) => shown.map((node) => node.key)), found.map((link) => link.key)]);
  if (drawn?.key !== key) redraw(key, columns, found);
  for (const { shown } of columns) shown.forEach((node) => updateNode(drawn.parts.get(node.key), node));
  const greatest = Math.max(1, ...found.filter((link) => link.way !== "work").map((link) => link.packets ?? 0));
  for (const link of found) updateLink(drawn.parts.get(link.key), link, greatest);
  setText(drawn.label, `Routers, ports, queues and cores: ${columns.map(({ kind, shown }) => `${shown.length} ${kind}`).join(", ")}. The tables below have the same numbers.`);
  const left = columns.filter((one) => one.left > 0).map((one) => plural(one.left, one.kind.slice(0, -1)));
  setText(byId("topology-more"), left.length > 0 ? `Not drawn: ${left.join(", ")} with less traffic. The tables below have all of them.` : "");
}

byId("topology-most").addEventListener("change", () => {
  drawn = null;
  if (last) showTopology(last);
});
