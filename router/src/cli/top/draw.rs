//! The model as lines, and lines on a terminal of any size.

use super::{
    columns::{self, Column},
    model::{
        CoreRow, DaemonView, Head, InterfaceRow, Model, PathRow, PortRow, QueueRow, RouterRow, RuleRow,
        Rules, Shares, TalkerRow,
    },
    reading::{MOST_CONNECTIONS, MOST_RULES},
    state::{Selection, View},
};
use crate::{
    base::{foreign::shown, words::span},
    cli::cores,
};
use ratatui::{
    Frame,
    layout::Rect,
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::Paragraph,
};

pub const HEAD: Style = Style::new().add_modifier(Modifier::BOLD);
const BAD: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
const QUIET: Style = Style::new().add_modifier(Modifier::DIM);

/// The signs of a bar, which can be told apart without colours.
const FORWARDING: (&str, Style) = ("#", Style::new().fg(Color::Green));
const KERNEL: (&str, Style) = ("+", Style::new().fg(Color::Yellow));
const APPLICATIONS: (&str, Style) = ("=", Style::new().fg(Color::Blue));
const STOLEN: (&str, Style) = ("!", Style::new().fg(Color::Red));

/// Problems that are shown; `millrace status` has all.
const PROBLEMS: usize = 2;
/// Decisions that are shown on a screen.
const EVENTS: usize = 4;
/// The least height of a screen that shows them, in lines.
const EVENTS_FROM_HEIGHT: u16 = 18;

/// All views as text, for pipes.
pub fn text(model: &Model, width: usize) -> String {
    let mut parts = vec![head(model, None)];
    for view in View::ALL {
        parts.push(self::view(model, view, width));
    }
    parts.push(events(model, usize::MAX));
    parts.retain(|lines| !lines.is_empty());
    let line = |line: &Line| line.to_string().trim_end().to_owned() + "\n";
    let parts = parts.iter().map(|lines| lines.iter().map(line).collect::<String>());
    parts.collect::<Vec<_>>().join("\n")
}

/// Draws a screen. `None`: nothing is known yet.
pub fn frame(frame: &mut Frame, model: Option<&Model>, state: &mut Selection) {
    let Some(model) = model else {
        return frame.render_widget(Paragraph::new("asking the daemon"), frame.area());
    };
    let area = frame.area();
    let head = head(model, Some(state));
    let mut lines = view(model, state.view, area.width.into());
    let events = if area.height >= EVENTS_FROM_HEIGHT { events(model, EVENTS) } else { Vec::new() };
    let [head_rows, event_rows] =
        [&head, &events].map(|lines| u16::try_from(lines.len()).unwrap_or(u16::MAX));
    let body_rows = area.height.saturating_sub(head_rows).saturating_sub(event_rows);
    // The head of the columns stays, and the lines below it scroll.
    let heads = lines.drain(..lines.len().min(1)).collect::<Vec<_>>();
    let page = usize::from(body_rows).saturating_sub(heads.len());
    state.page = page.max(1);
    state.scroll = state.scroll.min(lines.len().saturating_sub(page));

    let shown = lines.into_iter().skip(state.scroll).take(page);
    let body = heads.into_iter().chain(shown).collect();
    let mut top = 0;
    for (lines, rows) in [(head, head_rows), (body, body_rows), (events, event_rows)] {
        let rect = Rect { y: area.y.saturating_add(top), height: rows, ..area }.intersection(area);
        frame.render_widget(Paragraph::new(lines), rect);
        top = top.saturating_add(rows);
    }
}

/// The overall state and the problems; on a terminal, also the views and keys.
fn head(model: &Model, state: Option<&Selection>) -> Vec<Line<'static>> {
    let mut lines = match &model.daemon {
        Ok(told) => told_head(&told.head),
        Err(error) => vec![Line::styled(shown(error), BAD)],
    };
    if let Some(state) = state {
        let view = |view: View| {
            let name = format!("{} {}", view as usize + 1, view.name());
            if view == state.view { format!("[{name}]") } else { name }
        };
        let every = match state.paused {
            true => "PAUSED".into(),
            false => format!("every {} s", state.period.as_secs_f64()),
        };
        let views = View::ALL.map(view).join(" ");
        lines.push(Line::raw(format!("{views}  {every}  q quit  space pause  +/- interval")));
    }
    lines
}

