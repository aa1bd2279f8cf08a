//! Decides whether a connection can be fast.

use super::{
    note::ConnectionNote,
    tracked::{Special, TCP_ESTABLISHED, Tracked, Ways, is_supported},
};
use crate::{
    cause::Code,
    firewall::{
        prove::{Obstacle, Proof, Prover, Why, earlier},
        ruleset::{Expression, Firewall, Ruleset, SETS_EVENTS, SETS_TIMEOUT, SETS_ZONE},
        traffic::{
            ASSURED, DST_NAT, Device, Direction, HW_OFFLOAD, OFFLOAD, SEEN_REPLY, SRC_NAT, Scope, TCP,
            Traffic, Version,
        },
    },
};
use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

/// The most steps of a proof about one direction of one connection.
const MOST_STEPS: u32 = 20_000;
/// The most steps of a proof about all connections between two devices.
const MOST_STEPS_FOR_ALL: u32 = 50_000;
/// Proofs take at most so many steps per second.
pub const STEPS_PER_S: u32 = 1_000_000;
/// The most proofs about devices that are kept.
const MOST_KEPT: usize = 4096;

/// Which connections may bypass the rules, if these accept all their packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consent {
    /// UDP; and TCP if rules add it to a flow table.
    #[default]
    Udp,
    /// UDP and TCP.
    All,
}

/// Why a connection stays with Linux.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Linux has not seen enough packets of it yet.
    TooNew,
    /// TCP, and not in the state ESTABLISHED.
    NotEstablished,
    /// It is TCP, and nobody has consented.
    NoConsent,
    Special(Special),
    /// A rule may do something else than accept.
    Ruled(Obstacle),
    /// Answers were noted, and Linux ends the connection if packets of the other direction leave by another device.
    OnlyAnswers,
    /// It was translated when it began, but no chain of NAT is left. So Linux forwards its packets as they arrive.
    Untranslated,
    /// Proofs have taken too long in the last second.
    Busy,
    /// Rules or devices have changed, and Linux was not asked again yet.
    Waiting,
    /// Linux does not know it.
    Unknown,
    /// Linux does not report its end: it is older than the listener, or `nf_conntrack_events` is 0.
    Unwatched,
    /// Linux counts its packets (`net.netfilter.nf_conntrack_acct`).
    Counted,
    /// There is no room for another one, or the router has its share.
    Full,
    /// Linux's timeout of such connections is so short that they are not worth it.
    ShortTimeout,
    /// It is in a flow table of Linux, and is UDP or is forwarded by hardware.
    InFlowTable,
    /// It has properties that Millrace does not know.
    Unreadable,
    /// Millrace cannot ask Linux about connections of this namespace.
    Unasked,
}

impl Refusal {
    /// The code of this refusal.
    pub fn code(&self) -> Code {
        match self {
            Refusal::TooNew => Code::TooNew,
            Refusal::NotEstablished => Code::NotEstablished,
            Refusal::NoConsent => Code::NoConsent,
            Refusal::Special(_) => Code::SpecialConnection,
            Refusal::Ruled(obstacle) => obstacle.code(),
            Refusal::OnlyAnswers => Code::OnlyAnswers,
            Refusal::Untranslated => Code::Untranslated,
            Refusal::Busy => Code::Busy,
            Refusal::Waiting => Code::Waiting,
            Refusal::Unknown => Code::UnknownConnection,
            Refusal::Unwatched => Code::Unwatched,
            Refusal::Counted => Code::Counted,
            Refusal::Full => Code::Full,
            Refusal::ShortTimeout => Code::ShortTimeout,
            Refusal::InFlowTable => Code::InFlowTable,
            Refusal::Unreadable | Refusal::Unasked => Code::Unreadable,
        }
    }

