// Tables that are sorted, filtered and bounded, and those of routers, interfaces, ports, queues and cores.

import { ofInterface, ofRouter } from "./fast.js";
import { bps, brief, byId, count, el, percent, plural, pps, setText, si } from "./text.js";

const STEP = 25;

/**
 * A table. A column has `title`, `text(row)`, and if it can be sorted by numbers `value(row)`; `className` for its cells; `cell(row)`
 * makes an element in place of a text.
 */
export class DataTable {
  constructor(where, { caption, columns, empty, filter, order, what }) {
    Object.assign(this, { columns, what, order: order ?? null, most: STEP, rows: [], wanted: "" });
    this.heads = columns.map((column, i) => this.#head(column, i));
    this.body = el("tbody", {});
    this.more = el("div", { class: "more" });
    this.empty = el("p", { class: "empty" }, empty);
    this.box = el("div", { class: "table-box" }, el("table", {}, caption ? el("caption", {}, caption) : null, el("thead", {}, el("tr", {}, ...this.heads)), this.body));
    byId(where).replaceChildren(this.box, this.empty, this.more);
    if (filter) {
      byId(filter).addEventListener("input", (event) => {
        this.wanted = event.target.value.toLowerCase();
        this.#draw();
      });
    }
  }

  #head(column, i) {
    const isNumber = column.value !== undefined;
    const sort = () => {
      const ascending = this.order?.column === i ? !this.order.ascending : !isNumber;
      this.order = { column: i, ascending };
      this.#draw();
    };
    const button = column.isFixed ? column.title : el("button", { type: "button", onclick: sort }, column.title);
    return el("th", { scope: "col", class: isNumber ? "number" : null }, button);
  }

  show(rows) {
    this.rows = rows;
    this.#draw();
  }

