//! What a rule does with a packet, independent of the protocol version.

use super::field::Field;
use std::{fmt, net::Ipv4Addr};

/// A port, numbered as in OpenFlow. A Millrace port's number is its id + 1. The reserved numbers are those of OpenFlow 1.0
/// (section 5.2.1); OpenFlow 1.3 has the same with `0xffff` in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RulePort(pub u16);

impl RulePort {
    /// The highest number of a port.
    pub const MAX: RulePort = RulePort(0xff00);
    /// Logical ports (OpenFlow 1.3.5 section 4.4): the paths of the user plane, by number.
    const PATHS: std::ops::RangeInclusive<u16> = 0xfe00..=0xfe3f;
    /// Sends the packet back through the port it came in by. Every other output leaves that port out.
    pub const IN_PORT: RulePort = RulePort(0xfff8);
    /// Sends the packet through the tables, only for packets from the controller.
    pub const TABLE: RulePort = RulePort(0xfff9);
    /// Routes the packet as Linux would.
    pub const NORMAL: RulePort = RulePort(0xfffa);
    /// Every port that floods (not NO_FLOOD), except the one the packet came in by.
    pub const FLOOD: RulePort = RulePort(0xfffb);
    /// Every port except the one the packet came in by.
    pub const ALL: RulePort = RulePort(0xfffc);
    /// To the controller, as a packet-in.
    pub const CONTROLLER: RulePort = RulePort(0xfffd);
    /// To the kernel stack of the port's namespace.
    pub const LOCAL: RulePort = RulePort(0xfffe);
    /// No port (OFPP_NONE), any port (OFPP_ANY).
    pub const NONE: RulePort = RulePort(0xffff);

    /// Is it a port of the box (1..=0xff00, without the numbers of paths)?
    pub fn is_real(self) -> bool {
        (1..=Self::MAX.0).contains(&self.0) && self.path().is_none()
    }

    /// The port that stands for a path of the user plane. `None` if the number is beyond the range.
    pub fn of_path(path: u16) -> Option<RulePort> {
        Self::PATHS.start().checked_add(path).filter(|port| Self::PATHS.contains(port)).map(RulePort)
    }

    /// The path that the port stands for.
    pub fn path(self) -> Option<u16> {
        Self::PATHS.contains(&self.0).then(|| self.0 - Self::PATHS.start())
    }
}

/// The whole packet goes to the controller (OFPCML_NO_BUFFER).
pub const WHOLE_PACKET: u16 = u16::MAX;

/// One action. The actions of a list are done in order. Checksums are updated automatically.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// `max_len`: how many bytes of the packet a packet-in holds, for [`RulePort::CONTROLLER`].
    Output {
        port: RulePort,
        max_len: u16,
    },
    /// Output through a queue of the port (OpenFlow 1.0 OFPAT_ENQUEUE).
    Enqueue {
        port: RulePort,
        queue: u32,
    },
    /// The queue for later outputs.
    SetQueue(u32),
    /// Writes the bits of a field where `mask` is 1. Does nothing to a packet without this field.
    SetField {
        field: Field,
        value: u128,
        mask: u128,
    },
    /// OpenFlow 1.0: sets the VLAN id; pushes an 802.1Q tag if the packet has none.
    SetVlanVid(u16),
    /// OpenFlow 1.0: sets the VLAN priority; pushes an 802.1Q tag if the packet has none.
    SetVlanPcp(u8),
    /// OpenFlow 1.0: sets the source port of TCP or UDP.
    SetTpSrc(u16),
    /// OpenFlow 1.0: sets the destination port of TCP or UDP.
    SetTpDst(u16),
    /// Pushes a new outermost tag with this EtherType (0x8100 or 0x88a8). Its id and priority are those of the tag below,
    /// or 0.
    PushVlan(u16),
    /// Removes the outermost tag. Does nothing if there is none.
    PopVlan,
    /// Reduces the TTL or hop limit by one. A packet whose TTL was 1 or less goes to the controller instead
    /// (OFPR_INVALID_TTL).
    DecTtl,
    SetTtl(u8),
    /// OpenFlow 1.3 group.
    Group(u32),
    /// Puts VXLAN (RFC 7348) over IPv4 around the whole frame.
    EncapVxlan(Vxlan),
    /// Removes the outer headers of a VXLAN packet. Later actions see the inner frame. Any other packet is dropped.
    DecapVxlan,
    /// Writes workload id and priority into the flow control field (V6); see `docs/reference/openflow-extension.md`.
    SetFcf {
        place: FcfPlace,
        workload: u16,
        priority: bool,
    },
    /// Chooses the core that continues with the packet (V1, V3).
    SetCore(CoreChoice),
}