fn told_head(head: &Head) -> Vec<Line<'static>> {
    let instance = head.instance.as_ref().map_or(String::new(), |instance| format!(" instance {instance},"));
    let mut lines = vec![
        Line::styled(
            shown(&format!(
                "millrace {},{instance} up {}, policy {}",
                head.version,
                span(head.uptime_s),
                head.policy
            )),
            HEAD,
        ),
        Line::raw(format!(
            "{}pps {}bit/s forwarded; pps to the kernel {}, dropped {}, lost {}",
            spaced(head.forwarded_pps),
            spaced(head.forwarded_bps),
            amount(head.passed_pps),
            amount(head.dropped_pps),
            amount(head.lost_pps)
        )),
    ];
    let problem = |problem: &String| Line::styled(shown(&format!("PROBLEM {problem}")), BAD);
    lines.extend(head.problems.iter().take(PROBLEMS).map(problem));
    if let more @ 1.. = head.problems.len().saturating_sub(PROBLEMS) {
        lines.push(Line::styled(format!("PROBLEM and {more} more, see `millrace status`"), BAD));
    }
    lines
}

/// The lines of a view; the first one does not scroll.
fn view(model: &Model, view: View, width: usize) -> Vec<Line<'static>> {
    let told = match (&model.daemon, view) {
        (_, View::Cores) => return cores_view(&model.cores, width),
        (Ok(told), _) => told,
        (Err(_), _) => return Vec::new(),
    };
    let (lines, nothing) = match view {
        View::Cores | View::Queues => (queues_view(told, width), "no queues and no ports"),
        View::Routers => (routers_view(&told.routers, width), "no routers"),
        View::Interfaces => {
            (interfaces_view(told.interfaces.as_deref().unwrap_or_default(), width), "no interfaces")
        }
        View::Flows => (flows_view(&told.rules, width), ""),
        View::Talkers => (talkers_view(told.talkers.as_deref(), width), ""),
        View::Paths => (paths_view(&told.paths, width), "no paths are configured ([[path]])"),
    };
    if lines.is_empty() { vec![Line::styled(nothing, QUIET)] } else { lines }
}

const fn left(head: &'static str, enough: usize, leave: u8) -> Column {
    Column { head, right: false, enough, leave }
}

const fn right(head: &'static str, leave: u8) -> Column {
    Column { head, right: true, enough: 10, leave }
}

fn cores_view(rows: &[CoreRow], width: usize) -> Vec<Line<'static>> {
    let cells = match width {
        ..60 => 10,
        60..120 => 20,
        _ => 40,
    };
    let columns = [
        right("CORE", 0),
        Column { head: "TIME", right: false, enough: cells + 2, leave: 0 },
        right("FORW", 2),
        right("KERN", 4),
        right("APPS", 3),
        right("IDLE", 5),
        left("ROLE", 7, 1),
        left("QUEUES", 13, 6),
        left("WORKLOADS", 10, 7),
    ];
    let row = |row: &CoreRow| {
        let share = |of: fn(&Shares) -> f64| percent(row.shares.as_ref().map(of));
        vec![
            Line::raw(row.core.to_string()),
            bar(row.shares.unwrap_or_default(), cells),
            Line::raw(share(|shares| shares.forwarding)),
            Line::raw(share(|shares| shares.kernel)),
            Line::raw(share(|shares| shares.applications)),
            Line::raw(share(idle)),
            text_cell(&row.role),
            text_cell(&row.queues.join(" ")),
            text_cell(&row.workloads.join(", ")),
        ]
    };
    let mut lines = columns::lines(&columns, rows.iter().map(row).collect(), width);
    let legend =
        [(FORWARDING, "forwarding"), (KERNEL, "kernel"), (APPLICATIONS, "applications"), (STOLEN, "stolen")];
    let spans =
        legend.map(|((sign, style), name)| [Span::styled(sign, style), Span::raw(format!(" {name}  "))]);
    lines.push(spans.into_iter().flatten().collect());
    lines
}

