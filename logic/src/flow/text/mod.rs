//! The syntax of `ovs-ofctl` for flows (ovs-ofctl(8), ovs-fields(7), ovs-actions(7)): reading and writing.
//!
//! | file | holds |
//! |---|---|
//! | `mod` | flows, and how a text is split into words |
//! | `matching` | fields by name |
//! | `actions` | actions and instructions |
//! | `value` | numbers, addresses and masks |
//!
//! The written text is that of `ovs-ofctl dump-flows`, and reading it gives the same flow. Features of Open vSwitch that
//! Millrace lacks (registers, connection tracking, `resubmit`, `learn` ...) are refused by name. Our own are the
//! `inner_...` fields of the frame inside VXLAN, and the actions `encap_vxlan`, `decap_vxlan`, `set_fcf` and `set_core`.

mod actions;
mod matching;
mod value;

use actions::instructions_named;
pub use actions::{ActionsText, InstructionsText, parse_actions, parse_instructions};
pub use matching::{MatchText, parse_match};
pub use value::parse_port;

use super::{
    Instructions, Match, RulePort,
    rule::{FlowCommand, FlowFilter, FlowFlags, FlowMod, TABLES},
};
use std::fmt;

/// The priority of a flow without one (OFP_DEFAULT_PRIORITY).
pub const DEFAULT_PRIORITY: u16 = 0x8000;

/// A word that cannot be read, and what would be right instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{word:?}: {right}")]
pub struct BadText {
    pub word: String,
    pub right: String,
}

impl BadText {
    fn new(word: &str, right: impl Into<String>) -> BadText {
        BadText { word: word.into(), right: right.into() }
    }
}

/// The name that a misspelt word probably stands for: the nearest one within a third of its letters, in any case.
pub fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > 32 {
        return None;
    }
    let word = word.to_ascii_lowercase();
    let far = |name: &str| strsim::osa_distance(&word, name);
    let near = names.into_iter().map(|name| (far(name), name)).filter(|(far, name)| 3 * far <= name.len());
    near.min_by_key(|(far, _)| *far).map(|(_, name)| name)
}

/// The error for a word that is none of these names. It suggests the name that the word may be a misspelling of.
fn none_of<'a>(word: &str, what: &str, names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<_> = names.collect();
    let all = names.join(", ");
    match nearest(word, names) {
        Some(name) => format!("not {what}; did you mean {name}? There are {all}"),
        None => format!("not {what}; there are {all}"),
    }
}

/// Names of ports, which may be used instead of numbers. Reserved names and numbers take precedence.
#[derive(Clone, Copy, Debug, Default)]
pub struct Names<'a>(&'a [(String, RulePort)]);

impl<'a> Names<'a> {
    pub fn of(ports: &'a [(String, RulePort)]) -> Self {
        Self(ports)
    }

    fn port(self, text: &str) -> Result<RulePort, BadText> {
        let named = || self.0.iter().find(|(name, _)| name == text).map(|&(_, port)| port);
        parse_port(text).or_else(|mut bad| {
            named().ok_or_else(|| {
                let names: Vec<_> = self.0.iter().map(|(name, _)| name.as_str()).collect();
                if !names.is_empty() {
                    bad.right += &format!(", or the name of a port: {}", names.join(", "));
                }
                bad
            })
        })
    }
}

/// `key`, `key=value`, `key:value` or `key(value)`.
#[derive(Clone, Copy, Debug)]
struct Word<'a> {
    all: &'a str,
    key: &'a str,
    value: Option<&'a str>,
    names: Names<'a>,
}

impl<'a> Word<'a> {
    fn bad(self, right: impl Into<String>) -> BadText {
        BadText::new(self.all, right)
    }
    fn value(self) -> Result<&'a str, BadText> {
        self.value.ok_or_else(|| match actions::syntax(self.key) {
            Some(syntax) => self.bad(format!("needs a value: {syntax}")),
            None => self.bad(format!("needs a value: {}=...", self.key)),
        })
    }
    /// Checks that the word has no value.
    fn alone(self) -> Result<(), BadText> {
        if self.value.is_none() { Ok(()) } else { Err(self.bad(format!("takes no value: {}", self.key))) }
    }
    /// Parses the value as a number of at most `most`.
    fn number<N: TryFrom<u64>>(self, most: u64) -> Result<N, BadText> {
        let number = value::number(self.value()?).and_then(|n| u64::try_from(n).ok()).filter(|&n| n <= most);
        number
            .and_then(|n| N::try_from(n).ok())
            .ok_or_else(|| self.bad(format!("needs a number from 0 to {most}, decimal or 0x...")))
    }
}

