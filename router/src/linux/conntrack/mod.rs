//! Connections that Linux tracks (`include/uapi/linux/netfilter/nfnetlink_conntrack.h`).
//!
//! | file | holds |
//! |---|---|
//! | [`message`] | parsers: one connection, and the end of one |
//! | [`tracker`] | requests about single connections |
//! | [`ends`] | reports of connections that end |
//! | [`settings`] | timeouts and other settings of a namespace |
//! | [`translated`](translated()) | the addresses of all translated connections |

pub mod ends;
pub mod message;
pub mod settings;
pub mod tracker;
mod translated;

pub(crate) use translated::addresses;
pub use translated::translated;

/// `NFNL_SUBSYS_CTNETLINK`
const SUBSYSTEM: u16 = 1 << 8;
/// `IPCTNL_MSG_CT_*`
const NEW: u16 = SUBSYSTEM;
const GET: u16 = SUBSYSTEM | 1;
const DELETE: u16 = SUBSYSTEM | 2;

/// `CTA_*`
const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const STATUS: u16 = 3;
const PROTOCOL_INFO: u16 = 4;
const HELP: u16 = 5;
const TIMEOUT: u16 = 7;
const COUNTERS_ORIGINAL: u16 = 9;
const SEQUENCE_SHIFT_ORIGINAL: u16 = 15;
const SEQUENCE_SHIFT_REPLY: u16 = 16;
const ZONE: u16 = 18;
const SYN_PROXY: u16 = 24;
const STATUS_MASK: u16 = 26;

/// `CTA_TUPLE_*`
const TUPLE_IP: u16 = 1;
const TUPLE_PROTOCOL: u16 = 2;
const TUPLE_ZONE: u16 = 3;
/// `CTA_IP_*`
const SOURCE_4: u16 = 1;
const DESTINATION_4: u16 = 2;
const SOURCE_6: u16 = 3;
const DESTINATION_6: u16 = 4;
/// `CTA_PROTO_*`
const PROTOCOL_NUMBER: u16 = 1;
const SOURCE_PORT: u16 = 2;
const DESTINATION_PORT: u16 = 3;
/// `CTA_PROTOINFO_TCP`, and `CTA_PROTOINFO_TCP_*` in it.
const INFO_TCP: u16 = 1;
const TCP_STATE: u16 = 1;
const TCP_FLAGS_ORIGINAL: u16 = 4;
const TCP_FLAGS_REPLY: u16 = 5;
