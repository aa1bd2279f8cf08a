//! OpenFlow messages, independent of the version.
//!
//! A part that only one version has is an `Option` or a variant of its own. The other version's encoder
//! returns [`CannotSay`](super::CannotSay). All strings are bytes as received, without the zeros after them.

pub use crate::flow::{FlowFilter, FlowRemoved, FlowStats, GroupStats, MeterStats, PacketInReason};
use crate::{
    flow::{Action, Field, FlowMod, GroupMod, Match, Meter, MeterMod, Refused, RulePort, TableId},
    net::Mac,
};

/// A message without its transaction id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Versions by number (1 is OpenFlow 1.0, 4 is 1.3), if the peer sent a bitmap (1.3.1 and later).
    Hello {
        versions: Option<Vec<u8>>,
    },
    Error(ErrorMessage),
    EchoRequest(Vec<u8>),
    EchoReply(Vec<u8>),
    /// In OpenFlow 1.0 a vendor message. `subtype` exists if the body has four bytes for it.
    Experimenter(Experimenter),
    FeaturesRequest,
    FeaturesReply(Features),
    GetConfigRequest,
    GetConfigReply(Config),
    SetConfig(Config),
    PacketIn(PacketIn),
    FlowRemoved(FlowRemoved),
    PortStatus {
        reason: PortReason,
        port: PortDescription,
    },
    PacketOut(PacketOut),
    FlowMod(FlowMod),
    GroupMod(GroupMod),
    MeterMod(MeterMod),
    PortMod(PortMod),
    /// OpenFlow 1.3 OFPT_TABLE_MOD.
    TableMod {
        table: Option<TableId>,
        config: u32,
    },
    StatsRequest(StatsRequest),
    /// `more`: another reply with the same transaction id follows.
    StatsReply {
        reply: StatsReply,
        more: bool,
    },
    BarrierRequest,
    BarrierReply,
    /// `port` [`RulePort::NONE`]: all ports (1.3).
    QueueConfigRequest {
        port: RulePort,
    },
    QueueConfigReply {
        port: RulePort,
        queues: Vec<QueueDescription>,
    },
    RoleRequest {
        role: Role,
        generation: u64,
    },
    RoleReply {
        role: Role,
        generation: u64,
    },
    GetAsyncRequest,
    GetAsyncReply(AsyncConfig),
    SetAsync(AsyncConfig),
}

