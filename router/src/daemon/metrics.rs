//! `GET /metrics`: conditions, connections, paths and workers as OpenMetrics text, for Prometheus. docs/reference/metrics.md lists
//! all metrics.
//!
//! A name is `millrace_`, what is counted, and its unit. Labels use the words of the status. All metrics are from one
//! [`Status`], so they are consistent.

use crate::api::{
    status::{ConditionReport, PathReport, ReasonCount, RouterReport, Status},
    workers::{OutputStand, PathStand, WorkerStand, WorkersReport},
};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric, text},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
    registry::{Registry, Unit},
};
use std::{collections::BTreeMap, fmt};

/// The content type of the text.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Writes all metrics as text.
///
/// # Errors
/// None, because the text is written to memory.
pub fn text(status: Status) -> Result<String, fmt::Error> {
    let (mut registry, mut text) = (Registry::default(), String::new());
    registry.register_collector(Box::new(StatusCollector(status)));
    text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct StatusCollector(Status);

impl Collector for StatusCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        families(&self.0).iter().try_for_each(|family| family.encode(&mut encoder))
    }
}

/// All values of one name.
struct Family {
    name: &'static str,
    unit: &'static str,
    help: &'static str,
    values: Values,
}

type Labels = Vec<(&'static str, String)>;
/// One of the counters of an output.
type Part = fn(&OutputStand) -> u64;

enum Values {
    Counters(Vec<(Labels, u64)>),
    Gauges(Vec<(Labels, f64)>),
}

impl Family {
    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        fn rows<T: Copy, M: EncodeMetric>(
            of: &Family,
            rows: &[(Labels, T)],
            metric: impl Fn(T) -> M,
            encoder: &mut DescriptorEncoder<'_>,
        ) -> fmt::Result {
            let Some((_, first)) = rows.first() else { return Ok(()) };
            let unit = (!of.unit.is_empty()).then(|| Unit::Other(of.unit.into()));
            let kind = metric(*first).metric_type();
            let mut encoder = encoder.encode_descriptor(of.name, of.help, unit.as_ref(), kind)?;
            rows.iter().try_for_each(|(labels, value)| metric(*value).encode(encoder.encode_family(labels)?))
        }
        match &self.values {
            Values::Counters(all) => rows(self, all, ConstCounter::new, encoder),
            Values::Gauges(all) => rows(self, all, ConstGauge::new, encoder),
        }
    }
}

fn families(Status { conditions, routers, paths, workers, .. }: &Status) -> Vec<Family> {
    [of_conditions(conditions), of_routers(routers), of_paths(paths), of_runs(paths), of_workers(workers)]
        .into_iter()
        .flatten()
        .collect()
}

/// The number of conditions that hold, by kind. A kind without any is left out.
fn of_conditions(conditions: &[ConditionReport]) -> Vec<Family> {
    let mut count = BTreeMap::<&str, f64>::new();
    conditions.iter().for_each(|condition| *count.entry(&condition.kind).or_default() += 1.0);
    let values = count.into_iter().map(|(kind, count)| (vec![("kind", kind.to_owned())], count));
    vec![gauges("millrace_conditions", "", "Conditions that hold (millrace status shows them)", values)]
}

/// A router whose rules affect no packets has no connections to count.
fn of_routers(routers: &[RouterReport]) -> Vec<Family> {
    let ruled = routers.iter().filter(|router| router.ruled.ipv4 || router.ruled.ipv6);
    let values = ruled.map(|router| (vec![("router", router.router.clone())], router.connections as f64));
    vec![gauges(
        "millrace_connections",
        "",
        "Connections that bypass the rules of the router's firewall",
        values,
    )]
}

fn counters(
    name: &'static str,
    unit: &'static str,
    help: &'static str,
    values: impl IntoIterator<Item = (Labels, u64)>,
) -> Family {
    Family { name, unit, help, values: Values::Counters(values.into_iter().collect()) }
}

fn gauges(
    name: &'static str,
    unit: &'static str,
    help: &'static str,
    values: impl IntoIterator<Item = (Labels, f64)>,
) -> Family {
    Family { name, unit, help, values: Values::Gauges(values.into_iter().collect()) }
}

