//! What paths share now (P7): found from what all workers used since the control period before.
//!
//! Memory and I/O are the machine's: what all workers use of them together is what counts, and all share the same. Cycles are each core's own,
//! and are shared while nothing else is scarce ([`Saturation`]), so nothing is to be found out of them.
//!
//! A control period is a second, or what passed between two plans if that was longer. Nothing here is on the way of packets.

use logic::{
    cores::CoreId,
    paths::{PathId, RESOURCES, Resource, Saturation, Share, Used, Utilisation},
};
use std::collections::BTreeMap;

/// Amounts are compared with those of so long ago at least.
const LEAST_SECONDS: u64 = 1;

/// How all stand: amounts since paths were planned and workers were started.
#[derive(Clone, Debug, Default)]
pub(super) struct Reading {
    /// By the clock of workers.
    pub at: u64,
    /// Cycles that workers had packets for.
    pub busy: BTreeMap<CoreId, u64>,
    /// What is counted of paths beside cycles, and where they are.
    pub paths: BTreeMap<PathId, (CoreId, Used)>,
}

/// See the head of this file.
pub(super) struct Scarce {
    share: Share,
    saturation: Saturation,
    before: Option<Reading>,
    /// Amounts of a second, in the last period.
    lately: Reading,
}

impl Scarce {
    pub fn new(share: Share) -> Scarce {
        Scarce { share, saturation: Saturation::default(), before: None, lately: Reading::default() }
    }

    /// How it is now, where there is so much of each resource in a second, which has so many cycles.
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

    /// What all workers are to share.
    pub fn shared(&self) -> Resource {
        match self.share {
            Share::Scarce => self.saturation.scarce(),
            Share::Always(resource) => resource,
        }
    }

    /// Bytes of I/O are counted if they are shared, or can become scarce.
    pub fn counts_io(&self, is_known: bool) -> bool {
        self.shared() == Resource::Io || is_known && self.share == Share::Scarce
    }

    /// By all, in a second of the last period. Cycles are not in it: there is no core of all.
    pub fn used(&self) -> Used {
        self.lately.paths.values().fold(Used::default(), |all, (_, used)| all.plus(used))
    }

    /// By one worker, cycles too.
    pub fn used_by(&self, core: CoreId) -> Used {
        let its = self.lately.paths.values().filter(|(of, _)| *of == core);
        let others = its.fold(Used::default(), |all, (_, used)| all.plus(used));
        others.and(&self.lately.busy.get(&core).map_or(Used::default(), |cycles| Used::cycles(*cycles)))
    }

    /// Of what the paths of its worker used of this, not cycles.
    pub fn part(&self, path: PathId, resource: Resource) -> f64 {
        let of = |(core, used): &(CoreId, Used)| Some((*core, used.get(resource)?));
        let Some((core, its)) = self.lately.paths.get(&path).and_then(of) else { return 0.0 };
        let all = self.lately.paths.values().filter_map(of).filter(|(other, _)| *other == core);
        its as f64 / all.map(|(_, used)| used).sum::<u64>().max(1) as f64
    }
}

impl Reading {
    /// What was used since, as of a second. What was not there before is not known.
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

    /// Counters that go on as they are told.
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

        /// Paths use so much of I/O in a second, for so many; what is shared then.
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
    fn what_all_workers_use_together_is_what_is_scarce() {
        let mut made = Made::new(Share::Scarce);
        assert_eq!((made.1.counts_io(true), made.1.counts_io(false)), (true, false));
        assert_eq!([made.go_on(1, [100; 3]), made.go_on(3, [300; 3])], [Cycles; 2]);
        // Of less than a second nothing is said.
        made.0.at += HZ / 10;
        made.1.take_in(made.0.clone(), HZ, &Used::default().with(Io, 1));
        assert_eq!(made.1.shared(), Cycles);
        made.0.at -= HZ / 10;
        assert_eq!(made.go_on(2, [100, 300, 520]), Io, "the second period above 90 %");
        assert_eq!(made.1.used().get(Io), Some(920));
        let of = |core| (made.1.used_by(core).get(Io), made.1.used_by(core).get(Cycles));
        assert_eq!([of(2), of(3), of(4)], [(Some(400), Some(500)), (Some(520), Some(500)), (None, None)]);
        assert_eq!([0, 1, 2, 3].map(|path| made.1.part(path, Io)), [0.25, 0.75, 1.0, 0.0]);
        // Still shared, so still counted, when what there is of it is not known any more.
        assert!(made.1.counts_io(false));
        assert_eq!([made.go_on(1, [100; 3]), made.go_on(1, [100; 3])], [Io, Cycles]);
    }

    #[test]
    fn what_is_always_shared_is_whatever_is_scarce() {
        for resource in [Cycles, Io] {
            let mut made = Made::new(Share::Always(resource));
            assert_eq!([[990; 3], [990; 3], [10; 3], [10; 3]].map(|io| made.go_on(1, io)), [resource; 4]);
            assert_eq!(made.1.counts_io(true), resource == Io);
        }
    }

    #[test]
    fn who_is_new_or_gone_counts_for_nothing() {
        let mut made = Made::new(Share::Scarce);
        made.0.paths.insert(7, (2, Used::default().with(Io, 1_000_000)));
        made.0.paths.remove(&2);
        made.0.at += HZ;
        made.1.take_in(made.0.clone(), HZ, &Used::default());
        assert_eq!((made.1.used().get(Io), made.1.part(7, Io)), (Some(0), 0.0));
    }
}
