//! The keys at the top of the document: a few numbers, each computed from the lines below.

use serde_json::{Value, json};

use super::{
    CoresResults,
    cost::{self, Curve},
    drain,
    spill::quantile,
    watch::told,
};
use crate::{
    experiment::{print_head, print_row, show},
    figure::{Axis, Figure},
    measure::{Spread, median, ratios, spread},
};

/// Name of the steps where packets leave by two transmit queues.
pub(super) const TO_TWO: &str = "step, two queues";
/// A queue that is too much for a core, without and with `[experimental] split`.
pub(super) const WHOLE: &str = "hot queue, whole";
pub(super) const SPLIT: &str = "hot queue, split";
/// Sudden steps of such a queue, without and with sharing.
pub(super) const NOT_SPILLED: &str = "spill, not shared";
pub(super) const SPILLED: &str = "spill";
/// Parts in which packets leave by one queue.
const TO_ONE: [&str; 4] = ["step", "ramp", "wobble", "crowd"];

/// What each key means.
pub(super) const HELP: &str = "\
Keys of the document (\"lines\" has every trial, and what was seen over time):
  step_reaction_ms       time from the load of the packed core passing the high mark to the first packet that another core has
                         forwarded (checked every 2 ms). The load passes the mark when the generator's rate becomes 120 % of
                         mark_pps, or when the core's load, noted every 20 ms, is above the mark, if that is later. Median;
                         _range: of all
  ramp_loss              share of all packets of the ramps that were sent and not received, wherever they were lost
  ramp_ring_full         the part of ramp_loss that found the ring of a port full, before the router: its core was late, or the
                         machine had taken it
  ramp_loss_in_router    the rest of ramp_loss: in the router, or behind it
  wobble_moves_per_hold  the most moves of one queue in any hold time, while the load wobbled around the high mark
  reordered              packets that came after a later one of their flow, in all parts with one transmit queue
                         (reordered_of_moves: number of moves); reordered_multi_queue_egress: with two
  split_carried, whole_carried
                         packets a second that arrived from a queue that alone brings 160 % of mark_pps (a core carries about
                         118 %), as a share of the requested rate: with its flows shared by two cores, and whole. The
                         generator has what is left of one of them. Medians; split_reordered: of all trials with shares
  spill_us_p50, spill_us_p99
                         time from a sudden step to 160 % of mark_pps to the first packet that another core has forwarded. A
                         step lasts 20 ms. spill_steps: number of steps; spill_steps_without: those in which no other core
                         forwarded
  spill_lost, spill_reordered
                         packets lost in all steps, wherever they were lost, and packets that came after a later one of their
                         flow; spill_sent: packets sent. whole_spill_lost, whole_spill_sent: the same for steps of a queue
                         that is not shared
  reordered_by_moves_at_once, reordered_by_moves_that_wait
                         packets that came after a later one of their flow, while one queue moved to and fro. Its packets leave
                         by two transmit queues. Others keep their receivers from running for 0.5 ms at a time, a quarter of
                         all time. moves_that_wait: number of such moves; moves_that_waited_in_vain: those among them that
                         waited too long; longest_wait_us: of all
  idle_cpu_percent       CPU time of the daemon while nothing comes, all threads, percent of a core. Median; also _range
  ns_per_packet_at_10_percent, linux_ns_per_packet_at_10_percent
                         CPU time of the threads that forward, for each packet received, at 10 % of Millrace's saturation
                         on one core (ratio_at_10_percent: pair by pair). daemon_ns_per_packet_at_10_percent: CPU time of the
                         daemon meanwhile, for each packet, which is not included
  ns_per_packet_at_saturation
                         the same when the core is kept busy and nothing is lost (saturation_pps)
  asleep_...             the same with `[cores] resume_latency = \"any\"`: cores sleep between packets. By default they poll
                         while they forward. This is idle time, so others get as much of the core, but it saves no power
Loads are parts of mark_pps, the rate that takes the high mark of one core, which is measured at the beginning.";