fn idle(shares: &Shares) -> f64 {
    (1.0 - shares.forwarding - shares.kernel - shares.applications - shares.stolen).max(0.0)
}

/// The ends of the parts are rounded, not their lengths, so that rounding adds no cell.
fn bar(shares: Shares, cells: usize) -> Line<'static> {
    let parts = [
        (FORWARDING, shares.forwarding),
        (KERNEL, shares.kernel),
        (APPLICATIONS, shares.applications),
        (STOLEN, shares.stolen),
    ];
    let (mut sum, mut done) = (0.0, 0);
    let mut line = Line::raw("[");
    for ((sign, style), share) in parts {
        sum += if share.is_finite() { share.max(0.0) } else { 0.0 };
        let end = ((sum * cells as f64).round() as usize).clamp(done, cells);
        line.push_span(Span::styled(sign.repeat(end - done), style));
        done = end;
    }
    line.push_span(" ".repeat(cells - done) + "]");
    line
}

fn queues_view(told: &DaemonView, width: usize) -> Vec<Line<'static>> {
    let columns = [
        left("PORT", 10, 0),
        right("QUEUE", 0),
        right("CORE", 0),
        right("LOAD", 1),
        right("PACKETS/S", 3),
        right("WAKE-UPS/S", 2),
        left("MOVED BY", 12, 4),
    ];
    let row = |row: &QueueRow| {
        let about = if row.is_estimate && row.load.is_some() { "~" } else { "" };
        vec![
            text_cell(&row.port),
            Line::raw(row.queue.to_string()),
            Line::raw(row.core.map_or("-".into(), |core| core.to_string())),
            Line::raw(format!("{about}{}", percent(row.load))),
            Line::raw(amount(row.pps)),
            Line::raw(amount(row.wakeups_per_s)),
            match &row.moved_by {
                Ok(by) => text_cell(by),
                Err(why) => text_cell(&format!("nothing: {why}")),
            },
        ]
    };
    let mut lines = columns::lines(&columns, told.queues.iter().map(row).collect(), width);
    let ports = ports(&told.ports, width);
    if !lines.is_empty() && !ports.is_empty() {
        lines.push(Line::default());
    }
    lines.extend(ports);
    lines
}

fn ports(rows: &[PortRow], width: usize) -> Vec<Line<'static>> {
    let columns = [
        left("PORT", 10, 0),
        right("RX/S", 0),
        right("RX BIT/S", 3),
        right("TX/S", 1),
        right("TX BIT/S", 4),
        right("LOST/S", 2),
        left("MODE", 8, 5),
        left("PROBLEMS", 8, 6),
    ];
    let row = |row: &PortRow| {
        vec![
            text_cell(&row.port),
            Line::raw(amount(row.rx_pps)),
            Line::raw(amount(row.rx_bps)),
            Line::raw(amount(row.tx_pps)),
            Line::raw(amount(row.tx_bps)),
            Line::raw(amount(row.lost_pps)),
            text_cell(&row.mode),
            Line::styled(shown(&row.problems.join("; ")), BAD),
        ]
    };
    columns::lines(&columns, rows.iter().map(row).collect(), width)
}