/// Splits a text into words at commas and blanks. Text in parentheses stays together.
fn words<'a>(text: &'a str, names: Names<'a>) -> Result<Vec<Word<'a>>, BadText> {
    let mut words = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([',', ' ', '\t', '\r', '\n']);
        if rest.is_empty() {
            return Ok(words);
        }
        let mut depth = 0_u32;
        let end = rest.find(|c| {
            match c {
                '(' => depth += 1,
                ')' => depth = depth.saturating_sub(1),
                _ => {}
            }
            depth == 0 && [',', ' ', '\t', '\r', '\n'].contains(&c)
        });
        let (all, after) = rest.split_at(end.unwrap_or(rest.len()));
        if depth > 0 {
            return Err(BadText::new(all, "needs a ) for its ("));
        }
        rest = after;
        let (key, value) = match all.find([':', '=', '(']) {
            None => (all, None),
            Some(at) if all[at..].starts_with('(') => {
                let inside = all[at + 1..].strip_suffix(')');
                (&all[..at], Some(inside.ok_or_else(|| BadText::new(all, "needs a comma after the )"))?))
            }
            Some(at) => (&all[..at], Some(&all[at + 1..])),
        };
        words.push(Word { all, key, value, names });
    }
}

/// Parses a flow as `ovs-ofctl add-flow`, `mod-flows` or `del-flows` reads it. A flow to delete has no actions, and without
/// a table it means all tables. Every other flow needs actions, and its table is 0 by default. Words that would have no
/// effect on the command are refused.
pub fn parse_flow(text: &str, command: FlowCommand) -> Result<FlowMod, BadText> {
    parse_flow_named(text, command, Names::default())
}

/// [`parse_flow`] with names of ports.
pub fn parse_flow_named(text: &str, command: FlowCommand, names: Names<'_>) -> Result<FlowMod, BadText> {
    parse_for(text, Purpose { command, lists: false }, names)
}

/// Parses a filter for the rules of a listing, as `ovs-ofctl dump-flows` reads it.
pub fn parse_filter_named(text: &str, names: Names<'_>) -> Result<FlowFilter, BadText> {
    let purpose = Purpose { command: FlowCommand::Delete { strict: false }, lists: true };
    let flow = parse_for(text, purpose, names)?;
    let FlowMod { table, matching, out_port, out_group, cookie, cookie_mask, .. } = flow;
    Ok(FlowFilter { table, matching, out_port, out_group, cookie, cookie_mask })
}

fn parse_for(text: &str, purpose: Purpose, names: Names<'_>) -> Result<FlowMod, BadText> {
    let command = purpose.command;
    let deletes = command.deletes();
    let (fields, actions) = split_actions(text);
    let mut flow = FlowMod {
        table: (!deletes).then_some(0),
        ..FlowMod::new(command, DEFAULT_PRIORITY, Match::ANY, Instructions::default())
    };
    let mut matched = Vec::new();
    for word in words(fields, names)? {
        purpose.listens_to(word)?;
        if !flow_word(&mut flow, purpose, word)? {
            matched.push(word);
        }
    }
    flow.matching = matching::of_words(matched)?;
    flow.instructions = match (actions, deletes) {
        (Some(actions), false) => instructions_named(actions, names)?,
        (None, true) => Instructions::default(),
        (None, false) => return Err(BadText::new(text.trim(), "needs actions at its end: actions=...")),
        (Some(_), true) => {
            let right = format!("rules cannot be {} by their actions; {CHOICE}", purpose.done());
            return Err(BadText::new("actions", right));
        }
    };
    Ok(flow)
}

/// Splits a text into the parts before and after `actions=`.
fn split_actions(text: &str) -> (&str, Option<&str>) {
    let starts = |at: usize| text[..at].is_empty() || text[..at].ends_with([',', ' ', '\t', '\r', '\n']);
    ["actions=", "action="]
        .into_iter()
        .find_map(|name| {
            let (at, _) = text.match_indices(name).find(|&(at, _)| starts(at))?;
            Some((&text[..at], Some(&text[at + name.len()..])))
        })
        .unwrap_or((text, None))
}

