//! Replay: a capture of somebody's traffic, sent through a subject.
//!
//! The addresses of a capture are not the testbed's, so the testbed is changed. Its router sends everything that is not
//! for itself to the sink, and forwards everything that a router may forward ([`Replay::new`]). Frames get the
//! testbed's MAC addresses and lose their VLAN tags ([`capture`]); nothing else changes. The generator's thread sends
//! them through a packet socket, each at its time ([`crate::generator::Timetable`]). An XDP program in the sink's place
//! hands them to user space as they arrive ([`arrivals`]), and counts those that it had no room for.
//!
//! * **A comparison** ([`Replay::comparable`], [`difference`]) sends the frames as they are, at a rate that loses nothing, and
//!   compares the output of each subject with that of the first one, byte by byte. A frame that the first ring has no room for
//!   is offered again. If a ring or the sink has lost one nevertheless, the run is repeated more slowly, because losses of the
//!   testbed are no difference. The subject loses what is lost in the same way at every rate. Packets of the router itself
//!   (ICMP errors to the sources, which are behind the sink) are counted and not compared: Linux limits their rate and numbers
//!   them at random.
//! * **A run** ([`Replay::run`]) sends the frames at their recorded times or at a rate, as often as requested. Frames that have
//!   room for it are marked with their number and the time ([`mark`]). Loss, order, duplicates and latency are measured with
//!   these. The others are counted.

pub mod arrivals;
pub mod capture;
pub mod difference;
mod run;
pub mod view;

use std::{
    collections::{BTreeMap, HashSet},
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

pub use self::run::{MarkedSeen, ReplayOutcome};
use self::{
    arrivals::{Arrivals, Marked, Noted, ReplaySink},
    capture::{Capture, Macs},
    run::Tally,
};
use crate::{
    addresses::{self, nexthop_mac_of, router_mac},
    generator::{Timed, Timetable},
    losses::Losses,
    mark,
    packet::ETHERNET_BYTES,
    sys,
    testbed::{PORT_IN, PORT_OUT, Testbed},
    topology::Topology,
};

/// MAC addresses of replayed frames.
pub const MACS: Macs = Macs { to: router_mac(0, 0, 0), from: nexthop_mac_of(0, 1) };

/// Rate of a comparison's first attempt. At this rate 256 packets, a veth's ring, take 25 ms.
pub const COMPARISON_PPS: u64 = 10_000;
/// Attempts at a comparison. Each sends half as fast as the one before.
const ATTEMPTS: usize = 5;
/// After this time without arrivals since the last packet was sent, nothing more will arrive.
const QUIET: Duration = Duration::from_millis(300);

/// How fast to send.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// At the recorded times, this many times as fast.
    Recorded(f64),
    /// Packets per second.
    Rate(u64),
}

/// Output of a subject, to be compared.
#[derive(Clone, Debug, Default)]
pub struct Output {
    /// Frames in the order of arrival.
    pub frames: Vec<Vec<u8>>,
    /// Packets that the router itself sent.
    pub own: Vec<Vec<u8>>,
    /// Packets that were not forwarded, by the counter that shows them.
    pub lost: BTreeMap<String, u64>,
    /// The same by the kind of the packets, from their bytes.
    pub kept: BTreeMap<&'static str, u64>,
    /// The first packet of each kind, in words.
    pub examples: BTreeMap<&'static str, String>,
    /// The rate of the last attempt.
    pub pps: u64,
}

/// Contents of a capture, for the record.
#[derive(Clone, Debug, Serialize)]
pub struct Contents {
    /// Packets to be replayed.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets with room for a mark.
    pub marked: u64,
    /// Flows.
    pub flows: u64,
    /// Seconds from the first packet to the last.
    pub recorded_seconds: f64,
}

/// A capture on a testbed.
pub struct Replay {
    // Fields drop in order: the sink's program before its namespace.
    sink: ReplaySink,
    /// The testbed, for starting subjects.
    pub testbed: Testbed,
    capture: Capture,
    rooms: Vec<Option<mark::Room>>,
    /// Number of each packet's flow.
    flows: Vec<u32>,
}

impl Replay {
    /// Makes a testbed for it, whose router sends everything to the sink.
    pub fn new(capture: Capture) -> Result<Self> {
        let mut testbed = Testbed::for_rates(&Topology::rfc2544())?;
        let longest = capture.packets.iter().map(|packet| packet.frame.len()).max().unwrap_or_default();
        let mtu = longest.saturating_sub(ETHERNET_BYTES.into());
        if mtu > usize::from(crate::packet::STANDARD_MTU) {
            testbed.set_mtu(u16::try_from(mtu).context("longest frame")?)?;
        }
        route_everything(&testbed)?;
        let sink = ReplaySink::attach(&mut testbed)?;
        let rooms = capture.packets.iter().map(|packet| mark::room(&packet.frame)).collect();
        let flows = run::flows(&capture.packets);
        Ok(Self { sink, testbed, capture, rooms, flows })
    }

