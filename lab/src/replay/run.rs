//! What is told of a run, and of what did not come out.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::{arrivals::Arrivals, capture::Packet, is_routers, view};
use crate::{
    generator::Timetable,
    histogram::{BUCKET_NS, Histogram, Latency},
    losses::Losses,
    packet::checksum,
};

/// Buckets of latencies, as the sink has.
const BUCKETS: usize = 16_384;

/// What became of what was replayed.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Seen {
    /// Packets offered.
    pub sent: u64,
    /// Packets that came out, the router's own among them.
    pub received: u64,
    /// Packets per second, from the first that was sent to the last.
    pub offered_pps: f64,
    /// From the first marked packet that came out to the last.
    pub arrived_ms: f64,
    /// By how much the machine kept the generator from sending on time, in all: so much later was the last packet.
    pub held_up_ms: f64,
    /// By where they were lost, or why they were not forwarded.
    pub lost: BTreeMap<String, u64>,
    /// Of those that are marked.
    pub marked: MarkedSeen,
    /// Marks that the sink had no room for: then what is told of marked packets is not exact.
    pub missed: u64,
    /// One way, of those that are marked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
}

/// What became of packets that can be told apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MarkedSeen {
    /// Sent.
    pub sent: u64,
    /// Came, each once.
    pub received: u64,
    /// Came after a later one of its flow (RFC 4737, 3.3).
    pub reordered: u64,
    /// Came again.
    pub duplicates: u64,
}

impl Seen {
    /// `frame`: flow of the packet with this number, and its length if it is marked.
    pub(super) fn new(
        table: &Timetable,
        arrivals: &Arrivals,
        lost: Losses,
        frame: impl Fn(u64) -> (u32, Option<usize>),
    ) -> Self {
        let mut latencies = Histogram { buckets: vec![0; BUCKETS], ..Histogram::default() };
        let (mut marked, mut seen, mut highest) =
            (MarkedSeen::default(), vec![false; table.sent() as usize], HashMap::new());
        marked.sent = (0..table.sent()).filter(|number| frame(*number).1.is_some()).count() as u64;
        for mark in &arrivals.marks {
            let number = u64::from(mark.sequence);
            // An ICMP error may quote a mark, but is longer.
            if number >= table.sent() || frame(number).1 != Some(mark.bytes as usize) {
                continue;
            }
            if std::mem::replace(&mut seen[number as usize], true) {
                marked.duplicates += 1;
                continue;
            }
            marked.received += 1;
            let highest = highest.entry(frame(number).0).or_insert(number);
            marked.reordered += u64::from(number < *highest);
            *highest = number.max(*highest);
            let ns = u64::from(mark.latency_ns);
            latencies.packets += 1;
            latencies.sum_ns += ns;
            latencies.max_ns = latencies.max_ns.max(ns);
            if let Some(count) = latencies.buckets.get_mut((ns / BUCKET_NS) as usize) {
                *count += 1;
            }
        }
        Self {
            sent: table.sent(),
            received: arrivals.packets,
            offered_pps: table.sent() as f64 / (table.took_ns().max(1) as f64 / 1e9),
            arrived_ms: arrivals
                .marks
                .first()
                .zip(arrivals.marks.last())
                .map_or(0.0, |(first, last)| (last.time_ns - first.time_ns) as f64 / 1e6),
            held_up_ms: table.held_up_ns() as f64 / 1e6,
            lost: lost.0,
            marked,
            missed: arrivals.missed,
            latency: latencies.latency(),
        }
    }
}

/// A number for the flow of each packet.
pub(super) fn flows(packets: &[Packet]) -> Vec<u32> {
    let mut known = HashMap::new();
    let mut number = |packet: &Packet| {
        let next = known.len() as u32;
        *known.entry(view::flow(&packet.frame)).or_insert(next)
    };
    packets.iter().map(&mut number).collect()
}

/// Packets that did not come out, by why routers keep such packets. Those that came out cut into fragments are among them.
pub(super) fn kept(packets: &[Packet], frames: &[Vec<u8>]) -> BTreeMap<&'static str, u64> {
    let mut came: HashMap<Vec<u8>, u64> = HashMap::new();
    for frame in frames.iter().filter_map(|frame| view::unchanged(frame)) {
        *came.entry(frame).or_default() += 1;
    }
    let mut kept = BTreeMap::new();
    for packet in packets {
        let key = view::unchanged(&packet.frame);
        match key.and_then(|key| came.get_mut(&key)) {
            Some(count) if *count > 0 => *count -= 1,
            _ => *kept.entry(why_kept(&packet.frame)).or_default() += 1,
        }
    }
    kept
}

fn why_kept(frame: &[u8]) -> &'static str {
    const IP: usize = 14;
    let byte = |at: usize| frame.get(at).copied().unwrap_or_default();
    let (is4, is6) = (frame[12..14] == [0x08, 0x00], frame[12..14] == [0x86, 0xdd]);
    if frame[0] & 1 == 1 {
        return "to an Ethernet group address";
    }
    let header = usize::from(byte(IP) & 0xf) * 4;
    match (is4, is6) {
        (true, _) if !(20..=frame.len() - IP).contains(&header) => "with a malformed IPv4 header",
        (true, _) if checksum(&frame[IP..IP + header]) != 0 => "with a wrong IPv4 header checksum",
        (true, _) if byte(IP + 16) >> 4 == 0xe => "multicast",
        (true, _) if byte(IP + 8) <= 1 => "whose TTL ends here",
        (_, true) if byte(IP + 24) == 0xff => "multicast",
        (_, true) if [IP + 8, IP + 24].iter().any(|&at| byte(at) == 0xfe && byte(at + 1) & 0xc0 == 0x80) => {
            "link-local"
        }
        (_, true) if byte(IP + 7) <= 1 => "whose hop limit ends here",
        (false, false) => "neither IPv4 nor IPv6",
        _ if view::ends(frame).is_some_and(|(from, to)| is_routers(from) || is_routers(to)) => {
            "from or to the router itself"
        }
        _ => "for other reasons",
    }
}