    /// Will Linux and the rules say the same again? Only a change of the rules can help, or a setting.
    pub fn is_lasting(&self) -> bool {
        !matches!(
            self,
            Refusal::TooNew
                | Refusal::NotEstablished
                | Refusal::OnlyAnswers
                | Refusal::Busy
                | Refusal::Unknown
                | Refusal::Full
        )
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::TooNew => "Linux has not seen enough packets of both directions yet",
            Refusal::NotEstablished => "the TCP connection is not in the state ESTABLISHED",
            Refusal::NoConsent => {
                "TCP needs consent, because Linux then no longer checks sequence numbers \
                 (established = \"fast\" in [firewall], or a rule with \"flow add\")"
            }
            Refusal::Special(Special::Helper) => "a conntrack helper reads its packets",
            Refusal::Special(Special::SequenceShift) => "conntrack shifts its sequence numbers",
            Refusal::Special(Special::SynProxy) => "synproxy has set it up",
            Refusal::Special(Special::Zone) => "it is in a conntrack zone",
            Refusal::Ruled(obstacle) => return obstacle.fmt(f),
            Refusal::OnlyAnswers => "Millrace waits for packets of the direction in which it began",
            Refusal::Untranslated => "it has a translation, but there are no chains of NAT any more",
            Refusal::Busy => "checking the rules for this many connections takes too long; Millrace tries again",
            Refusal::Waiting => "rules have changed, and Millrace has not checked them for this connection yet",
            Refusal::Unknown => "Linux does not track it",
            Refusal::Unwatched => {
                "Linux does not report its end: it began before Millrace had read the rules, or events are off \
                 (net.netfilter.nf_conntrack_events = 1 makes Linux report the ends of new connections)"
            }
            Refusal::Counted => {
                "Linux counts its packets, and Millrace cannot do this \
                 (net.netfilter.nf_conntrack_acct = 0 helps connections that begin later)"
            }
            Refusal::Full => "there is no room for more fast connections (connections in [firewall])",
            Refusal::ShortTimeout => "Linux forgets such connections within seconds",
            Refusal::InFlowTable => "a flow table of Linux forwards it",
            Refusal::Unreadable => "it has properties that Millrace does not know",
            Refusal::Unasked => "Millrace cannot ask conntrack in its namespace (see the log)",
        })
    }
}

/// The first rule after which Linux may not report the end of a connection, or may forget it sooner than its settings say.
/// Such a rule concerns new connections, so no proof meets it.
fn hides_ends(ruleset: &Ruleset, version: Version) -> Option<Obstacle> {
    let hides = |expression: &Expression| match expression {
        Expression::Other(name) => [SETS_EVENTS, SETS_TIMEOUT, SETS_ZONE, "-j CT"].contains(&name.as_str()),
        Expression::Hidden => true,
        _ => false,
    };
    let tables = ruleset.tables.iter().filter(|table| !table.dormant && table.family.concerns(version));
    let rules = tables.flat_map(|table| {
        table
            .chains
            .iter()
            .flat_map(move |(name, chain)| chain.rules.iter().map(move |rule| (table, name, rule)))
    });
    let mut found = rules.filter_map(|(table, chain, rule)| {
        let why = match rule.expressions.iter().find(|expression| hides(expression))? {
            Expression::Other(name) => Why::Does(name.clone()),
            _ => Why::Hidden,
        };
        Some(Obstacle::new(table, chain, Some(rule.handle), why))
    });
    found.next()
}

/// A connection that all rules accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    pub ways: Ways,
    /// The earlier end of the proofs about both directions; see [`Proof`].
    pub holds_until: Option<Duration>,
}

/// Makes proofs about connections of one router.
pub struct Admission {
    firewall: Arc<Firewall>,
    consent: Consent,
    /// Proofs about all connections between two devices.
    kept: BTreeMap<(Version, u8, [u32; 2]), Result<Proof, Obstacle>>,
    steps_left: u32,
    /// By IP version: a rule that may change when and how Linux forgets new connections.
    hides: [Option<Obstacle>; 2],
}

impl Admission {
    pub fn new(firewall: Arc<Firewall>, consent: Consent) -> Admission {
        let hides = [Version::V4, Version::V6].map(|version| hides_ends(&firewall.rules, version));
        Admission { firewall, consent, kept: BTreeMap::new(), steps_left: STEPS_PER_S, hides }
    }

    /// Does the next proof have to wait for more steps?
    pub fn is_busy(&self) -> bool {
        self.steps_left == 0
    }

    /// A second has passed, and so many steps are left for the next one.
    pub fn renew(&mut self, steps: u32) {
        self.steps_left = steps;
    }

