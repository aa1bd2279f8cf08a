//! Measures the cost of `mirror` in a path: `cargo bench -p millrace-logic --bench mirror`.
//!
//! Nanoseconds a packet of a chain with one `forward`, without and with a `mirror` in front of it, alternating within
//! each round. Batches have 64 of 512 frames, which stay in the caches. The ring has 4 MiB, like the daemon's. Another
//! thread empties it between the measured runs, so nothing is lost and its cache lines are on another core.

use logic::{
    elements::{Batch, Chain, Copies, Element, Forward, Mirror, NoCopy, Now, Taker},
    tables::Ingress,
};
use std::{
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::Instant,
};

const FRAMES: usize = 512;
const BATCH: usize = 64;
const PASSES: usize = 400;
const ROUNDS: usize = 9;

/// A chain, and its ring if it has one.
struct Case {
    name: &'static str,
    chain: Chain,
    ring: Option<(Arc<Copies>, SyncSender<()>, Receiver<()>)>,
    ns: Vec<f64>,
}

/// Empties the ring on request.
fn emptied(mut taker: Taker) -> (SyncSender<()>, Receiver<()>) {
    let ((ask, asked), (tell, told)) = (sync_channel(1), sync_channel(1));
    thread::spawn(move || {
        let mut to = Vec::new();
        while asked.recv().is_ok() {
            while taker.take(&mut to).is_some() {
                to.clear();
            }
            if tell.send(()).is_err() {
                break;
            }
        }
    });
    (ask, told)
}

fn case(name: &'static str, snap_every: Option<(usize, u32)>, refuses: bool) -> Case {
    let forward = Box::new(Forward::new(1)) as Box<dyn Element>;
    let Some((snap, every)) = snap_every else {
        let chain = Chain::new(vec![forward]).expect("a chain");
        return Case { name, chain, ring: None, ns: Vec::new() };
    };
    let (copies, taker) = Copies::new(4 << 20);
    if refuses {
        taker.refuse(Some(NoCopy::Disk));
    }
    let mirror = Box::new(Mirror::new(copies.clone(), snap, every));
    let chain = Chain::new(vec![mirror, forward]).expect("a chain");
    let (ask, told) = emptied(taker);
    Case { name, chain, ring: Some((copies, ask, told)), ns: Vec::new() }
}

/// Nanoseconds a packet.
fn measure(case: &mut Case, pool: &mut [u8], bytes: usize) -> f64 {
    let mut ns = 0;
    let mut batch = Batch::default();
    for _ in 0..PASSES {
        let begun = Instant::now();
        for frames in pool.chunks_mut(2048 * BATCH) {
            let mut now = batch.emptied();
            for frame in frames.chunks_exact_mut(2048) {
                now.push(frame, 256, bytes, Ingress::default()).expect("it is within the frame");
            }
            case.chain.run(&Now { ns: 1, ports: u64::MAX }, &mut now);
            assert_eq!(now.going(), 0);
            batch = now.emptied();
        }
        ns += begun.elapsed().as_nanos();
        if let Some((_, ask, told)) = &case.ring {
            ask.send(())
                .and_then(|()| told.recv().map_err(|_| std::sync::mpsc::SendError(())))
                .expect("the thread is there");
        }
    }
    ns as f64 / (PASSES * FRAMES) as f64
}

fn main() {
    let mut pool = vec![1; FRAMES * 2048];
    for bytes in [60, 1400] {
        let mut cases = [
            case("forward", None, false),
            case("mirror of 256 bytes", Some((256, 1)), false),
            case("mirror of all bytes", Some((65_535, 1)), false),
            case("mirror of one in 16", Some((256, 16)), false),
            case("mirror on a full disk", Some((256, 1)), true),
        ];
        for round in 0..=ROUNDS {
            for case in &mut cases {
                let ns = measure(case, &mut pool, bytes);
                // The first round warms up.
                if round > 0 {
                    case.ns.push(ns);
                }
            }
        }
        for Case { name, ring, ns, .. } in &mut cases {
            let lost = ring.as_ref().map_or(0, |(copies, ..)| copies.lost(NoCopy::Full));
            let rounds: Vec<_> = ns.iter().map(|ns| format!("{ns:.2}")).collect();
            ns.sort_by(f64::total_cmp);
            println!(
                "{bytes} bytes, {name}: median {:.2} ns a packet, {lost} copies lost for room; rounds {}",
                ns[ROUNDS / 2],
                rounds.join(" ")
            );
        }
    }
}
