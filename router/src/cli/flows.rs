//! `millrace flows`: lists, adds, modifies, deletes and watches flow rules.

use super::{LONG_PATIENCE, Output, PATIENCE, percent, print, print_json, said};
use crate::{
    api::{
        flows::{Command, FailedLine, FlowReport, FlowsChanged, FlowsRequest},
        status::Status,
    },
    base::{foreign::shown_json, guard, instance::Instance},
    daemon::{api::MAX_FLOWS_BYTES, client},
    switch::file::{END, PORTS},
};
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use serde::Serialize;
use std::{
    collections::HashMap,
    fs::File,
    hash::{BuildHasher, RandomState},
    io::{self, BufRead, BufReader, IsTerminal, Read, Write},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

pub const HELP: &str = "\
A flow is written as for ovs-ofctl, in quotes:
  'priority=100,tcp,nw_dst=10.1.0.0/16,tp_dst=80,actions=mod_nw_dst:10.1.0.9,normal'
  'in_port=eth1,arp,actions=flood'        'ip,nw_src=10.9.9.9,actions=drop'        'actions=normal'
A port is a number (`millrace ports`) or a name. `normal` does what happens without rules: Linux's routing,
with the MAC address of the next hop and a decremented TTL. `output` sends the packet as it is, without
routing. `local` gives it to the kernel. `miss` of [flows] in the configuration says what happens to packets
that no rule matches. Rules last until the daemon ends, unless `save` writes them to the file that the daemon
reads at its start (`file` of [flows]).
docs/reference/flow-syntax.md lists all fields and actions.";

/// The commands of `millrace flows`.
#[derive(Debug, Subcommand)]
pub enum Flows {
    /// List rules, their counters, and who executes them: the kernel plane, or user space, which is slow.
    List(List),
    /// Add rules, or replace those with the same match and priority; returns when packets follow them.
    Add(Add),
    /// Change the actions of all rules that the match of the flow covers.
    Mod(Mod),
    /// Delete all rules that the match covers; without a match, all rules.
    Del(Del),
    /// Save the rules to the file that the daemon reads at its start (`file` of [flows]), except those with groups or meters,
    /// and those of the core table.
    Save(Save),
    /// Show the 40 busiest rules, each second until Ctrl-C.
    Watch(Select),
}

#[derive(Debug, Args)]
pub struct List {
    #[command(flatten)]
    select: Select,
    /// Also print why user space executes a rule; JSON always has it.
    #[arg(long)]
    why: bool,
}

#[derive(Debug, Args)]
pub struct Select {
    /// Only rules that this match covers; also table=, cookie=VALUE/MASK, out_port=, out_group=.
    #[arg(value_name = "MATCH", default_value = "")]
    matching: String,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["flows", "file"]))]
