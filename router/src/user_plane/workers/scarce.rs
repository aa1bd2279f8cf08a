//! Decides which resource paths share now (P7), by what all workers used in the last control period.
//!
//! Memory and I/O belong to the whole machine, so the use of all workers together counts, and all share the same resource.
//! Cycles belong to each core. They are shared while nothing else is scarce ([`Saturation`]), so their use decides nothing.
//!
//! A control period is a second, or the time between two plans if that is longer. No packet waits for anything here.

use logic::{
    cores::CoreId,
    paths::{PathId, RESOURCES, Resource, Saturation, Share, Used, Utilisation},
};
use std::collections::BTreeMap;

/// Amounts are measured over at least this time.
const LEAST_SECONDS: u64 = 1;

/// Amounts since paths were planned and workers were started.
#[derive(Clone, Debug, Default)]
pub(super) struct Reading {
    /// When they were read, by the clock of workers.
    pub at: u64,
    /// Cycles of workers in turns that had packets.
    pub busy: BTreeMap<CoreId, u64>,
    /// The core of each path, and what it used besides cycles, if it is counted.
    pub paths: BTreeMap<PathId, (CoreId, Used)>,
}

/// See the head of this file.
pub(super) struct Scarce {
    pub share: Share,
    saturation: Saturation,
    before: Option<Reading>,
    /// Amounts in a second of the last period.
    lately: Reading,
}

impl Scarce {
    pub fn new(share: Share) -> Scarce {
        Scarce { share, saturation: Saturation::default(), before: None, lately: Reading::default() }
    }

    /// Takes in a reading. `capacity` is that of each resource in a second; `hz` are the cycles in a second.
    pub fn take_in(&mut self, now: Reading, hz: u64, capacity: &Used) {
        let Some(before) = &self.before else {
            self.before = Some(now);
            return;
        };
        let passed = now.at.saturating_sub(before.at);
        if passed < hz * LEAST_SECONDS {
            return;
        }
        self.lately = now.a_second_since(before, passed, hz);
        self.before = Some(now);
        if self.share == Share::Scarce {
            self.saturation.decide(&Utilisation::new(&self.used(), capacity));
        }
    }

    /// The resource that all workers share.
    pub fn shared(&self) -> Resource {
        match self.share {
            Share::Scarce => self.saturation.scarce(),
            Share::Always(resource) => resource,
        }
    }

    /// Bytes of I/O are counted if they are shared, or can become scarce. `is_known`: their capacity is known.
    pub fn counts_io(&self, is_known: bool) -> bool {
        self.shared() == Resource::Io || is_known && self.share == Share::Scarce
    }

    /// What all workers used in a second of the last period, without cycles, because each core has its own.
    pub fn used(&self) -> Used {
        self.lately.paths.values().fold(Used::default(), |all, (_, used)| all.plus(used))
    }

    /// What one worker used, with cycles.
    pub fn used_by(&self, core: CoreId) -> Used {
        let its = self.lately.paths.values().filter(|(of, _)| *of == core);
        let others = its.fold(Used::default(), |all, (_, used)| all.plus(used));
        others.and(&self.lately.busy.get(&core).map_or(Used::default(), |cycles| Used::cycles(*cycles)))
    }

    /// The path's part of what all paths of its worker used of this resource; not for cycles.
    pub fn part(&self, path: PathId, resource: Resource) -> f64 {
        let of = |(core, used): &(CoreId, Used)| Some((*core, used.get(resource)?));
        let Some((core, its)) = self.lately.paths.get(&path).and_then(of) else { return 0.0 };
        let all = self.lately.paths.values().filter_map(of).filter(|(other, _)| *other == core);
        its as f64 / all.map(|(_, used)| used).sum::<u64>().max(1) as f64
    }
}