/// All keys; `null` where a part was not measured.
pub(super) fn document(found: &CoresResults) -> Value {
    let lines = &found.lines;
    let values = |part: &str, name: &str| told(lines, part, name).collect::<Vec<f64>>();
    let sum = |parts: &[&str], name: &str| -> Option<u64> {
        let all: Vec<f64> = parts.iter().flat_map(|part| values(part, name)).collect();
        (!all.is_empty()).then(|| all.iter().sum::<f64>() as u64)
    };
    let of_ramps = |name: &str| sum(&["ramp"], name);
    let lost =
        of_ramps("sent").zip(of_ramps("received")).map(|(sent, received)| sent.saturating_sub(received));
    let share = |packets: Option<u64>| Some(packets? as f64 / of_ramps("sent")?.max(1) as f64);
    let in_router = lost.zip(of_ramps("ring_full")).map(|(lost, full)| lost.saturating_sub(full));
    let reactions = values("step", "reaction_ms");
    let idle: Vec<f64> = found.idle_cpu.iter().map(|cpu| cpu * 100.0).collect();
    let carried = |part: &str| -> Vec<f64> {
        values(part, "carried_pps")
            .iter()
            .zip(values(part, "asked_pps"))
            .map(|(carried, asked)| carried / asked)
            .collect()
    };
    let drained = |way: &str, name: &str| -> Vec<f64> {
        let of_way = lines.iter().filter(|line| line["case"] == drain::CASE && line["subject"] == way);
        of_way.filter_map(|line| line["sample"][name].as_f64()).collect()
    };
    let moved = |way: &str, name: &str| -> Option<u64> {
        let all = drained(way, name);
        (!all.is_empty()).then(|| all.iter().sum::<f64>() as u64)
    };
    let mut spilled = values(SPILLED, "spilled_us");
    spilled.sort_by(f64::total_cmp);
    let spill_steps = values(SPILLED, "sent").len();
    let without = (spill_steps > 0).then(|| spill_steps - spilled.len());
    let cost = |of: &dyn Fn(&super::Cost) -> f64| found.cost.as_ref().map(of);
    json!({
        "experiment": "cores",
        "step_reaction_ms": one(&reactions),
        "step_reaction_ms_range": range(&reactions),
        "ramp_loss": share(lost),
        "ramp_ring_full": share(of_ramps("ring_full")),
        "ramp_loss_in_router": share(in_router),
        "wobble_moves_per_hold": values("wobble", "moves_per_hold").into_iter().reduce(f64::max),
        "reordered": sum(&TO_ONE, "reordered"),
        "reordered_of_moves": sum(&TO_ONE, "moves"),
        "reordered_multi_queue_egress": sum(&[TO_TWO], "reordered"),
        "reordered_multi_queue_egress_of_moves": sum(&[TO_TWO], "moves"),
        "split_carried": one(&carried(SPLIT)),
        "whole_carried": one(&carried(WHOLE)),
        "split_reordered": sum(&[SPLIT], "reordered"),
        "spill_us_p50": quantile(&spilled, 0.5),
        "spill_us_p99": quantile(&spilled, 0.99),
        "spill_steps": (spill_steps > 0).then_some(spill_steps),
        "spill_steps_without": without,
        "spill_lost": sum(&[SPILLED], "lost"),
        "spill_reordered": sum(&[SPILLED], "reordered"),
        "spill_sent": sum(&[SPILLED], "sent"),
        "whole_spill_lost": sum(&[NOT_SPILLED], "lost"),
        "whole_spill_sent": sum(&[NOT_SPILLED], "sent"),
        "reordered_by_moves_at_once": moved(drain::WAYS[0], "reordered"),
        "reordered_by_moves_that_wait": moved(drain::WAYS[1], "reordered"),
        "moves_that_wait": moved(drain::WAYS[1], "moves"),
        "moves_that_waited_in_vain": moved(drain::WAYS[1], "remained"),
        "longest_wait_us": drained(drain::WAYS[1], "longest_us").into_iter().reduce(f64::max),
        "idle_cpu_percent": one(&idle),
        "idle_cpu_percent_range": range(&idle),
        "ns_per_packet_at_10_percent": cost(&|cost| median(&cost.usual.millrace_at_10)),
        "linux_ns_per_packet_at_10_percent": cost(&|cost| median(&cost.usual.linux_at_10)),
        "ratio_at_10_percent": cost(&|cost| ratio(&cost.usual)),
        "daemon_ns_per_packet_at_10_percent": cost(&|cost| median(&cost.usual.daemon_at_10)),
        "ns_per_packet_at_saturation": cost(&|cost| median(&cost.usual.saturated)),
        "asleep_ns_per_packet_at_10_percent": cost(&|cost| median(&cost.asleep.millrace_at_10)),
        "asleep_ratio_at_10_percent": cost(&|cost| ratio(&cost.asleep)),
        "asleep_daemon_ns_per_packet_at_10_percent": cost(&|cost| median(&cost.asleep.daemon_at_10)),
        "asleep_ns_per_packet_at_saturation": cost(&|cost| median(&cost.asleep.saturated)),
        "saturation_pps": cost(&|cost| cost.saturation_pps),
        "mark_pps": found.mark_pps,
    })
}