  #sorted() {
    const fits = (row) => this.columns.some((column) => column.text(row).toLowerCase().includes(this.wanted));
    const rows = this.wanted === "" ? [...this.rows] : this.rows.filter(fits);
    if (!this.order) return rows;
    const { value, text } = this.columns[this.order.column];
    const sign = this.order.ascending ? 1 : -1;
    const number = (row) => value(row) ?? -Infinity;
    const by = value ? (a, b) => number(a) - number(b) || 0 : (a, b) => text(a).localeCompare(text(b), undefined, { numeric: true });
    return rows.sort((a, b) => sign * by(a, b));
  }

  #draw() {
    const rows = this.#sorted();
    const shown = rows.slice(0, this.most);
    while (this.body.rows.length > shown.length) this.body.lastChild.remove();
    while (this.body.rows.length < shown.length) this.body.append(el("tr", {}, ...this.columns.map((column) => el("td", { class: this.#classOf(column) }))));
    shown.forEach((row, i) => this.columns.forEach((column, j) => this.#fill(this.body.rows[i].cells[j], column, row)));
    this.heads.forEach((head, i) => {
      if (this.order?.column === i) head.setAttribute("aria-sort", this.order.ascending ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });
    this.box.hidden = rows.length === 0;
    this.empty.hidden = rows.length > 0;
    this.#foot(rows.length, shown.length);
  }

  #classOf(column) {
    return [column.className, column.value ? "number" : null].filter(Boolean).join(" ") || null;
  }

  #fill(cell, column, row) {
    const text = column.text(row);
    if (!column.cell) setText(cell, text);
    else if (cell.shown !== text || column.isLive) cell.replaceChildren(column.cell(row));
    cell.shown = text;
    // What is not zero stands out.
    if (column.value) cell.classList.toggle("zero", /^[0–]( |$)/.test(text));
  }

  #foot(all, shown) {
    const key = `${all} ${shown} ${this.rows.length}`;
    if (this.key === key) return;
    this.key = key;
    const parts = [];
    if (all > shown || all < this.rows.length) parts.push(`${count(shown)} of ${plural(this.rows.length, this.what)}`);
    const step = (text, most) => el("button", { type: "button", onclick: () => ((this.most = most), this.#draw()) }, text);
    if (all > shown) parts.push(step(`Show ${Math.min(this.most, all - shown)} more`, this.most * 2));
    if (this.most > STEP && all > STEP) parts.push(step("Show fewer", STEP));
    this.more.replaceChildren(...parts);
  }
}

const badge = (text, kind) => el("span", { class: `badge ${kind}` }, text);
const whys = (whyNot) => [...new Set([...whyNot.ipv4, ...whyNot.ipv6].map((why) => why.text))].join("; ");

/** `of`: what is fast of a row. */
const pathColumn = (of) => ({
  title: "Path",
  text: (row) => of(row).text,
  cell: (row) => badge(of(row).text, of(row).colour),
});

/** A column with a rate, and its form. */
const rated = (title, rate, form) => ({ title, value: rate, text: (row) => form(rate(row)) });
const counted = (title, value) => ({ title, value, text: (row) => count(value(row)) });

export const routersTable = (rate) => {
  const of = (field) => (row) => rate(`router:${row.router}`, field);
  return new DataTable("routers-table", {
    what: "router", filter: "routers-filter", empty: "No router matches.",
    columns: [
      { title: "Router", className: "name", text: (row) => row.router },
      pathColumn(ofRouter),
      rated("Forwarded", of("forwarded"), pps),
      rated("Bits", of("forwarded_bytes"), bps),
      rated("To the kernel", of("passed"), pps),
      rated("Dropped", of("dropped"), pps),
      counted("Interfaces", (row) => row.interfaces),
      counted("Routes", (row) => row.routes.ipv4 + row.routes.ipv6),
      counted("Connections", (row) => row.connections),
      { title: "Cost", value: (row) => row.ns_per_packet, text: (row) => si(row.ns_per_packet, "ns") },
      { title: "Why not fast", className: "wide", isFixed: true, text: (row) => whys(row.why_not) || (row.left_to_kernel.length > 0 ? `${plural(row.left_to_kernel.length, "interface")} left to the kernel` : "") },
    ],
  });
};

export const interfaceKey = (row) => JSON.stringify([row.router, row.interface]);

export const interfacesTable = (rates) => {
  const of = (field) => (row) => rates.rate(interfaceKey(row), field);
  return new DataTable("interfaces-table", {
    what: "interface", filter: "interfaces-filter", empty: "No interface matches.",
    columns: [
      { title: "Interface", className: "name", text: (row) => row.interface },
      { title: "Router", className: "name", text: (row) => row.router },
      { title: "Port", text: (row) => (row.port ?? "–") + (row.vlan ? ` VLAN ${row.vlan}` : "") },
      { title: "MAC address", text: (row) => row.mac },
      pathColumn(ofInterface),
      rated("Received", of("rx_packets"), pps),
      rated("Bits", of("rx_bytes"), bps),
      rated("Sent", of("tx_packets"), pps),
      rated("Bits", of("tx_bytes"), bps),
      rated("Not forwarded", of("not_forwarded_packets"), pps),
      { title: "Why not fast", className: "wide", isFixed: true, text: (row) => whys(row.why_not) },
    ],
  });
};

export const portsTable = (rate) => {
  const of = (field) => (row) => rate(`port:${row.port}`, field);
  return new DataTable("ports-table", {
    what: "port", empty: "There is no port.", caption: "Ports",
    columns: [
      { title: "Port", className: "name", text: (row) => row.port },
      { title: "Mode", text: (row) => row.mode, cell: (row) => badge(row.mode, row.mode === "native" ? "good" : "up") },
      rated("Received", of("rx_packets"), pps),
      rated("Bits", of("rx_bytes"), bps),
      rated("Sent", of("tx_packets"), pps),
      rated("Bits", of("tx_bytes"), bps),
      counted("Lost", (row) => row.lost.reduce((sum, one) => sum + one.packets, 0)),
      { title: "Problems and notes", className: "wide", isFixed: true, text: (row) => [...row.problems, row.note].filter(Boolean).map((why) => why.text).join("; ") },
    ],
  });
};

export const queuesTable = () =>
  new DataTable("queues-table", {
    what: "queue", empty: "No queue is known.", caption: "Queues",
    columns: [
      { title: "Queue", className: "name", text: (row) => `${row.port}/${row.queue}` },
      { title: "Core", value: (row) => row.core, text: (row) => (row.shared?.length > 0 ? row.shared.join(", ") : row.core === null ? "not known" : String(row.core)) },
      rated("Packets", (row) => row.packets_per_s ?? null, pps),
      rated("Ran", (row) => row.ran, percent),
      rated("Waited", (row) => row.waited, percent),
      rated("Wake-ups", (row) => row.wakeups_per_s, (value) => si(value, "/s")),
      { title: "Moved by", className: "wide", isFixed: true, text: (row) => row.moved_by ?? (row.why_not && brief(row.why_not)) ?? (row.moved_with ? `with ${row.moved_with}` : "") },
    ],
  });

export const coresTable = () =>
  new DataTable("cores-table", {
    what: "core", empty: "No core is known.", caption: "Cores",
    columns: [
      { title: "Core", value: (row) => row.core, text: (row) => String(row.core) },
      { title: "Role", text: (row) => row.role },
      rated("Forwarding", (row) => row.forwarding, percent),
      rated("Other work", (row) => row.other, percent),
      { title: "May forward", text: (row) => (row.may_forward ? "yes" : "no") },
      { title: "Workloads", className: "wide", isFixed: true, text: (row) => row.workloads.join(", ") },
    ],
  });