    /// Contents of the capture.
    pub fn contents(&self) -> Contents {
        let packets = &self.capture.packets;
        Contents {
            packets: packets.len() as u64,
            bytes: packets.iter().map(|packet| packet.frame.len() as u64).sum(),
            marked: self.rooms.iter().flatten().count() as u64,
            flows: self.flows.iter().max().map_or(0, |last| u64::from(*last) + 1),
            recorded_seconds: self.capture.recorded_seconds(),
        }
    }

    /// Sends everything once, as it is, without loss on the way, and returns the output of the running subject. Reports
    /// disturbed attempts to `told`. The subject loses what is lost in the same way at every rate.
    pub fn comparable(&mut self, mut told: impl FnMut(&str)) -> Result<Output> {
        let mut disturbances = Vec::new();
        for attempt in 0..ATTEMPTS {
            let pps = COMPARISON_PPS >> attempt;
            let table = self.timetable(Pace::Rate(pps), 1, false, true);
            let mut frames = Vec::new();
            let (sink, testbed) = (&mut self.sink, &mut self.testbed);
            let (arrivals, lost) = pass(sink, testbed, &table, Noted::Frames(&mut frames), &mut |_| {})?;
            let disturbed = disturbance(&arrivals, &lost);
            if disturbed.is_empty() {
                return Ok(self.output(frames, lost, pps));
            }
            told(&format!("at {pps} packets per second some were lost on the way ({disturbed})"));
            disturbances.push(disturbed);
            let is_always_so =
                disturbances.len() == ATTEMPTS && disturbances.windows(2).all(|two| two[0] == two[1]);
            if is_always_so && arrivals.missed == 0 {
                told("the same at every rate: the subject loses them");
                return Ok(self.output(frames, lost, pps));
            }
        }
        anyhow::bail!(
            "the machine is too busy to compare: packets were lost by the testbed in {ATTEMPTS} attempts"
        )
    }

