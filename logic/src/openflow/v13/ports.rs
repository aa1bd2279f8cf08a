//! Port numbers, port descriptions and changes, and the queues of a port.

use super::{cannot, list, structure};
use crate::{
    flow::RulePort,
    net::Mac,
    openflow::{
        BadMessage, CannotSay, Message,
        message::{
            PortConfig, PortDescription, PortFeatures, PortMod, PortReason, PortState, QueueDescription,
        },
        wire::{Reader, Write},
    },
};

/// Length of a name in bytes. The last byte is zero (OFP_MAX_PORT_NAME_LEN).
const NAME: usize = 16;
/// OFPPC: the bits of [`PortConfig`] that 1.3 has (section 7.2.1).
const CONFIG: u32 = PortConfig::DOWN | PortConfig::NO_RECV | PortConfig::NO_FWD | PortConfig::NO_PACKET_IN;
/// OFPQT: properties of queues (section 7.2.2).
const MIN_RATE: u16 = 1;
const MAX_RATE: u16 = 2;
/// A higher rate, in tenths of a percent, means that there is none.
const HIGHEST_RATE: u16 = 1000;

/// A port by its 32-bit number. `None` if the number belongs neither to our ports nor to a reserved port.
pub(super) fn from_wire(number: u32) -> Option<RulePort> {
    let real = number <= u32::from(RulePort::MAX.0);
    (real || number >= to_reserved(RulePort::IN_PORT)).then_some(RulePort(number as u16))
}

pub(super) fn to_wire(port: RulePort) -> Result<u32, CannotSay> {
    match port {
        RulePort(number) if port <= RulePort::MAX => Ok(number.into()),
        _ if port >= RulePort::IN_PORT => Ok(to_reserved(port)),
        _ => Err(cannot("this port number")),
    }
}

fn to_reserved(port: RulePort) -> u32 {
    0xffff_0000 | u32::from(port.0)
}

pub(super) fn read(r: &mut Reader<'_>) -> Result<RulePort, BadMessage> {
    from_wire(r.u32()?).ok_or(BadMessage::Port)
}

/// Reads a port and four bytes of padding.
pub(super) fn read_padded(r: &mut Reader<'_>) -> Result<RulePort, BadMessage> {
    let port = read(r)?;
    r.skip(4)?;
    Ok(port)
}

pub(super) fn write_padded(port: RulePort, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    out.u32(to_wire(port)?);
    out.zeros(4);
    Ok(())
}

/// Section 7.4.3.
pub(super) fn read_status(r: &mut Reader<'_>) -> Result<Message, BadMessage> {
    let reason = match r.u8()? {
        0 => PortReason::Add,
        1 => PortReason::Delete,
        2 => PortReason::Modify,
        _ => return Err(BadMessage::Type),
    };
    r.skip(7)?;
    Ok(Message::PortStatus { reason, port: read_description(r)? })
}

pub(super) fn write_status(
    reason: PortReason,
    port: &PortDescription,
    out: &mut Vec<u8>,
) -> Result<(), CannotSay> {
    out.u8(match reason {
        PortReason::Add => 0,
        PortReason::Delete => 1,
        PortReason::Modify => 2,
    });
    out.zeros(7);
    write_description(port, out)
}

/// Section 7.2.1. Bits of settings and state that 1.3 does not define are ignored in both directions, because a description
/// changes nothing.
pub(super) fn read_description(r: &mut Reader<'_>) -> Result<PortDescription, BadMessage> {
    let port = read_padded(r)?;
    let mac = Mac(r.array()?);
    r.skip(2)?;
    let name = r.text(NAME)?;
    let (config, state) = (PortConfig(r.u32()? & CONFIG), r.u32()?);
    Ok(PortDescription {
        port,
        mac,
        name,
        config,
        state: PortState {
            link_down: state & 1 != 0,
            blocked: state & 1 << 1 != 0,
            live: state & 1 << 2 != 0,
            stp: 0,
        },
        current: PortFeatures(r.u32()?),
        advertised: PortFeatures(r.u32()?),
        supported: PortFeatures(r.u32()?),
        peer: PortFeatures(r.u32()?),
        current_speed: r.u32()?,
        max_speed: r.u32()?,
    })
}

