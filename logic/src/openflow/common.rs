//! Formats that are the same in both versions. Sections are those of 1.3.

use super::{
    BadMessage,
    format::{Format, Layout, OneOf, Pad, REST, Text, U8, U16, U32, layout},
    message::{Config, Description, ErrorMessage, Fragments, PortConfig, PortReason},
};
use crate::{flow::FlowCommand, net::Mac};

pub const MAC: Layout<Mac> = Layout(
    |r| r.array().map(Mac),
    |mac, out| {
        out.extend_from_slice(&mac.0);
        Ok(())
    },
);

/// OFP_MAX_PORT_NAME_LEN and OFP_MAX_TABLE_NAME_LEN.
pub const PORT_NAME: Text = Text(16);
pub const TABLE_NAME: Text = Text(32);

/// Section 7.4.4. For an experimenter's error (type 0xffff), the code is its `exp_type`, and `data` begins with its id.
pub const ERROR: Layout<ErrorMessage> = layout!(ErrorMessage { kind: U16, code: U16, data: REST });

/// Section 7.3.2.
pub const CONFIG: Layout<Config> =
    layout!(Config { fragments: OneOf(U16, FRAGMENTS, BadMessage::SwitchConfig), miss_send_len: U16 });
const FRAGMENTS: &[Fragments] = &[Fragments::Normal, Fragments::Drop, Fragments::Reassemble];

/// OFPFC.
pub const COMMANDS: &[FlowCommand] = &[
    FlowCommand::Add,
    FlowCommand::Modify { strict: false },
    FlowCommand::Modify { strict: true },
    FlowCommand::Delete { strict: false },
    FlowCommand::Delete { strict: true },
];

/// OFPPR (section 7.4.3). Only a switch sends reasons, so the specification has no error for an unknown one.
pub const PORT_REASON: Pad<OneOf<U8, PortReason>> =
    Pad(OneOf(U8, &[PortReason::Add, PortReason::Delete, PortReason::Modify], BadMessage::Type), 7);

pub const PORT_CONFIG: Layout<PortConfig> =
    Layout(|r| r.u32().map(PortConfig), |config, out| U32.write(&config.0, out));

/// Section 7.3.5.1.
pub const DESCRIPTION: Layout<Description> = layout!(Description {
    manufacturer: Text(256),
    hardware: Text(256),
    software: Text(256),
    serial: Text(32),
    datapath: Text(256),
});