    /// Decides about a connection whose packets `note` came in by the first device and left by the second. Answers must take
    /// the same devices. A proof that ends before `until` is not enough.
    pub fn admit(
        &mut self,
        note: &ConnectionNote,
        tracked: &Tracked,
        devices: [&Device; 2],
        until: Duration,
    ) -> Result<Admitted, Refusal> {
        if !is_supported(note.protocol) || tracked.protocol != note.protocol {
            return Err(Refusal::Unknown);
        }
        if let Some(obstacle) = &self.hides[usize::from(note.version == Version::V6)] {
            return Err(Refusal::Ruled(obstacle.clone()));
        }
        let ways = tracked.ways(&note.tuple).ok_or(Refusal::Unknown)?;
        tracked.is_ready()?;
        let is_translated = ways.0.iter().any(|way| way.arrives != way.leaves);
        if is_translated && !self.firewall.rules.translates(note.version) {
            return Err(Refusal::Untranslated);
        }
        let is_reply = tracked.tuples[0] != note.tuple;
        // A masqueraded connection ends when its egress changes. Answers may come in by another device than that.
        let masquerades = tracked.status & (SRC_NAT | DST_NAT) == SRC_NAT;
        if is_reply && masquerades {
            return Err(Refusal::OnlyAnswers);
        }
        let [from, to] = devices;
        let there = self.prove(note.version, tracked, is_reply, [from, to], until)?;
        let back = self.prove(note.version, tracked, !is_reply, [to, from], until)?;
        let has_table = !there.flow_tables.is_empty() && !back.flow_tables.is_empty();
        if note.protocol == TCP && self.consent != Consent::All && !has_table {
            return Err(Refusal::NoConsent);
        }
        Ok(Admitted { ways, holds_until: earlier(there.holds_until, back.holds_until) })
    }

    /// Proves that rules accept all later packets of one direction.
    fn prove(
        &mut self,
        version: Version,
        tracked: &Tracked,
        reply: bool,
        [input, output]: [&Device; 2],
        until: Duration,
    ) -> Result<Proof, Refusal> {
        if self.is_busy() {
            return Err(Refusal::Busy);
        }
        let traffic = |scope| Traffic { version, input: input.clone(), output: output.clone(), scope };
        let prover = Prover::new(&self.firewall.rules, version).holding_until(until);
        let key = (version, tracked.protocol, [input.ifindex, output.ifindex]);
        let ends = |kept: &Result<Proof, _>| kept.as_ref().is_ok_and(|proof| proof.ends_before(until));
        if self.kept.get(&key).is_none_or(ends) {
            let all = traffic(Scope::Established { protocol: tracked.protocol });
            let (proof, steps) = prover.prove(&all, MOST_STEPS_FOR_ALL);
            self.steps_left = self.steps_left.saturating_sub(steps.max(1));
            if self.kept.len() >= MOST_KEPT {
                self.kept.clear();
            }
            self.kept.insert(key, proof);
        }
        if let Some(Ok(proof)) = self.kept.get(&key) {
            return Ok(proof.clone());
        }
        let direction =
            Direction { protocol: tracked.protocol, reply, tuples: tracked.tuples, status: tracked.status };
        let one = traffic(Scope::Connection(Box::new(direction)));
        let (proof, steps) = prover.prove(&one, MOST_STEPS);
        self.steps_left = self.steps_left.saturating_sub(steps.max(1));
        proof.map_err(Refusal::Ruled)
    }
}

impl Tracked {
    /// Has the connection come so far that Linux treats all its later packets alike?
    pub fn is_ready(&self) -> Result<(), Refusal> {
        if let Some(special) = self.special {
            return Err(Refusal::Special(special));
        }
        if self.protocol == TCP && self.tcp_state != Some(TCP_ESTABLISHED) {
            return Err(Refusal::NotEstablished);
        }
        // Conntrack sees no packets of a connection in a flow table. It has seen enough of TCP before, but usually not of
        // UDP: conntrack calls UDP assured only after later packets.
        let offload = if self.protocol == TCP { HW_OFFLOAD } else { OFFLOAD | HW_OFFLOAD };
        if self.status & offload != 0 {
            return Err(Refusal::InFlowTable);
        }
        let both = SEEN_REPLY | ASSURED;
        if self.status & both == both { Ok(()) } else { Err(Refusal::TooNew) }
    }
}
