//! Metrics of flow rules, OpenFlow controllers and security associations.

use super::{families::Metric::*, page::Page};
use crate::{
    api::{flows::FlowsStatus, sas::SaReport},
    switch::controllers::{Connection, ControllerReport},
};

pub fn add_flows(page: &mut Page, flows: &FlowsStatus) {
    page.gauge(FlowRules, &[], flows.rules as f64);
    page.gauge(FlowCoreRules, &[], flows.core_rules as f64);
    page.flag(FlowInCharge, &[], flows.in_charge);
    page.count(FlowCacheHits, &[], flows.cache_hits);
    page.count(FlowCacheMisses, &[], flows.cache_misses);
    page.count(FlowSlow, &[], flows.slow_done);
    page.count(FlowSlowLost, &[], flows.slow_lost);
    let lost = &flows.controller_lost;
    for (reason, n) in
        [("no_controller", lost.no_controller), ("over_rate", lost.over_rate), ("not_read", lost.not_read)]
    {
        page.count(ControllersLost, &[&reason], n);
    }
}

pub fn add_controllers(page: &mut Page, controllers: &[ControllerReport]) {
    for controller in controllers {
        let target = &controller.target;
        let sum = |of: fn(&Connection) -> u64| controller.connections.iter().map(of).sum();
        page.gauge(ControllerConnections, &[target], controller.connections.len() as f64);
        page.count(ControllerAttempts, &[target], controller.attempts);
        page.count(ControllerRefused, &[target], controller.refused);
        page.count(ControllerMessages, &[target], sum(|connection| connection.messages));
        page.count(ControllerPacketIns, &[target], sum(|connection| connection.packet_ins));
        page.count(ControllerPacketInsDropped, &[target], sum(|connection| connection.packet_ins_dropped));
    }
}

/// Those that can send the fewest packets come first, so that the page has room for them.
pub fn add_sas(page: &mut Page, sas: &[SaReport]) {
    let mut sas: Vec<_> = sas.iter().collect();
    sas.sort_by_key(|sa| sa.left.unwrap_or(u64::MAX));
    for SaReport { sa, spi, direction, sequence, left, .. } in sas {
        page.gauge(SaSequence, &[sa, spi, direction], *sequence as f64);
        if let Some(left) = left {
            page.gauge(SaLeft, &[sa, spi], *left as f64);
        }
    }
}
