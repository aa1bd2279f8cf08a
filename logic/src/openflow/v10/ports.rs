//! Ports and their queues: port description (section 5.2.1), features reply (5.3.1), port-mod (5.3.3), queue configuration
//! (5.2.2, 5.3.4).

use super::{
    super::message::{
        Features, PortConfig, PortDescription, PortFeatures, PortMod, PortState, QueueDescription,
    },
    BadMessage, CannotSay, Reader, Write, cannot,
};
use crate::{flow::RulePort, net::Mac};

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

const NAME_BYTES: usize = 16;

pub fn read_description(r: &mut Reader<'_>) -> Result<PortDescription, BadMessage> {
    let (port, mac, name) = (RulePort(r.u16()?), Mac(r.array()?), r.text(NAME_BYTES)?);
    let (config, state) = (PortConfig(r.u32()?), r.u32()?);
    Ok(PortDescription {
        port,
        mac,
        name,
        config,
        state: PortState { link_down: state & LINK_DOWN != 0, stp: state & STP, ..PortState::default() },
        current: read_features_bits(r)?,
        advertised: read_features_bits(r)?,
        supported: read_features_bits(r)?,
        peer: read_features_bits(r)?,
        current_speed: 0,
        max_speed: 0,
    })
}

pub fn write_description(port: &PortDescription, out: &mut Vec<u8>) {
    out.u16(port.port.0);
    out.extend_from_slice(&port.mac.0);
    out.text(&port.name, NAME_BYTES);
    out.u32(port.config.0);
    out.u32(if port.state.link_down { LINK_DOWN } else { 0 } | port.state.stp & STP);
    for features in [port.current, port.advertised, port.supported, port.peer] {
        out.u32(features_bits(features));
    }
}

fn read_features_bits(r: &mut Reader<'_>) -> Result<PortFeatures, BadMessage> {
    let bits = r.u32()?;
    Ok(PortFeatures(bits & RATES | (bits & MEDIUM) << MEDIUM_SHIFT))
}

/// Leaves out the rates that 1.0 does not have.
fn features_bits(features: PortFeatures) -> u32 {
    features.0 & RATES | features.0 >> MEDIUM_SHIFT & MEDIUM
}

pub fn read_features(r: &mut Reader<'_>) -> Result<Features, BadMessage> {
    let (datapath_id, buffers, tables) = (r.u64()?, r.u32()?, r.u8()?);
    r.skip(3)?;
    let (capabilities, actions) = (r.u32()?, r.u32()?);
    let mut ports = Vec::new();
    while !r.is_empty() {
        ports.push(read_description(r)?);
    }
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

pub fn write_features(features: &Features, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    let (Some(actions), Some(ports), 0) = (features.actions, &features.ports, features.auxiliary_id) else {
        return Err(cannot("features without actions and ports, or an auxiliary connection"));
    };
    out.u64(features.datapath_id);
    out.u32(features.buffers);
    out.u8(features.tables);
    out.zeros(3);
    out.u32(features.capabilities);
    out.u32(actions);
    ports.iter().for_each(|port| write_description(port, out));
    Ok(())
}

pub fn read_mod(r: &mut Reader<'_>) -> Result<PortMod, BadMessage> {
    let (port, mac) = (RulePort(r.u16()?), Mac(r.array()?));
    let (config, mask) = (PortConfig(r.u32()?), PortConfig(r.u32()?));
    let advertise = read_features_bits(r)?;
    r.skip(4)?;
    Ok(PortMod { port, mac, config, mask, advertise })
}

pub fn write_mod(change: &PortMod, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    let advertise = features_bits(change.advertise);
    if advertise & RATES | (advertise & MEDIUM) << MEDIUM_SHIFT != change.advertise.0 {
        return Err(cannot("these features of a port"));
    }
    out.u16(change.port.0);
    out.extend_from_slice(&change.mac.0);
    out.u32(change.config.0);
    out.u32(change.mask.0);
    out.u32(advertise);
    out.zeros(4);
    Ok(())
}

pub fn read_queues(r: &mut Reader<'_>) -> Result<(RulePort, Vec<QueueDescription>), BadMessage> {
    let port = RulePort(r.u16()?);
    r.skip(6)?;
    let mut queues = Vec::new();
    while !r.is_empty() {
        queues.push(read_queue(port, r)?);
    }
    Ok((port, queues))
}

/// Reads `struct ofp_packet_queue`. Properties that 1.0 does not have are left out.
fn read_queue(port: RulePort, r: &mut Reader<'_>) -> Result<QueueDescription, BadMessage> {
    let (queue, length) = (r.u32()?, usize::from(r.u16()?));
    r.skip(2)?;
    let mut properties = r.part(length.checked_sub(8).ok_or(BadMessage::Length)?, BadMessage::Length)?;
    let mut min_rate = None;
    while !properties.is_empty() {
        let (kind, length) = (properties.u16()?, usize::from(properties.u16()?));
        let mut body =
            properties.part(length.checked_sub(4).ok_or(BadMessage::Length)?, BadMessage::Length)?;
        body.skip(4)?;
        if kind == MIN_RATE {
            min_rate = Some(body.u16()?);
            body.skip(6)?;
        }
    }
    Ok(QueueDescription { queue, port, min_rate, max_rate: None })
}

pub fn write_queues(port: RulePort, queues: &[QueueDescription], out: &mut Vec<u8>) -> Result<(), CannotSay> {
    if queues.iter().any(|queue| queue.port != port) {
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
