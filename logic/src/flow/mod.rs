//! Flow rules, independent of the protocol version.
//!
//! | file | holds |
//! |---|---|
//! | `field` | the fields that can be matched: one table for matcher, codecs, text and kernel plane |
//! | `key` | a packet's fields as bytes; matches over them |
//! | `action` | actions and instructions |
//! | `packet` | from a packet's bytes to its key: where fields are |
//! | `execute`, `checksum` | actions on the bytes of a packet |
//! | `group` | which buckets of a group a packet takes |
//! | `pipeline` | a packet's way through tables and groups, as user space does it |
//! | `rule` | changes and statistics that a controller asks for, and the reasons to refuse them |
//! | `flows` | tables and kernel plane kept together: the interface for the daemon |
//! | `program` | compiles a rule's instructions for the kernel plane, or leaves them to user space |
//! | `explain` | which rules decide about a packet, what happens to it, and which plane does the work |
//! | `slow` | why the kernel plane leaves something to user space, in words |
//! | `kernel` | how rules become words of memory, and when cached decisions die |
//! | `table` | the flow tables: what a change does, which rule a packet gets, which rules end |
//! | `text` | the syntax of `ovs-ofctl` for all of these |
//!
//! The codecs in [`crate::openflow`] translate between these types and the wire.

pub mod action;
pub(crate) mod checksum;
pub mod execute;
pub mod explain;
pub mod field;
pub mod flows;
pub mod group;
pub mod kernel;
pub mod key;
pub mod packet;
pub mod pipeline;
pub mod program;
pub mod rule;
pub mod slow;
pub mod table;
pub mod text;

pub use action::{Action, CoreChoice, FcfPlace, Instructions, RulePort, Vxlan};
pub use field::Field;
pub use key::{Key, Match};
pub use pipeline::PacketInReason;
pub use rule::{
    FlowCommand, FlowFilter, FlowFlags, FlowMod, FlowRemoved, FlowStats, Group, GroupKind, GroupMod,
    GroupStats, Meter, MeterMod, MeterStats, Refused, Removed, TableId,
};
pub use table::{Change, Dialect, RuleId, Tables};
