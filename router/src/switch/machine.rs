//! The machine as controllers see it: cores, their loads, and the workloads that are pinned to them.

use super::rules;
use crate::{
    api::cores::{CoreReport, CoresReport},
    cores::handle::CoresHandle,
    plane::MappedFlows,
    switch::seam::SwitchPort,
};
use logic::{
    cores::Role,
    openflow::extension::{CoreStats, Cores, Workload},
};

/// Cores with their known loads and workloads.
pub fn cores(ports: &[SwitchPort], report: Option<&CoresReport>) -> Cores {
    let mut all = rules::cores(ports);
    for core in &mut all.cores {
        if let Some(known) = report.and_then(|report| of(report, core.number)) {
            (core.load, core.workloads) = (load(known), workloads_of(known));
        }
    }
    all
}

/// The workloads of this machine.
pub fn workloads(report: &CoresReport) -> Vec<Workload> {
    // The daemon does not know tenants.
    let workload =
        |w: &crate::api::cores::WorkloadReport| Workload { id: w.id, tenant: 0, cores: w.cores.clone() };
    report.workloads.iter().map(workload).collect()
}

/// The counters of each core, and its present flows.
pub fn stats(ports: &[SwitchPort], machine: Option<&CoresHandle>, memory: &MappedFlows) -> Vec<CoreStats> {
    let report = machine.map(CoresHandle::cores);
    let (handed, chosen) = (memory.handed(), memory.chosen_flows(super::now()));
    let stats = |core: logic::openflow::extension::Core| {
        let known = report.as_ref().and_then(|report| of(report, core.number));
        let handed = handed.get(&core.number).copied().unwrap_or_default();
        let flows = chosen.get(&core.number).copied().unwrap_or_default();
        CoreStats {
            number: core.number,
            load: core.load,
            role: known.and_then(|known| Role::named(&known.role)),
            workloads: core.workloads,
            packets: handed.packets,
            dropped: handed.dropped,
            flows: flows.others + flows.first,
            first: flows.first,
        }
    };
    cores(ports, report.as_ref()).cores.into_iter().map(stats).collect()
}

/// Adds the packets and flows that were handed to cores to a report for clients.
pub fn add_handed(report: &mut CoresReport, memory: &MappedFlows) {
    let (handed, chosen) = (memory.handed(), memory.chosen_flows(super::now()));
    for core in &mut report.cores {
        let handed = handed.get(&core.core).copied().unwrap_or_default();
        let flows = chosen.get(&core.core).copied().unwrap_or_default();
        core.handed_packets = handed.packets;
        core.handed_dropped = handed.dropped;
        core.flows = flows.others + flows.first;
        core.priority_flows = flows.first;
    }
}

fn of(report: &CoresReport, core: u16) -> Option<&CoreReport> {
    report.cores.iter().find(|known| known.core == core)
}

/// The load of a core in thousandths; `None`: it is not known.
fn load(core: &CoreReport) -> Option<u16> {
    let load = (core.forwarding + core.other?).clamp(0.0, 1.0);
    Some((load * 1000.0).round() as u16)
}

fn workloads_of(core: &CoreReport) -> u16 {
    core.workloads.len().try_into().unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_reported_only_if_all_of_it_is_known() {
        let core = |forwarding, other| CoreReport { forwarding, other, ..CoreReport::default() };
        let cases = [(0.25, Some(0.5), Some(750)), (0.25, None, None), (0.7, Some(0.7), Some(1000))];
        for (forwarding, other, expected) in cases {
            assert_eq!(load(&core(forwarding, other)), expected);
        }
        for role in [Role::Forward, Role::Serve, Role::Both, Role::Idle] {
            assert_eq!(Role::named(role.name()), Some(role));
        }
        assert_eq!(Role::named("x"), None);
    }
}
