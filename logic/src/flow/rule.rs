//! Requests of controllers to change rules, groups and meters, and the reasons to refuse them.

use super::{
    action::{Action, Instructions, RulePort},
    field::Field,
    key::Match,
};

/// The number of a flow table, in 0..[`TABLES`].
pub type TableId = u8;
/// How many flow tables there are.
pub const TABLES: u8 = 16;

/// The core table, to which packets come first. Its rules apply one SET_CORE and nothing else. Requests for all tables do
/// not include it.
pub const CORE_TABLE: TableId = TABLES;

/// A change of the flow tables (OpenFlow 1.0 section 5.3.3, 1.3 section A.3.4.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowMod {
    pub command: FlowCommand,
    /// `None`: all tables (OFPTT_ALL), only for a delete.
    pub table: Option<TableId>,
    pub cookie: u64,
    /// Modify and delete only rules whose cookie has these bits; 0: any cookie. OpenFlow 1.0 has none.
    pub cookie_mask: u64,
    pub priority: u16,
    pub matching: Match,
    pub instructions: Instructions,
    /// Seconds without a packet after which the rule ends; 0: never.
    pub idle_timeout: u16,
    /// Seconds after which the rule ends; 0: never.
    pub hard_timeout: u16,
    /// Delete only rules that output to this port.
    pub out_port: Option<RulePort>,
    /// Delete only rules that use this group.
    pub out_group: Option<u32>,
    pub flags: FlowFlags,
    /// A packet that waits in the switch and is to be sent through the new rule.
    pub buffer: Option<u32>,
}

impl FlowMod {
    /// Gives the ports that the rule names other numbers: the whole port that it matches, and those that it sends to.
    pub fn renumber_ports(&mut self, mut number: impl FnMut(RulePort) -> RulePort) {
        if let Some(port) = self.matching.exact(Field::InPort) {
            let port = number(RulePort(port as u16));
            self.matching.set(Field::InPort, port.0.into(), Field::InPort.all_bits());
        }
        let Instructions { apply, write, .. } = &mut self.instructions;
        for action in apply.iter_mut().chain(write) {
            if let Action::Output { port, .. } | Action::Enqueue { port, .. } = action {
                *port = number(*port);
            }
        }
    }

    /// A change of table 0. No cookie, timeout or flag is set.
    pub fn new(command: FlowCommand, priority: u16, matching: Match, instructions: Instructions) -> FlowMod {
        FlowMod {
            command,
            table: Some(0),
            cookie: 0,
            cookie_mask: 0,
            priority,
            matching,
            instructions,
            idle_timeout: 0,
            hard_timeout: 0,
            out_port: None,
            out_group: None,
            flags: FlowFlags::default(),
            buffer: None,
        }
    }
}

/// What a [`FlowMod`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowCommand {
    Add,
    /// `strict`: only the rule with the same match and priority.
    Modify {
        strict: bool,
    },
    Delete {
        strict: bool,
    },
}

impl FlowCommand {
    pub fn deletes(self) -> bool {
        matches!(self, FlowCommand::Delete { .. })
    }
}

/// OFPFF flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowFlags {
    /// Send a notice to the controllers when the rule ends.
    pub send_removed: bool,
    /// Refuse to add the rule if another rule of the same priority overlaps it.
    pub check_overlap: bool,
    pub reset_counts: bool,
    pub no_packet_counts: bool,
    pub no_byte_counts: bool,
    /// OpenFlow 1.0 emergency table: not supported.
    pub emergency: bool,
}

/// A group (OpenFlow 1.3 section 5.6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub id: u32,
    pub kind: GroupKind,
    pub buckets: Vec<Bucket>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupKind {
    /// Every bucket gets a copy.
    All,
    /// One bucket, chosen by the flow's hash and the weights.
    Select,
    /// The only bucket.
    Indirect,
    /// The first bucket whose watched port or group is live.
    FastFailover,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    pub weight: u16,
    /// Live while this port is up.
    pub watch_port: Option<RulePort>,
    /// Live while this group has a live bucket.
    pub watch_group: Option<u32>,
    pub actions: Vec<Action>,
}

/// A change of the groups; `Delete(None)`: all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupMod {
    Add(Group),
    Modify(Group),
    Delete(Option<u32>),
}

/// A meter (OpenFlow 1.3 section 5.7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meter {
    pub id: u32,
    pub unit: MeterUnit,
    /// Bands have bursts. Otherwise the burst is 100 ms at the band's rate.
    pub burst: bool,
    /// Packets and bytes are counted.
    pub stats: bool,
    pub bands: Vec<Band>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeterUnit {
    Kbps,
    Pps,
}

/// Packets above `rate` (kbit/s or packets/s, with a burst of kbit or packets) get the band's treatment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Band {
    pub rate: u32,
    pub burst: u32,
    pub kind: BandKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BandKind {
    Drop,
    /// Not supported: refused.
    DscpRemark {
        levels: u8,
    },
    /// Not supported: refused.
    Experimenter(u32),
}