fn routers_view(rows: &[RouterRow], width: usize) -> Vec<Line<'static>> {
    let columns = [
        left("ROUTER", 12, 0),
        left("IPV4", 6, 5),
        left("IPV6", 6, 6),
        right("FORWARDED/S", 0),
        right("BIT/S", 3),
        right("KERNEL/S", 1),
        right("DROPPED/S", 2),
        right("NS/PACKET", 7),
        left("MOSTLY BECAUSE", 14, 4),
    ];
    let row = |row: &RouterRow| {
        let reason = |(reason, pps): &(String, f64)| format!("{reason} {}", amount(Some(*pps)));
        vec![
            text_cell(&row.router),
            Line::raw(row.ipv4),
            Line::raw(row.ipv6),
            Line::raw(amount(row.forwarded_pps)),
            Line::raw(amount(row.forwarded_bps)),
            Line::raw(amount(row.passed_pps)),
            Line::raw(amount(row.dropped_pps)),
            Line::raw(amount(row.ns_per_packet)),
            text_cell(&row.reasons.iter().map(reason).collect::<Vec<_>>().join(", ")),
        ]
    };
    columns::lines(&columns, rows.iter().map(row).collect(), width)
}

fn interfaces_view(rows: &[InterfaceRow], width: usize) -> Vec<Line<'static>> {
    let columns = [
        left("ROUTER", 8, 3),
        left("INTERFACE", 10, 0),
        right("RX/S", 0),
        right("RX BIT/S", 2),
        right("TX/S", 1),
        right("TX BIT/S", 4),
        right("NOT FORWARDED/S", 5),
        left("IPV4", 6, 6),
        left("IPV6", 6, 7),
    ];
    let row = |row: &InterfaceRow| {
        vec![
            text_cell(&row.router),
            text_cell(&row.interface),
            Line::raw(amount(row.rx_pps)),
            Line::raw(amount(row.rx_bps)),
            Line::raw(amount(row.tx_pps)),
            Line::raw(amount(row.tx_bps)),
            Line::raw(amount(row.other_pps)),
            Line::raw(row.ipv4),
            Line::raw(row.ipv6),
        ]
    };
    columns::lines(&columns, rows.iter().map(row).collect(), width)
}

/// The connections with the most bits per second. Other flows have no counters of their own, and the view says so.
fn talkers_view(rows: Option<&[TalkerRow]>, width: usize) -> Vec<Line<'static>> {
    let note = "connections that bypass a firewall; flows of plain routing have no counters of their own";
    let mut lines = vec![Line::styled(note, QUIET)];
    let columns = [
        right("BIT/S", 0),
        right("PACKETS/S", 1),
        right("BYTES", 3),
        left("ROUTER", 8, 2),
        left("CONNECTION", 20, 0),
    ];
    let row = |row: &TalkerRow| {
        vec![
            Line::raw(amount(row.bps)),
            Line::raw(amount(row.pps)),
            Line::raw(amount(Some(row.bytes as f64))),
            text_cell(&row.router),
            text_cell(&row.connection),
        ]
    };
    lines.extend(match rows {
        Some([]) => vec![Line::raw("no connection is fast")],
        Some(rows) => columns::lines(&columns, rows.iter().map(row).collect(), width),
        None => {
            let most = format!(
                "only root sees connections, and at most {MOST_CONNECTIONS} here; see `millrace connections`"
            );
            vec![Line::styled(most, QUIET)]
        }
    });
    lines
}

fn flows_view(rules: &Rules, width: usize) -> Vec<Line<'static>> {
    let status = &rules.status;
    let charge = match (status.in_charge, &status.why_not) {
        (true, _) => "packets go by them".into(),
        (false, Some(why)) => format!("NOT IN CHARGE: {why}"),
        (false, None) => "packets are routed".into(),
    };
    let mut lines = vec![Line::raw(shown(&format!("{} flow rules, {charge}", status.rules)))];
    if status.in_charge {
        lines.push(Line::raw(format!(
            "cache {}: {}pps hits, {}pps misses; user space {}pps done, {}pps lost",
            percent(rules.hit_rate),
            spaced(rules.hits_pps),
            spaced(rules.misses_pps),
            spaced(rules.slow_pps),
            spaced(rules.slow_lost_pps)
        )));
    }
    let columns = [
        right("PACKETS/S", 0),
        right("BIT/S", 1),
        right("PACKETS", 3),
        left("BY", 6, 2),
        left("RULE", 20, 0),
    ];
    let row = |row: &RuleRow| {
        vec![
            Line::raw(amount(row.pps)),
            Line::raw(amount(row.bps)),
            Line::raw(amount(Some(row.packets as f64))),
            Line::raw(row.by),
            text_cell(&row.rule),
        ]
    };
    match &rules.busiest {
        Some(rows) => lines.extend(columns::lines(&columns, rows.iter().map(row).collect(), width)),
        None if status.rules > MOST_RULES as u64 => lines.push(Line::styled(
            format!("more than {MOST_RULES} rules are not listed; see `millrace flows watch MATCH`"),
            QUIET,
        )),
        None => {}
    }
    lines
}