/// What the kernel plane did with packets of paths.
fn of_paths(paths: &[PathReport]) -> Vec<Family> {
    let all = |of: fn(&PathReport) -> u64| {
        paths.iter().map(move |path| (vec![("path", path.path.clone())], of(path))).collect::<Vec<_>>()
    };
    let reasons = |of: fn(&PathReport) -> &[ReasonCount]| {
        let reason = |path: &PathReport, count: &ReasonCount| {
            (vec![("path", path.path.clone()), ("reason", count.reason.clone())], count.packets)
        };
        let row = move |path| of(path).iter().map(move |count| reason(path, count));
        paths.iter().flat_map(row).collect::<Vec<_>>()
    };
    let active = |path: &PathReport| f64::from(u8::from(path.why_not.is_none()));
    let active = paths.iter().map(|path| (vec![("path", path.path.clone())], active(path)));
    vec![
        gauges("millrace_path_active", "", "1: its port and router exist", active),
        counters(
            "millrace_path_given",
            "packets",
            "Packets given to the path's worker",
            all(|path| path.packets),
        ),
        counters("millrace_path_given", "bytes", "Bytes of these packets", all(|path| path.bytes)),
        counters(
            "millrace_path_lost",
            "packets",
            "Packets given to the path's worker that were lost on their way to it, by reason",
            reasons(|path| &path.lost),
        ),
        counters(
            "millrace_path_past",
            "packets",
            "Packets that no worker could take and that continued as if there were no path, by reason",
            reasons(|path| &path.up),
        ),
        counters(
            "millrace_path_refused",
            "packets",
            "Packets that no worker could take and that were dropped, by reason",
            reasons(|path| &path.dropped),
        ),
    ]
}

/// What workers did with packets of paths.
fn of_runs(paths: &[PathReport]) -> Vec<Family> {
    let runs = || paths.iter().filter_map(|path| Some((path, path.run.as_ref()?)));
    let of = |path: &PathReport| vec![("path", path.path.clone())];
    let with = |path: &PathReport, label: &'static str, value: &str| {
        vec![("path", path.path.clone()), (label, value.to_owned())]
    };
    let counts = |label: &'static str, part: fn(&PathStand) -> &crate::api::workers::Counts| {
        let row = move |(path, run): (&PathReport, &PathStand)| {
            let count = |(name, packets): (&String, &u64)| (with(path, label, name), *packets);
            part(run).iter().map(count).collect::<Vec<_>>()
        };
        runs().flat_map(row).collect::<Vec<_>>()
    };
    let dropped = runs().flat_map(|(path, run)| {
        let PathStand { dropped, worker_panicked, stopped_packets, ring_closed, .. } = run;
        let more = [
            ("worker_panicked", *worker_panicked),
            ("path_stopped", *stopped_packets),
            ("ring_closed", *ring_closed),
        ];
        let by_chain = dropped.iter().map(|(reason, packets)| (reason.as_str(), *packets));
        let more = more.into_iter().filter(|(_, packets)| *packets > 0);
        by_chain
            .chain(more)
            .map(|(reason, packets)| (with(path, "reason", reason), packets))
            .collect::<Vec<_>>()
    });
    let counted = runs().flat_map(|(path, run)| {
        let of_element = |(at, element): (usize, &crate::api::workers::ElementReport)| {
            let labels = |what: &str| {
                let place = [("at", (at + 1).to_string()), ("element", element.element.clone())];
                let mut labels = of(path);
                labels.extend(place);
                labels.push(("what", what.to_owned()));
                labels
            };
            element.counted.iter().map(|(what, n)| (labels(what), *n)).collect::<Vec<_>>()
        };
        run.elements.iter().enumerate().flat_map(of_element).collect::<Vec<_>>()
    });
    vec![
        gauges(
            "millrace_path_stopped",
            "",
            "1: its chain panicked repeatedly, and the path runs no more until it gets another chain",
            runs().map(|(path, run)| (of(path), f64::from(u8::from(run.stopped.is_some())))),
        ),
        counters(
            "millrace_path_panics",
            "",
            "Panics of its chain",
            runs().map(|(path, run)| (of(path), run.panics)),
        ),
        counters(
            "millrace_path_hangs",
            "",
            "Runs of its chain that took more than 1.5 s, counted when they end",
            runs().map(|(path, run)| (of(path), run.hangs)),
        ),
        gauges(
            "millrace_path_core",
            "",
            "The core whose worker runs it",
            runs().map(|(path, run)| (of(path), f64::from(run.worker))),
        ),
        gauges(
            "millrace_path_share",
            "ratio",
            "Its recent part of what its worker's paths share (millrace_worker_shares): of the core's cycles, or of what all paths of the worker used of another resource",
            runs().map(|(path, run)| (of(path), run.share)),
        ),
        gauges(
            "millrace_path_packet",
            "cycles",
            "Cycles for one packet, sampled",
            runs().filter_map(|(path, run)| Some((of(path), run.cycles_per_packet? as f64))),
        ),
        counters(
            "millrace_path_run",
            "packets",
            "Packets that its worker took from its rings",
            runs().map(|(path, run)| (of(path), run.packets)),
        ),
        counters(
            "millrace_path_run",
            "cycles",
            "Cycles that its turns took",
            runs().map(|(path, run)| (of(path), run.cycles)),
        ),
        counters(
            "millrace_path_out",
            "packets",
            "Packets that left by a port",
            counts("port", |run| &run.out),
        ),
        counters(
            "millrace_path_up",
            "packets",
            "Packets that its chain passed up to the kernel, by reason",
            counts("reason", |run| &run.up),
        ),
        counters(
            "millrace_path_dropped",
            "packets",
            "Packets dropped by its chain, or lost with its worker or its rings, by reason",
            dropped,
        ),
        counters(
            "millrace_path_counted",
            "",
            "What an element of its chain counts besides packets, such as copies that a mirror lost",
            counted,
        ),
    ]
}

