//! Status, ports, routers, interfaces, routes and explanations: the JSON of the API and of `--json`. The tables of the command
//! line are made of these.
//!
//! Field names are part of the interface. Counters count from the first start of the instance, across restarts.

use crate::{
    api::{
        capture::CaptureReport,
        export::ExportReport,
        flows::{FlowsStatus, RulesReport},
        summary::Summary,
        workers::{PathStand, WorkersReport},
    },
    base::{conditions::Condition, packet::Headers},
};
use logic::cause::{Cause, Code};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt, ops::Deref, time::Duration};

/// The overall state of the daemon.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// The daemon's version.
    pub version: String,
    /// The daemon's process id.
    pub pid: u32,
    /// The name of the instance; null: the instance without a name.
    pub instance: Option<String>,
    /// Packets are being forwarded, and the tables are current.
    pub ready: bool,
    /// Why it is not ready.
    pub problem: Option<Why>,
    /// The main points, as sentences: the first line of `millrace status`, and what it lists below its tables.
    #[serde(default)]
    pub summary: Summary,
    /// What is wrong, limited or unknown now. Conditions of interfaces are left out: `millrace interfaces` shows them.
    #[serde(default)]
    pub conditions: Vec<ConditionReport>,
    /// Seconds since the daemon's start.
    pub uptime_s: u64,
    /// When the counters were read, in seconds since boot (CLOCK_MONOTONIC).
    #[serde(default)]
    pub at_s: f64,
    /// How long forwarding goes on without a daemon.
    pub heartbeat: Heartbeat,
    /// Counts up with every new set of programs and maps (start, growth).
    pub generation: u64,
    /// Sums of all routers.
    pub packets: Packets,
    /// Forwarded packets that egress ports did not take.
    pub lost: u64,
    /// Sampled cost of forwarding a packet, over all routers, from entry to verdict, without transmission.
    pub ns_per_packet: Option<f64>,
    /// The ports, in the order of the configuration.
    pub ports: Vec<PortReport>,
    /// The routers.
    pub routers: Vec<RouterReport>,
    /// Reasons why packets were not forwarded, the most frequent first; only reasons that occurred.
    pub reasons: Vec<ReasonCount>,
    /// How full each table is.
    pub tables: Vec<TableUse>,
    /// Routes in the tables.
    pub routes: Families<u64>,
    /// Neighbours in the tables.
    pub neighbours: u64,
    /// Flow rules.
    pub flows: FlowsStatus,
    /// The paths of the user plane, in the order of the configuration.
    #[serde(default)]
    pub paths: Vec<PathReport>,
    /// The workers of the paths; the counters of each path are in `run` of its report.
    #[serde(default)]
    pub workers: WorkersReport,
    /// The running capture, or the last one.
    #[serde(default)]
    pub capture: CaptureReport,
    /// Samples for collectors; null: none are exported. If a collector is configured, `conditions` says why.
    #[serde(default)]
    pub export: Option<ExportReport>,
}

/// A condition, for as long as it holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ConditionReport {
    /// `linux`: a part of Linux cannot be read; `tables`: they are full; `counters`: something is not counted; `policy`:
    /// policy changes are seen late; `port`, `router`: it is left to the kernel; `path`: workers and paths; `core`: queues
    /// and cores; `configuration`; `export`: collectors; `privileges`.
    pub kind: String,
    /// The thing that it is about, such as `port eth1`; empty if the text names it.
    pub subject: String,
    /// A sentence: what is wrong with it.
    pub text: String,
    /// The whole sentence, as in the log.
    pub sentence: String,
    /// The codes of the causes in the text; empty: `kind` is the code.
    #[serde(default)]
    pub codes: Vec<String>,
    /// How long it has held, seconds.
    pub age_s: f64,
    /// Nothing is wrong: something is slower or later than it could be.
    pub is_note: bool,
}

impl ConditionReport {
    /// The report of a condition that has held for this time.
    pub fn new(condition: Condition, age: Duration) -> Self {
        let sentence = condition.to_string();
        let Condition { kind, subject, text, codes } = condition;
        let (kind, is_note) = (kind.name().into(), kind.is_note());
        let codes = codes.into_iter().map(|code| code.name().into()).collect();
        Self { kind, subject, text, sentence, codes, age_s: age.as_secs_f64(), is_note }
    }
}

/// How long forwarding goes on without a daemon.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Heartbeat {
    /// As configured.
    pub timeout_s: f64,
    /// Time since the tables were last confirmed; null: not yet.
    pub age_s: Option<f64>,
}