/// The outer headers that [`Action::EncapVxlan`] writes. The UDP source port comes from a hash of the inner flow (RFC 7348
/// section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Vxlan {
    pub vni: u32,
    pub source: Ipv4Addr,
    pub destination: Ipv4Addr,
    /// If all zero, [`RulePort::NORMAL`] fills it when it routes the outer packet.
    pub eth_source: [u8; 6],
    pub eth_destination: [u8; 6],
    /// UDP destination port, 4789 by default.
    pub udp_port: u16,
}

/// Where the flow control field is (V6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FcfPlace {
    /// Six bits of DSCP: the upper five are the workload id, the lowest is the priority.
    Tos,
    /// The outermost VLAN tag: twelve bits of VLAN id are the workload, the highest bit of PCP the priority.
    Vlan,
}

/// Selects a core (V3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CoreChoice {
    This(u16),
    /// The least loaded core without a pinned workload, chosen at the flow's first packet.
    Choose,
    /// The same for a priority flow, which gets the least loaded cores first (V7).
    ChooseFirst,
}

/// What a rule does (OpenFlow 1.3 section 5.9). OpenFlow 1.0 has only `apply`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Instructions {
    pub meter: Option<u32>,
    /// Done at once, in order.
    pub apply: Vec<Action>,
    /// Empties the action set first.
    pub clear: bool,
    /// Actions to add to the action set, which is done when the pipeline ends (section 5.10).
    pub write: Vec<Action>,
    /// Value and mask.
    pub metadata: Option<(u64, u64)>,
    pub goto_table: Option<u8>,
}

impl Instructions {
    /// Only these actions, done at once.
    pub fn apply(actions: impl Into<Vec<Action>>) -> Self {
        Self { apply: actions.into(), ..Self::default() }
    }
    /// All actions, including those for the action set.
    pub fn actions(&self) -> impl Iterator<Item = &Action> {
        self.apply.iter().chain(&self.write)
    }
    /// Does an action send packets to this port?
    pub fn outputs_to(&self, to: RulePort) -> bool {
        self.actions()
            .any(|a| matches!(*a, Action::Output { port, .. } | Action::Enqueue { port, .. } if port == to))
    }
    /// Does an action lead to this group?
    pub fn uses_group(&self, id: u32) -> bool {
        self.actions().any(|a| *a == Action::Group(id))
    }
}

impl Action {
    /// An output. The controller gets the whole packet.
    pub fn output(port: RulePort) -> Action {
        Action::Output { port, max_len: WHOLE_PACKET }
    }
    /// Sets all bits of a field.
    pub fn set(field: Field, value: impl Into<u128>) -> Action {
        Action::SetField { field, value: value.into(), mask: field.all_bits() }
    }
}

impl fmt::Display for RulePort {
    /// As `ovs-ofctl` writes it: a number, or the reserved name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Self::NAMES.iter().find(|(port, _)| port == self) {
            Some((_, name)) => f.write_str(name),
            None => write!(f, "{}", self.0),
        }
    }
}

impl RulePort {
    /// Reserved ports and their names.
    pub const NAMES: [(RulePort, &'static str); 9] = [
        (RulePort::IN_PORT, "IN_PORT"),
        (RulePort::TABLE, "TABLE"),
        (RulePort::NORMAL, "NORMAL"),
        (RulePort::FLOOD, "FLOOD"),
        (RulePort::ALL, "ALL"),
        (RulePort::CONTROLLER, "CONTROLLER"),
        (RulePort::LOCAL, "LOCAL"),
        (RulePort::NONE, "ANY"),
        (RulePort(0), "0"),
    ];
}
