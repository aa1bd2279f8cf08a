//! Flow rules: requests, answers and `--json` of `millrace flows`.

use crate::base::packet::Headers;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Changes of flow rules, in order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowsRequest {
    /// The command of lines that do not begin with `add`, `modify`, `modify_strict`, `delete` or `delete_strict`.
    pub command: Command,
    /// Flows, one per line, in the syntax of `ovs-ofctl`. Empty lines and lines that begin with `#` are skipped.
    pub flows: String,
    /// Number of the first line, for errors.
    #[serde(default = "one")]
    pub first_line: u64,
    /// Answer when packets follow the changed rules; `false`: when the rules have changed.
    pub wait: bool,
}

fn one() -> u64 {
    1
}

/// A change; the strict ones concern only the rule with the same match and priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    #[default]
    Add,
    Modify,
    ModifyStrict,
    Delete,
    DeleteStrict,
}

/// The answer to a [`FlowsRequest`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FlowsChanged {
    /// Rules that are new, or that replaced one with the same match and priority.
    pub added: u64,
    pub modified: u64,
    pub deleted: u64,
    /// The first wrong line. The lines before it are done, those after it are not.
    pub failed: Option<FailedLine>,
    /// A sentence that packets do not go by the rules, and why.
    #[serde(default)]
    pub note: Option<String>,
}

/// A line that failed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FailedLine {
    pub line: u64,
    pub flow: String,
    pub why: String,
}

/// A rule: a line of `GET /flows`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FlowReport {
    pub table: u8,
    pub priority: u16,
    pub cookie: u64,
    /// As `ovs-ofctl` writes it; empty: every packet.
    #[serde(rename = "match")]
    pub matching: String,
    pub actions: String,
    pub packets: u64,
    pub bytes: u64,
    pub age_s: u64,
    /// Time since its last known packet, or since it was made. The daemon looks each second if the rule has an idle timeout,
    /// otherwise when it is listed.
    pub idle_s: u64,
    /// 0: none.
    pub idle_timeout_s: u16,
    /// 0: none.
    pub hard_timeout_s: u16,
    /// `send_flow_rem`, `no_packet_counts` and `no_byte_counts`, if they are set.
    #[serde(default)]
    pub flags: Vec<String>,
    /// User space executes it, not the kernel plane.
    pub slow: bool,
    /// Why user space executes it.
    pub why: Option<String>,
}

/// What flow rules do with a packet, in `millrace explain`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RulesReport {
    /// Assumptions and other notes, as sentences.
    pub notes: Vec<String>,
    /// The rules that it meets, one table after another.
    pub rules: Vec<RulePassed>,
    pub buckets: Vec<BucketTaken>,
    /// User space executes them, not the kernel plane.
    pub slow: bool,
    /// Why user space does.
    pub why: Option<String>,
    /// The core that handles the packet, if rules name one.
    pub core: Option<u16>,
    /// The packets that leave, in order; empty: it is dropped.
    pub outputs: Vec<OutputReport>,
}

/// The decision of one table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RulePassed {
    /// 16: the core table.
    pub table: u8,
    /// `None`, like the next two: no rule of the table matches.
    pub priority: Option<u16>,
    pub cookie: Option<u64>,
    /// The rule as `ovs-ofctl` writes it.
    pub flow: Option<String>,
}

/// A group that the packet meets, and the index of the bucket that it takes there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketTaken {
    pub group: u32,
    pub bucket: usize,
}

/// A packet that leaves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OutputReport {
    /// A port's name, `NORMAL`, `LOCAL` or `CONTROLLER`.
    pub to: String,
    /// Why it does not arrive there, as a sentence.
    pub lost: Option<String>,
    /// Its headers as it leaves.
    pub headers: Option<Headers>,
    /// The frame as it leaves, in hexadecimal.
    pub frame: String,
}

/// Flow rules in `millrace status`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowsStatus {
    pub rules: u64,
    /// Of these, rules of the core table.
    #[serde(default)]
    pub core_rules: u64,
    /// Names of all ports and paths that there have been since the start, by their number in rules.
    #[serde(default)]
    pub names: BTreeMap<u16, String>,
    /// The file of the rules that apply from the start, as configured.
    #[serde(default)]
    pub file: Option<String>,
    /// Packets go by them; otherwise they are routed.
    pub in_charge: bool,
    /// Why packets do not go by them although there are rules, as a sentence.
    #[serde(default)]
    pub why_not: Option<String>,
    /// Packets whose decision was cached, since there are rules; 0 while rules are not in charge.
    pub cache_hits: u64,
    /// Packets whose decision was not cached, likewise.
    pub cache_misses: u64,
    /// Packets that user space handled because the kernel plane cannot.
    pub slow_done: u64,
    /// Packets that user space had no room for, or could not send.
    pub slow_lost: u64,
    #[serde(default)]
    pub controller_lost: ControllerLost,
}

/// Packets for controllers that none got, since there are rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControllerLost {
    /// No connected controller wanted them.
    pub no_controller: u64,
    /// They exceeded `packet_in_pps` of `[openflow]`.
    pub over_rate: u64,
    /// The connected controllers did not read fast enough.
    pub not_read: u64,
}
