//! The cost of forwarding on a core.

/// The costs of a packet on its way, in ns of a core at full speed.
///
/// A thread that a packet wakes on a sleeping core needs `wake_ns` to start. Packets that arrive meanwhile, or while the
/// core works, need no wake-up. So a packet costs `ns_per_packet + wake_ns` at hardly any load, and `ns_per_packet` at
/// saturation. With packets at rate `r` per ns that are independent of each other, the mean is
///
/// ```text
/// (ns_per_packet + wake_ns) / (1 + r * wake_ns)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// The cost of a packet at saturation.
    pub ns_per_packet: u64,
    /// The cost of a wake-up, including going to sleep.
    pub wake_ns: u64,
    /// The cost of a packet for its queue's core, if that core hands it to another one.
    pub hand_on_ns: u64,
    /// The cost of such a packet for the other core, in addition to that of any packet.
    pub take_ns: u64,
    /// The cost of waking a sleeping core, for the core that hands packets to it.
    pub rouse_ns: u64,
    /// The time until that core begins. It does not count as work.
    pub start_ns: u64,
}

impl Cost {
    /// Two values are measured: 314 ns at saturation and 761 ns at 0.4 Mpps, on veth with the full table
    /// (docs/measured.md, lab/runs/2026-11-21-capacity.jsonl.gz). The formula then gives 643 ns for a wake-up.
    ///
    /// The costs of handing on are assumptions: a bare redirect, taking the packet from a ring, and waking a thread of
    /// another core as a virtual machine does.
    pub const MILLRACE: Self = Self {
        ns_per_packet: 314,
        wake_ns: 643,
        hand_on_ns: 160,
        take_ns: 100,
        rouse_ns: 1500,
        start_ns: 20_000,
    };
    /// No committed run shows these values. They are assumptions for Linux with one route on veth: 690 ns at
    /// saturation, and a wake-up like Millrace's.
    pub const LINUX: Self = Self { ns_per_packet: 690, wake_ns: 645, ..Self::MILLRACE };
}