/// Words that belong to the flow and not to its match, and how they are written.
const FLOW_WORDS: &[(&str, &str)] = &[
    ("table", "table=0..15"),
    ("priority", "priority=0..65535"),
    ("cookie", "cookie=N[/MASK]"),
    ("idle_timeout", "idle_timeout=SECONDS"),
    ("hard_timeout", "hard_timeout=SECONDS"),
    ("out_port", "out_port=PORT"),
    ("out_group", "out_group=N"),
    ("send_flow_rem", "send_flow_rem"),
    ("check_overlap", "check_overlap"),
    ("reset_counts", "reset_counts"),
    ("no_packet_counts", "no_packet_counts"),
    ("no_byte_counts", "no_byte_counts"),
    ("actions", "actions=ACTION[,ACTION...]"),
];

/// The purpose for which a flow is read.
#[derive(Clone, Copy)]
struct Purpose {
    command: FlowCommand,
    /// It selects rules to list, not to delete.
    lists: bool,
}

/// How to select rules.
const CHOICE: &str = "select them by match, table=, cookie=VALUE/MASK, out_port= or out_group=";

impl Purpose {
    /// What the command does to rules.
    fn done(self) -> &'static str {
        match self.command {
            _ if self.lists => "listed",
            FlowCommand::Add => "added",
            FlowCommand::Modify { .. } => "modified",
            FlowCommand::Delete { .. } => "deleted",
        }
    }

    /// Refuses words that would have no effect on the command (OpenFlow 1.3.5 section 6.4).
    fn listens_to(self, word: Word<'_>) -> Result<(), BadText> {
        use FlowCommand::*;
        let adds = self.command == Add;
        let chooses = matches!(self.command, Delete { .. });
        let strict = matches!(self.command, Modify { strict: true } | Delete { strict: true });
        let listens = match word.key {
            "priority" => adds || strict,
            "idle_timeout" | "hard_timeout" | "send_flow_rem" | "check_overlap" | "no_packet_counts"
            | "no_byte_counts" => adds,
            "reset_counts" | "duration" | "n_packets" | "n_bytes" | "idle_age" | "hard_age" => !chooses,
            "out_port" | "out_group" => chooses,
            _ => true,
        };
        let why = match word.key {
            _ if listens => return Ok(()),
            "priority" if !self.lists => {
                "the command selects rules of every priority; for just the one with this match and \
                 priority use --strict (in a file: modify_strict, delete_strict)"
                    .into()
            }
            "out_port" | "out_group" => "only selects rules to delete or to list".into(),
            _ if chooses => format!("rules cannot be {} by it; {CHOICE}", self.done()),
            _ => "only for flows to add: modify changes nothing except the actions".into(),
        };
        Err(word.bad(why))
    }
}

/// Reads a word that belongs to the flow and not to its match. Returns `false` if it does not.
fn flow_word(flow: &mut FlowMod, purpose: Purpose, word: Word<'_>) -> Result<bool, BadText> {
    let adds = flow.command == FlowCommand::Add;
    match word.key {
        "table" if flow.table.is_none() && word.value == Some("255") => {}
        "table" => flow.table = Some(word.number((TABLES - 1).into())?),
        "priority" => flow.priority = word.number(u16::MAX.into())?,
        "idle_timeout" => flow.idle_timeout = word.number(u16::MAX.into())?,
        "hard_timeout" => flow.hard_timeout = word.number(u16::MAX.into())?,
        "cookie" => {
            let (cookie, mask) = value::masked(word, 64)?;
            match mask {
                Some(_) if adds => {
                    return Err(word.bad("the cookie of a flow to add has no mask: cookie=0x1"));
                }
                Some(mask) => flow.cookie_mask = mask as u64,
                None if !adds => {
                    let done = purpose.done();
                    return Err(
                        word.bad(format!("rules can be {done} by cookie only with a mask: {}/-1", word.all))
                    );
                }
                None => {}
            }
            flow.cookie = cookie as u64;
        }
        "out_port" => flow.out_port = Some(word.names.port(word.value()?)?),
        "out_group" => flow.out_group = Some(word.number(u32::MAX.into())?),
        "send_flow_rem" => flow.flags.send_removed = word.alone().map(|()| true)?,
        "check_overlap" => flow.flags.check_overlap = word.alone().map(|()| true)?,
        "reset_counts" => flow.flags.reset_counts = word.alone().map(|()| true)?,
        "no_packet_counts" => flow.flags.no_packet_counts = word.alone().map(|()| true)?,
        "no_byte_counts" => flow.flags.no_byte_counts = word.alone().map(|()| true)?,
        // A listing has these words too. They are accepted so that it can be read back.
        "duration" | "n_packets" | "n_bytes" | "idle_age" | "hard_age" => {}
        "importance" => return Err(word.bad("importance (OpenFlow 1.4) is not supported")),
        _ => return Ok(false),
    }
    Ok(true)
}

