//! What the daemon tells: the JSON of its API and of `--json`, and what the tables of the command line are made of.
//!
//! Field names are part of the interface. Counters count from the first start of the instance, across restarts.

use crate::{
    api::{
        flows::{FlowsStatus, RulesReport},
        workers::{PathStand, WorkersReport},
    },
    base::{conditions::Condition, packet::Headers},
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, time::Duration};

/// `millrace status`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Of the daemon.
    pub version: String,
    pub pid: u32,
    /// `None`: the unnamed instance.
    pub instance: Option<String>,
    /// Packets are being forwarded and the mirror is current.
    pub ready: bool,
    /// Why not ready.
    pub problem: Option<String>,
    /// What is wrong, limited or unknown now. Conditions of interfaces are left out: `millrace interfaces` shows them.
    pub conditions: Vec<ConditionReport>,
    /// Of the daemon, seconds.
    pub uptime_s: u64,
    pub heartbeat: Heartbeat,
    /// Counts up with every new set of programs and maps (start, growth).
    pub generation: u64,
    pub packets: Packets,
    /// Of those forwarded, how many the egress ports did not take.
    pub lost: u64,
    /// Cost of forwarding, sampled, all routers; entry to verdict, transmit excluded.
    pub ns_per_packet: Option<f64>,
    pub ports: Vec<PortReport>,
    pub routers: Vec<RouterReport>,
    /// Why packets were not forwarded, most frequent first; only reasons seen.
    pub reasons: Vec<ReasonCount>,
    pub tables: Vec<TableUse>,
    pub routes: Families<u64>,
    pub neighbours: u64,
    pub flows: FlowsStatus,
    /// Of the user plane, in their order.
    #[serde(default)]
    pub paths: Vec<PathReport>,
    /// Who runs them; what each path got is with the path.
    #[serde(default)]
    pub workers: WorkersReport,
}

/// A condition, for as long as it holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ConditionReport {
    /// What it is about: `linux`, `tables`, `counters`, `policy`, `port`, `router`, `path`, `core`, `configuration` or
    /// `privileges` ([`crate::base::conditions::ConditionKind`]).
    pub kind: String,
    /// The thing that it is about, such as `port eth1`; empty if the text names it.
    pub subject: String,
    /// A sentence: what is wrong with it.
    pub text: String,
    /// The whole sentence, as in the log.
    pub sentence: String,
    /// How long it has held, seconds.
    pub age_s: f64,
    /// Nothing is wrong: something is slower or later than it could be.
    pub is_note: bool,
}

impl ConditionReport {
    /// Of one that has held for so long.
    pub fn new(condition: Condition, age: Duration) -> Self {
        let sentence = condition.to_string();
        let Condition { kind, subject, text } = condition;
        let (kind, is_note) = (kind.name().into(), kind.is_note());
        Self { kind, subject, text, sentence, age_s: age.as_secs_f64(), is_note }
    }
}

/// How long forwarding goes on by itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// Configured, seconds.
    pub timeout_s: f64,
    /// Since the mirror was last confirmed, seconds; `None`: not yet.
    pub age_s: Option<f64>,
}

/// A value per IP version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Families<T> {
    pub ipv4: T,
    pub ipv6: T,
}

impl Families<Vec<String>> {
    /// Reasons that both share once, others with their family.
    pub fn sentences(&self) -> Vec<String> {
        let (both, only4): (Vec<_>, Vec<_>) = self.ipv4.iter().partition(|why| self.ipv6.contains(why));
        let only6 = self.ipv6.iter().filter(|why| !self.ipv4.contains(why));
        let both = both.into_iter().cloned();
        let only4 = only4.into_iter().map(|why| format!("IPv4: {why}"));
        both.chain(only4).chain(only6.map(|why| format!("IPv6: {why}"))).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.ipv4.is_empty() && self.ipv6.is_empty()
    }
}

/// What became of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Packets {
    /// Redirected by the fast path.
    pub forwarded: u64,
    pub forwarded_bytes: u64,
    /// Passed up to the kernel.
    pub passed: u64,
    /// Dropped, by a limit or a flow rule.
    pub dropped: u64,
    /// Taken by user space, which does the rest: what flow rules say, or hands them to controllers.
    #[serde(default)]
    pub taken: u64,
}

/// How often packets were not forwarded for one reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReasonCount {
    /// `ttl_exceeded`.
    pub reason: String,
    /// `pass`, `exception`, `control`, `drop`, `taken` or `lost`.
    pub class: String,
    pub text: String,
    pub packets: u64,
}