pub(super) fn write_description(port: &PortDescription, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    write_padded(port.port, out)?;
    out.extend_from_slice(&port.mac.0);
    out.zeros(2);
    out.text(&port.name, NAME);
    out.u32(port.config.0 & CONFIG);
    let state = port.state;
    out.u32(u32::from(state.link_down) | u32::from(state.blocked) << 1 | u32::from(state.live) << 2);
    for features in [port.current, port.advertised, port.supported, port.peer] {
        out.u32(features.0);
    }
    out.u32(port.current_speed);
    out.u32(port.max_speed);
    Ok(())
}

/// Section 7.3.4.3.
pub(super) fn read_mod(r: &mut Reader<'_>) -> Result<PortMod, BadMessage> {
    let port = read_padded(r)?;
    let mac = Mac(r.array()?);
    r.skip(2)?;
    let (config, mask, advertise) = (r.u32()?, r.u32()?, PortFeatures(r.u32()?));
    r.skip(4)?;
    if mask & !CONFIG != 0 {
        return Err(BadMessage::PortConfig);
    }
    Ok(PortMod { port, mac, config: PortConfig(config & CONFIG), mask: PortConfig(mask), advertise })
}

pub(super) fn write_mod(change: &PortMod, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    if (change.config.0 | change.mask.0) & !CONFIG != 0 {
        return Err(cannot("these settings of a port"));
    }
    write_padded(change.port, out)?;
    out.extend_from_slice(&change.mac.0);
    out.zeros(2);
    out.u32(change.config.0);
    out.u32(change.mask.0);
    out.u32(change.advertise.0);
    out.zeros(4);
    Ok(())
}

/// Section 7.3.6.
pub(super) fn read_queues(r: &mut Reader<'_>) -> Result<Message, BadMessage> {
    Ok(Message::QueueConfigReply { port: read_padded(r)?, queues: list(r, read_queue)? })
}

pub(super) fn write_queues(
    port: RulePort,
    queues: &[QueueDescription],
    out: &mut Vec<u8>,
) -> Result<(), CannotSay> {
    write_padded(port, out)?;
    queues.iter().try_for_each(|queue| write_queue(queue, out))
}

/// Section 7.2.2. Properties of experimenters are skipped.
fn read_queue(r: &mut Reader<'_>) -> Result<QueueDescription, BadMessage> {
    let mut r = structure(r, 8, BadMessage::Length)?;
    let (queue, port) = (r.u32()?, read(&mut r)?);
    r.skip(8)?;
    let mut description = QueueDescription { queue, port, min_rate: None, max_rate: None };
    while !r.is_empty() {
        let mut property = structure(&mut r, 2, BadMessage::Length)?;
        let kind = property.u16()?;
        property.skip(6)?;
        let rate = match kind {
            MIN_RATE => &mut description.min_rate,
            MAX_RATE => &mut description.max_rate,
            _ => continue,
        };
        *rate = Some(property.u16()?).filter(|&rate| rate <= HIGHEST_RATE);
    }
    Ok(description)
}

fn write_queue(queue: &QueueDescription, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    let from = out.len();
    out.u32(queue.queue);
    out.u32(to_wire(queue.port)?);
    out.zeros(8);
    for (kind, rate) in [(MIN_RATE, queue.min_rate), (MAX_RATE, queue.max_rate)] {
        let Some(rate) = rate else { continue };
        out.u16(kind);
        out.u16(16);
        out.zeros(4);
        out.u16(rate);
        out.zeros(6);
    }
    out.patch_length(from + 8, from);
    Ok(())
}