/// A change of the meters; `Delete(None)`: all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MeterMod {
    Add(Meter),
    Modify(Meter),
    Delete(Option<u32>),
}

/// Why a rule ended (OFPRR).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removed {
    IdleTimeout,
    HardTimeout,
    Delete,
    GroupDelete,
    MeterDelete,
}

/// The notice to controllers about a rule that ended (OFPT_FLOW_REMOVED).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowRemoved {
    pub matching: Match,
    pub cookie: u64,
    pub priority: u16,
    pub reason: Removed,
    pub table: TableId,
    pub duration_sec: u32,
    pub duration_nsec: u32,
    pub idle_timeout: u16,
    pub hard_timeout: u16,
    pub packets: u64,
    pub bytes: u64,
}

/// The rules that a flow or aggregate request asks for. They are selected as in a non-strict delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowFilter {
    /// `None`: all tables.
    pub table: Option<TableId>,
    pub matching: Match,
    pub out_port: Option<RulePort>,
    pub out_group: Option<u32>,
    pub cookie: u64,
    pub cookie_mask: u64,
}

impl FlowFilter {
    /// All rules.
    pub const EVERYTHING: FlowFilter = FlowFilter {
        table: None,
        matching: Match::ANY,
        out_port: None,
        out_group: None,
        cookie: 0,
        cookie_mask: 0,
    };
}

/// A rule as statistics show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowStats {
    pub table: TableId,
    pub matching: Match,
    pub duration_sec: u32,
    pub duration_nsec: u32,
    pub priority: u16,
    pub idle_timeout: u16,
    pub hard_timeout: u16,
    pub flags: FlowFlags,
    pub cookie: u64,
    pub packets: u64,
    pub bytes: u64,
    pub instructions: Instructions,
}

/// A group as statistics show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStats {
    pub id: u32,
    /// How many rules and groups lead to it.
    pub references: u32,
    pub packets: u64,
    pub bytes: u64,
    pub duration_sec: u32,
    pub duration_nsec: u32,
    /// Packets and bytes of each bucket.
    pub buckets: Vec<(u64, u64)>,
}

/// A meter as statistics show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeterStats {
    pub id: u32,
    /// How many rules use it.
    pub flows: u32,
    pub packets: u64,
    pub bytes: u64,
    pub duration_sec: u32,
    pub duration_nsec: u32,
    /// Packets and bytes that each band treated.
    pub bands: Vec<(u64, u64)>,
}

/// Why a rule, group or meter is refused. Each protocol version has its own type and code for it (`openflow::v10`, `v13`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("the table is full")]
    TableFull,
    #[error("a rule of the same priority matches some of the same packets")]
    Overlap,
    #[error("unknown command")]
    BadCommand,
    #[error("there is no such table")]
    BadTable,
    #[error("goto_table must lead to a later table")]
    BadGoto,
    #[error("a rule of the emergency table has timeouts, and this table is not supported")]
    Emergency,
    #[error("no such port")]
    BadPort,
    #[error("no such queue")]
    BadQueue,
    #[error("this action is not supported")]
    BadAction,
    #[error("this action's argument is out of range")]
    BadArgument,
    #[error("this action cannot apply to what the rule matches")]
    InconsistentAction,
    #[error("this field cannot be set")]
    BadSetField,
    #[error("too many actions")]
    TooManyActions,
    #[error("this action is not supported in an action set")]
    UnsupportedOrder,
    #[error("this instruction is not supported")]
    BadInstruction,
    #[error("this field cannot be matched")]
    BadField,
    #[error("a field is matched without another field that it needs")]
    Prerequisite,
    #[error("a value has bits outside its mask, or is out of range")]
    BadValue,
    #[error("this field cannot have this mask")]
    BadMask,
    #[error("a field is given twice")]
    DuplicateField,
    #[error("too many different masks")]
    TooManyMasks,
    #[error("the group exists already")]
    GroupExists,
    #[error("no such group")]
    UnknownGroup,
    #[error("the group is invalid")]
    InvalidGroup,
    #[error("groups would form a loop")]
    GroupLoop,
    #[error("groups would form too long a chain")]
    GroupChain,
    #[error("an action leads to a group that does not exist")]
    BadGroup,
    #[error("too many groups")]
    TooManyGroups,
    #[error("too many buckets")]
    TooManyBuckets,
    #[error("other groups lead to this group")]
    ChainedGroup,
    #[error("a bucket's watched port or group is missing or wrong")]
    BadWatch,
    #[error("the meter exists already")]
    MeterExists,
    #[error("no such meter")]
    UnknownMeter,
    #[error("the meter is invalid")]
    InvalidMeter,
    #[error("a meter's rate is out of range")]
    BadRate,
    #[error("a meter's burst is out of range")]
    BadBurst,
    #[error("this kind of meter band is not supported")]
    BadBand,
    #[error("too many meters")]
    TooManyMeters,
    #[error("too many bands")]
    TooManyBands,
}