/// A value for each IP version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ByVersion_{T}")]
pub struct Families<T> {
    /// For IPv4.
    pub ipv4: T,
    /// For IPv6.
    pub ipv6: T,
}

/// A cause: a code for programs, and a sentence for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Why {
    /// The kind of cause, such as `firewall_rule` (docs/reference/codes.md). Codes never change.
    pub code: String,
    /// A sentence, with the command that helps. It may change with every version.
    pub text: String,
}

impl Why {
    /// Does Linux not forward such packets either, so that nothing is slower than without Millrace?
    pub fn is_idle(&self) -> bool {
        Code::ALL.iter().any(|code| code.is_idle() && code.name() == self.code)
    }
}

impl From<&Cause> for Why {
    fn from(cause: &Cause) -> Why {
        Why { code: cause.code.name().into(), text: cause.text.clone() }
    }
}

impl From<Cause> for Why {
    fn from(cause: Cause) -> Why {
        Why { code: cause.code.name().into(), text: cause.text }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Deref for Why {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

/// Of an untold kind.
#[cfg(test)]
impl From<&str> for Why {
    fn from(text: &str) -> Why {
        Why { code: "any".into(), text: text.into() }
    }
}

#[cfg(test)]
impl From<String> for Why {
    fn from(text: String) -> Why {
        text.as_str().into()
    }
}

impl PartialEq<&str> for Why {
    fn eq(&self, other: &&str) -> bool {
        self.text == *other
    }
}

/// Causes, as JSON has them.
pub fn whys(causes: &[Cause]) -> Vec<Why> {
    causes.iter().map(Why::from).collect()
}

impl<T: fmt::Display + PartialEq> Families<Vec<T>> {
    /// Reasons that both have appear once, others with their IP version in front.
    pub fn sentences(&self) -> Vec<String> {
        let (both, only4): (Vec<_>, Vec<_>) = self.ipv4.iter().partition(|why| self.ipv6.contains(why));
        let only6 = self.ipv6.iter().filter(|why| !self.ipv4.contains(why));
        let both = both.into_iter().map(T::to_string);
        let only4 = only4.into_iter().map(|why| format!("IPv4: {why}"));
        both.chain(only4).chain(only6.map(|why| format!("IPv6: {why}"))).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.ipv4.is_empty() && self.ipv6.is_empty()
    }
}

/// Packets by what happened to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Packets {
    /// Forwarded by the fast path.
    pub forwarded: u64,
    /// Bytes of `forwarded`.
    pub forwarded_bytes: u64,
    /// Passed up to the kernel.
    pub passed: u64,
    /// Dropped by a limit or a flow rule.
    pub dropped: u64,
    /// Taken by user space, which executes flow rules or gives packets to controllers.
    #[serde(default)]
    pub taken: u64,
}

/// How many packets were not forwarded for one reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReasonCount {
    /// Its name, such as `ttl_exceeded` (docs/reference/reasons.md).
    pub reason: String,
    /// `pass`, `slow`, `exception`, `control`, `drop`, `taken` or `lost`.
    pub class: String,
    /// What the reason means.
    pub text: String,
    /// How many packets.
    pub packets: u64,
}

/// A port.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PortReport {
    /// Its name.
    pub port: String,
    /// Number in the tables.
    pub id: u8,
    /// Number in flow rules and OpenFlow.
    pub number: u16,
    /// Number in Linux.
    pub ifindex: u32,
    /// `native`, `generic`, or `detached`.
    pub mode: String,
    /// Why the port is not trusted; then the kernel forwards packets that arrive here.
    pub problems: Vec<Why>,
    /// Why it is in generic mode, which is slow.
    pub note: Option<Why>,
    /// What its classifier does; null: steering is off.
    #[serde(default)]
    pub classifier: Option<String>,
    /// Packets that arrived; without those that flow rules send without routing.
    #[serde(default)]
    pub rx_packets: u64,
    /// Packets that were routed out by this port; without those that flow rules send without routing.
    #[serde(default)]
    pub tx_packets: u64,
    /// Bytes of the packets that arrived, except those that belong to no interface.
    #[serde(default)]
    pub rx_bytes: u64,
    /// Bytes of the packets that were routed out by this port.
    #[serde(default)]
    pub tx_bytes: u64,
    /// Packets that belong to no interface, by reason.
    pub unclassified: Vec<ReasonCount>,
    /// Packets forwarded to this port that it did not take, by reason.
    pub lost: Vec<ReasonCount>,
}