/// Ratio pair by pair.
fn ratio(curve: &Curve) -> f64 {
    ratios(&curve.millrace_at_10, &curve.linux_at_10).median
}

fn one(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| median(values))
}

fn range(values: &[f64]) -> Option<[f64; 2]> {
    let Spread { min, max, .. } = spread(values);
    (!values.is_empty()).then_some([min, max])
}

/// Prints the keys for people.
pub(super) fn print(found: &CoresResults) {
    print_head("Queues on cores", &["", "measured"]);
    let Value::Object(keys) = document(found) else { return };
    for (key, value) in keys.iter().filter(|(key, value)| !value.is_null() && *key != "experiment") {
        print_row(&[key.replace('_', " "), value.to_string()]);
    }
    if let Some(cost) = &found.cost {
        let ns = |values: &[f64]| show(spread(values), 1.0, 0);
        for (case, curve) in [("", &cost.usual), (", asleep", &cost.asleep)] {
            print_row(&[
                format!("millrace{case}, linux at 10 %, ns"),
                format!("{}; {}", ns(&curve.millrace_at_10), ns(&curve.linux_at_10)),
            ]);
        }
    }
}

/// Figures to draw.
pub(super) fn figures() -> Vec<Value> {
    let time = || Some(Axis::new("/at_s", "time", "s"));
    let cost = |name: &str, case: &str, title: &str| {
        Figure::new(
            name,
            title,
            Some(Axis::new("/parameters/load_percent", "load", "% of Millrace's saturation").log()),
            Axis::new("/sample/ns_per_packet", "CPU per packet", "ns"),
        )
        .only("/case", case)
        .series("/subject")
    };
    let [usual, asleep] = cost::CASES.map(|(case, _)| case);
    let mut figures = vec![
        cost("cost", usual, "CPU per packet by load"),
        cost("cost-asleep", asleep, "CPU per packet by load, Millrace's cores sleeping between packets"),
    ];
    for (part, title) in
        [("step", "A step"), ("ramp", "A ramp"), ("wobble", "A wobble"), ("crowd", "A flash crowd")]
    {
        let figure = |kind: &str, said: &str, y: Axis| {
            Figure::new(&format!("{part}-{kind}"), &format!("{title}: {said}"), time(), y)
                .only("/part", part)
                .only("/repeat", 0)
        };
        let of_moment = |at: &str, label: &str, unit: &str| Axis::new(at, label, unit);
        figures.push(
            figure("load", "load of each core", of_moment("/load", "forwarding", "% of a core").times(100.0))
                .only("/record", "core")
                .series("/core"),
        );
        let moment = |kind: &str, said: &str, y: Axis| figure(kind, said, y).only("/record", "moment");
        figures.push(moment(
            "rate",
            "what arrived",
            of_moment("/received_pps", "received", "Mpps").times(1e-6),
        ));
        figures.push(moment("cores", "cores that forward", of_moment("/cores", "cores", "")));
        figures.push(moment(
            "lost",
            "packets that found a ring full",
            of_moment("/ring_full", "lost", "packets"),
        ));
    }
    figures.iter().filter_map(|figure| serde_json::to_value(figure).ok()).collect()
}