/// An error, with type and code of the version in which it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorMessage {
    pub kind: u16,
    pub code: u16,
    /// At least the first 64 bytes of the message that caused the error. For HELLO_FAILED, a text.
    pub data: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Experimenter {
    pub id: u32,
    /// 1.3: `exp_type`. 1.0: the first four bytes of the body, as Nicira and we use them.
    pub subtype: u32,
    pub body: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Features {
    pub datapath_id: u64,
    pub buffers: u32,
    pub tables: u8,
    /// 1.3: 0 is the main connection.
    pub auxiliary_id: u8,
    pub capabilities: u32,
    /// 1.0: supported actions as a bitmap of OFPAT.
    pub actions: Option<u32>,
    /// 1.0.
    pub ports: Option<Vec<PortDescription>>,
}

/// How fragments are handled, and how much of a packet goes to the controller on a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    pub fragments: Fragments,
    pub miss_send_len: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragments {
    Normal,
    Drop,
    Reassemble,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketIn {
    pub buffer: Option<u32>,
    /// Length of the whole packet.
    pub total_len: u16,
    pub reason: PacketInReason,
    /// 1.3; 1.0 does not send it.
    pub table: TableId,
    /// 1.3.
    pub cookie: u64,
    /// 1.3: the fields that the packet came with, at least the port. 1.0: the port.
    pub matching: Match,
    pub data: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortReason {
    Add,
    Delete,
    Modify,
}

/// The description of a port. `config`, `state` and features are encoded as in the version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortDescription {
    pub port: RulePort,
    pub mac: Mac,
    /// At most 15 bytes.
    pub name: Vec<u8>,
    pub config: PortConfig,
    pub state: PortState,
    pub current: PortFeatures,
    pub advertised: PortFeatures,
    pub supported: PortFeatures,
    pub peer: PortFeatures,
    /// 1.3, kbit/s.
    pub current_speed: u32,
    pub max_speed: u32,
}

/// OFPPC bits that both versions have in the same place, and those of 1.0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortConfig(pub u32);

impl PortConfig {
    pub const DOWN: u32 = 1 << 0;
    /// 1.0 only.
    pub const NO_STP: u32 = 1 << 1;
    pub const NO_RECV: u32 = 1 << 2;
    /// 1.0 only.
    pub const NO_RECV_STP: u32 = 1 << 3;
    /// 1.0 only.
    pub const NO_FLOOD: u32 = 1 << 4;
    pub const NO_FWD: u32 = 1 << 5;
    pub const NO_PACKET_IN: u32 = 1 << 6;
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortState {
    pub link_down: bool,
    /// 1.3.
    pub blocked: bool,
    /// 1.3.
    pub live: bool,
    /// 1.0: OFPPS_STP bits, 8..=9.
    pub stp: u32,
}

/// OFPPF bits with the numbers of 1.3. 1.0 has other numbers for the bits after 10 GbE full duplex.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortFeatures(pub u32);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketOut {
    pub buffer: Option<u32>,
    pub in_port: RulePort,
    pub actions: Vec<Action>,
    /// Empty if `buffer` is given.
    pub data: Vec<u8>,
}

impl PacketOut {
    /// The packet is buffered, so the switch ignores these data.
    pub(super) fn has_ignored_data(&self) -> bool {
        self.buffer.is_some() && !self.data.is_empty()
    }

    /// As a switch takes a received packet-out.
    pub(super) fn without_ignored_data(mut self) -> PacketOut {
        if self.has_ignored_data() {
            self.data.clear();
        }
        self
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortMod {
    pub port: RulePort,
    pub mac: Mac,
    pub config: PortConfig,
    /// The bits of `config` to change.
    pub mask: PortConfig,
    pub advertise: PortFeatures,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StatsRequest {
    Description,
    Flow(FlowFilter),
    Aggregate(FlowFilter),
    Table,
    /// [`RulePort::NONE`]: all ports.
    Port(RulePort),
    /// Port [`RulePort::ALL`] or [`RulePort::NONE`]: all ports. Queue `None`: all queues.
    Queue {
        port: RulePort,
        queue: Option<u32>,
    },
    /// `None`: all groups. This variant and the following ones are 1.3 only.
    Group(Option<u32>),
    GroupDescription,
    GroupFeatures,
    Meter(Option<u32>),
    MeterConfig(Option<u32>),
    MeterFeatures,
    /// `sets`: the request has features to set. It is refused, because tables cannot be configured.
    TableFeatures {
        sets: bool,
    },
    PortDescription,
    Experimenter(Experimenter),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StatsReply {
    Description(Description),
    Flow(Vec<FlowStats>),
    Aggregate { packets: u64, bytes: u64, flows: u32 },
    Table(Vec<TableStats>),
    Port(Vec<PortStats>),
    Queue(Vec<QueueStats>),
    Group(Vec<GroupStats>),
    GroupDescription(Vec<crate::flow::Group>),
    GroupFeatures(GroupFeatures),
    Meter(Vec<MeterStats>),
    MeterConfig(Vec<Meter>),
    MeterFeatures(MeterFeatures),
    TableFeatures(Vec<TableFeatures>),
    PortDescription(Vec<PortDescription>),
    Experimenter(Experimenter),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    pub manufacturer: Vec<u8>,
    pub hardware: Vec<u8>,
    pub software: Vec<u8>,
    pub serial: Vec<u8>,
    pub datapath: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableStats {
    pub table: TableId,
    /// 1.0 only, like the next two fields.
    pub name: Vec<u8>,
    pub wildcards: u32,
    pub max_entries: u32,
    pub active: u32,
    pub lookups: u64,
    pub matched: u64,
}

/// Counters of a port. `u64::MAX`: unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortStats {
    pub port: RulePort,
    pub rx_packets: u64,
    pub tx_packets: u64,
    pub rx_bytes: u64,
    pub tx_bytes: u64,
    pub rx_dropped: u64,
    pub tx_dropped: u64,
    pub rx_errors: u64,
    pub tx_errors: u64,
    pub rx_frame_errors: u64,
    pub rx_over_errors: u64,
    pub rx_crc_errors: u64,
    pub collisions: u64,
    /// 1.3.
    pub duration_sec: u32,
    pub duration_nsec: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueStats {
    pub port: RulePort,
    pub queue: u32,
    pub tx_bytes: u64,
    pub tx_packets: u64,
    pub tx_errors: u64,
    /// 1.3.
    pub duration_sec: u32,
    pub duration_nsec: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueDescription {
    pub queue: u32,
    /// 1.3; 1.0 names the port only once.
    pub port: RulePort,
    /// Tenths of a percent; `None`: no minimum.
    pub min_rate: Option<u16>,
    /// 1.3.
    pub max_rate: Option<u16>,
}

/// Arrays are indexed by [`GroupKind`] in the order of OFPGT: all, select, indirect, fast failover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupFeatures {
    /// Bitmap of OFPGT.
    pub types: u32,
    pub capabilities: u32,
    pub max_groups: [u32; 4],
    /// Bitmaps of OFPAT.
    pub actions: [u32; 4],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeterFeatures {
    pub max_meters: u32,
    /// Bitmap of OFPMBT.
    pub band_types: u32,
    /// Bitmap of OFPMF.
    pub capabilities: u32,
    pub max_bands: u8,
    pub max_color: u8,
}

/// The abilities of a table (1.3 section A.3.5.5). They are the same for rules of any priority and the
/// table-miss rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableFeatures {
    pub table: TableId,
    pub name: Vec<u8>,
    pub metadata_match: u64,
    pub metadata_write: u64,
    pub max_entries: u32,
    /// Bitmap of OFPIT: bit n is instruction type n.
    pub instructions: u32,
    /// Later tables that its rules may go to.
    pub next_tables: Vec<TableId>,
    /// Bitmap of OFPAT, the same for apply and write.
    pub actions: u32,
    pub matches: Vec<Field>,
    pub set_fields: Vec<Field>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Only asks for the current role.
    NoChange,
    Equal,
    Master,
    Slave,
}

/// Which asynchronous messages a controller wants, as bitmaps of reasons: [master or equal, slave].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncConfig {
    pub packet_in: [u32; 2],
    pub port_status: [u32; 2],
    pub flow_removed: [u32; 2],
}

/// What is wrong with a received message. Each version has its own type and code for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadMessage {
    #[error("a version that is not supported")]
    Version,
    #[error("an unknown message type")]
    Type,
    #[error("an unknown kind of statistics")]
    StatsType,
    #[error("an unknown vendor or experimenter")]
    Experimenter,
    #[error("an unknown message of this experimenter")]
    ExperimenterType,
    #[error("a wrong length")]
    Length,
    #[error("an invalid port")]
    Port,
    #[error("an invalid table")]
    Table,
    #[error("a packet that is not buffered, or no longer")]
    BufferUnknown,
    #[error("a buffered packet that has already been sent")]
    BufferEmpty,
    #[error("a wrong length in an action")]
    ActionLength,
    #[error("an action of an unknown experimenter")]
    ActionExperimenter,
    #[error("an unknown action of this experimenter")]
    ActionExperimenterType,
    #[error("a wrong length in an instruction")]
    InstructionLength,
    #[error("an instruction of an unknown experimenter")]
    InstructionExperimenter,
    #[error("an unknown instruction")]
    InstructionType,
    #[error("an unknown kind of match")]
    MatchType,
    #[error("a wrong length in a match")]
    MatchLength,
    #[error("a value has bits where its mask has none")]
    Wildcards,
    #[error("a wrong length in a field to set")]
    SetFieldLength,
    #[error("a field cannot be set to this value")]
    SetFieldValue,
    #[error("unknown flags for a rule or meter")]
    Flags,
    #[error("an unknown type of group")]
    GroupType,
    #[error("a malformed bucket")]
    Bucket,
    #[error("an invalid role")]
    Role,
    #[error("a role whose generation is out of date")]
    RoleStale,
    #[error("the wrong address for a port")]
    PortAddress,
    #[error("port settings that are not supported")]
    PortConfig,
    #[error("a feature that the port lacks")]
    PortAdvertise,
    #[error("switch settings that are not supported")]
    SwitchConfig,
    #[error("table features that cannot be set")]
    TableFeatures,
    #[error("not allowed for a slave")]
    IsSlave,
    #[error("out of room")]
    TooBig,
    #[error(transparent)]
    Refused(#[from] Refused),
}
