//! Conditions: what is wrong, limited or unknown, for as long as it is so. Users see them in `millrace status`, in the log
//! and as a metric.
//!
//! Whoever finds conditions sets all that hold now, by kind. This module notes since when each holds, and logs each when it
//! begins and when it ends.

use crate::base::{clock::monotonic, guard::locked};
use std::{
    collections::BTreeMap,
    fmt, mem,
    sync::{Arc, Mutex},
    time::Duration,
};

/// Most log lines of one call; the rest is counted.
const LINES: usize = 10;

/// What a condition is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConditionKind {
    /// Part of Linux's state cannot be read; the kernel serves the routers concerned.
    Linux,
    /// Tables are full; the kernel serves what does not fit.
    Tables,
    /// Something cannot be counted.
    Counters,
    /// A change of policy is in force only a moment after the command returns.
    Policy,
    /// The kernel serves a port.
    Port,
    /// The kernel serves a router.
    Router,
    /// The kernel serves an interface.
    Interface,
    /// Workers or their paths.
    Path,
    /// Queues and cores.
    Core,
    /// The configuration names something that is not there.
    Configuration,
    /// A thread may do more than it needs.
    Privileges,
}

impl ConditionKind {
    /// Its name in JSON and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Linux => "linux",
            Self::Tables => "tables",
            Self::Counters => "counters",
            Self::Policy => "policy",
            Self::Port => "port",
            Self::Router => "router",
            Self::Interface => "interface",
            Self::Path => "path",
            Self::Core => "core",
            Self::Configuration => "configuration",
            Self::Privileges => "privileges",
        }
    }

    /// Something that is slower or later than it could be, while nothing is wrong.
    pub fn is_note(self) -> bool {
        matches!(self, Self::Policy | Self::Router | Self::Interface)
    }

    /// How the subject stands while the condition holds and after it, where the kind says it for all.
    fn state(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Port => Some(("is not trusted", "is trusted again")),
            Self::Router | Self::Interface => Some(("is left to the kernel", "is on the fast path again")),
            _ => None,
        }
    }
}

/// A condition that holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Condition {
    pub kind: ConditionKind,
    /// The thing that it is about, such as `port eth1`; empty if the text names it.
    pub subject: String,
    /// A sentence.
    pub text: String,
}

impl Condition {
    /// Of a text that names its subject.
    pub fn new(kind: ConditionKind, text: impl Into<String>) -> Self {
        Self { kind, subject: String::new(), text: text.into() }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, subject, text } = self;
        match (subject.is_empty(), kind.state()) {
            (true, _) => f.write_str(text),
            (false, Some((begun, _))) => write!(f, "{subject} {begun}: {text}"),
            (false, None) => write!(f, "{subject}: {text}"),
        }
    }
}

/// All conditions that hold, shared by those who find and those who show them.
#[derive(Clone, Debug, Default)]
pub struct Conditions(Arc<Mutex<BTreeMap<Condition, Duration>>>);

impl Conditions {
    /// These conditions hold now, and no others of these kinds. Logs what begins and what ends.
    pub fn set(&self, kinds: &[ConditionKind], now: impl IntoIterator<Item = Condition>) {
        self.set_among(kinds, now, |_| true);
    }

    /// As [`Conditions::set`]; the end of a condition is not logged if its subject is not there any more.
    pub fn set_among(
        &self,
        kinds: &[ConditionKind],
        now: impl IntoIterator<Item = Condition>,
        is_there: impl Fn(&str) -> bool,
    ) {
        let mut held = locked(&self.0);
        let time = monotonic();
        let (mut before, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
            mem::take(&mut *held).into_iter().partition(|(condition, _)| kinds.contains(&condition.kind));
        *held = others;
        let (mut begun, mut goes_on) = (Vec::new(), Vec::new());
        for condition in now {
            let since = before.remove(&condition);
            if since.is_none() {
                begun.push(condition.clone());
            }
            if !condition.subject.is_empty() {
                goes_on.push((condition.kind, condition.subject.clone()));
            }
            held.insert(condition, since.unwrap_or(time));
        }
        drop(held);
        goes_on.sort_unstable();
        let ended = before.into_keys().filter(|was| {
            let subject = (was.kind, was.subject.clone());
            is_there(&was.subject) && goes_on.binary_search(&subject).is_err()
        });
        log(begun, ended.collect());
    }

    /// Those that hold, by kind, each with the time since it began.
    pub fn all(&self) -> Vec<(Condition, Duration)> {
        let now = monotonic();
        locked(&self.0)
            .iter()
            .map(|(condition, since)| (condition.clone(), now.saturating_sub(*since)))
            .collect()
    }
}

fn log(begun: Vec<Condition>, ended: Vec<Condition>) {
    for condition in begun.iter().take(LINES) {
        tracing::warn!("{condition}");
    }
    for condition in ended.iter().take(LINES) {
        match condition.kind.state() {
            Some((_, ended)) => tracing::info!("{} {ended}", condition.subject),
            None => tracing::info!("no longer: {condition}"),
        }
    }
    let more = begun.len().saturating_sub(LINES) + ended.len().saturating_sub(LINES);
    if more > 0 {
        tracing::warn!(
            "{more} more conditions began or ended: see `millrace status` and `millrace interfaces`"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ConditionKind::{Core, Linux, Port};

    fn of(kind: ConditionKind, subject: &str, text: &str) -> Condition {
        Condition { kind, subject: subject.into(), text: text.into() }
    }

    fn texts(conditions: &Conditions) -> Vec<String> {
        conditions.all().into_iter().map(|(condition, _)| condition.to_string()).collect()
    }

    #[test]
    fn a_kind_is_replaced_whole_and_others_stay() {
        let conditions = Conditions::default();
        conditions.set(&[Core], [Condition::new(Core, "core 9 is not online")]);
        conditions
            .set(&[Port, Linux], [of(Port, "port eth1", "LRO is on"), Condition::new(Linux, "no routes")]);
        assert_eq!(
            texts(&conditions),
            ["no routes", "port eth1 is not trusted: LRO is on", "core 9 is not online"]
        );
        conditions.set(&[Port], []);
        assert_eq!(texts(&conditions), ["no routes", "core 9 is not online"]);
    }

    #[test]
    fn a_condition_keeps_its_beginning_while_it_holds() {
        let (conditions, down) = (Conditions::default(), of(Port, "port eth1", "it is down"));
        let age = |wanted: &Condition| {
            conditions.all().into_iter().find(|(held, _)| held == wanted).map(|(_, age)| age)
        };
        conditions.set(&[Port], [down.clone()]);
        std::thread::sleep(Duration::from_millis(2));
        let lro = of(Port, "port eth1", "LRO is on");
        conditions.set(&[Port], [down.clone(), lro.clone()]);
        assert!(age(&down) >= age(&lro).map(|age| age + Duration::from_millis(2)), "{conditions:?}");
        conditions.set(&[Port], []);
        assert_eq!(age(&down), None);
    }
}
