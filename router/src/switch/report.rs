//! What `millrace flows` asks and is told: the JSON of the API and of `--json`.

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

/// Flow rules in `millrace status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowsStatus {
    pub rules: u64,
    /// Packets go by them; else they are routed.
    pub in_charge: bool,
    /// Packets whose decision was cached, and those whose was not, since there were rules; 0 while none are in charge.
    pub cache_hits: u64,
    pub cache_misses: u64,
    /// Packets that user space has done because the kernel plane cannot.
    pub slow_done: u64,
    /// Packets that it had no room for, or could not send.
    pub slow_lost: u64,
}
