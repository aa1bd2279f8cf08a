//! Checks a subject before anything is measured: sends a few packets to every kind of target, and compares the bytes
//! that arrive with what a correct router makes of them. A fast forwarder that forgets the TTL is not a fast router.

use std::net::IpAddr;

use anyhow::{Result, bail, ensure};

use crate::{
    addresses::{Mac, router_mac},
    packet::{self, Stamp, Target},
    sink::CAPTURE_BYTES,
    subject::{Rewrite, Subject},
    sys,
    testbed::Testbed,
    topology::{Network, Topology},
};

/// Maximum number of packets in a check. They must all fit into a veth's ring at once.
const MAX_PACKETS: usize = 128;

/// Sends one packet to each of up to 128 of `targets`, spread evenly, and compares what arrives. Sends fewer if the
/// subject has less room. `next_hop` returns the next hops that are right for a destination. Afterwards the generator
/// keeps the targets that it sent to.
pub fn check_forwarding(
    testbed: &mut Testbed,
    subject: &dyn Subject,
    targets: &[Target],
    frame_bytes: u16,
    next_hop: impl Fn(IpAddr) -> Vec<Mac>,
) -> Result<()> {
    let step = targets.len().div_ceil(MAX_PACKETS.min(subject.burst())).max(1);
    let chosen: Vec<Target> = targets.iter().copied().step_by(step).collect();
    testbed.generator.set_targets(chosen.clone(), frame_bytes)?;
    let fast_before = subject.fast_path_packets()?;
    let generator = &mut testbed.generator;
    let started_ns = sys::monotonic_ns() as u32;
    let frames = testbed.sink.capture(chosen.len(), || generator.send(frame_bytes, chosen.len() as u32))?;
    let took_ns = (sys::monotonic_ns() as u32).wrapping_sub(started_ns);
    let topology = &testbed.topology;
    for (index, target) in chosen.iter().enumerate() {
        let mut stamp = Stamp { flow: packet::flow(0, index), sequence: 0, time_ns: started_ns };
        // Only the packet itself shows when it was sent.
        let is_right = |frame: &&Vec<u8>| {
            if frame_bytes >= target.min_stamped() {
                let Some(seen) = Stamp::of(target.headers(), frame) else { return false };
                if seen.flow != stamp.flow || seen.time_ns.wrapping_sub(started_ns) > took_ns {
                    return false;
                }
                stamp.time_ns = seen.time_ns;
            }
            expected(subject, topology, target, frame_bytes, stamp, &next_hop).contains(frame)
        };
        if frames.iter().find(is_right).is_none() {
            let right = expected(subject, topology, target, frame_bytes, stamp, &next_hop);
            bail!(
                "{}: the packet to {} did not arrive as it should.\n  sent     {}\n  expected {}\n  {} arrived, nearest:\n           {}",
                subject.name(),
                target.destination,
                hex(&target.frame(frame_bytes, stamp)),
                right.first().map(|frame| hex(frame)).unwrap_or_default(),
                frames.len(),
                nearest(&frames, right.first()).map_or("none".into(), |frame| hex(frame)),
            );
        }
    }
    if frames.len() != chosen.len() {
        bail!("{}: {} packets sent, {} arrived", subject.name(), chosen.len(), frames.len());
    }
    if let (Some(before), Some(after)) = (fast_before, subject.fast_path_packets()?) {
        let fast = after.saturating_sub(before);
        ensure!(
            fast >= chosen.len() as u64,
            "{}: only {fast} of {} packets took the fast path",
            subject.name(),
            chosen.len()
        );
    }
    Ok(())
}

/// The frames that are right, as the capture shows them.
fn expected(
    subject: &dyn Subject,
    topology: &Topology,
    target: &Target,
    frame_bytes: u16,
    stamp: Stamp,
    next_hop: impl Fn(IpAddr) -> Vec<Mac>,
) -> Vec<Vec<u8>> {
    let forwarded = || {
        let forwarded = |to| target.forwarded(to, source(topology, target, to), frame_bytes, stamp);
        next_hop(target.destination).into_iter().map(forwarded)
    };
    let mut frames = match subject.rewrites() {
        Rewrite::Full => forwarded().collect(),
        Rewrite::Masquerade(source) => forwarded().map(|frame| packet::with_source(frame, source)).collect(),
        Rewrite::Fixed { to, from } => vec![target.forwarded(to, from, frame_bytes, stamp)],
        Rewrite::Macs { to, from } => {
            let mut frame = target.frame(frame_bytes, stamp);
            frame[..12].copy_from_slice(&[to, from].concat());
            vec![frame]
        }
        Rewrite::None => vec![target.frame(frame_bytes, stamp)],
    };
    frames.iter_mut().for_each(|frame| frame.truncate(CAPTURE_BYTES));
    frames
}

/// MAC of the interface by which the target's router sends to this next hop. It is the interface on the next hop's port
/// whose part of the networks holds the destination.
fn source(topology: &Topology, target: &Target, to: Mac) -> Mac {
    let [.., high, low] = target.router_mac;
    let (router, port) = (u16::from_be_bytes([high, low]), to[2] - 1);
    let routers = topology.all_routers().unwrap_or_default();
    let count = routers.get(usize::from(router)).map_or(1, |router| router.interfaces_on_port);
    let behind = topology.ports.get(usize::from(port)).map_or(&[][..], |port| &port.behind);
    let holds = |network: &Network| match (network, target.destination) {
        (Network::V4(prefix), IpAddr::V4(address)) => prefix.contains(address.to_bits()),
        (Network::V6(prefix), IpAddr::V6(address)) => prefix.contains(address.to_bits()),
        _ => false,
    };
    let has_it =
        |i: &u16| behind.iter().filter_map(|network| network.part(*i, count)).any(|part| holds(&part));
    let number = (0..count).find(has_it).unwrap_or(0);
    router_mac(port, number as u8, router)
}

fn nearest<'a>(frames: &'a [Vec<u8>], to: Option<&Vec<u8>>) -> Option<&'a Vec<u8>> {
    let to = to?;
    frames.iter().min_by_key(|frame| frame.iter().zip(to).filter(|(a, b)| a != b).count())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
