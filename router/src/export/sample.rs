//! A sampled packet, in the terms of a collector: interfaces by index, and what became of the packet.

use logic::{
    capture::record::{Fate, Record},
    plan::{PortId, RouterId},
    reason::{Class, Reason},
};

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Output {
    /// It was sent by the device with this index.
    Port(u32),
    /// It was sent by several ports, or by a port that is gone.
    Several,
    /// It was for this box.
    Itself,
    Dropped(Drop),
    /// The kernel, another core or user space went on with it.
    Unknown,
}

/// Why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Drop {
    /// A limit was exceeded.
    Limit,
    /// A flow rule says so.
    Rule,
    /// Something was full or not ready.
    Other,
}

impl Output {
    fn of(fate: Fate, ifindex: impl Fn(PortId) -> Option<u32>) -> Output {
        match fate {
            Fate::Forwarded(port) => port.and_then(ifindex).map_or(Output::Several, Output::Port),
            Fate::HandedTo(_) => Output::Unknown,
            Fate::Other(Reason::Local) => Output::Itself,
            Fate::Other(Reason::Policed | Reason::ControlPoliced | Reason::OverShare) => {
                Output::Dropped(Drop::Limit)
            }
            Fate::Other(Reason::RuleDrop | Reason::RuleFragment) => Output::Dropped(Drop::Rule),
            Fate::Other(reason) => match reason.class() {
                Class::Drop | Class::Lost => Output::Dropped(Drop::Other),
                Class::Pass | Class::Slow | Class::Exception | Class::Control | Class::Taken => {
                    Output::Unknown
                }
            },
        }
    }
}

/// A sampled packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample<'a> {
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// The index of the device by which it came in.
    pub input: u32,
    pub output: Output,
    /// The router that it is for; `None`: none, or not known.
    pub router: Option<RouterId>,
    /// Packets that came since the last sample on its core, including this one.
    pub ahead: u32,
    /// Length of the frame, without its checksum.
    pub bytes: u32,
    /// Its first bytes as it came in.
    pub head: &'a [u8],
}

impl<'a> Sample<'a> {
    /// `None`: its port is gone. `ifindex`: the index of a port's device.
    pub fn of(record: &Record<'a>, ifindex: impl Fn(PortId) -> Option<u32>) -> Option<Sample<'a>> {
        Some(Sample {
            time_ns: record.time_ns,
            input: ifindex(record.in_port)?,
            output: Output::of(record.fate, &ifindex),
            router: record.router,
            ahead: record.ahead,
            bytes: record.in_bytes,
            head: record.head,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_became_of_a_packet_is_told_in_the_terms_of_collectors() {
        let ifindex = |port: PortId| (port == 3).then_some(7);
        let output = |fate| Output::of(fate, ifindex);
        assert_eq!(output(Fate::Forwarded(Some(3))), Output::Port(7));
        assert_eq!(output(Fate::Forwarded(Some(4))), Output::Several, "a port that is gone");
        assert_eq!(output(Fate::Forwarded(None)), Output::Several);
        assert_eq!(output(Fate::HandedTo(1)), Output::Unknown);
        let other = |reason| output(Fate::Other(reason));
        assert_eq!(other(Reason::Local), Output::Itself);
        assert_eq!(other(Reason::Policed), Output::Dropped(Drop::Limit));
        assert_eq!(other(Reason::RuleDrop), Output::Dropped(Drop::Rule));
        assert_eq!(other(Reason::PathRingFull), Output::Dropped(Drop::Other));
        for reason in [Reason::NoRoute, Reason::Ipv4Options, Reason::PathGiven, Reason::Arp, Reason::Fallback]
        {
            assert_eq!(other(reason), Output::Unknown, "{}", reason.name());
        }
    }

    #[test]
    fn a_sample_of_a_port_that_is_gone_does_not_count() {
        let record = Record {
            time_ns: 5,
            in_port: 3,
            router: Some(2),
            fate: Fate::Forwarded(Some(3)),
            ahead: 900,
            in_bytes: 1514,
            head: b"head",
            out_bytes: 1514,
            frame: &[],
            pushed: 0,
        };
        let sample = Sample::of(&record, |_| Some(7)).unwrap();
        let expected = Sample {
            time_ns: 5,
            input: 7,
            output: Output::Port(7),
            router: Some(2),
            ahead: 900,
            bytes: 1514,
            head: b"head",
        };
        assert_eq!(sample, expected);
        assert_eq!(Sample::of(&record, |_| None), None);
    }
}
