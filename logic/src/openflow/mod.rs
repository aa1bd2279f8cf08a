//! OpenFlow 1.0.2 and 1.3.5 on the wire: bytes to [`Message`] and back. The codecs know only formats. [`crate::flow`] and
//! [`agent`] know what messages mean.
//!
//! A decoder never panics, and never allocates more than a small multiple of its input. A message that a version cannot
//! express is refused ([`CannotSay`]), not shortened.
//!
//! | file | holds |
//! |---|---|
//! | `message` | messages, independent of the version |
//! | `wire` | the header, framing, and a bounded reader |
//! | `format` | how values stand in a message, described once for reading and writing |
//! | `common` | formats that both versions have |
//! | `v10`, `v13` | the two codecs, each with its error numbers |
//! | `agent` | the switch's side of the protocol |
//! | `extension` | our vendor messages and actions, the same in both versions |

pub mod agent;
mod common;
pub mod extension;
mod format;
pub mod message;
pub mod v10;
pub mod v13;
pub mod wire;

pub use message::{BadMessage, Message};

/// The experimenter id (in 1.0: vendor) of our own fields, actions and messages, "MLRC". It is not registered. Its first
/// byte is not 0, so it is no OUI (1.3 section 7.5.4).
pub const EXPERIMENTER: u32 = 0x4d4c_5243;

/// A version cannot express a message; `what` names the part that the version lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("OpenFlow {version} cannot express {what}")]
pub struct CannotSay {
    /// "1.0" or "1.3".
    pub version: &'static str,
    pub what: &'static str,
}
