//! OpenFlow 1.0.2 and 1.3.5 on the wire: bytes to [`Message`] and back. Formats only; what messages mean is
//! [`crate::flow`] and the agent in `router`.
//!
//! A decoder never panics and never allocates more than a small multiple of what it was given. What a version cannot say is
//! refused ([`CannotSay`]), not left out.
//!
//! | file | holds |
//! |---|---|
//! | `message` | messages in the words of no version |
//! | `wire` | the header, framing, and a bounded reader |
//! | `v10`, `v13` | the two codecs, each with its error numbers |
//! | `agent` | the switch's side of it all |
//! | `extension` | our vendor messages and actions, the same in both |

pub mod agent;
pub mod extension;
pub mod message;
pub mod v10;
pub mod v13;
pub mod wire;

pub use message::{BadMessage, Message};

/// The experimenter (in 1.0: vendor) of our own fields, actions and messages, "MLRC". No id is registered for us, so this is a
/// constant of ours; its first byte is not 0, so that it is nobody's OUI (1.3 section 7.5.4).
pub const EXPERIMENTER: u32 = 0x4d4c_5243;

/// Why a message cannot be written in a version: the thing it does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("OpenFlow {version} cannot say {what}")]
pub struct CannotSay {
    /// "1.0" or "1.3".
    pub version: &'static str,
    pub what: &'static str,
}
