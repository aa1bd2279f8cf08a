//! The paths of one table, and where each leads now.

use super::{
    intern::{Id, Interner, position},
    path::{ENDING, Path, Surroundings, pass, pass_unicast},
};
use crate::{plan::Target, reason::Reason};
use std::{collections::BTreeMap, ops::Bound::*, time::Duration};

#[derive(Default)]
pub(super) struct Paths {
    paths: Interner<Path>,
    targets: Interner<Target>,
    /// The results, by path.
    resolved: Vec<Resolved>,
    /// The ends of routes, with the number of routes that end at each time.
    ends: BTreeMap<Duration, usize>,
    /// The number of routes for which [`Path::rubs_off`] is true.
    rub_off: usize,
    /// Whether there were any at the last call of [`Paths::take_turned`].
    rubbed_off: bool,
}

#[derive(Clone, Copy, Default)]
struct Resolved {
    /// Outer `None`: not resolved yet. Inner `None`: no usable next hop. Holds a reference to the target.
    target: Option<Option<Id>>,
    /// It differs from the result before the last [`Paths::refresh`].
    changed: bool,
}

impl Paths {
    pub fn acquire(&mut self, path: Path) -> Id {
        if let Some(end) = path.expires {
            *self.ends.entry(end).or_default() += 1;
        }
        self.rub_off += usize::from(path.rubs_off());
        let id = self.paths.acquire(path);
        if self.resolved.len() <= position(id) {
            self.resolved.resize(position(id) + 1, Resolved::default());
        }
        id
    }

    pub fn release(&mut self, id: Id) {
        if let Some(end) = self.paths.get(id).expires
            && let Some(routes) = self.ends.get_mut(&end)
        {
            *routes -= 1;
            if *routes == 0 {
                self.ends.remove(&end);
            }
        }
        self.rub_off -= usize::from(self.paths.get(id).rubs_off());
        if self.paths.release(id) {
            let resolved = std::mem::take(&mut self.resolved[position(id)]);
            self.release_target(resolved.target.flatten());
        }
    }

    pub fn get(&self, id: Id) -> &Path {
        self.paths.get(id)
    }

    /// Where the path leads. The caller gets no reference to the target.
    pub fn resolve(&mut self, id: Id, around: &Surroundings<'_>, ipv6: bool) -> Option<Id> {
        let at = position(id);
        if let Some(target) = self.resolved[at].target {
            return target;
        }
        let path = self.paths.get(id);
        let target = if self.rub_off > 0 && path.follows_object() {
            Some(pass_unicast(Reason::ComplexRoute))
        } else {
            around.resolve(path, ipv6)
        };
        let target = target.map(|target| self.targets.acquire(target));
        self.resolved[at].target = Some(target);
        target
    }

    /// Whether, since the last call, the first route with metrics that may affect others has come, or the last one has
    /// gone. Then all paths must be resolved again.
    pub fn take_turned(&mut self) -> bool {
        let now = self.rub_off > 0;
        std::mem::replace(&mut self.rubbed_off, now) != now
    }

    /// Resolves all paths again. Returns true if any of them leads elsewhere now (see [`Paths::changed`]).
    pub fn refresh(&mut self, around: &Surroundings<'_>, ipv6: bool) -> bool {
        let mut any = false;
        for id in self.paths.ids() {
            let Some(old) = self.resolved[position(id)].target.take() else { continue };
            let new = self.resolve(id, around, ipv6);
            // The old reference is released last, so a target that stays the same keeps its name.
            self.release_target(old);
            self.resolved[position(id)].changed = new != old;
            any |= new != old;
        }
        any
    }

    /// Whether a route leaves the fast path in the time from `before` to `now`.
    pub fn any_ends(&self, before: Duration, now: Duration) -> bool {
        before < now && self.ends.range((Excluded(before + ENDING), Included(now + ENDING))).next().is_some()
    }

    /// The time at which the next route leaves the fast path because it ends.
    pub fn next_end(&self, now: Duration) -> Option<Duration> {
        let (end, _) = self.ends.range((Excluded(now + ENDING), Unbounded)).next()?;
        Some(*end - ENDING)
    }

    /// Whether the last refresh changed where this path leads.
    pub fn changed(&self, id: Id) -> bool {
        self.resolved[position(id)].changed
    }

    /// Whether this path is resolved.
    pub fn is_resolved(&self, id: Id) -> bool {
        self.resolved[position(id)].target.is_some()
    }

    pub fn target(&self, id: Id) -> &Target {
        self.targets.get(id)
    }

    pub fn retain_target(&mut self, id: Option<Id>) {
        if let Some(id) = id {
            self.targets.retain(id);
        }
    }

    pub fn release_target(&mut self, id: Option<Id>) {
        if let Some(id) = id {
            self.targets.release(id);
        }
    }

    /// The target of a local prefix, and of routes within one. The caller gets a reference.
    pub fn local_prefix(&mut self) -> Id {
        self.targets.acquire(pass(Reason::LocalPrefix))
    }

    /// The target of a destination for which Linux has learned more than its routes. The caller gets a reference.
    pub fn learned(&mut self) -> Id {
        self.targets.acquire(pass_unicast(Reason::LearnedPath))
    }

    /// The target of a prefix for which only the kernel knows whether it has a route. The caller gets a reference. A
    /// source there is not known to be reachable.
    pub fn undecided(&mut self) -> Id {
        self.targets.acquire(pass(Reason::ComplexRoute))
    }
}

#[cfg(test)]
impl Paths {
    /// All references, ends and counts follow from the paths that routes hold, and the targets that are planned.
    pub fn check(&self, held: &BTreeMap<Id, u32>, shown: BTreeMap<Id, u32>) {
        assert_eq!(self.paths.references(), *held);
        let mut targets = shown;
        for id in self.resolved.iter().filter_map(|resolved| resolved.target.flatten()) {
            *targets.entry(id).or_default() += 1;
        }
        assert_eq!(self.targets.references(), targets);
        let (mut ends, mut rub_off) = (BTreeMap::new(), 0);
        for (id, routes) in held {
            let path = self.get(*id);
            path.expires.into_iter().for_each(|end| *ends.entry(end).or_default() += *routes as usize);
            rub_off += if path.rubs_off() { *routes as usize } else { 0 };
        }
        assert_eq!((&self.ends, self.rub_off), (&ends, rub_off));
    }
}
