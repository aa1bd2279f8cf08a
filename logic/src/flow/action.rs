//! What a rule does with a packet, in the words of no protocol version.

use super::field::Field;
use std::{fmt, net::Ipv4Addr};

/// A port as OpenFlow numbers it. A Millrace port's number is its id + 1; reserved ones are those of OpenFlow 1.0 (section
/// 5.2.1), of which 1.3 has the same with `0xffff` in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RulePort(pub u16);

impl RulePort {
    /// The highest number of a port.
    pub const MAX: RulePort = RulePort(0xff00);
    /// Logical ports (OpenFlow 1.3.5 section 4.4): the paths of the user plane, in the order of the configuration.
    const PATHS: std::ops::RangeInclusive<u16> = 0xfe00..=0xfe3f;
    /// Back out of the port the packet came in by; any other output leaves that one out.
    pub const IN_PORT: RulePort = RulePort(0xfff8);
    /// Through the tables again, only for a packet from the controller.
    pub const TABLE: RulePort = RulePort(0xfff9);
    /// As Linux would: the pipeline of routers.
    pub const NORMAL: RulePort = RulePort(0xfffa);
    /// Every port that floods (not NO_FLOOD) but the one it came in by.
    pub const FLOOD: RulePort = RulePort(0xfffb);
    /// Every port but the one it came in by.
    pub const ALL: RulePort = RulePort(0xfffc);
    /// To the controller, as a packet-in.
    pub const CONTROLLER: RulePort = RulePort(0xfffd);
    /// To the kernel stack of the port's namespace.
    pub const LOCAL: RulePort = RulePort(0xfffe);
    /// No port (OFPP_NONE), any port (OFPP_ANY).
    pub const NONE: RulePort = RulePort(0xffff);

    /// A port of the box, 1..=0xff00 without those of paths.
    pub fn is_real(self) -> bool {
        (1..=Self::MAX.0).contains(&self.0) && self.path().is_none()
    }

    /// The port that stands for a path of the user plane; `None`: there cannot be so many.
    pub fn of_path(path: u16) -> Option<RulePort> {
        Self::PATHS.start().checked_add(path).filter(|port| Self::PATHS.contains(port)).map(RulePort)
    }

    /// The path that it stands for.
    pub fn path(self) -> Option<u16> {
        Self::PATHS.contains(&self.0).then(|| self.0 - Self::PATHS.start())
    }
}

/// All of a packet goes to the controller (OFPCML_NO_BUFFER).
pub const WHOLE_PACKET: u16 = u16::MAX;

/// One action. Those of a list are done in order; checksums follow by themselves.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// `max_len`: how many bytes a packet-in shows, for [`RulePort::CONTROLLER`].
    Output {
        port: RulePort,
        max_len: u16,
    },
    /// Output through a queue of the port (OpenFlow 1.0 OFPAT_ENQUEUE).
    Enqueue {
        port: RulePort,
        queue: u32,
    },
    /// The queue of later outputs.
    SetQueue(u32),
    /// Writes the bits of a field where `mask` is 1. Does nothing to a packet that has no such field.
    SetField {
        field: Field,
        value: u128,
        mask: u128,
    },
    /// OpenFlow 1.0: the VLAN id; pushes an 802.1Q tag where there is none.
    SetVlanVid(u16),
    /// OpenFlow 1.0: the VLAN priority; pushes an 802.1Q tag where there is none.
    SetVlanPcp(u8),
    /// OpenFlow 1.0: the source port of TCP or UDP, whichever it is.
    SetTpSrc(u16),
    /// OpenFlow 1.0: the destination port.
    SetTpDst(u16),
    /// A new outermost tag with this EtherType (0x8100 or 0x88a8); id and priority are those of the tag below, or 0.
    PushVlan(u16),
    /// Takes the outermost tag off; nothing to take off is no error.
    PopVlan,
    /// TTL or hop limit minus one; a packet whose TTL was 1 or less goes to the controller instead (OFPR_INVALID_TTL).
    DecTtl,
    SetTtl(u8),
    /// OpenFlow 1.3 group.
    Group(u32),
    /// VXLAN (RFC 7348) over IPv4 around the whole frame.
    EncapVxlan(Vxlan),
    /// Takes outer headers of a VXLAN packet off; the rest of the actions see the inner frame. Another packet is dropped.
    DecapVxlan,
    /// Workload id and priority into the flow control field (V6); see `docs/reference/openflow-extension.md`.
    SetFcf {
        place: FcfPlace,
        workload: u16,
        priority: bool,
    },
    /// The core that goes on with the packet (V1, V3).
    SetCore(CoreChoice),
}

/// Outer headers that [`Action::EncapVxlan`] writes. UDP source port: from the inner flow's hash (RFC 7348 section 4.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Vxlan {
    pub vni: u32,
    pub source: Ipv4Addr,
    pub destination: Ipv4Addr,
    /// All zero: to be filled by [`RulePort::NORMAL`], which routes the outer packet.
    pub eth_source: [u8; 6],
    pub eth_destination: [u8; 6],
    /// UDP destination port, 4789 by default.
    pub udp_port: u16,
}

/// Where the flow control field lies (V6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FcfPlace {
    /// Six bits of DSCP: the upper five are the workload id, the lowest is the priority.
    Tos,
    /// The outermost VLAN tag: twelve bits of VLAN id are the workload, the highest bit of PCP the priority.
    Vlan,
}

/// Which core (V3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CoreChoice {
    This(u16),
    /// The least loaded without a pinned workload, chosen at the flow's first packet.
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
    /// Empty the action set first.
    pub clear: bool,
    /// Into the action set, done when the pipeline ends (section 5.10).
    pub write: Vec<Action>,
    /// Value and mask.
    pub metadata: Option<(u64, u64)>,
    pub goto_table: Option<u8>,
}

impl Instructions {
    /// These actions and no more.
    pub fn apply(actions: impl Into<Vec<Action>>) -> Self {
        Self { apply: actions.into(), ..Self::default() }
    }
    /// Every action in it, those of the action set too.
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
    /// Output, the whole packet if to the controller.
    pub fn output(port: RulePort) -> Action {
        Action::Output { port, max_len: WHOLE_PACKET }
    }
    /// All bits of a field.
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
