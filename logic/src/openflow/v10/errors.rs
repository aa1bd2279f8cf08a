//! The type and code of every error (section 5.4.4).
//!
//! If 1.0 has no code for an error, the nearest one is used. Some of these errors cannot result from a 1.0 message; for
//! others, the code names what the error prevents.

use super::{super::message::ErrorMessage, BadMessage, HEADER, Header, kind};
use crate::flow::Refused;

/// How much of the offending message is returned: the amount that section 5.4.4 asks for.
const DATA_BYTES: usize = 64;

/// The error message for `offending`, a message with its header.
pub fn error(bad: BadMessage, offending: &[u8]) -> ErrorMessage {
    let about = About::of(offending);
    if (bad, about) == (BadMessage::Version, About::Hello) {
        // OFPHFC_INCOMPATIBLE, with a text.
        return ErrorMessage { kind: HELLO_FAILED, code: 0, data: bad.to_string().into_bytes() };
    }
    let (kind, code) = number(bad, about);
    ErrorMessage { kind, code, data: offending[..offending.len().min(DATA_BYTES)].to_vec() }
}

/// The kind of the offending message. Some faults have a different error for each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum About {
    Hello,
    PortMod,
    PacketOut,
    Queue,
    Stats,
    Other,
}

impl About {
    fn of(message: &[u8]) -> About {
        match Header::read(message).map(|header| header.kind) {
            Some(kind::HELLO) => About::Hello,
            Some(kind::PORT_MOD) => About::PortMod,
            Some(kind::PACKET_OUT) => About::PacketOut,
            Some(kind::QUEUE_GET_CONFIG_REQUEST) => About::Queue,
            Some(kind::STATS_REQUEST) => match message.get(HEADER..HEADER + 2) {
                Some(&[0, QUEUE_STATS]) => About::Queue,
                _ => About::Stats,
            },
            _ => About::Other,
        }
    }
}

/// OFPST_QUEUE.
const QUEUE_STATS: u8 = 5;

/// OFPET.
const HELLO_FAILED: u16 = 0;
const BAD_REQUEST: u16 = 1;
const BAD_ACTION: u16 = 2;
const FLOW_MOD_FAILED: u16 = 3;
const PORT_MOD_FAILED: u16 = 4;
const QUEUE_OP_FAILED: u16 = 5;

// OFPBRC.
const BAD_VERSION: (u16, u16) = (BAD_REQUEST, 0);
const BAD_TYPE: (u16, u16) = (BAD_REQUEST, 1);
const BAD_STAT: (u16, u16) = (BAD_REQUEST, 2);
const BAD_VENDOR: (u16, u16) = (BAD_REQUEST, 3);
const BAD_SUBTYPE: (u16, u16) = (BAD_REQUEST, 4);
const EPERM: (u16, u16) = (BAD_REQUEST, 5);
const BAD_LEN: (u16, u16) = (BAD_REQUEST, 6);
const BUFFER_EMPTY: (u16, u16) = (BAD_REQUEST, 7);
const BUFFER_UNKNOWN: (u16, u16) = (BAD_REQUEST, 8);
// OFPBAC.
const ACTION_TYPE: (u16, u16) = (BAD_ACTION, 0);
const ACTION_LEN: (u16, u16) = (BAD_ACTION, 1);
const ACTION_VENDOR: (u16, u16) = (BAD_ACTION, 2);
const ACTION_VENDOR_TYPE: (u16, u16) = (BAD_ACTION, 3);
const ACTION_OUT_PORT: (u16, u16) = (BAD_ACTION, 4);
const ACTION_ARGUMENT: (u16, u16) = (BAD_ACTION, 5);
const ACTION_TOO_MANY: (u16, u16) = (BAD_ACTION, 7);
const ACTION_QUEUE: (u16, u16) = (BAD_ACTION, 8);
// OFPFMFC.
const TABLES_FULL: (u16, u16) = (FLOW_MOD_FAILED, 0);
const OVERLAP: (u16, u16) = (FLOW_MOD_FAILED, 1);
const FLOW_EPERM: (u16, u16) = (FLOW_MOD_FAILED, 2);
const EMERG_TIMEOUT: (u16, u16) = (FLOW_MOD_FAILED, 3);
const FLOW_COMMAND: (u16, u16) = (FLOW_MOD_FAILED, 4);
/// An action list that cannot be done in its order.
const FLOW_UNSUPPORTED: (u16, u16) = (FLOW_MOD_FAILED, 5);
// OFPPMFC.
const PORT_MOD_PORT: (u16, u16) = (PORT_MOD_FAILED, 0);
const PORT_MOD_ADDRESS: (u16, u16) = (PORT_MOD_FAILED, 1);
// OFPQOFC.
const QUEUE_PORT: (u16, u16) = (QUEUE_OP_FAILED, 0);
const QUEUE_QUEUE: (u16, u16) = (QUEUE_OP_FAILED, 1);

