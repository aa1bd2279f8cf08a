//! Results of a run, and of packets that did not come out.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::{
    arrivals::{Arrivals, Marked},
    capture::Packet,
    is_routers, view,
};
use crate::{
    generator::Timetable,
    histogram::{BUCKET_NS, Histogram, Latency},
    losses::Losses,
    packet::checksum,
};

/// Buckets of latencies, as in the sink.
const BUCKETS: usize = 16_384;

/// Outcome of a replay.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ReplayOutcome {
    /// Packets offered.
    pub sent: u64,
    /// Packets that came out, including the router's own.
    pub received: u64,
    /// Packets per second, from the first that was sent to the last. One packet has no rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offered_pps: Option<f64>,
    /// From the first marked packet that came out to the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arrived_ms: Option<f64>,
    /// Total time by which the machine kept the generator from sending on time. The last packet was late by this.
    pub held_up_ms: f64,
    /// Packets by where they were lost, or why they were not forwarded.
    pub lost: BTreeMap<String, u64>,
    /// Counts of marked packets, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub marked: Option<MarkedSeen>,
    /// Marks that the sink had no room for. If there are any, results about marked packets are not exact.
    pub missed: u64,
    /// One-way latency of marked packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
}

/// Counts of packets that can be told apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MarkedSeen {
    /// Sent.
    pub sent: u64,
    /// Received, each counted once.
    pub received: u64,
    /// Received after a later one of their flow (RFC 4737, 3.3).
    pub reordered: u64,
    /// Received again.
    pub duplicates: u64,
}

impl ReplayOutcome {
    pub(super) fn new<F>(table: &Timetable, arrivals: &Arrivals, lost: Losses, tally: Tally<F>) -> Self {
        Self {
            sent: table.sent(),
            received: arrivals.packets,
            offered_pps: rate(table.sent(), table.took_ns()),
            arrived_ms: tally.span_ns.map(|(first, last)| (last - first) as f64 / 1e6),
            held_up_ms: table.held_up_ns() as f64 / 1e6,
            lost: lost.0,
            marked: Some(tally.marked).filter(|marked| marked.sent > 0),
            missed: arrivals.missed,
            latency: tally.latencies.latency(),
        }
    }
}

/// Packets per second. There is one gap less than there are packets.
fn rate(packets: u64, took_ns: u64) -> Option<f64> {
    (packets > 1).then(|| (packets - 1) as f64 / (took_ns.max(1) as f64 / 1e9))
}

/// Counts marks as they arrive, because a run may be too long to keep them.
pub(super) struct Tally<F> {
    /// Flow of the packet with this number, and its length if it is marked.
    frame: F,
    packets: u64,
    /// A bit for each packet: has it arrived?
    came: Vec<u64>,
    /// Highest number of each flow.
    highest: HashMap<u32, u64>,
    /// Times of the first and the last arrival.
    span_ns: Option<(u64, u64)>,
    marked: MarkedSeen,
    latencies: Histogram,
}

impl<F: Fn(u64) -> (u32, Option<usize>)> Tally<F> {
    /// For this many rounds of this many packets each.
    pub(super) fn new(round: u64, rounds: u32, frame: F) -> Self {
        let packets = round * u64::from(rounds);
        let of_round = (0..round).filter(|number| frame(*number).1.is_some()).count() as u64;
        Self {
            frame,
            packets,
            came: vec![0; packets.div_ceil(64) as usize],
            highest: HashMap::new(),
            span_ns: None,
            marked: MarkedSeen { sent: of_round * u64::from(rounds), ..MarkedSeen::default() },
            latencies: Histogram { buckets: vec![0; BUCKETS], ..Histogram::default() },
        }
    }

    /// Counts one mark.
    pub(super) fn note(&mut self, mark: &Marked) {
        let number = u64::from(mark.sequence);
        if number >= self.packets {
            return;
        }
        let (flow, bytes) = (self.frame)(number);
        // An ICMP error may quote a mark, but its length differs.
        if bytes != Some(mark.bytes as usize) {
            return;
        }
        let (word, bit) = (&mut self.came[number as usize / 64], 1 << (number % 64));
        if *word & bit != 0 {
            self.marked.duplicates += 1;
            return;
        }
        *word |= bit;
        self.marked.received += 1;
        let highest = self.highest.entry(flow).or_insert(number);
        self.marked.reordered += u64::from(number < *highest);
        *highest = number.max(*highest);
        let (first, last) = self.span_ns.unwrap_or((mark.time_ns, mark.time_ns));
        self.span_ns = Some((first.min(mark.time_ns), last.max(mark.time_ns)));
        let ns = u64::from(mark.latency_ns);
        self.latencies.packets += 1;
        self.latencies.sum_ns += ns;
        self.latencies.max_ns = self.latencies.max_ns.max(ns);
        if let Some(count) = self.latencies.buckets.get_mut((ns / BUCKET_NS) as usize) {
            *count += 1;
        }
    }
}

/// Number of each packet's flow.
pub(super) fn flows(packets: &[Packet]) -> Vec<u32> {
    let mut known = HashMap::new();
    let mut number = |packet: &Packet| {
        let next = known.len() as u32;
        *known.entry(view::flow(&packet.frame)).or_insert(next)
    };
    packets.iter().map(&mut number).collect()
}

/// Counts packets that did not come out, by the reason why routers keep such packets, and describes the first of each.
/// Packets that came out in fragments are among them.
pub(super) fn kept(
    packets: &[Packet],
    frames: &[Vec<u8>],
) -> (BTreeMap<&'static str, u64>, BTreeMap<&'static str, String>) {
    let mut came: HashMap<Vec<u8>, u64> = HashMap::new();
    for frame in frames {
        *came.entry(view::unchanged(frame)).or_default() += 1;
    }
    let (mut kept, mut examples) = (BTreeMap::new(), BTreeMap::new());
    for packet in packets {
        match came.get_mut(&view::unchanged(&packet.frame)) {
            Some(count) if *count > 0 => *count -= 1,
            _ => {
                let why = why_kept(&packet.frame);
                *kept.entry(why).or_default() += 1;
                examples.entry(why).or_insert_with(|| view::describe(&packet.frame));
            }
        }
    }
    (kept, examples)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_counted_as_they_arrive() {
        // Two flows in turns, 100 packets in a round; the last one of a round has no room for a mark.
        let frame = |number: u64| ((number % 2) as u32, (number % 100 != 99).then_some(60));
        let mut tally = Tally::new(100, 3, frame);
        assert_eq!(tally.marked.sent, 297);
        let mut note = |sequence, bytes, time_ns| {
            tally.note(&Marked { sequence, latency_ns: 1000, bytes, time_ns });
        };
        // A number that nobody sent, or a packet that quotes a mark, does not count, and neither does its time.
        note(300, 60, 1);
        note(u32::MAX, 60, 1);
        note(0, 88, 1);
        note(99, 60, 1);
        for (place, number) in [64, 66, 65, 2, 128, 64, 298].into_iter().enumerate() {
            note(number, 60, 1_000_000 * (1 + place as u64));
        }
        assert_eq!(tally.marked, MarkedSeen { sent: 297, received: 6, reordered: 1, duplicates: 1 });
        assert_eq!((tally.span_ns, tally.latencies.packets), (Some((1_000_000, 7_000_000)), 6));
    }

    #[test]
    fn a_rate_needs_two_packets() {
        assert_eq!([rate(0, 5), rate(1, 5)], [None, None]);
        assert_eq!(rate(3, 1_000_000_000), Some(2.0));
    }
}
