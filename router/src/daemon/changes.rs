//! The log of what leaves the fast path and comes back: ports, routers, interfaces, with the words of `millrace status`.

use super::{
    Control,
    seam::{Kernel, Observe},
    world::PortState,
};
use crate::api::status::Families;
use std::{collections::BTreeMap, time::Duration};

/// How long to wait for what follows from a change: a device is made and set up by several.
const SETTLE: Duration = Duration::from_millis(200);
/// Least time between two looks at everything. What comes back before the next one is not told.
const LOOK: Duration = Duration::from_secs(1);
/// Most lines of one look and kind; the rest is counted.
const LINES: usize = 10;

/// What the log has said so far.
#[derive(Default)]
pub(super) struct Changes {
    /// What is left to the kernel, and why.
    told: BTreeMap<String, Vec<String>>,
    /// The mirror's revision and the ports' obstacles when something changed last.
    seen: (u64, Vec<Vec<String>>),
    due: Option<Duration>,
    looked: Duration,
}

impl Changes {
    /// When to look.
    pub fn due(&self) -> Option<Duration> {
        self.due
    }

    /// Takes in why each thing is left to the kernel, empty: it is not. What is new of that, and what is on the fast path
    /// again; what is gone is neither.
    fn compare(&mut self, all: BTreeMap<String, Vec<String>>) -> (Vec<String>, Vec<String>) {
        let back = self.told.keys().filter(|what| all.get(*what).is_some_and(Vec::is_empty));
        let back = back.cloned().collect();
        let left: BTreeMap<_, _> = all.into_iter().filter(|(_, why)| !why.is_empty()).collect();
        let new = left.iter().filter(|(what, why)| self.told.get(*what) != Some(*why));
        let new = new.map(|(what, why)| format!("{what}: {}", why.join("; "))).collect();
        self.told = left;
        (new, back)
    }
}

impl<K: Kernel, O: Observe> Control<K, O> {
    /// Tells what has changed, if something has and it is time.
    pub(super) fn tell_changes(&mut self, now: Duration) {
        let ports = self.world.ports.values().map(PortState::obstacles).collect();
        let seen = (self.world.mirror.revision(), ports);
        if self.changes.seen != seen {
            self.changes.seen = seen;
            self.changes.due.get_or_insert((now + SETTLE).max(self.changes.looked + LOOK));
        }
        if self.changes.due.take_if(|due| *due <= now).is_none() {
            return;
        }
        self.changes.looked = now;
        let (left, back) = self.changes.compare(self.left_to_kernel());
        let see = self.instance.command("interfaces");
        lines("left to the kernel", left, &see).for_each(|line| tracing::warn!("{line}"));
        lines("on the fast path again", back, &see).for_each(|line| tracing::info!("{line}"));
    }

    /// Why each port, router and interface is left to the kernel for reasons of its own.
    fn left_to_kernel(&self) -> BTreeMap<String, Vec<String>> {
        let ports = self.world.ports.values().map(|p| (format!("port {}", p.name), p.obstacles()));
        let routers: Vec<_> = self.routers_and_obstacles().collect();
        let names: BTreeMap<_, _> = routers.iter().map(|r| (r.namespace, r.name.clone())).collect();
        let routers = routers.into_iter().map(|router| {
            let why = Families { ipv4: router.ipv4, ipv6: router.ipv6 };
            (format!("router {}", router.name), why.sentences())
        });
        let interfaces = self.world.mirror.interfaces().map(|interface| {
            let router = names.get(&interface.namespace).map_or("", String::as_str);
            let why = Families { ipv4: interface.reasons4, ipv6: interface.reasons6 };
            (format!("router {router}, interface {}", interface.name), why.sentences())
        });
        ports.chain(routers).chain(interfaces).collect()
    }
}

fn lines(what: &str, mut list: Vec<String>, see: &str) -> impl Iterator<Item = String> {
    let more = list.len().saturating_sub(LINES);
    list.truncate(LINES);
    let rest = (more > 0).then(|| format!("{what}: {more} more, see `{see}`"));
    list.into_iter().map(move |line| format!("{what}: {line}")).chain(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(list: &[(&str, &str)]) -> BTreeMap<String, Vec<String>> {
        let why = |why: &str| if why.is_empty() { Vec::new() } else { vec![why.to_string()] };
        list.iter().map(|(what, text)| (what.to_string(), why(text))).collect()
    }

    #[test]
    fn a_change_is_told_once() {
        let mut changes = Changes::default();
        let mut told = |list: &[(&str, &str)]| changes.compare(all(list));
        let left = |line: &str| (vec![line.to_string()], Vec::new());
        let nothing = (Vec::new(), Vec::new());
        assert_eq!(told(&[("port a", "LRO is on"), ("router r", "")]), left("port a: LRO is on"));
        assert_eq!(told(&[("port a", "LRO is on"), ("router r", "")]), nothing);
        assert_eq!(
            told(&[("port a", "the port is down"), ("router r", "")]),
            left("port a: the port is down")
        );
        assert_eq!(told(&[("port a", ""), ("router r", "a rule")]), {
            (vec!["router r: a rule".into()], vec!["port a".into()])
        });
        assert_eq!(told(&[("port a", "")]), nothing, "what is gone does not come back");
    }

    #[test]
    fn many_changes_are_counted() {
        let many: Vec<String> = (0..1000).map(|i| format!("interface m{i}: x")).collect();
        let told: Vec<_> = lines("left to the kernel", many, "millrace interfaces").collect();
        assert_eq!(told.len(), LINES + 1);
        assert_eq!(told[0], "left to the kernel: interface m0: x");
        assert_eq!(told[LINES], "left to the kernel: 990 more, see `millrace interfaces`");
        assert_eq!(lines("x", vec!["a".into()], "").collect::<Vec<_>>(), ["x: a"]);
    }
}