/// A router.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RouterReport {
    /// Its name.
    pub router: String,
    /// Number in the tables; null: not in them.
    pub id: Option<u8>,
    /// Packets are accelerated on all of its interfaces.
    pub accelerated: Families<bool>,
    /// Why none of its packets are.
    pub why_not: Families<Vec<Why>>,
    /// Rules of its firewall may affect some packets but not all; only those go to the kernel (`millrace firewall`).
    #[serde(default)]
    pub ruled: Families<bool>,
    /// Connections that are fast now, although rules may affect the router's packets.
    #[serde(default)]
    pub connections: u64,
    /// Interfaces with reasons of their own.
    pub left_to_kernel: Vec<LeftInterface>,
    /// How many interfaces it has.
    pub interfaces: u64,
    /// How many routes it has.
    pub routes: Families<u64>,
    /// How many neighbours it has.
    pub neighbours: u64,
    /// Its packets.
    pub packets: Packets,
    /// Sampled cost of forwarding a packet, without transmission.
    pub ns_per_packet: Option<f64>,
    /// Its weight in `[shares]`.
    #[serde(default)]
    pub weight: u16,
    /// The part of full cores that it used in the last control period, including the cost of cut packets; null: no core was
    /// full.
    #[serde(default)]
    pub share: Option<f64>,
    /// Packets that were cut because it exceeded its share; `dropped` includes them.
    #[serde(default)]
    pub cut: u64,
    /// Why its packets were not forwarded, the most frequent first.
    pub reasons: Vec<ReasonCount>,
}

/// Which packets the rules of a router's firewall can affect.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FirewallReport {
    /// The router's name.
    pub router: String,
    /// For each IP version; null: no chain of this version is in the forwarding path.
    pub rules: Families<Option<RuledPairs>>,
}

/// The meaning of rules for packets between the devices of a router.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RuledPairs {
    /// Pairs of groups of devices.
    pub pairs: Vec<RuledPair>,
    /// Addresses or ranges whose packets always go to the kernel.
    pub exceptions: Vec<String>,
}

/// Packets from any of some devices to any of others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RuledPair {
    /// The devices where they come in.
    pub from: Vec<String>,
    /// The devices where they leave.
    pub to: Vec<String>,
    /// Why Linux decides about them; null: they are fast.
    pub why_not: Option<Why>,
    /// Although Linux decides about new connections, established ones may be fast (`millrace connections`).
    #[serde(default)]
    pub established: bool,
    /// A rule that may affect some of these connections, so that each is checked with its own addresses; null: rules
    /// accept all of them, or `established` is false.
    #[serde(default)]
    pub checked: Option<String>,
}

/// A connection that is fast, or that Millrace has recently refused to make fast.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ConnectionReport {
    /// The router's name.
    pub router: String,
    /// `tcp` or `udp`.
    pub protocol: String,
    /// `ADDRESS:PORT` that the packets by which it was found have when they arrive. They may go in either direction.
    pub source: String,
    /// `ADDRESS:PORT` to which these packets go.
    pub destination: String,
    /// Who forwards it.
    pub state: ConnectionState,
    /// Why it stays with Linux; null: it is fast.
    pub why_not: Option<Why>,
    /// Source and destination of these packets when they leave; null: NAT does not change them.
    pub translated: Option<[String; 2]>,
    /// Seconds since it became fast; if it stays with Linux: since Linux was last asked about it.
    pub age_s: f64,
    /// Seconds until Linux forgets it, unless it has more packets; null: not known.
    pub expires_s: Option<f64>,
    /// Packets that bypassed the rules, of this direction.
    pub packets: u64,
    /// Bytes of `packets`.
    pub bytes: u64,
    /// Packets that bypassed the rules, of the other direction.
    pub reply_packets: u64,
    /// Bytes of `reply_packets`.
    pub reply_bytes: u64,
}

/// The forwarder of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ConnectionState {
    /// The kernel plane.
    Fast,
    /// Linux.
    #[default]
    Linux,
}

/// An interface that is left to the kernel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LeftInterface {
    /// Its name.
    pub interface: String,
    /// Reasons; none: nothing at this interface keeps this IP version from being accelerated.
    pub why_not: Families<Vec<Why>>,
}

