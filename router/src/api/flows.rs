//! Flow rules: requests, answers and `--json` of `millrace flows`.

use super::status::Why;
use crate::base::packet::Headers;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Changes of flow rules, in order. About 30,000 rules fit. Send more in several requests, and set `wait` in the last.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FlowsRequest {
    /// The command of lines that do not begin with `add`, `modify`, `modify_strict`, `delete` or `delete_strict`.
    pub command: Command,
    /// Rules, one per line, in the syntax of flow rules. Empty lines and lines that begin with `#` are skipped.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Adds a rule, in place of one with the same match and priority.
    #[default]
    Add,
    /// Changes the actions of all rules that the match covers.
    Modify,
    /// Changes the actions of the rule with the same match and priority.
    ModifyStrict,
    /// Deletes all rules that the match covers.
    Delete,
    /// Deletes the rule with the same match and priority.
    DeleteStrict,
}

/// The answer to changes of flow rules.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FlowsChanged {
    /// Rules that are new, or that replaced one with the same match and priority.
    pub added: u64,
    /// Rules whose actions changed.
    pub modified: u64,
    /// Rules that are gone.
    pub deleted: u64,
    /// The first wrong line. The lines before it are done, those after it are not.
    pub failed: Option<FailedLine>,
    /// Why packets do not go by the rules, as a sentence.
    #[serde(default)]
    pub note: Option<String>,
}

/// A line that failed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FailedLine {
    /// Its number.
    pub line: u64,
    /// The line.
    pub flow: String,
    /// What is wrong with it, as a sentence.
    pub why: String,
}

/// A flow rule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FlowReport {
    /// The rule's table.
    pub table: u8,
    /// Its priority.
    pub priority: u16,
    /// The number that its controller gave it.
    pub cookie: u64,
    /// As `ovs-ofctl` writes it; empty: every packet.
    #[serde(rename = "match")]
    pub matching: String,
    /// What happens to its packets, in the syntax of `ovs-ofctl`.
    pub actions: String,
    /// Packets that it matched.
    pub packets: u64,
    /// Bytes of `packets`.
    pub bytes: u64,
    /// Time since it was made.
    pub age_s: u64,
    /// Time since its last known packet, or since it was made. The daemon updates it each second if the rule has an idle timeout,
    /// otherwise when the rule is listed.
    pub idle_s: u64,
    /// It ends when it has had no packets for this long; 0: never.
    pub idle_timeout_s: u16,
    /// It ends at this age; 0: never.
    pub hard_timeout_s: u16,
    /// `send_flow_rem`, `no_packet_counts` and `no_byte_counts`, if they are set.
    #[serde(default)]
    pub flags: Vec<String>,
    /// User space executes it, not the kernel plane.
    pub slow: bool,
    /// Why user space executes it.
    pub why: Option<String>,
}

/// The effect of flow rules on a packet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RulesReport {
    /// Assumptions and other notes, as sentences.
    pub notes: Vec<String>,
    /// The rules that it meets, one table after another.
    pub rules: Vec<RulePassed>,
    /// The groups that it meets.
    pub buckets: Vec<BucketTaken>,
    /// User space executes them, not the kernel plane.
    pub slow: bool,
    /// Why user space does; null: it does not.
    pub why: Option<String>,
    /// The core that handles the packet, if rules name one.
    pub core: Option<u16>,
    /// The packets that leave, in order; empty: it is dropped.
    pub outputs: Vec<OutputReport>,
}

/// The decision of one table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RulePassed {
    /// 16: the core table.
    pub table: u8,
    /// Its priority; null, like the next two: no rule of the table matches.
    pub priority: Option<u16>,
    /// The number that its controller gave it.
    pub cookie: Option<u64>,
    /// The rule as `ovs-ofctl` writes it.
    pub flow: Option<String>,
}

/// A group that the packet meets, and the index of the bucket that it takes there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BucketTaken {
    /// The group's number.
    pub group: u32,
    /// The index of the bucket.
    pub bucket: usize,
}

/// A packet that leaves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
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

/// Flow rules, in the status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FlowsStatus {
    /// Flow rules.
    pub rules: u64,
    /// The rules of the core table among `rules`.
    #[serde(default)]
    pub core_rules: u64,
    /// Names of all ports and paths that have existed since the start, by their number in rules.
    #[serde(default)]
    pub names: BTreeMap<u16, String>,
    /// The file of the rules that apply from the start, as configured.
    #[serde(default)]
    pub file: Option<String>,
    /// Packets go by flow rules; otherwise they are routed.
    pub in_charge: bool,
    /// Why packets do not go by flow rules, although there are some.
    #[serde(default)]
    pub why_not: Option<Why>,
    /// Packets whose decision was cached, since there are rules; 0 while rules are not in charge.
    pub cache_hits: u64,
    /// Packets whose decision was not cached, since there are rules.
    pub cache_misses: u64,
    /// Packets that user space handled because the kernel plane cannot.
    pub slow_done: u64,
    /// Packets that user space had no room for, or could not send.
    pub slow_lost: u64,
    /// Packets for controllers that no controller got.
    #[serde(default)]
    pub controller_lost: ControllerLost,
}

/// Packets for controllers that no controller got, since there are rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ControllerLost {
    /// No connected controller wanted them.
    pub no_controller: u64,
    /// They exceeded `packet_in_pps` of `[openflow]`.
    pub over_rate: u64,
    /// The connected controllers did not read fast enough.
    pub not_read: u64,
}
