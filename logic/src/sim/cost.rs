//! The cost of forwarding on a core.

use super::SLICE_NS;

/// The cost of a packet: `ns_per_packet + wake_ns / batch`. A batch is the work that a queue finds between waking up
/// and going to sleep again.
///
/// The length of a batch follows from the load. A thread that a packet wakes needs `wake_ns` to start, and
/// `ns_per_packet` for each packet. At `rate` packets per ns, `rate * (wake_ns + batch * ns_per_packet)` more packets
/// arrive in that time. So
///
/// ```text
/// batch = (1 + rate * wake_ns) / (1 - rate * ns_per_packet)
/// cost  = (ns_per_packet + wake_ns) / (1 + rate * wake_ns)
/// ```
///
/// This is `ns_per_packet + wake_ns` at hardly any load, and `ns_per_packet` at saturation, when no thread sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// The cost of a packet at saturation.
    pub ns_per_packet: u64,
    /// The cost of a wake-up, including going to sleep.
    pub wake_ns: u64,
    /// The cost of a packet that its queue's core hands to another core. That core then needs as much as for any
    /// packet.
    pub hand_on_ns: u64,
}

impl Cost {
    /// Two values are measured: 314 ns at saturation and 761 ns at 0.4 Mpps, on veth with the full table
    /// (docs/measured.md, lab/runs/2026-11-21-capacity.jsonl.gz). The formula then gives 643 ns for a wake-up.
    ///
    /// The cost of handing on is an assumption: about that of a bare redirect while no thread sleeps. It does not
    /// include waking the other core, which is expensive in a virtual machine.
    pub const MILLRACE: Self = Self { ns_per_packet: 314, wake_ns: 643, hand_on_ns: 160 };
    /// No committed run shows these values. They are assumptions for Linux with one route on veth: 690 ns at
    /// saturation, and a wake-up like Millrace's.
    pub const LINUX: Self = Self { ns_per_packet: 690, wake_ns: 645, hand_on_ns: 160 };

    /// The time in a slice that a core spends on waking up. `came`: packets that arrived in it. `packets_ns`: the time
    /// for all packets that wait. `time_ns`: the time that the core can work in the slice.
    ///
    /// This is for all queues of a core together: a queue that gets work while its core works needs no wake-up.
    pub(super) fn wakes_ns(&self, came: u64, packets_ns: u64, time_ns: u64) -> u64 {
        let idle = time_ns.saturating_sub(packets_ns);
        let wakes_ns = came * self.wake_ns;
        (wakes_ns * idle).checked_div(time_ns + wakes_ns).unwrap_or(0)
    }

    /// How long a packet waits on average until it is forwarded, if nothing is left over at the end of a slice. The
    /// first packet of a batch waits for the wake-up, and later ones wait less and less.
    pub(super) fn wait_ns(&self, came: u64, ns_per_packet: u64) -> u64 {
        let idle = SLICE_NS.saturating_sub(came * ns_per_packet);
        // 1 / batch, in parts of SLICE_NS.
        let first = SLICE_NS * idle / (SLICE_NS + came * self.wake_ns);
        ns_per_packet + self.wake_ns * (SLICE_NS + first) / (2 * SLICE_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cost of a packet on a core that forwards nothing else.
    fn ns(cost: Cost, pps: u64) -> u64 {
        let came = pps / 1000;
        let time_ns = 1_000_000;
        let packets_ns = came * cost.ns_per_packet;
        (packets_ns + cost.wakes_ns(came, packets_ns, time_ns)) / came
    }

    #[test]
    fn costs_follow_the_formula() {
        assert_eq!([400_000, 500_000].map(|pps| ns(Cost::MILLRACE, pps)), [761, 724]);
        assert_eq!(ns(Cost::LINUX, 440_000), 1039);
        assert_eq!((ns(Cost::MILLRACE, 3_180_000), ns(Cost::LINUX, 1_449_000)), (314, 690));
        // About 2.5 times as much at a tenth of the load.
        assert_eq!(ns(Cost::MILLRACE, 318_000), 794);
        assert_eq!(Cost::MILLRACE.wakes_ns(10, 2_000_000, 1_000_000), 0);
    }

    #[test]
    fn a_packet_waits_for_the_wake_up_or_in_the_batch() {
        // Alone: 314 + 643 * (1 + 0.990) / 2. At saturation: half a wake-up, and the packet itself.
        assert_eq!(Cost::MILLRACE.wait_ns(1, 314), 953);
        assert_eq!(Cost::MILLRACE.wait_ns(318, 314), 635);
    }
}
