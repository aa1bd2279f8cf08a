//! What forwarding takes of a core.

use super::SLICE_NS;

/// Cost of a packet: `ns_per_packet + wake_ns / batch`, where a batch is what a queue finds to do between waking up and going
/// to sleep again.
///
/// How long a batch is follows from the load. A thread that was woken by a packet takes `wake_ns` to get going and `ns_per_packet`
/// for each packet; at `rate` packets per ns `rate * (wake_ns + batch * ns_per_packet)` more come meanwhile, so
///
/// ```text
/// batch = (1 + rate * wake_ns) / (1 - rate * ns_per_packet)
/// cost  = (ns_per_packet + wake_ns) / (1 + rate * wake_ns)
/// ```
///
/// which is `ns_per_packet + wake_ns` at hardly any load and `ns_per_packet` at saturation, when nobody sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// When saturated.
    pub ns_per_packet: u64,
    /// For a wake-up, going to sleep included.
    pub wake_ns: u64,
    /// A packet that its queue's core hands to another core; that one then takes as much as for any packet.
    pub hand_on_ns: u64,
}

impl Cost {
    /// Measured on veth with the full table (docs/measured.md): 314 ns saturated, and 761 at 0.4 Mpps, so 643 for a wake-up. At
    /// 0.5 Mpps the formula says 724, as was measured.
    /// What handing on costs when nobody sleeps was not measured and is taken for a bare redirect (149 to 167 ns). At 0.5 Mpps it
    /// was 1,687 ns, most of which goes to waking a core through a hypervisor: here it is 608.
    pub const MILLRACE: Self = Self { ns_per_packet: 314, wake_ns: 643, hand_on_ns: 160 };
    /// Linux, measured on veth with one route: 690 ns saturated, 1,040 at 0.44 Mpps, so 645 for a wake-up.
    pub const LINUX: Self = Self { ns_per_packet: 690, wake_ns: 645, hand_on_ns: 160 };

    /// Time that a core spends in a slice on waking up. `came`: packets that came in it; `packets_ns`: what all packets that
    /// wait take; `time_ns`: what the core can do in the slice.
    ///
    /// All queues of a core together: one that gets work while its core works joins in without a wake-up.
    pub(super) fn wakes_ns(&self, came: u64, packets_ns: u64, time_ns: u64) -> u64 {
        let idle = time_ns.saturating_sub(packets_ns);
        let wakes_ns = came * self.wake_ns;
        (wakes_ns * idle).checked_div(time_ns + wakes_ns).unwrap_or(0)
    }

    /// How long a packet waits on average until it is forwarded, where nothing is left over at the end of a slice: the first of
    /// a batch for the wake-up, the others shorter and shorter.
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

    /// Of a packet, a core forwarding nothing else.
    fn ns(cost: Cost, pps: u64) -> u64 {
        let came = pps / 1000;
        let time_ns = 1_000_000;
        let packets_ns = came * cost.ns_per_packet;
        (packets_ns + cost.wakes_ns(came, packets_ns, time_ns)) / came
    }

    #[test]
    fn costs_are_those_that_were_measured() {
        assert_eq!([400_000, 500_000].map(|pps| ns(Cost::MILLRACE, pps)), [761, 724]);
        assert_eq!(ns(Cost::LINUX, 440_000), 1039);
        assert_eq!((ns(Cost::MILLRACE, 3_180_000), ns(Cost::LINUX, 1_449_000)), (314, 690));
        // About three times as much (2.5) at a tenth of the load.
        assert_eq!(ns(Cost::MILLRACE, 318_000), 794);
        assert_eq!(Cost::MILLRACE.wakes_ns(10, 2_000_000, 1_000_000), 0);
    }

    #[test]
    fn a_packet_waits_for_the_wake_up_or_in_the_batch() {
        // Alone: 314 + 643 * (1 + 0.990) / 2. At saturation: half a wake-up and itself.
        assert_eq!(Cost::MILLRACE.wait_ns(1, 314), 953);
        assert_eq!(Cost::MILLRACE.wait_ns(318, 314), 635);
    }
}