pub struct Add {
    /// A rule, in quotes.
    #[arg(value_name = "FLOW")]
    flows: Vec<String>,
    /// A file with one flow per line, `-` for standard input. `add`, `modify[_strict]` or `delete[_strict]` may stand
    /// before a flow. The command ends at the first wrong line; the lines before it are done.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub struct Mod {
    /// A match with the actions that its rules get, in quotes.
    #[arg(value_name = "FLOW", required = true)]
    flows: Vec<String>,
    /// Only the rule with the same match and priority.
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub struct Del {
    /// Only rules that this match covers; also table=, cookie=VALUE/MASK, out_port=, out_group=.
    #[arg(value_name = "MATCH", default_value = "")]
    matching: String,
    /// Only the rule with the same match and priority.
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub struct Save {
    /// Save to this file instead of the configured one.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

impl Flows {
    pub fn is_json(&self) -> bool {
        match self {
            Flows::List(list) => list.select.output.json,
            Flows::Watch(select) => select.output.json,
            Flows::Add(add) => add.output.json,
            Flows::Mod(change) => change.output.json,
            Flows::Del(del) => del.output.json,
            Flows::Save(save) => save.output.json,
        }
    }

    pub fn run(self, instance: &Instance) -> Result<()> {
        match self {
            Flows::List(List { select, why }) => list(instance, &select, why),
            Flows::Watch(select) => watch(instance, &select),
            Flows::Save(save) => save.run(instance),
            Flows::Add(add) => match &add.file {
                Some(file) => changed(add.output, &add_file(instance, file)?, Some(file)),
                None => change(instance, Command::Add, add.flows, add.output),
            },
            Flows::Mod(Mod { flows, strict, output }) => {
                let command = if strict { Command::ModifyStrict } else { Command::Modify };
                change(instance, command, flows, output)
            }
            Flows::Del(Del { matching, strict, output }) => {
                let command = if strict { Command::DeleteStrict } else { Command::Delete };
                // An empty match must be a line too.
                change(instance, command, vec![format!("{matching},")], output)
            }
        }
    }
}

/// What `flows save` did.
#[derive(Debug, Serialize)]
struct Saved {
    file: PathBuf,
    /// Rules that were written.
    rules: u64,
    /// Rules that were not: those with groups or meters, and those of the core table.
    left_out: u64,
}

impl Save {
    fn run(self, instance: &Instance) -> Result<()> {
        let get = |path| client::call(&instance.socket(), "GET", path, None, PATIENCE);
        let status: Status = get("/status").map_err(|e| said(instance, e))?;
        let file = self.file.or_else(|| status.flows.file.map(PathBuf::from)).context(
            "there is no file to save to: set `file` of [flows] in the configuration, or use --file",
        )?;
        let names = status.flows.names.iter().map(|(number, name)| format!(" {number}={name}"));
        let mut text = format!(
            "# Flow rules of Millrace, written by `millrace flows save`. Port numbers in the rules mean these ports and paths:\n{PORTS}{}\n",
            names.collect::<String>()
        );
        let (mut rules, mut left_out) = (0, 0);
        each(instance, "", |flow| {
            let can_be_added = !["group:", "meter:"].iter().any(|word| flow.actions.contains(word));
            *(if can_be_added { &mut rules } else { &mut left_out }) += 1;
            if can_be_added {
                text += &line(&flow);
            }
            Ok(())
        })?;
        left_out += status.flows.core_rules;
        text = text + END + "\n";
        // Not the link, if it is one.
        let target = file.canonicalize().unwrap_or_else(|_| file.clone());
        guard::replace_durably(&target, text.as_bytes())
            .with_context(|| format!("cannot write {}", target.display()))?;
        if self.output.json {
            return print_json(&Saved { file, rules, left_out });
        }
        let left_out = match left_out {
            0 => String::new(),
            n => format!(
                "; left out {n} rules, which use groups or meters or are in the core table; their controller must add them again"
            ),
        };
        print(&format!("saved {rules} rules to {}{left_out}\n", file.display()))
    }
}

/// The rule as a line of a file that can be added.
fn line(flow: &FlowReport) -> String {
    let mut words = vec![format!("table={}", flow.table), format!("priority={}", flow.priority)];
    words.extend((flow.cookie != 0).then(|| format!("cookie={:#x}", flow.cookie)));
    let timeouts = [("idle_timeout", flow.idle_timeout_s), ("hard_timeout", flow.hard_timeout_s)];
    words.extend(timeouts.iter().filter(|(_, s)| *s != 0).map(|(name, s)| format!("{name}={s}")));
    words.extend(flow.flags.iter().cloned());
    words.extend((!flow.matching.is_empty()).then(|| flow.matching.clone()));
    format!("{},actions={}\n", words.join(","), flow.actions)
}

fn change(instance: &Instance, command: Command, flows: Vec<String>, output: Output) -> Result<()> {
    if let Some(flow) = flows.iter().find(|flow| flow.contains('\n')) {
        bail!("{flow:?} is more than one line; to add a file, use --file");
    }
    let request = FlowsRequest { command, flows: flows.join("\n"), first_line: 1, wait: true };
    changed(output, &ask(instance, &request)?, None)
}

fn ask(instance: &Instance, request: &FlowsRequest) -> Result<FlowsChanged> {
    let body = serde_json::to_value(request)?;
    client::call(&instance.socket(), "POST", "/flows", Some(body), LONG_PATIENCE)
        .map_err(|e| said(instance, e))
}

/// Bytes of flows in one request; in JSON, each may take two.
const PIECE_BYTES: usize = MAX_FLOWS_BYTES / 2 - 64 * 1024;

/// Adds a file in pieces, so that neither end holds all of it. After the last piece, packets follow all of its rules.
fn add_file(instance: &Instance, file: &Path) -> Result<FlowsChanged> {
    let reading = || format!("reading {}", file.display());
    let mut lines: Box<dyn BufRead> = match file.as_os_str() == "-" {
        true => Box::new(io::stdin().lock()),
        false => Box::new(BufReader::new(File::open(file).with_context(reading)?)),
    };
    let mut sum = FlowsChanged::default();
    let mut next_line = 1;
    loop {
        let mut request = FlowsRequest { first_line: next_line, ..FlowsRequest::default() };
        let end = piece(&mut lines, &mut request.flows, &mut next_line);
        request.wait = end.is_some();
        let done = ask(instance, &request).with_context(|| {
            format!("in {}; before line {}: {}", file.display(), request.first_line, told(&sum))
        })?;
        sum = FlowsChanged {
            added: sum.added + done.added,
            modified: sum.modified + done.modified,
            deleted: sum.deleted + done.deleted,
            failed: done.failed.or_else(|| end.clone().flatten()),
            note: done.note,
        };
        if end.is_some() || sum.failed.is_some() {
            return Ok(sum);
        }
    }
}

/// The longest line, in bytes, with its newline.
const LINE_BYTES: u64 = 60 * 1024;

/// Appends lines of a file to `to`, about [`PIECE_BYTES`]. `next_line` is the number of the next line. Returns `Some` at the
/// end of the file, with the line that cannot be sent, if that is why it ended.
fn piece(lines: &mut impl BufRead, to: &mut String, next_line: &mut u64) -> Option<Option<FailedLine>> {
    while to.len() < PIECE_BYTES {
        let before = to.len();
        let why = match lines.by_ref().take(LINE_BYTES).read_line(to) {
            Ok(0) => return Some(None),
            Ok(bytes) if bytes as u64 == LINE_BYTES && !to.ends_with('\n') => {
                "longer than a flow can be".into()
            }
            Ok(_) => {
                *next_line += 1;
                continue;
            }
            Err(error) => error.to_string(),
        };
        let flow = to.split_off(before).chars().take(60).collect();
        return Some(Some(FailedLine { line: *next_line, flow, why }));
    }
    None
}

/// What was done, as text.
fn told(report: &FlowsChanged) -> String {
    let FlowsChanged { added, modified, deleted, .. } = report;
    let parts = [(added, "added"), (modified, "modified"), (deleted, "deleted")];
    let said: Vec<_> = parts.iter().filter(|(n, _)| **n > 0).map(|(n, what)| format!("{n} {what}")).collect();
    if said.is_empty() { "nothing was changed".into() } else { said.join(", ") }
}

/// Prints what was done.
///
/// # Errors
/// A line failed.
fn changed(output: Output, report: &FlowsChanged, file: Option<&Path>) -> Result<()> {
    let said = told(report);
    if let Some(FailedLine { line, flow, why }) = &report.failed {
        let file = file.map_or(String::new(), |file| format!(" of {}", file.display()));
        bail!("line {line}{file}, {flow:?}: {why}; before it: {said}");
    }
    let note = report.note.as_ref().map_or(String::new(), |note| format!("note: {note}\n"));
    match report {
        _ if output.json => print_json(report),
        FlowsChanged { added: 0, modified: 0, deleted: 0, .. } => {
            print(&format!("no rule was changed\n{note}"))
        }
        _ => print(&format!("{said}\n{note}")),
    }
}

/// Passes each rule that the match covers to `with`, as it arrives.
pub(super) fn each(
    instance: &Instance,
    matching: &str,
    with: impl FnMut(FlowReport) -> Result<()>,
) -> Result<()> {
    let path = format!("/flows?match={}", percent(matching));
    client::lines(&instance.socket(), &path, PATIENCE, with)
        .map_err(|error| error.downcast().map_or_else(|other| other, |call| said(instance, call)))
}

const HEAD: &str = "TABLE PRIORITY        PACKETS            BYTES      AGE     IDLE BY      RULE\n";

fn list(instance: &Instance, select: &Select, why: bool) -> Result<()> {
    let json = select.output.json;
    let mut first = true;
    each(instance, &select.matching, |flow| {
        let start = match (json, std::mem::take(&mut first)) {
            (true, true) => "[",
            (true, false) => ",",
            (false, true) => HEAD,
            (false, false) => "",
        };
        let because = flow.why.as_ref().filter(|_| why).map_or(String::new(), |why| format!("      {why}\n"));
        let text = if json { shown_json(&serde_json::to_string(&flow)?) } else { row(&flow) + &because };
        print(&format!("{start}{text}"))
    })?;
    match (json, first) {
        (true, true) => print("[]\n"),
        (true, false) => print("]\n"),
        (false, true) => print("no rules\n"),
        (false, false) => Ok(()),
    }
}

fn row(flow: &FlowReport) -> String {
    format!(
        "{:>5} {:>8} {:>14} {:>16} {:>7}s {:>7}s {:<7} {}\n",
        flow.table,
        flow.priority,
        flow.packets,
        flow.bytes,
        flow.age_s,
        flow.idle_s,
        by(flow),
        rule(flow)
    )
}

/// Who executes the rule.
pub(super) fn by(flow: &FlowReport) -> &'static str {
    if flow.slow { "user" } else { "kernel" }
}

pub(super) fn rule(flow: &FlowReport) -> String {
    let cookie = (flow.cookie != 0).then(|| format!("cookie={:#x}", flow.cookie));
    let timeout = |name: &str, seconds: u16| (seconds != 0).then(|| format!("{name}={seconds}"));
    let timeouts =
        [timeout("idle_timeout", flow.idle_timeout_s), timeout("hard_timeout", flow.hard_timeout_s)];
    let matching = (!flow.matching.is_empty()).then(|| flow.matching.clone());
    let words: Vec<_> = cookie.into_iter().chain(timeouts.into_iter().flatten()).chain(matching).collect();
    let blank = if words.is_empty() { "" } else { " " };
    format!("{}{blank}actions={}", words.join(","), flow.actions)
}

/// Rules that `watch` shows.
const WATCHED: usize = 40;

/// A rule and its rates over the last second.
#[derive(Debug, Serialize)]
struct Busy {
    packets_per_s: f64,
    bits_per_s: f64,
    #[serde(flatten)]
    flow: FlowReport,
}

#[derive(Debug, Serialize)]
struct Watched {
    /// All rules that the match covers, shown or not.
    rules: u64,
    /// The busiest ones.
    flows: Vec<Busy>,
}

fn watch(instance: &Instance, select: &Select) -> Result<()> {
    let hasher = RandomState::new();
    let mut before: HashMap<u64, (u64, u64)> = HashMap::new();
    let mut looked: Option<Instant> = None;
    let clear = if io::stdout().is_terminal() { "\x1b[H\x1b[2J" } else { "" };
    loop {
        let now = Instant::now();
        let seconds = looked.map_or(0.0, |at| (now - at).as_secs_f64());
        let mut counts = HashMap::new();
        let mut watched = Watched { rules: 0, flows: Vec::new() };
        each(instance, &select.matching, |flow| {
            let key = hasher.hash_one((flow.table, flow.priority, &flow.matching));
            counts.insert(key, (flow.packets, flow.bytes));
            watched.rules += 1;
            let (packets, bytes) = before.get(&key).copied().unwrap_or((flow.packets, flow.bytes));
            let rate = |new: u64, old: u64| match seconds > 0.0 {
                true => new.saturating_sub(old) as f64 / seconds,
                false => 0.0,
            };
            let (packets_per_s, bits_per_s) = (rate(flow.packets, packets), 8.0 * rate(flow.bytes, bytes));
            watched.flows.push(Busy { packets_per_s, bits_per_s, flow });
            if watched.flows.len() >= 2 * WATCHED {
                busiest(&mut watched.flows);
            }
            Ok(())
        })?;
        busiest(&mut watched.flows);
        (before, looked) = (counts, Some(now));
        match select.output.json {
            true => print(&(serde_json::to_string(&watched)? + "\n"))?,
            false => {
                // `print` would escape this control sequence of ours.
                io::stdout().write_all(clear.as_bytes())?;
                print(&screen(&watched))?
            }
        }
        thread::sleep(Duration::from_secs(1).saturating_sub(now.elapsed()));
    }
}

fn busiest(flows: &mut Vec<Busy>) {
    flows.sort_by(|a, b| b.packets_per_s.total_cmp(&a.packets_per_s));
    flows.truncate(WATCHED);
}

fn screen(watched: &Watched) -> String {
    let mut text =
        format!("{} rules\n     PACKETS/S         BITS/S        PACKETS BY      RULE\n", watched.rules);
    for Busy { packets_per_s, bits_per_s, flow } in &watched.flows {
        text += &format!(
            "{packets_per_s:>14.0} {bits_per_s:>14.0} {:>14} {:<7} {}\n",
            flow.packets,
            by(flow),
            rule(flow)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(packets: u64) -> FlowReport {
        FlowReport {
            priority: 100,
            matching: "in_port=1".into(),
            actions: "output:2".into(),
            packets,
            bytes: 60 * packets,
            age_s: 7,
            idle_s: 1,
            ..FlowReport::default()
        }
    }

    #[test]
    fn a_rule_is_a_line_under_its_head() {
        let text = row(&flow(3));
        assert_eq!(
            text,
            "    0      100              3              180       7s       1s kernel  in_port=1 actions=output:2\n"
        );
        for (head, cell) in [("PRIORITY", "100"), ("PACKETS", "3"), ("BYTES", "180")] {
            let end = |text: &str, word: &str| text.find(word).unwrap() + word.len();
            assert_eq!(end(HEAD, head), end(&text, &format!(" {cell} ")) - 1, "{head}");
        }
        assert_eq!(HEAD.find("RULE"), text.find("in_port"));
        let any = FlowReport { slow: true, actions: "drop".into(), ..FlowReport::default() };
        assert!(row(&any).ends_with(" user    actions=drop\n"));
        let named = FlowReport { cookie: 0x2a, idle_timeout_s: 10, hard_timeout_s: 20, ..flow(3) };
        let end = " cookie=0x2a,idle_timeout=10,hard_timeout=20,in_port=1 actions=output:2\n";
        assert!(row(&named).ends_with(end), "{}", row(&named));
    }

    #[test]
    fn the_busiest_rules_are_watched() {
        let mut flows: Vec<_> = (0..100_u32)
            .map(|n| Busy { packets_per_s: f64::from(n), bits_per_s: 0.0, flow: flow(n.into()) })
            .collect();
        busiest(&mut flows);
        assert_eq!((flows.len(), flows[0].flow.packets), (WATCHED, 99));
        let text = screen(&Watched { rules: 100, flows });
        assert!(text.starts_with("100 rules\n"), "{text}");
        assert_eq!(text.lines().count(), 2 + WATCHED);
    }

    #[test]
    fn the_error_of_a_line_says_what_was_done_before() {
        let failed = FailedLine { line: 3, flow: "actions=output:9".into(), why: "no such port".into() };
        let report = FlowsChanged { added: 2, failed: Some(failed), ..FlowsChanged::default() };
        let error = changed(Output { json: false }, &report, Some("f".as_ref())).unwrap_err().to_string();
        assert_eq!(error, "line 3 of f, \"actions=output:9\": no such port; before it: 2 added");
        let failed = FailedLine { line: 1, flow: "x".into(), why: "no".into() };
        let report = FlowsChanged { failed: Some(failed), ..FlowsChanged::default() };
        let error = changed(Output { json: false }, &report, None).unwrap_err().to_string();
        assert_eq!(error, "line 1, \"x\": no; before it: nothing was changed");
    }

    #[test]
    fn a_file_goes_in_pieces_up_to_a_line_that_cannot_be_sent() {
        let flow = "in_port=1,actions=drop\n";
        let per_piece = PIECE_BYTES.div_ceil(flow.len());
        let many = flow.repeat(per_piece + 2);
        let long = format!("{flow}{}", "x".repeat(1 << 20));
        let failed = |line, flow: &str, why: &str| FailedLine { line, flow: flow.into(), why: why.into() };
        let too_long = failed(2, &"x".repeat(60), "longer than a flow can be");
        let foreign = failed(2, "", "stream did not contain valid UTF-8");
        for (file, lines, next, end) in [
            (many.as_bytes(), per_piece, per_piece + 1, None),
            (&many.as_bytes()[..2 * flow.len()], 2, 3, Some(None)),
            (&many.as_bytes()[..2 * flow.len() - 1], 2, 3, Some(None)),
            (long.as_bytes(), 1, 2, Some(Some(too_long))),
            (b"in_port=1,actions=drop\n\xff\n", 1, 2, Some(Some(foreign))),
            (b"", 0, 1, Some(None)),
        ] {
            let (mut to, mut next_line, mut file) = (String::new(), 1, file);
            assert_eq!(piece(&mut file, &mut to, &mut next_line), end);
            assert_eq!((to.lines().count(), next_line), (lines, next as u64));
        }
    }
}
