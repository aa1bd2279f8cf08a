//! Port numbers, port descriptions and changes, and the queues of a port.

use super::cannot;
use crate::{
    flow::RulePort,
    openflow::{
        BadMessage, CannotSay,
        common::{MAC, PORT_CONFIG, PORT_NAME},
        format::{Format, Layout, Pad, U32, layout},
        message::{PortConfig, PortDescription, PortFeatures, PortMod, PortState, QueueDescription},
        wire::Write,
    },
};

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

pub(super) const PORT: Layout<RulePort> =
    Layout(|r| from_wire(r.u32()?).ok_or(BadMessage::Port), |port, out| U32.write(&to_wire(*port)?, out));

/// Section 7.2.1. Bits of settings and state that 1.3 does not define are ignored in both directions, because a description
/// changes nothing.
pub(super) const DESCRIPTION: Layout<PortDescription> = layout!(PortDescription {
    port: Pad(PORT, 4),
    mac: Pad(MAC, 2),
    name: PORT_NAME,
    config: KNOWN_CONFIG,
    state: STATE,
    current: PORT_FEATURES,
    advertised: PORT_FEATURES,
    supported: PORT_FEATURES,
    peer: PORT_FEATURES,
    current_speed: U32,
    max_speed: U32,
});

const KNOWN_CONFIG: Layout<PortConfig> =
    Layout(|r| Ok(PortConfig(r.u32()? & CONFIG)), |config, out| U32.write(&(config.0 & CONFIG), out));

/// OFPPS.
const STATE: Layout<PortState> = Layout(
    |r| {
        let bit = |n: u32, bits: u32| bits >> n & 1 == 1;
        r.u32().map(|bits| PortState {
            link_down: bit(0, bits),
            blocked: bit(1, bits),
            live: bit(2, bits),
            stp: 0,
        })
    },
    |state, out| {
        let bits = [state.link_down, state.blocked, state.live].map(u32::from);
        U32.write(&(bits[0] | bits[1] << 1 | bits[2] << 2), out)
    },
);

const PORT_FEATURES: Layout<PortFeatures> =
    Layout(|r| r.u32().map(PortFeatures), |features, out| U32.write(&features.0, out));

/// Section 7.3.4.3.
pub(super) const PORT_MOD: Layout<PortMod> = Layout(
    |r| {
        let change = PORT_MOD_FIELDS.read(r)?;
        if change.mask.0 & !CONFIG != 0 { Err(BadMessage::PortConfig) } else { Ok(change) }
    },
    |change, out| {
        if (change.config.0 | change.mask.0) & !CONFIG != 0 {
            return Err(cannot("these settings of a port"));
        }
        PORT_MOD_FIELDS.write(change, out)
    },
);
const PORT_MOD_FIELDS: Layout<PortMod> = layout!(PortMod {
    port: Pad(PORT, 4),
    mac: Pad(MAC, 2),
    config: KNOWN_CONFIG,
    mask: PORT_CONFIG,
    advertise: Pad(PORT_FEATURES, 4),
});

/// A queue of a port (section 7.2.2). Properties of experimenters are skipped.
pub(super) const QUEUE: Layout<QueueDescription> = Layout(
    |r| {
        let mut r = r.structure(8, BadMessage::Length)?;
        let (queue, port) = (r.u32()?, Pad(PORT, 8).read(&mut r)?);
        let mut description = QueueDescription { queue, port, min_rate: None, max_rate: None };
        while !r.is_empty() {
            let mut property = r.structure(2, BadMessage::Length)?;
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
    },
    |queue, out| {
        let from = out.len();
        out.u32(queue.queue);
        Pad(PORT, 8).write(&queue.port, out)?;
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
    },
);
