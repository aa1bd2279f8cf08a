//! Type and code of each error (section 7.4.4).

use super::{kind, multipart::part};
use crate::{
    flow::Refused,
    openflow::{BadMessage, message::ErrorMessage},
};

/// OFPET: error types.
const HELLO_FAILED: u16 = 0;
const BAD_REQUEST: u16 = 1;
const BAD_ACTION: u16 = 2;
const BAD_INSTRUCTION: u16 = 3;
const BAD_MATCH: u16 = 4;
const FLOW_MOD_FAILED: u16 = 5;
const GROUP_MOD_FAILED: u16 = 6;
const PORT_MOD_FAILED: u16 = 7;
const TABLE_MOD_FAILED: u16 = 8;
const QUEUE_OP_FAILED: u16 = 9;
const SWITCH_CONFIG_FAILED: u16 = 10;
const ROLE_REQUEST_FAILED: u16 = 11;
const METER_MOD_FAILED: u16 = 12;
const TABLE_FEATURES_FAILED: u16 = 13;

/// How many bytes of the offending message an error contains, at most.
const SHOWN: usize = 64;

/// The kind of the offending message. Some faults have a different error for each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum About {
    Flow,
    Group,
    Port,
    Table,
    Meter,
    Queue,
    Other,
}

impl About {
    fn of(message: &[u8]) -> About {
        match message.get(1) {
            Some(&kind::FLOW_MOD) => About::Flow,
            Some(&kind::GROUP_MOD) => About::Group,
            Some(&kind::PORT_MOD) => About::Port,
            Some(&kind::TABLE_MOD) => About::Table,
            Some(&kind::METER_MOD) => About::Meter,
            Some(&kind::QUEUE_GET_CONFIG_REQUEST) => About::Queue,
            Some(&kind::MULTIPART_REQUEST) if message.get(8..10) == Some(&part::QUEUE.to_be_bytes()[..]) => {
                About::Queue
            }
            _ => About::Other,
        }
    }
}

/// The error for the message `offending`, which may be incomplete.
pub fn error(bad: BadMessage, offending: &[u8]) -> ErrorMessage {
    if bad == BadMessage::Version && offending.get(1) == Some(&kind::HELLO) {
        // OFPHFC_INCOMPATIBLE, with a text.
        return ErrorMessage { kind: HELLO_FAILED, code: 0, data: bad.to_string().into_bytes() };
    }
    let (kind, code) = type_and_code(bad, About::of(offending));
    ErrorMessage { kind, code, data: offending[..offending.len().min(SHOWN)].to_vec() }
}

#[rustfmt::skip]
fn type_and_code(bad: BadMessage, about: About) -> (u16, u16) {
    match bad {
        BadMessage::Version => (BAD_REQUEST, 0),                    // BAD_VERSION
        BadMessage::Type => (BAD_REQUEST, 1),                       // BAD_TYPE
        BadMessage::StatsType => (BAD_REQUEST, 2),                  // BAD_MULTIPART
        BadMessage::Experimenter => (BAD_REQUEST, 3),               // BAD_EXPERIMENTER
        BadMessage::ExperimenterType => (BAD_REQUEST, 4),           // BAD_EXP_TYPE
        BadMessage::Length => (BAD_REQUEST, 6),                     // BAD_LEN
        BadMessage::BufferEmpty => (BAD_REQUEST, 7),                // BUFFER_EMPTY
        BadMessage::BufferUnknown => (BAD_REQUEST, 8),              // BUFFER_UNKNOWN
        BadMessage::Table => bad_table(about),
        BadMessage::IsSlave => (BAD_REQUEST, 10),                   // IS_SLAVE
        BadMessage::Port => match about {
            About::Flow => (BAD_ACTION, 4),                         // BAD_OUT_PORT
            About::Port => (PORT_MOD_FAILED, 0),                    // BAD_PORT
            About::Queue => (QUEUE_OP_FAILED, 0),                   // BAD_PORT
            _ => (BAD_REQUEST, 11),                                 // BAD_PORT
        },
        BadMessage::TooBig => (BAD_REQUEST, 13),                    // MULTIPART_BUFFER_OVERFLOW
        BadMessage::ActionLength => (BAD_ACTION, 1),                // BAD_LEN
        BadMessage::ActionExperimenter => (BAD_ACTION, 2),          // BAD_EXPERIMENTER
        BadMessage::ActionExperimenterType => (BAD_ACTION, 3),      // BAD_EXP_TYPE
        BadMessage::SetFieldLength => (BAD_ACTION, 14),             // BAD_SET_LEN
        BadMessage::SetFieldValue => (BAD_ACTION, 15),              // BAD_SET_ARGUMENT
        BadMessage::InstructionType => (BAD_INSTRUCTION, 0),        // UNKNOWN_INST
        BadMessage::InstructionExperimenter => (BAD_INSTRUCTION, 5), // BAD_EXPERIMENTER
        BadMessage::InstructionLength => (BAD_INSTRUCTION, 7),      // BAD_LEN
        BadMessage::MatchType => (BAD_MATCH, 0),                    // BAD_TYPE
        BadMessage::MatchLength => (BAD_MATCH, 1),                  // BAD_LEN
        BadMessage::Wildcards => (BAD_MATCH, 5),                    // BAD_WILDCARDS
        BadMessage::Flags => match about {
            About::Meter => (METER_MOD_FAILED, 5),                  // BAD_FLAGS
            _ => (FLOW_MOD_FAILED, 7),                              // BAD_FLAGS
        },
        BadMessage::GroupType => (GROUP_MOD_FAILED, 10),            // BAD_TYPE
        BadMessage::Bucket => (GROUP_MOD_FAILED, 12),               // BAD_BUCKET
        BadMessage::PortAddress => (PORT_MOD_FAILED, 1),            // BAD_HW_ADDR
        BadMessage::PortConfig => (PORT_MOD_FAILED, 2),             // BAD_CONFIG
        BadMessage::PortAdvertise => (PORT_MOD_FAILED, 3),          // BAD_ADVERTISE
        BadMessage::SwitchConfig => match about {
            About::Table => (TABLE_MOD_FAILED, 1),                  // BAD_CONFIG
            _ => (SWITCH_CONFIG_FAILED, 0),                         // BAD_FLAGS
        },
        BadMessage::RoleStale => (ROLE_REQUEST_FAILED, 0),          // STALE
        BadMessage::Role => (ROLE_REQUEST_FAILED, 2),               // BAD_ROLE
        BadMessage::TableFeatures => (TABLE_FEATURES_FAILED, 5),    // EPERM
        BadMessage::Refused(refused) => refusal(refused, about),
    }
}