/// `millrace ports`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PortReport {
    /// Its name.
    pub port: String,
    /// Number in the tables.
    pub id: u8,
    /// Number in flow rules and OpenFlow.
    pub number: u16,
    pub ifindex: u32,
    /// `native`, `generic`, or `detached`.
    pub mode: String,
    /// What keeps it from being trusted, as sentences: then the kernel forwards what arrives here.
    pub problems: Vec<String>,
    /// Why it is in generic mode and slow.
    pub note: Option<String>,
    /// What its classifier does; `None`: flows are not to be steered.
    #[serde(default)]
    pub classifier: Option<String>,
    /// Packets that arrived, and those that were routed out through it. What flow rules send without routing is in neither.
    #[serde(default)]
    pub rx_packets: u64,
    #[serde(default)]
    pub tx_packets: u64,
    /// Packets that belong to no interface, by reason.
    pub unclassified: Vec<ReasonCount>,
    /// Packets redirected to it that it did not take, by reason.
    pub lost: Vec<ReasonCount>,
}

/// `millrace routers`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RouterReport {
    /// Its name.
    pub router: String,
    /// Number in the tables; `None`: not in them.
    pub id: Option<u8>,
    /// Packets are accelerated on all of its interfaces.
    pub accelerated: Families<bool>,
    /// Why nothing is, as sentences.
    pub why_not: Families<Vec<String>>,
    /// Interfaces with reasons of their own.
    pub left_to_kernel: Vec<LeftInterface>,
    pub interfaces: u64,
    pub routes: Families<u64>,
    pub neighbours: u64,
    pub packets: Packets,
    pub ns_per_packet: Option<f64>,
    /// Of its share of a full core, in relation to others'.
    #[serde(default)]
    pub weight: u16,
    /// Of full cores, how much of one it took in the last control period, what was cut included; absent: none was full.
    #[serde(default)]
    pub share: Option<f64>,
    /// Packets that were cut because it had had its share; they are among those dropped.
    #[serde(default)]
    pub cut: u64,
    pub reasons: Vec<ReasonCount>,
}

/// An interface that is left to the kernel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LeftInterface {
    /// Its name.
    pub interface: String,
    /// As sentences; empty: that family is accelerated, as far as this interface goes.
    pub why_not: Families<Vec<String>>,
}

/// `millrace interfaces`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct InterfaceReport {
    pub router: String,
    /// Its name.
    pub interface: String,
    /// Number in the tables; `None`: not in them.
    pub id: Option<u16>,
    pub port: Option<String>,
    /// `100` or `100.7`; `None`: untagged.
    pub vlan: Option<String>,
    pub mac: String,
    pub accelerated: Families<bool>,
    /// Why packets that arrive here are not accelerated, as sentences, its router's reasons among them.
    pub why_not: Families<Vec<String>>,
    /// Packets may be sent out here.
    pub transmit: bool,
    pub rx_packets: u64,
    pub rx_bytes: u64,
    pub tx_packets: u64,
    pub tx_bytes: u64,
}

/// A path of the user plane: how the kernel plane gives packets to it, and what its worker did with them. Counts begin with the daemon.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PathReport {
    pub path: String,
    /// `None`: it has packets of all routers.
    pub router: Option<String>,
    /// `None`: it has packets of all ports.
    pub port: Option<String>,
    /// Why it has no packets, as a sentence; `None`: it is active.
    pub why_not: Option<String>,
    /// What becomes of packets that no worker can have: `up`, as if there were no path, or `drop`.
    pub otherwise: String,
    /// Given to its worker,
    pub packets: u64,
    pub bytes: u64,
    /// and of those lost, by reason.
    pub lost: Vec<ReasonCount>,
    /// Not given, by what kept a worker from having them: went on as if there were no path,
    pub up: Vec<ReasonCount>,
    /// or were dropped.
    pub dropped: Vec<ReasonCount>,
    /// What its worker did, a second ago at most, since it was last begun: when its port and router were there, or memory had to grow. `None`:
    /// none has it.
    #[serde(default)]
    pub run: Option<PathStand>,
}

/// How full a table is, rows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TableUse {
    pub table: String,
    pub used: u64,
    pub capacity: u64,
}

/// `millrace routes ADDR`: what the fast table says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RouteReport {
    pub router: String,
    pub address: String,
    /// Why the router leaves all packets to this address to the kernel, as sentences; empty: it goes by its table.
    pub why_not: Vec<String>,
    /// Else the interfaces that leave what arrives on them to the kernel, and why.
    pub left_to_kernel: Vec<LeftInterface>,
    /// The kernel's route behind it.
    pub prefix: Option<String>,
    /// More than one: multipath.
    pub hops: Vec<HopReport>,
}