impl Reading {
    /// What was used since `before`, in a second. Paths and workers that were not there before are left out.
    fn a_second_since(&self, before: &Reading, passed: u64, hz: u64) -> Reading {
        let rate = |amount: u64| {
            let a_second = u128::from(amount) * u128::from(hz) / u128::from(passed.max(1));
            a_second.min(u64::MAX.into()) as u64
        };
        let busy = self
            .busy
            .iter()
            .filter_map(|(core, now)| Some((*core, rate(now.saturating_sub(*before.busy.get(core)?)))));
        let paths = self.paths.iter().filter_map(|(path, (core, now))| {
            let since = now.since(&before.paths.get(path)?.1);
            let known = RESOURCES.into_iter().filter_map(|resource| Some((resource, since.get(resource)?)));
            let used =
                known.fold(Used::default(), |used, (resource, amount)| used.with(resource, rate(amount)));
            Some((*path, (*core, used)))
        });
        Reading { at: self.at, busy: busy.collect(), paths: paths.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Resource::*;

    const HZ: u64 = 1000;

    /// Counters that a test advances.
    struct Made(Reading, Scarce);

    impl Made {
        fn new(share: Share) -> Made {
            let paths =
                [(0, 2), (1, 2), (2, 3)].map(|(path, core)| (path, (core, Used::default().with(Io, 0))));
            let reading = Reading { at: 0, busy: [(2, 0), (3, 0)].into(), paths: paths.into() };
            let mut made = Made(reading.clone(), Scarce::new(share));
            made.1.take_in(reading, HZ, &Used::default());
            made
        }

        /// Paths use this much I/O in a second, for this many seconds; returns what is shared then.
        fn go_on(&mut self, seconds: u64, io: [u64; 3]) -> Resource {
            self.0.at += seconds * HZ;
            self.0.busy.values_mut().for_each(|busy| *busy += seconds * HZ / 2);
            for (path, of) in io.into_iter().enumerate() {
                let (_, used) = self.0.paths.get_mut(&(path as PathId)).unwrap();
                used.add(Io, of * seconds);
            }
            self.1.take_in(self.0.clone(), HZ, &Used::cycles(HZ).with(Io, 1000));
            self.1.shared()
        }
    }

    #[test]
    fn the_use_of_all_workers_together_decides_what_is_scarce() {
        let mut made = Made::new(Share::Scarce);
        assert_eq!((made.1.counts_io(true), made.1.counts_io(false)), (true, false));
        assert_eq!([made.go_on(1, [100; 3]), made.go_on(3, [300; 3])], [Cycles; 2]);
        // Less than a second decides nothing.
        made.0.at += HZ / 10;
        made.1.take_in(made.0.clone(), HZ, &Used::default().with(Io, 1));
        assert_eq!(made.1.shared(), Cycles);
        made.0.at -= HZ / 10;
        assert_eq!(made.go_on(2, [100, 300, 520]), Io, "the second period above 90 %");
        assert_eq!(made.1.used().get(Io), Some(920));
        let of = |core| (made.1.used_by(core).get(Io), made.1.used_by(core).get(Cycles));
        assert_eq!([of(2), of(3), of(4)], [(Some(400), Some(500)), (Some(520), Some(500)), (None, None)]);
        assert_eq!([0, 1, 2, 3].map(|path| made.1.part(path, Io)), [0.25, 0.75, 1.0, 0.0]);
        // Still shared, so still counted, although the capacity is not known any more.
        assert!(made.1.counts_io(false));
        assert_eq!([made.go_on(1, [100; 3]), made.go_on(1, [100; 3])], [Io, Cycles]);
    }

    #[test]
    fn a_configured_resource_is_shared_whatever_is_scarce() {
        for resource in [Cycles, Io] {
            let mut made = Made::new(Share::Always(resource));
            assert_eq!([[990; 3], [990; 3], [10; 3], [10; 3]].map(|io| made.go_on(1, io)), [resource; 4]);
            assert_eq!(made.1.counts_io(true), resource == Io);
        }
    }

    #[test]
    fn new_and_removed_paths_count_for_nothing() {
        let mut made = Made::new(Share::Scarce);
        made.0.paths.insert(7, (2, Used::default().with(Io, 1_000_000)));
        made.0.paths.remove(&2);
        made.0.at += HZ;
        made.1.take_in(made.0.clone(), HZ, &Used::default());
        assert_eq!((made.1.used().get(Io), made.1.part(7, Io)), (Some(0), 0.0));
    }
}
