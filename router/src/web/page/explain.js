// "Explain this packet": a form, the command that does the same, and the answer.

import { ask, Refused } from "./poll.js";
import { byId, el, setText } from "./text.js";

const FIELDS = [
  { name: "router", label: "Router", options: [["", "the host"]] },
  { name: "port", label: "Arrives on port", options: [["", "the one that leads to the source"]] },
  { name: "protocol", label: "Protocol", options: [["udp", "UDP"], ["tcp", "TCP"], ["icmp", "ICMP echo"]] },
  { name: "vlan", label: "VLAN", hint: "100 or 100.7" },
  { name: "source", label: "Source address", hint: "10.0.0.1 or 2001:db8::1", isDouble: true },
  { name: "source_port", label: "Source port", hint: "1024", type: "number" },
  { name: "destination", label: "Destination address", hint: "10.1.0.1 or 2001:db8:1::1", isDouble: true },
  { name: "destination_port", label: "Destination port", hint: "80", type: "number" },
  { name: "ttl", label: "TTL", hint: "64", type: "number" },
  { name: "tos", label: "TOS", hint: "0", type: "number" },
  { name: "len", label: "IP length", hint: "minimum", type: "number" },
  { name: "frame", label: "Or a whole frame, hexadecimal", hint: "it needs the port", isDouble: true },
];
const HEADERS = [
  ["Destination MAC", (h) => h.destination_mac],
  ["Source MAC", (h) => h.source_mac],
  ["VLAN", (h) => h.vlan],
  ["Source", (h) => h.source],
  ["Destination", (h) => h.destination],
  ["TTL", (h) => h.ttl],
  ["Header checksum", (h) => (h.checksum === null ? null : `0x${h.checksum.toString(16).padStart(4, "0")}`)],
  ["Frame bytes", (h) => h.length],
];

const form = byId("explain-form");
const answer = byId("explain-answer");
const command = el("code", {});
const copy = el("button", { type: "button" }, "Copy command");
/** The option of a command that names this daemon. */
let instance = "";
const send = el("button", { type: "submit", class: "primary" }, "Explain");

function field({ name, label, options, hint, type, isDouble }) {
  const control = options
    ? el("select", { name }, ...options.map(([value, text]) => el("option", { value }, text)))
    : el("input", { name, placeholder: hint, inputmode: type === "number" ? "numeric" : null, autocomplete: "off", spellcheck: "false" });
  return el("label", { class: isDouble ? "double" : null }, label, control);
}

form.append(...FIELDS.map(field), el("div", { class: "command" }, send, command, copy));

const value = (name) => form.elements.namedItem(name).value.trim();

function endpoint(address, port) {
  if (port === "" || value("protocol") === "icmp") return address;
  return address.includes(":") ? `[${address}]:${port}` : `${address}:${port}`;
}

/** The request of the API: a packet as text, or a frame. */
function request() {
  const body = {};
  if (value("port")) body.port = value("port");
  if (value("frame")) return { ...body, frame: value("frame").replace(/[\s:]/g, "") };
  const words = ["ttl", "tos", "len", "vlan"].filter((name) => value(name)).map((name) => `${name}=${value(name)}`);
  const [source, destination] = ["source", "destination"].map((end) => endpoint(value(end), value(`${end}_port`)));
  body.packet = [value("protocol"), source, "->", destination, ...words].join(" ");
  if (value("router")) body.router = value("router");
  return body;
}