/// The counters of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    pub duration_sec: u32,
    pub duration_nsec: u32,
    pub packets: u64,
    pub bytes: u64,
}

/// A flow as a line of `ovs-ofctl dump-flows`; without `counted` as with `--no-stats`.
#[derive(Clone, Copy, Debug)]
pub struct FlowText<'a> {
    pub flow: &'a FlowMod,
    pub counted: Option<Counted>,
}

impl fmt::Display for FlowText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (flow, counted) = (self.flow, self.counted);
        match flow.cookie_mask {
            0 if counted.is_some() || flow.cookie != 0 => write!(f, "cookie={:#x}, ", flow.cookie)?,
            0 => {}
            u64::MAX => write!(f, "cookie={:#x}/-1, ", flow.cookie)?,
            mask => write!(f, "cookie={:#x}/{mask:#x}, ", flow.cookie)?,
        }
        if let Some(Counted { duration_sec, duration_nsec, .. }) = counted {
            write!(f, "duration={duration_sec}")?;
            match duration_nsec {
                0 => {}
                nsec if nsec % 1_000_000 == 0 => write!(f, ".{:03}", nsec / 1_000_000)?,
                nsec => write!(f, ".{nsec:09}")?,
            }
            f.write_str("s, ")?;
        }
        if let Some(table) = flow.table.filter(|&table| counted.is_some() || table != 0) {
            write!(f, "table={table}, ")?;
        }
        if let Some(Counted { packets, bytes, .. }) = counted {
            write!(f, "n_packets={packets}, n_bytes={bytes}, ")?;
        }
        for (name, timeout) in [("idle_timeout", flow.idle_timeout), ("hard_timeout", flow.hard_timeout)] {
            if timeout != 0 {
                write!(f, "{name}={timeout}, ")?;
            }
        }
        for (set, name) in flag_names(flow.flags) {
            if set {
                write!(f, "{name} ")?;
            }
        }
        if let Some(port) = flow.out_port {
            write!(f, "out_port={port}, ")?;
        }
        if let Some(group) = flow.out_group {
            write!(f, "out_group={group}, ")?;
        }
        let matching = MatchText(&flow.matching).to_string();
        match flow.priority {
            DEFAULT_PRIORITY if matching.is_empty() => {}
            DEFAULT_PRIORITY => write!(f, "{matching} ")?,
            priority if matching.is_empty() => write!(f, "priority={priority} ")?,
            priority => write!(f, "priority={priority},{matching} ")?,
        }
        if flow.command.deletes() {
            return Ok(());
        }
        write!(f, "actions={}", InstructionsText(&flow.instructions))
    }
}

/// The flags that a rule keeps, as words.
pub fn kept_flags(flags: FlowFlags) -> Vec<&'static str> {
    let kept = FlowFlags { check_overlap: false, reset_counts: false, ..flags };
    flag_names(kept).into_iter().filter(|(set, _)| *set).map(|(_, name)| name).collect()
}

fn flag_names(flags: FlowFlags) -> [(bool, &'static str); 5] {
    [
        (flags.send_removed, "send_flow_rem"),
        (flags.check_overlap, "check_overlap"),
        (flags.reset_counts, "reset_counts"),
        (flags.no_packet_counts, "no_packet_counts"),
        (flags.no_byte_counts, "no_byte_counts"),
    ]
}

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
