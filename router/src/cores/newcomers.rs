//! Pinned workloads that come and go, as events. A process that ends soon after it was pinned gets no event of its own:
//! build tools and tests start such processes all the time. They are counted, and reported together once a minute.

use super::{
    CoreId,
    look::CoresSnapshot,
    notices::happened,
    placing::Happened,
    workloads::{Workload, WorkloadKind},
};
use logic::cpus;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// A process that has been pinned for this long gets an event.
const SETTLED: Duration = Duration::from_secs(3);
/// How often processes that ended sooner are reported.
const REPORT: Duration = Duration::from_secs(60);
/// The most workload events of one look. A hundred new processes need no event each.
const MOST: usize = 8;
/// The most sets of cores for which short-lived processes are counted.
const MOST_SETS: usize = 16;

/// What is known about pinned workloads.
#[derive(Default)]
pub struct Newcomers {
    /// Those that had an event, or were there at the first look; `None`: nobody has looked yet.
    known: Option<BTreeMap<u32, Workload>>,
    /// Processes that have not been pinned for long, and since when.
    waiting: BTreeMap<u32, (Workload, Duration)>,
    /// The number of processes that ended soon, by the cores that they were pinned to.
    short: BTreeMap<BTreeSet<CoreId>, u64>,
    /// When the first of them ended.
    since: Duration,
}

impl Newcomers {
    /// The events of another look.
    pub fn follow(&mut self, found: &CoresSnapshot) -> Vec<Happened> {
        let now: BTreeMap<u32, &Workload> = found.workloads.iter().map(|w| (w.id, w)).collect();
        let Some(known) = &mut self.known else {
            self.known = Some(found.workloads.iter().map(|w| (w.id, w.clone())).collect());
            return Vec::new();
        };
        let mut all = Vec::new();
        known.retain(|id, old| {
            let stays = now.contains_key(id);
            if !stays {
                let why = format!("{} has ended or is no longer pinned", named(old));
                all.push(happened(None, cores(old), vec![], why));
            }
            stays
        });
        for (id, new) in &now {
            match known.get_mut(id) {
                Some(old) if old == *new => {}
                Some(old) => {
                    all.push(pinned(cores(old), new));
                    *old = (*new).clone();
                }
                None => {
                    let waits = self.waiting.entry(*id).or_insert_with(|| ((*new).clone(), found.began));
                    waits.0 = (*new).clone();
                    let is_settled = found.began.saturating_sub(waits.1) >= SETTLED;
                    if new.kind != WorkloadKind::Process || is_settled {
                        self.waiting.remove(id);
                        all.push(pinned(Vec::new(), new));
                        known.insert(*id, (*new).clone());
                    }
                }
            }
        }
        self.count_ended(&now, found.began);
        let more = all.len().saturating_sub(MOST);
        if more > 0 {
            all.truncate(MOST);
            all.push(happened(None, vec![], vec![], format!("{more} more workloads have changed")));
        }
        all.extend(self.report(found.began));
        all.into_iter().map(|happened| Happened { at: found.began, ..happened }).collect()
    }

    fn count_ended(&mut self, now: &BTreeMap<u32, &Workload>, at: Duration) {
        let short = &mut self.short;
        let since = &mut self.since;
        self.waiting.retain(|id, (old, _)| {
            let stays = now.contains_key(id);
            if !stays && (short.len() < MOST_SETS || short.contains_key(&old.cores)) {
                if short.is_empty() {
                    *since = at;
                }
                *short.entry(old.cores.clone()).or_default() += 1;
            }
            stays
        });
    }

    fn report(&mut self, now: Duration) -> Vec<Happened> {
        if self.short.is_empty() || now.saturating_sub(self.since) < REPORT {
            return Vec::new();
        }
        let sentence = |(cores, count): (BTreeSet<CoreId>, u64)| {
            let processes = if count == 1 { "process" } else { "processes" };
            let which = if cores.len() == 1 { "core" } else { "cores" };
            let why = format!(
                "{count} short-lived {processes} pinned to {which} {} in the last {} s",
                cpus::list(&cores),
                now.saturating_sub(self.since).as_secs()
            );
            happened(None, vec![], Vec::from_iter(cores), why)
        };
        std::mem::take(&mut self.short).into_iter().map(sentence).collect()
    }
}

fn cores(workload: &Workload) -> Vec<CoreId> {
    workload.cores.iter().copied().collect()
}

fn named(workload: &Workload) -> String {
    format!("{} {} ({})", workload.kind, workload.name, workload.id)
}

fn pinned(from: Vec<CoreId>, new: &Workload) -> Happened {
    let why = format!("{} is pinned to cores {}", named(new), cpus::list(&new.cores));
    happened(None, from, cores(new), why)
}

#[cfg(test)]
mod tests {
    use super::{super::notices::tests::found, *};

    /// The sentences of a look at this second that finds these pinned processes.
    fn look(newcomers: &mut Newcomers, second: u64, workloads: &[(u32, CoreId)]) -> Vec<String> {
        let found =
            CoresSnapshot { began: Duration::from_secs(second), ..found(&[0, 1, 2, 3], &[], workloads) };
        let told = newcomers.follow(&found);
        assert!(told.iter().all(|happened| happened.at == found.began));
        told.into_iter().map(|happened| happened.why).collect()
    }

    #[test]
    fn a_workload_has_an_event_when_it_is_settled_changes_and_ends() {
        let mut newcomers = Newcomers::default();
        let none: [&str; 0] = [];
        assert_eq!(look(&mut newcomers, 0, &[(40, 1)]), none);
        assert_eq!(look(&mut newcomers, 1, &[(40, 1), (41, 2)]), none);
        assert_eq!(look(&mut newcomers, 3, &[(40, 1), (41, 2)]), none);
        assert_eq!(look(&mut newcomers, 4, &[(40, 1), (41, 2)]), ["process db (41) is pinned to cores 2"]);
        assert_eq!(look(&mut newcomers, 5, &[(40, 1), (41, 3)]), ["process db (41) is pinned to cores 3"]);
        assert_eq!(look(&mut newcomers, 6, &[(41, 3)]), ["process db (40) has ended or is no longer pinned"]);
        let many: Vec<(u32, CoreId)> = (0..100).map(|id| (id, 0)).collect();
        look(&mut newcomers, 7, &many);
        let told = look(&mut newcomers, 10, &many);
        assert_eq!((told.len(), &*told[8]), (9, "91 more workloads have changed"));
    }

    #[test]
    fn short_lived_processes_are_counted_and_reported_once_a_minute() {
        let mut newcomers = Newcomers::default();
        look(&mut newcomers, 0, &[]);
        let mut told = Vec::new();
        for second in 0..120_u32 {
            told.extend(look(&mut newcomers, second.into(), &[(second, (second % 2) as CoreId)]));
        }
        assert_eq!(
            told,
            [
                "31 short-lived processes pinned to core 0 in the last 60 s",
                "30 short-lived processes pinned to core 1 in the last 60 s",
            ]
        );
    }
}
