//! What `millrace flows` asks and is told: the JSON of the API and of `--json`.

use crate::base::packet::Headers;
use serde::{Deserialize, Serialize};

/// Changes of flow rules, in order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowsRequest {
    /// What lines are that do not begin with `add`, `modify`, `modify_strict`, `delete` or `delete_strict`.
    pub command: Command,
    /// Flows, one a line, in the syntax of `ovs-ofctl`. Empty lines and those that begin with `#` are left out.
    pub flows: String,
    /// Number of the first line, for errors.
    #[serde(default = "one")]
    pub first_line: u64,
    /// The answer means that packets obey; else that the rules are as asked, and packets will be.
    pub wait: bool,
}

fn one() -> u64 {
    1
}

/// What is done with a flow; `strict`: only with the rule of the same match and priority.
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

/// What came of a [`FlowsRequest`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FlowsChanged {
    /// Rules that are new, or in the place of one of the same match and priority.
    pub added: u64,
    pub modified: u64,
    pub deleted: u64,
    /// Where it ended; what was before that line is done, what is behind it is not.
    pub failed: Option<FailedLine>,
    /// That packets do not go by the rules, and why, as a sentence.
    #[serde(default)]
    pub note: Option<String>,
}

/// A line that could not be done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FailedLine {
    pub line: u64,
    pub flow: String,
    pub why: String,
}

/// One rule: a line of `GET /flows`.
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
    /// Since its last packet, or since it was made, as far as it was looked at: each second if it has an idle timeout, else
    /// when it is listed.
    pub idle_s: u64,
    /// Seconds; 0: none.
    pub idle_timeout_s: u16,
    pub hard_timeout_s: u16,
    /// User space does what it says, not the kernel plane.
    pub slow: bool,
    /// Why it is slow.
    pub why: Option<String>,
}

/// What flow rules do with a packet, in `millrace explain`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RulesReport {
    /// What was assumed, and what else there is to know, as sentences.
    pub notes: Vec<String>,
    /// The rules that it comes to, one table after another.
    pub rules: Vec<RulePassed>,
    pub buckets: Vec<BucketTaken>,
    /// User space does it, not the kernel plane.
    pub slow: bool,
    /// Why it does.
    pub why: Option<String>,
    /// The core that does it, if rules name one.
    pub core: Option<u16>,
    /// In the order in which they leave; none: it is dropped.
    pub outputs: Vec<OutputReport>,
}

/// What decides in one table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RulePassed {
    /// 16: the core table.
    pub table: u8,
    /// These are `None`: no rule of the table matches.
    pub priority: Option<u16>,
    pub cookie: Option<u64>,
    /// The rule as `ovs-ofctl` writes it.
    pub flow: Option<String>,
}

/// A group that the packet comes to, and the index of a bucket that it takes there.
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
    /// Why it does not get there, as a sentence.
    pub lost: Option<String>,
    /// As it leaves.
    pub headers: Option<Headers>,
    /// The same in hexadecimal.
    pub frame: String,
}

/// Flow rules in `millrace status`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowsStatus {
    pub rules: u64,
    /// Packets go by them; else they are routed.
    pub in_charge: bool,
    /// Why they do not, though there are rules, as a sentence.
    #[serde(default)]
    pub why_not: Option<String>,
    /// Packets whose decision was cached, and those whose was not, since there were rules; 0 while none are in charge.
    pub cache_hits: u64,
    pub cache_misses: u64,
    /// Packets that user space has done because the kernel plane cannot.
    pub slow_done: u64,
    /// Packets that it had no room for, or could not send.
    pub slow_lost: u64,
    #[serde(default)]
    pub controller_lost: ControllerLost,
}

/// Packets for controllers that none got, since there were rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControllerLost {
    /// None was connected that wanted them.
    pub no_controller: u64,
    /// More came than `packet_in_pps` of `[openflow]` lets pass.
    pub over_rate: u64,
    /// Those that were connected did not read fast enough.
    pub not_read: u64,
}