/** A word of a shell command. */
const quoted = (word) => (/^[\w.,:/=@%+-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

function showCommand() {
  const { packet, router, port, frame } = request();
  const options = [router && `--router ${quoted(router)}`, port && `--port ${quoted(port)}`, instance && `--instance ${quoted(instance)}`].filter(Boolean);
  const text = frame
    ? ["a frame cannot be an argument; write it to a pcap file: millrace explain FILE", ...(port ? [] : ["--port PORT"]), ...options].join(" ")
    : ["millrace explain", quoted(packet ?? ""), ...options].join(" ");
  setText(command, text);
  copy.disabled = Boolean(frame);
}

function verdict(report) {
  const reason = report.reason?.text;
  switch (report.verdict) {
    case "forward": return report.egress ? `Forwarded by port ${report.egress}` : "Forwarded";
    case "pass": return reason ? `Goes to the kernel: ${reason}` : "Goes to the kernel";
    case "path": return `Given to the worker of path ${report.path ?? "?"}`;
    case "controller": return "Goes to the controllers";
    default: return reason ? `Dropped: ${reason}` : "Dropped";
  }
}

function headers(before, after) {
  const rows = HEADERS.map(([name, of]) => [name, of(before), of(after)]).filter(([, a, b]) => a !== null || b !== null);
  const cell = (text, isChanged) => el("td", { class: isChanged ? "changed" : null }, String(text ?? "–"));
  return el("div", { class: "table-box" }, el("table", {},
    el("thead", {}, el("tr", {}, ...["Header", "As it arrives", "As it leaves"].map((text) => el("th", { scope: "col" }, text)))),
    el("tbody", {}, ...rows.map(([name, a, b]) => el("tr", {}, el("th", { scope: "row" }, name), cell(a, false), cell(b, a !== b))))));
}

function rulesText({ rules, buckets, why, slow, core, outputs }) {
  const lines = rules.map(({ table, flow }) => `Table ${table}: ${flow ?? "no rule matches"}`);
  lines.push(...buckets.map(({ group, bucket }) => `Group ${group}: bucket ${bucket}`));
  lines.push(why ? `By user space: ${why}` : slow ? "By user space" : `By the kernel plane${core === null ? "" : `, on core ${core}`}`);
  lines.push(...outputs.map(({ to, lost }) => `Sent to ${to}${lost ? `, where it is lost: ${lost}` : ""}`));
  return lines;
}

function showReport(report) {
  const parts = [el("p", { class: "verdict" }, verdict(report)), el("p", { class: "dim" }, `It arrives on port ${report.port}.${report.reason ? ` Reason: ${report.reason.reason}.` : ""}`)];
  parts.push(...[...report.notes, ...(report.rules?.notes ?? [])].map((note) => el("p", { class: "dim" }, `Note: ${note}`)));
  if (report.rules) parts.push(el("ul", {}, ...rulesText(report.rules).map((line) => el("li", {}, line))));
  if (report.steps.length > 0) parts.push(el("ol", {}, ...report.steps.map((step) => el("li", { class: step.detail ? "detail" : null }, step.text))));
  if (report.before && report.after) parts.push(headers(report.before, report.after));
  answer.replaceChildren(el("div", { class: `answer ${report.verdict}` }, ...parts));
}

function showError(error) {
  const isForbidden = error instanceof Refused && error.status === 403;
  const text = isForbidden ? "This page may not explain packets. Run the command above as root, or set explain = true in [web] of the configuration." : error.message;
  answer.replaceChildren(el("div", { class: "answer error" }, el("p", { class: "verdict" }, isForbidden ? "Not allowed here" : "Not explained"), el("p", {}, text)));
}

form.addEventListener("input", showCommand);
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  if (send.disabled) return;
  send.disabled = true;
  try {
    showReport(await ask("v1/explain", request()));
  } catch (error) {
    showError(error);
  }
  send.disabled = false;
});
copy.addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(command.textContent);
    setText(copy, "Copied");
  } catch {
    getSelection().selectAllChildren(command);
    setText(copy, "Selected");
  }
  setTimeout(() => setText(copy, "Copy command"), 2000);
});

function choices(name, names) {
  const select = form.elements.namedItem(name);
  const key = JSON.stringify(names);
  if (select.key === key) return;
  select.key = key;
  const chosen = select.value;
  const [first] = FIELDS.find((one) => one.name === name).options;
  select.replaceChildren(...[first, ...names.map((text) => [text, text])].map(([option, text]) => el("option", { value: option }, text)));
  select.value = names.includes(chosen) ? chosen : "";
}

/** Offers routers and ports that there are. */
export function offer(status) {
  instance = status.instance ?? "";
  choices("router", status.routers.map((router) => router.router).filter((router) => router !== "host"));
  choices("port", status.ports.map((port) => port.port));
  showCommand();
}