/// One next hop, or why there is none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HopReport {
    /// `forward` or `pass`.
    pub action: String,
    /// Why packets go to the kernel.
    pub reason: Option<String>,
    pub interface: Option<String>,
    /// The neighbour packets are sent to.
    pub next_hop: Option<String>,
    pub mac: Option<String>,
    pub mtu: Option<u32>,
    /// Of 256, in a multipath route.
    pub share: Option<u16>,
}

/// `millrace routes --verify`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VerifyReport {
    pub routers: Vec<VerifyRouter>,
    /// Sum over the routers, also of differences that are not listed.
    pub differences: u64,
    /// The number of routers without differences that could not be verified ([`VerifyResult::is_unverified`]).
    #[serde(default)]
    pub unverified: u64,
}

/// What came of the comparison of a router.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerifyResult {
    /// The table sends where Linux does.
    Verified,
    Differs,
    /// Packets do not go by its table, so nothing was compared.
    NotUsed,
    /// Not verified: it changed all the time.
    Changing,
    /// Not verified: it is over its limits.
    OverLimits,
    /// Not verified: Linux could not be queried, or not in time. Also where a daemon of an older version names no result.
    #[default]
    Unread,
}

impl VerifyResult {
    /// Is it unknown whether the table is right?
    pub fn is_unverified(self) -> bool {
        matches!(self, VerifyResult::Changing | VerifyResult::OverLimits | VerifyResult::Unread)
    }

    pub fn text(self) -> &'static str {
        match self {
            VerifyResult::Verified => "verified",
            VerifyResult::Differs => "differs",
            VerifyResult::NotUsed => "not used",
            VerifyResult::Changing => "changing",
            VerifyResult::OverLimits => "over limits",
            VerifyResult::Unread => "unread",
        }
    }
}

/// One router's comparison.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VerifyRouter {
    pub router: String,
    #[serde(default)]
    pub result: VerifyResult,
    /// Why it was not verified, as a sentence.
    #[serde(default)]
    pub why: Option<String>,
    /// Prefixes the kernel has routes for, its own addresses included, loopback, link-local and multicast left out: what
    /// `routes` of `millrace routers` counts in the fast table.
    pub compared: Families<u64>,
    /// Why its tables are not used, as sentences; they are not compared then.
    pub why_not: Families<Vec<String>>,
    /// Addresses that the kernel was asked about; none in a family whose tables are not used.
    #[serde(default)]
    pub asked: u64,
    /// Of those that Linux forwards, how many the table leaves to it, by reason.
    #[serde(default)]
    pub left: BTreeMap<String, u64>,
    /// Addresses about which Linux and the table disagreed at first, and no later look could settle which is right.
    #[serde(default)]
    pub changing: u64,
    /// How many differences there are.
    #[serde(default)]
    pub found: u64,
    /// At most [`VerifyRouter::LISTED`].
    pub differences: Vec<Difference>,
}

impl VerifyRouter {
    /// How many differences of a router are listed.
    pub const LISTED: usize = 100;
}

/// One prefix on which kernel and fast table disagree.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    pub prefix: String,
    pub kernel: String,
    pub fast: String,
}

/// `millrace explain`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExplainReport {
    pub port: String,
    /// What was assumed, and what else there is to know, as sentences.
    pub notes: Vec<String>,
    /// What flow rules do with it; `None`: they do not decide about it.
    #[serde(default)]
    pub rules: Option<RulesReport>,
    /// What the program that routes did, in order, in words; with flow rules, with what they send to NORMAL.
    pub steps: Vec<StepReport>,
    /// Of the user plane: the path whose worker it is given to, or whose word drops it; `None`: it goes on without a path.
    #[serde(default)]
    pub path: Option<String>,
    /// `forward`, `pass`, `drop`, `path`: its worker does the rest, or `controller`: only controllers get it. Of several outputs of flow rules that to NORMAL, or
    /// else the first to a port counts.
    pub verdict: String,
    /// `None`: forwarded.
    pub reason: Option<ReasonCount>,
    /// Egress port, when forwarded.
    pub egress: Option<String>,
    pub before: Option<Headers>,
    pub after: Option<Headers>,
    /// As it arrived, in hexadecimal.
    #[serde(default)]
    pub frame: String,
}

/// One step of the program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepReport {
    pub text: String,
    /// A step within the tables.
    pub detail: bool,
}

/// What a packet to explain looks like.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExplainRequest {
    /// See [`crate::base::packet`]; or `frame`.
    #[serde(default)]
    pub packet: Option<String>,
    /// The frame in hexadecimal; needs `port`.
    #[serde(default)]
    pub frame: Option<String>,
    /// Name of the port it arrives on.
    #[serde(default)]
    pub port: Option<String>,
    /// Name of the router it is for.
    #[serde(default)]
    pub router: Option<String>,
}

/// What `stop` did, as sentences.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StopReport {
    pub done: Vec<String>,
}
