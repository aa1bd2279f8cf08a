//! Chooses cores for flows whose rules ask for it. Ten times a second, from the first such rule on, the decisions of
//! `logic::cores::choice` go to the kernel plane.

use super::now;
use crate::{
    api::cores::{CoreReport, CoresReport},
    config::CoresSettings,
    cores::{
        Roots,
        handle::CoresHandle,
        load::{CoreTimes, Others},
    },
    plane::FlowMaps,
};
use anyhow::{Context, Result};
use logic::cores::{
    Core, CoreId, Queue, QueueId, Settings, View,
    choice::{Choices, Chooser, Flows},
};
use std::{collections::BTreeMap, sync::Arc, thread, time::Duration};

/// The time between two decisions. Loads are measured every second time.
const PERIOD: Duration = Duration::from_millis(100);

/// Starts the thread, which ends with the process. When this returns, new flows get cores.
///
/// # Errors
/// /proc cannot be read, or the thread cannot be started.
pub fn start(maps: Arc<FlowMaps>, cores: CoresHandle) -> Result<()> {
    let times = CoreTimes::open(&Roots::at("/proc", "/sys")).context("reading times of cores")?;
    let mut choosing = Choosing {
        maps,
        cores,
        times,
        busy: Others::default(),
        chooser: Chooser::default(),
        last: Choices::default(),
        failed: None,
    };
    choosing.round(now());
    let run = move || {
        loop {
            thread::sleep(PERIOD);
            choosing.round(now());
        }
    };
    thread::Builder::new()
        .name("choosing".into())
        .spawn(run)
        .context("starting the thread that chooses cores")?;
    Ok(())
}

/// The settings that matter here.
fn settings(wanted: &CoresSettings) -> Settings {
    Settings {
        high: wanted.high.fraction(),
        low: wanted.low.fraction(),
        hold: wanted.hold.0,
        ..Settings::default()
    }
}

struct Choosing {
    maps: Arc<FlowMaps>,
    cores: CoresHandle,
    times: CoreTimes,
    /// The time for which each core was not idle.
    busy: Others,
    chooser: Chooser,
    /// The choices that the kernel plane has, without `leave`.
    last: Choices,
    /// Why the last round failed.
    failed: Option<String>,
}

impl Choosing {
    fn round(&mut self, now: Duration) {
        let failed = self.choose(now).map_err(|error| format!("{error:#}")).err();
        if let Some(why) = failed.as_ref().filter(|why| Some(*why) != self.failed.as_ref()) {
            tracing::warn!("cannot choose cores for flows: {why}");
        }
        self.failed = failed;
    }

    fn choose(&mut self, now: Duration) -> Result<()> {
        if self.busy.is_due(now) {
            let times = self.times.read().context("reading times of cores")?;
            self.busy.update(now, times, &BTreeMap::new());
        }
        let memory = self.maps.memory();
        let mut flows: BTreeMap<CoreId, Flows> = BTreeMap::new();
        for (core, handed) in memory.handed() {
            flows.insert(core, Flows { given: handed.flows, given_first: handed.first, ..Flows::default() });
        }
        for (core, chosen) in memory.chosen_flows(now) {
            let flows = flows.entry(core).or_default();
            (flows.others, flows.first) = (chosen.others, chosen.first);
        }
        let settings = settings(&self.cores.wanted());
        let view = view(self.cores.cores(), &self.busy);
        let mut choices = self.chooser.decide(now, &view, &flows, &settings);
        let leave = std::mem::take(&mut choices.leave);
        if choices == self.last && leave.is_empty() {
            return Ok(());
        }
        memory.choose(&choices, &leave)?;
        self.last = choices;
        Ok(())
    }
}

/// The cores that may forward. All work of a core counts as other work, and queues have no work.
fn view(report: CoresReport, busy: &Others) -> View {
    let polled = report.queues.iter().filter_map(|queue| queue.core);
    let queue = |(index, core)| Queue {
        id: QueueId { port: 0, index },
        node: None,
        core,
        movable: false,
        ran: 0.0,
        waited: 0.0,
        counted: None,
        parts: Vec::new(),
        is_partial: false,
        spilled: Vec::new(),
    };
    let core = |core: CoreReport| Core {
        id: core.core,
        node: core.node,
        physical: core.physical,
        workloads: core.workloads.len().try_into().unwrap_or(u16::MAX),
        other: busy.of(core.core).unwrap_or(core.forwarding + core.other.unwrap_or(0.0)),
    };
    View {
        queues: (0..).zip(polled).map(queue).collect(),
        cores: report.cores.into_iter().filter(|core| core.may_forward).map(core).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A control group may keep a core for itself. Flows leave such a core, as if it were offline.
    #[test]
    fn only_cores_that_may_forward_are_chosen() {
        let core = |core, may_forward| CoreReport { core, may_forward, ..CoreReport::default() };
        let report = CoresReport {
            cores: vec![core(1, true), core(2, false), core(3, true)],
            ..CoresReport::default()
        };
        let view = view(report, &Others::default());
        assert_eq!(view.cores.iter().map(|core| core.id).collect::<Vec<_>>(), [1, 3]);
        let choices =
            Chooser::default().decide(Duration::ZERO, &view, &BTreeMap::new(), &Settings::default());
        assert!(!choices.ring.is_empty() && !choices.ring.contains(&2), "{:?}", choices.ring);
    }
}
