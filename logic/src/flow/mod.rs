//! Flow rules, in the words of no protocol version.
//!
//! | file | holds |
//! |---|---|
//! | `field` | the fields that can be matched: one table for matcher, codecs, text and kernel plane |
//! | `key` | a packet's fields as bytes; matches over them |
//! | `action` | actions and instructions |
//! | `packet` | a packet's bytes to its key: where fields are |
//! | `execute`, `checksum` | actions on the bytes of a packet |
//! | `group` | which buckets of a group a packet takes |
//! | `pipeline` | a packet through tables and groups: what user space does with it |
//! | `rule` | changes and statistics that a controller asks for, and why they are refused |
//! | `flows` | tables and kernel plane kept together: what the daemon talks to |
//! | `program` | what the kernel plane does for a rule's instructions, and what is left to user space |
//! | `explain` | which rules decide about a packet, what becomes of it, and who does it, told to people |
//! | `slow` | why something is left to user space, in words |
//! | `kernel` | how rules become words of memory, and when cached flows die |
//! | `table` | the flow tables: what a change does, which rule a packet gets, which rules end |
//! | `text` | `ovs-ofctl`'s syntax for all of them |
//!
//! The codecs in [`crate::openflow`] translate between these and the wire.

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
