//! Metrics of cores and queues.

use super::{families::Metric::*, page::Page};
use crate::api::cores::{CoreReport, CoresReport, QueueReport};

pub fn add_cores(page: &mut Page, report: &CoresReport) {
    report.cores.iter().for_each(|core| add_core(page, core));
    report.queues.iter().for_each(|queue| add_queue(page, queue));
    if let Some(drains) = &report.drains {
        page.count(QueueMoves, &[&"yes"], drains.left);
        page.count(QueueMoves, &[&"no"], drains.remained);
    }
}

fn add_core(page: &mut Page, core: &CoreReport) {
    let number = &core.core;
    page.flag(CoreRole, &[number, &core.role], true);
    page.gauge(CoreForwarding, &[number], core.forwarding);
    page.time(CoreForwardingTime, &[number], core.forwarding_ns);
    if let Some(other) = core.other {
        page.gauge(CoreOther, &[number], other);
    }
    page.gauge(CoreFlows, &[number], f64::from(core.flows));
    page.count(CoreHanded, &[number], core.handed_packets);
    page.count(CoreHandedDropped, &[number], core.handed_dropped);
}

fn add_queue(page: &mut Page, queue: &QueueReport) {
    let (port, number) = (&queue.port, &queue.queue);
    if let Some(core) = queue.core {
        page.gauge(QueueCore, &[port, number], f64::from(core));
    }
    page.gauge(QueueRan, &[port, number], queue.ran);
    page.time(QueueRanTime, &[port, number], queue.ran_ns);
    page.gauge(QueueWaited, &[port, number], queue.waited);
    page.count(QueueWakeups, &[port, number], queue.wakeups);
    page.count(QueuePackets, &[port, number], queue.packets);
    page.count(QueuePolls, &[port, number], queue.polls);
    page.gauge(QueueSplit, &[port, number], queue.shared.len() as f64);
}