/// An interface of a router.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InterfaceReport {
    /// The router's name.
    pub router: String,
    /// Its name.
    pub interface: String,
    /// Number in the tables; null: not in them.
    pub id: Option<u16>,
    /// The port that it is on.
    pub port: Option<String>,
    /// `100` or `100.7`; null: untagged.
    pub vlan: Option<String>,
    /// Its MAC address.
    pub mac: String,
    /// Packets that arrive here are accelerated.
    pub accelerated: Families<bool>,
    /// Why packets that arrive here are not accelerated, including the reasons of its router.
    pub why_not: Families<Vec<Why>>,
    /// Packets may be sent out here.
    pub transmit: bool,
    /// Received packets that the fast path did not forward: it passed them up to the kernel, or dropped them.
    #[serde(default)]
    pub not_forwarded_packets: u64,
    /// Packets that arrived here.
    pub rx_packets: u64,
    /// Bytes of `rx_packets`.
    pub rx_bytes: u64,
    /// Packets that were sent out here.
    pub tx_packets: u64,
    /// Bytes of `tx_packets`.
    pub tx_bytes: u64,
}

/// A path of the user plane: how the kernel plane gives packets to it, and what its worker did with them. Counts begin with the daemon.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PathReport {
    /// Its name.
    pub path: String,
    /// Its number as a port of flow rules.
    pub number: u16,
    /// The router whose packets it gets; null: it has packets of all routers.
    pub router: Option<String>,
    /// The port whose packets it gets; null: it has packets of all ports.
    pub port: Option<String>,
    /// Why it has no packets; null: it is active.
    pub why_not: Option<Why>,
    /// What happens to packets that no worker can take: `up`, as if there were no path, or `drop`.
    pub otherwise: String,
    /// Packets given to its worker.
    pub packets: u64,
    /// Bytes of `packets`.
    pub bytes: u64,
    /// Packets among `packets` that were lost on the way to the worker, by reason.
    pub lost: Vec<ReasonCount>,
    /// Packets that no worker could take, and that went on as if there were no path, by reason.
    pub up: Vec<ReasonCount>,
    /// Packets that no worker could take, and that were dropped, by reason.
    pub dropped: Vec<ReasonCount>,
    /// What its worker did, up to a second old. Counts begin when workers began to run the path: when its port and router
    /// appeared, or when memory had to grow. null: no worker runs it.
    #[serde(default)]
    pub run: Option<PathStand>,
}

/// The rows of a table, used and possible.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TableUse {
    /// Its name.
    pub table: String,
    /// Rows in use.
    pub used: u64,
    /// Rows that the table has room for.
    pub capacity: u64,
}

/// The fast table's answer for an address.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RouteReport {
    /// The router's name.
    pub router: String,
    /// The address as requested.
    pub address: String,
    /// Why the router leaves all packets to this address to the kernel; empty: it uses its table.
    pub why_not: Vec<Why>,
    /// Otherwise the interfaces that leave their packets to the kernel, and why.
    pub left_to_kernel: Vec<LeftInterface>,
    /// The kernel's route that the answer comes from.
    pub prefix: Option<String>,
    /// One next hop, or several for a multipath route.
    pub hops: Vec<HopReport>,
}

/// One next hop, or why there is none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HopReport {
    /// `forward` or `pass`.
    pub action: String,
    /// Why packets go to the kernel; the code is the reason's name.
    pub reason: Option<Why>,
    /// The interface that packets leave by.
    pub interface: Option<String>,
    /// The neighbour that packets are sent to.
    pub next_hop: Option<String>,
    /// The neighbour's MAC address.
    pub mac: Option<String>,
    /// The longest IP packet, in bytes.
    pub mtu: Option<u32>,
    /// Its part of 256 in a multipath route.
    pub share: Option<u16>,
}

/// The comparison of the fast tables with Linux.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VerifyReport {
    /// The result for each router.
    pub routers: Vec<VerifyRouter>,
    /// The differences of all routers, including those that are not listed.
    pub differences: u64,
    /// The number of routers without differences that could not be verified.
    #[serde(default)]
    pub unverified: u64,
}

/// The result of comparing a router's tables with Linux.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum VerifyResult {
    /// The tables agree with Linux.
    Verified,
    /// They differ.
    Differs,
    /// Its tables are not in use, so nothing was compared.
    NotUsed,
    /// Not verified: it changed all the time.
    Changing,
    /// Not verified: it is over its limits.
    OverLimits,
    /// Not verified: Linux could not be asked, or not in time.
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