    /// Sends everything at this pace, `loops` times, and measures. Calls `progress` with the number of packets sent so
    /// far.
    pub fn run(
        &mut self,
        pace: Pace,
        loops: u32,
        untouched: bool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<ReplayOutcome> {
        let packets = self.capture.packets.len() as u64 * u64::from(loops);
        ensure!(u32::try_from(packets).is_ok(), "{packets} packets in all loops: at most {}", u32::MAX);
        let table = self.timetable(pace, loops, !untouched, false);
        let Self { sink, testbed, capture: Capture { packets, .. }, rooms, flows } = self;
        let frame = |number: u64| {
            let at = (number % packets.len() as u64) as usize;
            let is_marked = !untouched && rooms[at].is_some();
            (flows[at], is_marked.then(|| packets[at].frame.len()))
        };
        let mut tally = Tally::new(packets.len() as u64, loops, frame);
        let mut note = |mark: Marked| tally.note(&mark);
        let (arrivals, lost) = pass(sink, testbed, &table, Noted::Marks(&mut note), progress)?;
        Ok(ReplayOutcome::new(&table, &arrivals, lost, tally))
    }

    fn timetable(&self, pace: Pace, loops: u32, marked: bool, insist: bool) -> Arc<Timetable> {
        let packets = &self.capture.packets;
        let at = |number: usize| match pace {
            Pace::Recorded(speed) => (packets[number].at_ns as f64 / speed) as u64,
            Pace::Rate(pps) => number as u64 * 1_000_000_000 / pps,
        };
        let timed = |(number, packet): (usize, &capture::Packet)| Timed {
            at_ns: at(number),
            frame: packet.frame.clone(),
            mark: self.rooms[number].filter(|_| marked),
        };
        let frames = packets.iter().enumerate().map(timed).collect();
        // The gap between two rounds is the mean gap between two packets.
        let round_ns = match pace {
            Pace::Rate(pps) => packets.len() as u64 * 1_000_000_000 / pps,
            Pace::Recorded(_) => {
                let last_ns = at(packets.len() - 1);
                last_ns.saturating_add(last_ns / (packets.len() as u64 - 1).max(1))
            }
        };
        Arc::new(Timetable::new(Arc::new(frames), loops, round_ns, insist))
    }

    fn output(&self, frames: Vec<Vec<u8>>, lost: Losses, pps: u64) -> Output {
        let packets = &self.capture.packets;
        let alike = packets.iter().filter(|packet| looks_own(&packet.frame));
        let sent: HashSet<Vec<u8>> = alike.map(|packet| view::unchanged(&packet.frame)).collect();
        // A packet that was sent and comes out was forwarded, even if it looks like one of the router's own.
        let is_own = |frame: &Vec<u8>| looks_own(frame) && !sent.contains(&view::unchanged(frame));
        let (own, frames): (Vec<_>, Vec<_>) = frames.into_iter().partition(is_own);
        let (kept, examples) = run::kept(packets, &frames);
        Output { frames, own, lost: lost.0, kept, examples, pps }
    }
}

/// Sends everything, and notes what arrives.
fn pass(
    sink: &mut ReplaySink,
    testbed: &mut Testbed,
    table: &Arc<Timetable>,
    noted: Noted<'_>,
    progress: &mut dyn FnMut(u64),
) -> Result<(Arrivals, Losses)> {
    testbed.router_threads()?;
    let before = Losses::now(testbed)?;
    let arrivals = sink.arrivals(noted, |take| {
        testbed.generator.replay(table.clone())?;
        let ran = until_quiet(testbed, take, table, progress);
        testbed.generator.stop()?;
        ran
    })?;
    testbed.check_subject()?;
    Ok((arrivals, Losses::now(testbed)?.since(&before)))
}

fn until_quiet(
    testbed: &mut Testbed,
    take: &mut dyn FnMut(Duration) -> Result<Arrivals>,
    table: &Timetable,
    progress: &mut dyn FnMut(u64),
) -> Result<()> {
    let most_packets = 2 * table.packets() + capture::MAX_PACKETS as u64;
    let most_bytes = 2 * table.bytes() + capture::MAX_BYTES as u64;
    let (mut last, mut changed) = (0, Instant::now());
    loop {
        sys::check_interrupted()?;
        let Arrivals { packets, bytes, .. } = take(Duration::from_millis(10))?;
        ensure!(
            packets <= most_packets && bytes <= most_bytes,
            "{packets} packets, {bytes} bytes, have come out, far more than were sent: packets go round in a circle"
        );
        if packets != last || !testbed.generator.is_done()? {
            (last, changed) = (packets, Instant::now());
        }
        if changed.elapsed() > QUIET {
            return Ok(());
        }
        progress(table.sent());
    }
}

/// Losses of the testbed itself, in words: packets that rings, or the sink, had no room for.
fn disturbance(arrivals: &Arrivals, lost: &Losses) -> String {
    let by_testbed = |name: &&String| {
        [".ring_full", ".refused", "x_dropped"].iter().any(|end| name.ends_with(end))
            && !name.ends_with("xdp_dropped")
    };
    let missed = (arrivals.missed > 0).then(|| format!("sink {}", arrivals.missed));
    let names = lost.0.keys().filter(by_testbed).map(|name| format!("{name} {}", lost.0[name]));
    names.chain(missed).collect::<Vec<_>>().join(", ")
}

/// Sends everything that is not for the box itself through next hop 1 on the sink's side. Removes the testbed's own
/// networks from the wire, because a capture's packets may go there.
fn route_everything(testbed: &Testbed) -> Result<()> {
    let (hop4, hop6) = (addresses::nexthop4_of(1, 0, 1), addresses::nexthop6_of(1, 0, 1));
    let mut lines = format!("route add {hop4}/32 dev {PORT_OUT}\nroute add {hop6}/128 dev {PORT_OUT}\n");
    for (p, port) in [PORT_IN, PORT_OUT].into_iter().enumerate() {
        let [a, b, ..] = addresses::router4(p as u8, 0, 0).octets();
        let [c, d, ..] = addresses::router6(p as u8, 0, 0).segments();
        lines += &format!("route del {a}.{b}.0.0/16 dev {port}\nroute del {c:x}:{d:x}::/64 dev {port}\n");
    }
    for hop in [IpAddr::from(hop4), hop6.into()] {
        lines += &format!("route add default via {hop} dev {PORT_OUT}\n");
    }
    testbed.box_namespace.ip_batch(&lines).context("routing everything to the sink")
}

/// May the router itself have sent this? True for frames that it should not forward: those that are not IP, from one of
/// its own addresses, or link-local.
fn looks_own(frame: &[u8]) -> bool {
    view::ends(frame).is_none_or(|(source, _)| {
        let stays = |address: Ipv6Addr| address.is_unicast_link_local() || address.is_unspecified();
        is_routers(source) || matches!(source, IpAddr::V6(address) if stays(address))
    })
}

/// Is this one of the router's addresses?
fn is_routers(address: IpAddr) -> bool {
    (0..2)
        .any(|p| [addresses::router4(p, 0, 0).into(), addresses::router6(p, 0, 0).into()].contains(&address))
}
