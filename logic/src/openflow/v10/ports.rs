//! Ports and their queues: port description (section 5.2.1), features reply (5.3.1), port-mod (5.3.3), queue configuration
//! (5.2.2, 5.3.4).

use super::{
    super::message::{Features, PortDescription, PortFeatures, PortMod, PortState, QueueDescription},
    BadMessage, CannotSay, PORT, Reader, Write, cannot,
};
use crate::{
    flow::RulePort,
    openflow::{
        common::{MAC, PORT_CONFIG, PORT_NAME},
        format::{Format, Layout, List, Pad, U8, U16, U32, layout},
    },
};

/// OFPPS_LINK_DOWN and OFPPS_STP_MASK.
const LINK_DOWN: u32 = 1 << 0;
const STP: u32 = 3 << 8;

/// OFPPF: rates up to 10 Gbit/s have the same bits as in 1.3. The bits of the medium and of negotiation begin at bit 7; in
/// 1.3 they begin at bit 11.
const RATES: u32 = (1 << 7) - 1;
const MEDIUM: u32 = (1 << 12) - (1 << 7);
const MEDIUM_SHIFT: u32 = 11 - 7;

/// OFPQT_MIN_RATE.
const MIN_RATE: u16 = 1;

pub const DESCRIPTION: Layout<PortDescription> = layout!(
    PortDescription {
        port: PORT,
        mac: MAC,
        name: PORT_NAME,
        config: PORT_CONFIG,
        state: STATE,
        current: PORT_FEATURES,
        advertised: PORT_FEATURES,
        supported: PORT_FEATURES,
        peer: PORT_FEATURES,
    },
    absent { current_speed: 0, max_speed: 0 }
);

const STATE: Layout<PortState> = Layout(
    |r| {
        let state = r.u32()?;
        Ok(PortState { link_down: state & LINK_DOWN != 0, stp: state & STP, ..PortState::default() })
    },
    |state, out| U32.write(&(if state.link_down { LINK_DOWN } else { 0 } | state.stp & STP), out),
);

/// Leaves out the rates that 1.0 does not have.
const PORT_FEATURES: Layout<PortFeatures> =
    Layout(|r| r.u32().map(from_bits), |features, out| U32.write(&to_bits(*features), out));

fn from_bits(bits: u32) -> PortFeatures {
    PortFeatures(bits & RATES | (bits & MEDIUM) << MEDIUM_SHIFT)
}

fn to_bits(features: PortFeatures) -> u32 {
    features.0 & RATES | features.0 >> MEDIUM_SHIFT & MEDIUM
}

pub const FEATURES: Layout<Features> = Layout(read_features, write_features);

fn read_features(r: &mut Reader<'_>) -> Result<Features, BadMessage> {
    let (datapath_id, buffers, tables) = (r.u64()?, r.u32()?, Pad(U8, 3).read(r)?);
    let (capabilities, actions, ports) = (r.u32()?, r.u32()?, List(DESCRIPTION).read(r)?);
    Ok(Features {
        datapath_id,
        buffers,
        tables,
        auxiliary_id: 0,
        capabilities,
        actions: Some(actions),
        ports: Some(ports),
    })
}

fn write_features(features: &Features, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    let (Some(actions), Some(ports), 0) = (features.actions, &features.ports, features.auxiliary_id) else {
        return Err(cannot("features without actions and ports, or an auxiliary connection"));
    };
    out.u64(features.datapath_id);
    out.u32(features.buffers);
    out.u8(features.tables);
    out.zeros(3);
    out.u32(features.capabilities);
    out.u32(actions);
    List(DESCRIPTION).write(ports, out)
}

pub const PORT_MOD: Layout<PortMod> = layout!(PortMod {
    port: PORT,
    mac: MAC,
    config: PORT_CONFIG,
    mask: PORT_CONFIG,
    advertise: Pad(ADVERTISED, 4),
});

const ADVERTISED: Layout<PortFeatures> = Layout(
    |r| PORT_FEATURES.read(r),
    |features, out| match from_bits(to_bits(*features)) == *features {
        true => PORT_FEATURES.write(features, out),
        false => Err(cannot("these features of a port")),
    },
);

pub fn read_queues(r: &mut Reader<'_>) -> Result<(RulePort, Vec<QueueDescription>), BadMessage> {
    let port = Pad(PORT, 6).read(r)?;
    let mut queues = Vec::new();
    while !r.is_empty() {
        queues.push(read_queue(port, r)?);
    }
    Ok((port, queues))
}

/// Reads `struct ofp_packet_queue`. Properties that 1.0 does not have are left out.
fn read_queue(port: RulePort, r: &mut Reader<'_>) -> Result<QueueDescription, BadMessage> {
    let mut r = r.structure(4, BadMessage::Length)?;
    let queue = Pad(U32, 4).read(&mut r)?;
    let mut min_rate = None;
    while !r.is_empty() {
        let mut property = r.structure(2, BadMessage::Length)?;
        let kind = property.u16()?;
        property.skip(6)?;
        if kind == MIN_RATE {
            min_rate = Some(Pad(U16, 6).read(&mut property)?);
        }
    }
    Ok(QueueDescription { queue, port, min_rate, max_rate: None })
}

pub fn write_queues(
    port: &RulePort,
    queues: &[QueueDescription],
    out: &mut Vec<u8>,
) -> Result<(), CannotSay> {
    if queues.iter().any(|queue| queue.port != *port) {
        return Err(cannot("queues of several ports"));
    }
    out.u16(port.0);
    out.zeros(6);
    for queue in queues {
        let from = out.len();
        out.u32(queue.queue);
        out.zeros(4);
        if let Some(rate) = queue.min_rate {
            out.u16(MIN_RATE);
            out.u16(16);
            out.zeros(4);
            out.u16(rate);
            out.zeros(6);
        }
        out.patch_length(from + 4, from);
    }
    Ok(())
}
