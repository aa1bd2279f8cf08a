//! P: forwarding paths on cores, memory to memory: the product's elements, scheduler and worker ([`logic::worker`]),
//! with packets from and to memory. This needs no root. The table shows the subject of each figure, and how it is
//! measured here:
//!
//! | figure | in the paper | here |
//! |---|---|---|
//! | 6 | two paths on two cores: one core receives for both and the other sends (crossing sockets, or one L3), against a path on each core | two workers and a ring between them, against two workers apart. Crossing sockets where there are two |
//! | 7 | two scheduled stages with a queue between, against one | on one core: a worker with two paths, the first of which ends in a queue where the second begins, against one path |
//! | 8 | two cores send by one TX queue, against a queue each | descriptors in one array behind a lock, taken for each packet, or for each run, against an array each |
//! | 9 | one RX queue for two cores, so that one receives and the other continues, against a queue each | the same; and one core that receives for both and keeps a half |
//! | 11 | three paths, one 40 % dearer: default scheduler, shares by cost, weights 3, 2 and 4 | the product's scheduler with equal costs for all runs (Click's scheduler), and with cycles; the printed formula beside it |
//! | 12 to 14 | FWD, RTR and IPsec, 64 bytes: by default; equal CPU; equal memory (13 and 14 computed by the authors) | all measured. Memory is refused where no counter shows how much of it a path takes; equal I/O is measured in its place, because bytes are always counted |
//! | 15 | FWD by batch; the switch by regression | the measurement of `millrace calibrate` ([`router::user_plane::calibrate`]) |
//! | 17 | four ports polled by four tasks or by one, by batch | four paths, or one that takes from four rings in turn, each of which has a batch when it is polled |
//! | 19 | 2 IPsec and 2 CRC paths of 1,024 bytes on two cores; halves, 20 to 80 alike together, 20 to 80 unlike together: use of memory and I/O | the same by weights; I/O is counted, memory only where there are counters |
//! | 20 | IPsec and RTR on hyper-thread siblings: alike, unlike | the same, where there are siblings |
//!
//! A received packet is copied from a trace into a frame (64 bytes unless stated otherwise); the copy stands for the
//! device. A sent packet is counted, and its frame is used again. Runs have at most 32 packets in figures 6 to 9, as
//! was usual then, and 8 in 11 to 14 (Click's number). The ways take turns, so that ratios hold; rates are those of one
//! machine.
//!
//! | file | holds |
//! |---|---|
//! | `bed.rs` | frames, sources, workloads |
//! | `cores.rs` | which cores share what |
//! | `crossing.rs` | packets from core to core |
//! | `phases.rs` | figures 6 to 9 |
//! | `sharing.rs` | 11 to 14 |
//! | `batching.rs` | 15 and 17 |
//! | `profiles.rs` | 19 and 20 |

mod batching;
mod bed;
mod cores;
mod crossing;
mod phases;
mod profiles;
mod sharing;

pub(super) use batching::{batches, unified_input};
pub(super) use phases::{crossing_cores, one_phase, receive_queues, transmit_queues};
pub(super) use profiles::{alike_on_a_core, unlike_on_siblings};
pub(super) use sharing::{equal_cpu, equal_memory, equal_runs, unequal_paths};

use anyhow::Result;
use serde_json::{Value, json};

use super::{picture, published::PaperFigure};
use crate::{
    figure::{Axis, Figure},
    record::Recorder,
};

/// A bar for each subject.
fn bars(figure: &PaperFigure, y: Axis, ours: &str) -> Figure {
    Figure { x: None, ..picture(figure, y.clone(), y, ours) }
}

/// Records and prints one measurement.
fn sample(
    figure: &PaperFigure,
    subject: &str,
    parameters: Value,
    repeat: u64,
    sample: Value,
    recorder: &mut Recorder,
) -> Result<()> {
    println!("{} {repeat} {subject}{}: {sample}", figure.id, crate::record::in_words(&parameters));
    recorder
        .line(&json!({"record": "sample", "case": figure.id, "parameters": parameters, "subject": subject,
        "repeat": repeat, "sample": sample}))
}

/// Records and prints what cannot be measured here, and why.
fn skipped(figure: &PaperFigure, subject: &str, why: &str, recorder: &mut Recorder) -> Result<()> {
    println!("{} {subject}: not measured here: {why}", figure.id);
    recorder.line(&json!({"record": "skipped", "case": figure.id, "subject": subject, "why": why}))
}