#[rustfmt::skip]
fn refusal(refused: Refused, about: About) -> (u16, u16) {
    match refused {
        Refused::BadAction => (BAD_ACTION, 0),                      // BAD_TYPE
        Refused::BadPort => (BAD_ACTION, 4),                        // BAD_OUT_PORT
        Refused::BadArgument => (BAD_ACTION, 5),                    // BAD_ARGUMENT
        Refused::TooManyActions => (BAD_ACTION, 7),                 // TOO_MANY
        Refused::BadQueue => match about {
            About::Queue => (QUEUE_OP_FAILED, 1),                   // BAD_QUEUE
            _ => (BAD_ACTION, 8),                                   // BAD_QUEUE
        },
        Refused::UnknownGroup => (GROUP_MOD_FAILED, 8),             // UNKNOWN_GROUP
        Refused::BadGroup => (BAD_ACTION, 9),                       // BAD_OUT_GROUP
        Refused::InconsistentAction => (BAD_ACTION, 10),            // MATCH_INCONSISTENT
        Refused::UnsupportedOrder => (BAD_ACTION, 11),              // UNSUPPORTED_ORDER
        Refused::BadSetField => (BAD_ACTION, 13),                   // BAD_SET_TYPE
        Refused::BadInstruction => (BAD_INSTRUCTION, 1),            // UNSUP_INST
        Refused::BadGoto => (BAD_INSTRUCTION, 2),                   // BAD_TABLE_ID
        Refused::TooManyMasks => (BAD_MATCH, 5),                    // BAD_WILDCARDS
        Refused::BadField => (BAD_MATCH, 6),                        // BAD_FIELD
        Refused::BadValue => (BAD_MATCH, 7),                        // BAD_VALUE
        Refused::BadMask => (BAD_MATCH, 8),                         // BAD_MASK
        Refused::Prerequisite => (BAD_MATCH, 9),                    // BAD_PREREQ
        Refused::DuplicateField => (BAD_MATCH, 10),                 // DUP_FIELD
        Refused::TableFull => (FLOW_MOD_FAILED, 1),                 // TABLE_FULL
        Refused::BadTable => bad_table(about),
        Refused::Overlap => (FLOW_MOD_FAILED, 3),                   // OVERLAP
        Refused::BadCommand => match about {
            About::Group => (GROUP_MOD_FAILED, 11),                 // BAD_COMMAND
            About::Meter => (METER_MOD_FAILED, 4),                  // BAD_COMMAND
            _ => (FLOW_MOD_FAILED, 6),                              // BAD_COMMAND
        },
        Refused::Emergency => (FLOW_MOD_FAILED, 7),                 // BAD_FLAGS
        Refused::GroupExists => (GROUP_MOD_FAILED, 0),              // GROUP_EXISTS
        Refused::InvalidGroup => (GROUP_MOD_FAILED, 1),             // INVALID_GROUP
        Refused::TooManyGroups => (GROUP_MOD_FAILED, 3),            // OUT_OF_GROUPS
        Refused::TooManyBuckets => (GROUP_MOD_FAILED, 4),           // OUT_OF_BUCKETS
        Refused::GroupLoop => (GROUP_MOD_FAILED, 7),                // LOOP
        Refused::GroupChain => (GROUP_MOD_FAILED, 5),               // CHAINING_UNSUPPORTED
        Refused::ChainedGroup => (GROUP_MOD_FAILED, 9),             // CHAINED_GROUP
        Refused::BadWatch => (GROUP_MOD_FAILED, 13),                // BAD_WATCH
        Refused::MeterExists => (METER_MOD_FAILED, 1),              // METER_EXISTS
        Refused::InvalidMeter => (METER_MOD_FAILED, 2),             // INVALID_METER
        Refused::UnknownMeter => (METER_MOD_FAILED, 3),             // UNKNOWN_METER
        Refused::BadRate => (METER_MOD_FAILED, 6),                  // BAD_RATE
        Refused::BadBurst => (METER_MOD_FAILED, 7),                 // BAD_BURST
        Refused::BadBand => (METER_MOD_FAILED, 8),                  // BAD_BAND
        Refused::TooManyMeters => (METER_MOD_FAILED, 10),           // OUT_OF_METERS
        Refused::TooManyBands => (METER_MOD_FAILED, 11),            // OUT_OF_BANDS
    }
}

fn bad_table(about: About) -> (u16, u16) {
    match about {
        About::Flow => (FLOW_MOD_FAILED, 2),   // BAD_TABLE_ID
        About::Table => (TABLE_MOD_FAILED, 0), // BAD_TABLE
        _ => (BAD_REQUEST, 9),                 // BAD_TABLE_ID
    }
}
