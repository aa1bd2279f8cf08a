//! Metrics of paths and workers.

use super::{families::Metric::*, page::Page};
use crate::api::{
    status::PathReport,
    workers::{OutputStand, PathStand, WorkerStand, WorkersReport},
};

pub fn add_paths(page: &mut Page, paths: &[PathReport]) {
    for path in paths {
        let name = &path.path;
        page.flag(PathActive, &[name], path.why_not.is_none());
        page.count(PathGiven, &[name], path.packets);
        page.count(PathGivenBytes, &[name], path.bytes);
        for (metric, reasons) in [(PathLost, &path.lost), (PathPast, &path.up), (PathRefused, &path.dropped)]
        {
            for count in reasons {
                page.count(metric, &[name, &count.reason], count.packets);
            }
        }
        if let Some(run) = &path.run {
            add_run(page, name, run);
        }
    }
}

/// What a worker did with packets of a path.
fn add_run(page: &mut Page, name: &str, run: &PathStand) {
    page.flag(PathStopped, &[&name], run.stopped.is_some());
    page.count(PathPanics, &[&name], run.panics);
    page.count(PathHangs, &[&name], run.hangs);
    page.gauge(PathCore, &[&name], f64::from(run.worker));
    page.gauge(PathShare, &[&name], run.share);
    if let Some(cycles) = run.cycles_per_packet {
        page.gauge(PathPacketCycles, &[&name], cycles as f64);
    }
    page.count(PathRun, &[&name], run.packets);
    page.count(PathRunCycles, &[&name], run.cycles);
    for (metric, counts) in [(PathOut, &run.out), (PathUp, &run.up), (PathDropped, &run.dropped)] {
        for (label, packets) in counts {
            page.count(metric, &[&name, label], *packets);
        }
    }
    for (reason, packets) in [
        ("worker_panicked", run.worker_panicked),
        ("path_stopped", run.stopped_packets),
        ("ring_closed", run.ring_closed),
    ] {
        if packets > 0 {
            page.count(PathDropped, &[&name, &reason], packets);
        }
    }
    for (at, element) in run.elements.iter().enumerate() {
        for (what, n) in &element.counted {
            page.count(PathCounted, &[&name, &(at + 1), &element.element, what], *n);
        }
    }
}

pub fn add_workers(page: &mut Page, report: &WorkersReport) {
    report.workers.iter().for_each(|worker| add_worker(page, worker));
    let of_workers = report.workers.iter().flat_map(|worker| &worker.outputs);
    of_workers.chain(&report.closed_outputs).for_each(|output| add_output(page, output));
    for queue in &report.queues {
        page.count(WorkersFillEmpty, &[&queue.name, &queue.queue], queue.fill_empty);
    }
    if report.workers.is_empty() {
        return;
    }
    let up = &report.up.all;
    page.count(WorkersUp, &[], up.packets);
    for (reason, n) in [
        ("policed", up.policed),
        ("control_policed", up.control_policed),
        ("queue_full", up.queue_full),
        ("failed", up.failed),
    ] {
        page.count(WorkersUpLost, &[&reason], n);
    }
    for (state, n) in
        [("all", report.frames), ("free", report.free_frames), ("retired", report.retired_frames)]
    {
        page.gauge(WorkersFrames, &[&state], f64::from(n));
    }
}

fn add_worker(page: &mut Page, worker: &WorkerStand) {
    let core = &worker.core;
    page.flag(WorkerSilent, &[core], worker.silent.is_some());
    if let Some(other) = worker.other {
        page.gauge(WorkerOther, &[core], other);
    }
    if worker.silent.is_some() {
        return;
    }
    page.gauge(WorkerBusy, &[core], worker.busy);
    page.gauge(WorkerSlept, &[core], worker.slept);
    if !worker.share.is_empty() {
        page.flag(WorkerShares, &[core, &worker.share], true);
    }
    for (resource, used) in &worker.used {
        page.gauge(WorkerUsed, &[core, resource], *used);
    }
}

/// The outputs of all workers to a port add up.
fn add_output(page: &mut Page, output: &OutputStand) {
    page.count(WorkersSent, &[&output.name], output.sent_packets);
    for (reason, packets) in [
        ("full", output.dropped_full),
        ("unfit", output.dropped_unfit),
        ("gone", output.dropped_gone),
        ("no_queue", output.dropped_no_queue),
        ("closed", output.dropped_closed),
    ] {
        if packets > 0 {
            page.count(WorkersLost, &[&output.name, &reason], packets);
        }
    }
}