fn paths_view(rows: &[PathRow], width: usize) -> Vec<Line<'static>> {
    let columns = [
        left("PATH", 12, 0),
        right("CORE", 2),
        right("SHARE", 1),
        right("PACKETS/S", 0),
        right("BIT/S", 3),
        right("LOST/S", 0),
        left("LOST AS", 16, 4),
    ];
    let row = |row: &PathRow| {
        let lost = |(reason, pps): &(String, f64)| format!("{reason} {}", amount(Some(*pps)));
        vec![
            text_cell(&row.path),
            Line::raw(row.core.map_or("-".into(), |core| core.to_string())),
            Line::raw(match &row.shares {
                Some(resource) => format!("{} of {resource}", percent(row.share)),
                None => percent(row.share),
            }),
            Line::raw(amount(row.pps)),
            Line::raw(amount(row.bps)),
            Line::raw(amount(row.lost_pps)),
            match &row.why_not {
                Some(why) => text_cell(&format!("no packets: {why}")),
                None => text_cell(&row.lost.iter().map(lost).collect::<Vec<_>>().join(", ")),
            },
        ]
    };
    columns::lines(&columns, rows.iter().map(row).collect(), width)
}

/// The last decisions about queues, the newest first.
fn events(model: &Model, most: usize) -> Vec<Line<'static>> {
    let events = model.daemon.as_ref().map_or(&[][..], |told| &told.events);
    let line = |event| Line::raw(shown(cores::event(event).trim_end()));
    let lines: Vec<Line> = events.iter().take(most).map(line).collect();
    let head = (!lines.is_empty()).then(|| Line::styled("DECISIONS", HEAD));
    head.into_iter().chain(lines).collect()
}

fn text_cell(text: &str) -> Line<'static> {
    Line::raw(if text.is_empty() { "-".into() } else { shown(text) })
}

fn percent(fraction: Option<f64>) -> String {
    match fraction.filter(|fraction| fraction.is_finite()) {
        // Adding 0.0 turns -0 into 0.
        Some(fraction) => format!("{:.0}%", (fraction * 100.0).round() + 0.0),
        None => "-".into(),
    }
}

/// The number with three significant digits and a letter for thousands, such as `1.23M`.
fn amount(value: Option<f64>) -> String {
    let Some(value) = value.filter(|value| value.is_finite() && *value >= 0.0) else {
        return "-".into();
    };
    // Adding 0.0 turns -0 into 0.
    let mut value = value + 0.0;
    if value < 999.5 {
        let digits = usize::from(value < 9.95 && value.fract() > 0.0);
        return format!("{value:.digits$}");
    }
    let mut letters = ["k", "M", "G", "T", "P", "E"].into_iter();
    let mut letter = "";
    while value >= 999.5 {
        let Some(next) = letters.next() else { break };
        (value, letter) = (value / 1000.0, next);
    }
    let digits = match value {
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$}{letter}")
}

/// Like [`amount`], with a blank before the unit that follows: "1.23 M" pps, "12 " pps.
fn spaced(value: Option<f64>) -> String {
    let amount = amount(value);
    match amount.find(|c: char| c.is_ascii_alphabetic()) {
        Some(at) => format!("{} {}", &amount[..at], &amount[at..]),
        None => amount + " ",
    }
}

#[cfg(test)]
mod tests;