fn of_workers(workers: &WorkersReport) -> Vec<Family> {
    let of = |worker: &WorkerStand| vec![("core", worker.core.to_string())];
    let with = |worker: &WorkerStand, resource: &str| {
        vec![("core", worker.core.to_string()), ("resource", resource.to_owned())]
    };
    let heard = || workers.workers.iter().filter(|worker| worker.silent.is_none());
    let sums = |part: Part| {
        let of_workers = workers.workers.iter().flat_map(|worker| &worker.outputs);
        let outputs = of_workers.chain(&workers.closed_outputs);
        let mut by_port = BTreeMap::<&str, u64>::new();
        outputs.for_each(|output| *by_port.entry(&output.name).or_default() += part(output));
        by_port
    };
    let lost: [(&str, Part); 5] = [
        ("full", |output| output.dropped_full),
        ("unfit", |output| output.dropped_unfit),
        ("gone", |output| output.dropped_gone),
        ("no_queue", |output| output.dropped_no_queue),
        ("closed", |output| output.dropped_closed),
    ];
    let lost = lost.into_iter().flat_map(|(reason, part)| {
        let some = sums(part).into_iter().filter(|(_, packets)| *packets > 0);
        let row = |(port, packets): (&str, u64)| {
            (vec![("port", port.to_owned()), ("reason", reason.into())], packets)
        };
        some.map(row).collect::<Vec<_>>()
    });
    let up = &workers.up.all;
    let up_lost = [
        ("policed", up.policed),
        ("control_policed", up.control_policed),
        ("queue_full", up.queue_full),
        ("failed", up.failed),
    ];
    let has_workers = !workers.workers.is_empty();
    let up_lost = up_lost.into_iter().filter(|_| has_workers);
    let queues = workers.queues.iter().map(|queue| {
        (vec![("port", queue.name.clone()), ("queue", queue.queue.to_string())], queue.fill_empty)
    });
    let silent = |worker: &WorkerStand| f64::from(u8::from(worker.silent.is_some()));
    vec![
        gauges(
            "millrace_worker_silent",
            "",
            "1: it does not answer, and its paths and ports keep their last values",
            workers.workers.iter().map(|worker| (of(worker), silent(worker))),
        ),
        gauges(
            "millrace_worker_busy",
            "ratio",
            "Part of the time since its start that it had packets",
            heard().map(|worker| (of(worker), worker.busy)),
        ),
        gauges(
            "millrace_worker_other",
            "ratio",
            "Part of its core's recent time that other work took",
            workers.workers.iter().filter_map(|worker| Some((of(worker), worker.other?))),
        ),
        gauges(
            "millrace_worker_shares",
            "",
            "1: the resource that its paths share by their weights now",
            heard()
                .filter(|worker| !worker.share.is_empty())
                .map(|worker| (with(worker, &worker.share), 1.0)),
        ),
        gauges(
            "millrace_worker_used",
            "ratio",
            "Its recent use, as a part of what there is: of cycles in its core, of other resources in the machine",
            heard().flat_map(|worker| {
                worker.used.iter().map(move |(resource, used)| (with(worker, resource), *used))
            }),
        ),
        gauges(
            "millrace_worker_slept",
            "ratio",
            "Part of the time since its start that it slept",
            heard().map(|worker| (of(worker), worker.slept)),
        ),
        counters(
            "millrace_workers_sent",
            "packets",
            "Packets that workers put into the TX rings of a port",
            sums(|output| output.sent_packets)
                .into_iter()
                .map(|(port, n)| (vec![("port", port.to_owned())], n)),
        ),
        counters(
            "millrace_workers_lost",
            "packets",
            "Packets that workers lost on their way out, by reason",
            lost,
        ),
        counters(
            "millrace_workers_up",
            "packets",
            "Packets of paths that reached the kernel",
            [up.packets].into_iter().filter(|_| has_workers).map(|n| (Labels::new(), n)),
        ),
        counters(
            "millrace_workers_up_lost",
            "packets",
            "Packets that paths passed up and that did not reach the kernel, by reason",
            up_lost.map(|(reason, n)| (vec![("reason", reason.into())], n)),
        ),
        counters(
            "millrace_workers_fill_empty",
            "",
            "Times that the kernel found a queue's fill ring empty, and lost packets of any of its paths",
            queues,
        ),
    ]
}

#[cfg(test)]
mod tests;
