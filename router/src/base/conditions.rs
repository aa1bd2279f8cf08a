//! Conditions: what is wrong, limited or unknown, for as long as it is so. Users see them in `millrace status`, in the log
//! and as a metric.
//!
//! Whoever finds conditions sets all that hold now, by kind. This module notes since when each holds, and logs each when it
//! begins and when it ends.

use crate::base::{clock::monotonic, guard::locked};
use logic::cause::Code;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
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
    /// The configuration names something that is not there, or an address that cannot be listened on.
    Configuration,
    /// Samples do not get to collectors.
    Export,
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
            Self::Export => "export",
            Self::Privileges => "privileges",
        }
    }

    /// Something that is slower or later than it could be, while nothing is wrong.
    pub fn is_note(self) -> bool {
        matches!(self, Self::Policy | Self::Router | Self::Interface)
    }

    /// Is another text of the same subject another reason, worth a line in the log?
    fn names_reasons(self) -> bool {
        matches!(self, Self::Port | Self::Router | Self::Interface)
    }

    /// How the subject stands while the condition holds and after it, where the kind says it for all.
    fn state(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Linux => Some(("cannot be read in full", "is read in full again")),
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
    /// The codes of the causes in it; none: its kind is the code.
    pub codes: BTreeSet<Code>,
}

impl Condition {
    /// Of a text that names its subject.
    pub fn new(kind: ConditionKind, text: impl Into<String>) -> Self {
        Self { kind, subject: String::new(), text: text.into(), codes: BTreeSet::new() }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, subject, text, .. } = self;
        match (subject.is_empty(), kind.state()) {
            (true, _) => f.write_str(text),
            (false, Some((begun, _))) => write!(f, "{subject} {begun}: {text}"),
            (false, None) => write!(f, "{subject}: {text}"),
        }
    }
}

/// The conditions of one kind, each with the time when it began.
type OfKind = BTreeMap<Condition, Duration>;

/// All conditions that hold, shared by those who find and those who show them.
#[derive(Clone, Debug, Default)]
pub struct Conditions(Arc<Mutex<BTreeMap<ConditionKind, OfKind>>>);

impl Conditions {
    /// These conditions hold now, and no others of these kinds. Logs what begins and what ends.
    pub fn set(&self, kinds: &[ConditionKind], now: impl IntoIterator<Item = Condition>) {
        self.set_among(kinds, now, |_| true);
    }

    /// As [`Conditions::set`]; the end of a condition is not logged if its subject is not there any more.
    ///
    /// A subject whose text changes has been in this condition from the beginning. The new text is logged only where texts name
    /// reasons ([`ConditionKind::names_reasons`]), because others may contain numbers that change all the time.
    pub fn set_among(
        &self,
        kinds: &[ConditionKind],
        now: impl IntoIterator<Item = Condition>,
        is_there: impl Fn(&str) -> bool,
    ) {
        let mut held = locked(&self.0);
        let time = monotonic();
        let mut before = OfKind::new();
        kinds.iter().filter_map(|kind| held.remove(kind)).for_each(|of_kind| before.extend(of_kind));
        let mut begun = Vec::new();
        for condition in now {
            let before = since(&before, &condition);
            if before.is_none_or(|(_, is_same)| !is_same && condition.kind.names_reasons()) {
                begun.push(condition.clone());
            }
            let since = before.map_or(time, |(since, _)| since);
            held.entry(condition.kind).or_default().insert(condition, since);
        }
        let goes_on =
            |was: &Condition| held.get(&was.kind).is_some_and(|of_kind| since(of_kind, was).is_some());
        let ended: Vec<_> =
            before.keys().filter(|was| is_there(&was.subject) && !goes_on(was)).cloned().collect();
        drop(held);
        log(&begun, &ended);
    }