/// The comparison of one router.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VerifyRouter {
    /// Its name.
    pub router: String,
    /// The result.
    #[serde(default)]
    pub result: VerifyResult,
    /// Why it was not verified, as a sentence.
    #[serde(default)]
    pub why: Option<String>,
    /// Prefixes that the kernel has routes for, including its own addresses, without loopback, link-local and multicast. These
    /// are the routes that `millrace routers` counts in the fast table.
    pub compared: Families<u64>,
    /// Why its tables are not in use; then they are not compared.
    pub why_not: Families<Vec<Why>>,
    /// Addresses that the kernel was asked about; none of an IP version whose tables are not in use.
    #[serde(default)]
    pub asked: u64,
    /// Addresses among `asked` that Linux forwards and the table leaves to the kernel, by reason.
    #[serde(default)]
    pub left: BTreeMap<String, u64>,
    /// Addresses about which Linux and the table disagreed at first, and later answers did not settle it.
    #[serde(default)]
    pub changing: u64,
    /// The number of differences.
    #[serde(default)]
    pub found: u64,
    /// The differences, at most 100.
    pub differences: Vec<Difference>,
}

impl VerifyRouter {
    /// The most differences of a router that are listed.
    pub const LISTED: usize = 100;
}

/// A prefix for which the kernel and the fast table differ.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Difference {
    /// The prefix.
    pub prefix: String,
    /// What Linux does with its packets.
    pub kernel: String,
    /// What the fast table does.
    pub fast: String,
}

/// The way of a packet, and the reasons.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExplainReport {
    /// The port on which it arrives.
    pub port: String,
    /// Assumptions and other notes, as sentences.
    pub notes: Vec<String>,
    /// What flow rules do with it; null: they do not decide about it.
    #[serde(default)]
    pub rules: Option<RulesReport>,
    /// The steps of the routing program, in order. With flow rules, it routes the packet that they send to NORMAL.
    pub steps: Vec<StepReport>,
    /// The path of the user plane that gets the packet, or drops it by its `otherwise`; null: no path has it.
    #[serde(default)]
    pub path: Option<String>,
    /// `forward`, `pass`, `drop`, `path` (the worker of the path gets it), or `controller` (only controllers get it). If flow
    /// rules have several outputs, the one to NORMAL counts, or else the first to a port.
    pub verdict: String,
    /// Why it is not forwarded; null: it is.
    pub reason: Option<ReasonCount>,
    /// The egress port, if it is forwarded.
    pub egress: Option<String>,
    /// Its headers as it arrives.
    pub before: Option<Headers>,
    /// Its headers as it leaves.
    pub after: Option<Headers>,
    /// The frame as it arrives, in hexadecimal.
    #[serde(default)]
    pub frame: String,
}

/// One step of the program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepReport {
    /// The step, as a sentence.
    pub text: String,
    /// A step within the tables.
    pub detail: bool,
}

/// The packet to explain, as `packet` or as `frame`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExplainRequest {
    /// The packet as text, as for `millrace explain`.
    #[serde(default)]
    pub packet: Option<String>,
    /// The frame in hexadecimal; needs `port`.
    #[serde(default)]
    pub frame: Option<String>,
    /// The name of the port on which it arrives.
    #[serde(default)]
    pub port: Option<String>,
    /// The name of the router that it is for.
    #[serde(default)]
    pub router: Option<String>,
}

/// What `check` found: whether a daemon would start, and what it would accelerate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CheckReport {
    /// The configuration file; null: there is none.
    pub file: Option<String>,
    /// The release of the running kernel.
    pub kernel: String,
    /// Why a daemon would not start, as a sentence; null: it would.
    pub why_not: Option<String>,
    /// Configured ports whose devices do not exist.
    pub missing_ports: Vec<String>,
    /// Paths: only their part of the file is checked.
    pub untried_paths: Vec<String>,
    /// The ports, as `ports` would show them.
    pub ports: Vec<PortReport>,
    /// The routers, as `routers` would show them.
    pub routers: Vec<RouterReport>,
    /// The firewall rules, as `firewall` would show them.
    pub firewall: Vec<FirewallReport>,
}

/// The result of a reload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReloadReport {
    /// The keys whose values changed, as in the file: `cores.high`.
    pub changed: Vec<String>,
}

/// The result of a stop.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StopReport {
    /// What was removed or put back, as sentences.
    pub done: Vec<String>,
}