fn number(bad: BadMessage, about: About) -> (u16, u16) {
    match bad {
        BadMessage::Version => BAD_VERSION,
        BadMessage::Type => BAD_TYPE,
        BadMessage::StatsType | BadMessage::TableFeatures => BAD_STAT,
        BadMessage::Experimenter | BadMessage::InstructionExperimenter => BAD_VENDOR,
        BadMessage::ExperimenterType => BAD_SUBTYPE,
        BadMessage::Length
        | BadMessage::TooBig
        | BadMessage::InstructionLength
        | BadMessage::MatchType
        | BadMessage::MatchLength => BAD_LEN,
        // 1.0 has no error for the ingress port of a packet-out; 1.3 has OFPBRC_BAD_PORT.
        BadMessage::Port if about == About::PacketOut => EPERM,
        BadMessage::Port => port(about),
        BadMessage::BufferUnknown => BUFFER_UNKNOWN,
        BadMessage::BufferEmpty => BUFFER_EMPTY,
        BadMessage::ActionLength | BadMessage::SetFieldLength => ACTION_LEN,
        BadMessage::SetFieldValue => ACTION_ARGUMENT,
        BadMessage::ActionExperimenter => ACTION_VENDOR,
        BadMessage::ActionExperimenterType => ACTION_VENDOR_TYPE,
        BadMessage::InstructionType => FLOW_UNSUPPORTED,
        BadMessage::Flags | BadMessage::Wildcards => FLOW_EPERM,
        // No 1.0 message asks for groups.
        BadMessage::GroupType | BadMessage::Bucket => BAD_TYPE,
        BadMessage::PortAddress => PORT_MOD_ADDRESS,
        BadMessage::Table
        | BadMessage::Role
        | BadMessage::RoleStale
        | BadMessage::PortConfig
        | BadMessage::PortAdvertise
        | BadMessage::SwitchConfig
        | BadMessage::IsSlave => EPERM,
        BadMessage::Refused(refused) => of_refused(refused, about),
    }
}

fn of_refused(refused: Refused, about: About) -> (u16, u16) {
    match refused {
        Refused::TableFull | Refused::TooManyMasks => TABLES_FULL,
        Refused::Overlap => OVERLAP,
        Refused::BadCommand => FLOW_COMMAND,
        Refused::Emergency => EMERG_TIMEOUT,
        Refused::BadPort => port(about),
        Refused::BadQueue if about == About::Queue => QUEUE_QUEUE,
        Refused::BadQueue => ACTION_QUEUE,
        Refused::BadAction => ACTION_TYPE,
        Refused::BadArgument
        | Refused::BadSetField
        | Refused::BadGroup
        | Refused::UnknownGroup
        | Refused::UnknownMeter => ACTION_ARGUMENT,
        Refused::TooManyActions => ACTION_TOO_MANY,
        Refused::InconsistentAction
        | Refused::UnsupportedOrder
        | Refused::BadInstruction
        | Refused::BadGoto => FLOW_UNSUPPORTED,
        Refused::BadTable
        | Refused::BadField
        | Refused::Prerequisite
        | Refused::BadValue
        | Refused::BadMask
        | Refused::DuplicateField => FLOW_EPERM,
        // No 1.0 message asks for groups or meters.
        Refused::GroupExists
        | Refused::InvalidGroup
        | Refused::GroupLoop
        | Refused::GroupChain
        | Refused::TooManyGroups
        | Refused::TooManyBuckets
        | Refused::ChainedGroup
        | Refused::BadWatch
        | Refused::MeterExists
        | Refused::InvalidMeter
        | Refused::BadRate
        | Refused::BadBurst
        | Refused::BadBand
        | Refused::TooManyMeters
        | Refused::TooManyBands => BAD_TYPE,
    }
}

/// The error for a bad port, which depends on the message.
fn port(about: About) -> (u16, u16) {
    match about {
        About::PortMod => PORT_MOD_PORT,
        About::Queue => QUEUE_PORT,
        // There is no error for the port of statistics.
        About::Stats => EPERM,
        About::Hello | About::PacketOut | About::Other => ACTION_OUT_PORT,
    }
}