    /// Those of these kinds that hold, each with the time since it began.
    pub fn of(&self, kinds: impl Fn(ConditionKind) -> bool) -> Vec<(Condition, Duration)> {
        let now = monotonic();
        let held = locked(&self.0);
        let wanted = held.iter().filter(|(kind, _)| kinds(**kind)).flat_map(|(_, of_kind)| of_kind);
        wanted.map(|(condition, since)| (condition.clone(), now.saturating_sub(*since))).collect()
    }
}

/// Since when this condition holds, or another one of its subject, and whether it is the same.
fn since(held: &OfKind, condition: &Condition) -> Option<(Duration, bool)> {
    if let Some(since) = held.get(condition) {
        return Some((*since, true));
    }
    let first = Condition { text: String::new(), ..condition.clone() };
    let of_subject = |other: &(&Condition, &Duration)| {
        !other.0.subject.is_empty() && (other.0.kind, &other.0.subject) == (first.kind, &first.subject)
    };
    held.range(&first..).next().filter(of_subject).map(|(_, since)| (*since, false))
}

fn log(begun: &[Condition], ended: &[Condition]) {
    let (warnings, notices) = lines(begun, ended);
    warnings.iter().for_each(|line| tracing::warn!("{line}"));
    notices.iter().for_each(|line| tracing::info!("{line}"));
}

/// The lines of what begins, and of what ends.
fn lines(begun: &[Condition], ended: &[Condition]) -> (Vec<String>, Vec<String>) {
    let over = |condition: &Condition| match condition.kind.state() {
        Some((_, over)) if !condition.subject.is_empty() => format!("{} {over}", condition.subject),
        _ => format!("no longer: {condition}"),
    };
    let mut warnings: Vec<_> = begun.iter().take(LINES).map(ToString::to_string).collect();
    let notices = ended.iter().take(LINES).map(over).collect();
    let more = begun.len().saturating_sub(LINES) + ended.len().saturating_sub(LINES);
    if more > 0 {
        warnings.push(format!(
            "{more} more conditions began or ended; the status and the list of interfaces show them"
        ));
    }
    (warnings, notices)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ConditionKind::{Core, Linux, Port};

    fn of(kind: ConditionKind, subject: &str, text: &str) -> Condition {
        Condition { subject: subject.into(), ..Condition::new(kind, text) }
    }

    fn texts(conditions: &Conditions) -> Vec<String> {
        conditions.of(|_| true).into_iter().map(|(condition, _)| condition.to_string()).collect()
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
            conditions.of(|_| true).into_iter().find(|(held, _)| held == wanted).map(|(_, age)| age)
        };
        conditions.set(&[Port], [down.clone()]);
        std::thread::sleep(Duration::from_millis(2));
        let lro = of(Port, "port eth2", "LRO is on");
        conditions.set(&[Port], [down.clone(), lro.clone()]);
        assert!(age(&down) >= age(&lro).map(|age| age + Duration::from_millis(2)), "{conditions:?}");
        let both = of(Port, "port eth1", "it is down; LRO is on");
        conditions.set(&[Port], [both.clone(), lro.clone()]);
        assert!(age(&both) >= age(&lro).map(|age| age + Duration::from_millis(2)), "{conditions:?}");
        conditions.set(&[Port], []);
        assert_eq!(age(&down), None);
    }

    #[test]
    fn many_conditions_are_logged_as_a_number() {
        let many: Vec<_> = (0..LINES + 3).map(|n| of(Port, &format!("port eth{n}"), "LRO is on")).collect();
        let (warnings, notices) = lines(&many, &many[..1]);
        assert_eq!((warnings.len(), notices), (LINES + 1, vec!["port eth0 is trusted again".to_owned()]));
        assert_eq!(warnings[0], "port eth0 is not trusted: LRO is on");
        assert!(warnings[LINES].starts_with("3 more conditions began or ended"), "{warnings:?}");
        let (_, notices) = lines(&[], &[Condition::new(Core, "core 9 is not online")]);
        assert_eq!(notices, ["no longer: core 9 is not online"]);
    }
}
