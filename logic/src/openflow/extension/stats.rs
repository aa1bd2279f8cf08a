//! CORE_STATS: the roles of cores, and the packets handed to them.

use super::UNKNOWN;
use crate::{
    cores::Role,
    openflow::{
        BadMessage,
        wire::{Reader, Write},
    },
};

/// The statistics of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreStats {
    pub number: u16,
    /// Thousandths of the core's time. `None`: unknown.
    pub load: Option<u16>,
    pub role: Option<Role>,
    /// How many workloads are pinned to it.
    pub workloads: u16,
    /// Packets that other cores handed to it because of rules, and those of them that were dropped because
    /// its queue was full.
    pub packets: u64,
    pub dropped: u64,
    /// Flows that the switch chose to put on it, and how many of these are priority flows.
    pub flows: u32,
    pub first: u32,
}

/// How many cores fit into a message, with room to spare.
const MOST: usize = 2000;

const ROLES: [Role; 4] = [Role::Idle, Role::Forward, Role::Serve, Role::Both];
const UNKNOWN_ROLE: u8 = 0xff;

pub(super) fn write(cores: &[CoreStats], body: &mut Vec<u8>) {
    let listed = &cores[..cores.len().min(MOST)];
    body.u16(listed.len() as u16);
    body.zeros(6);
    for core in listed {
        let role = ROLES.iter().position(|role| Some(*role) == core.role);
        body.u16(core.number);
        body.u16(core.load.map_or(UNKNOWN, |load| load.min(1000)));
        body.u8(role.map_or(UNKNOWN_ROLE, |role| role as u8));
        body.zeros(1);
        body.u16(core.workloads);
        body.u64(core.packets);
        body.u64(core.dropped);
        body.u32(core.flows);
        body.u32(core.first);
    }
}

pub(super) fn read(r: &mut Reader<'_>) -> Result<Vec<CoreStats>, BadMessage> {
    let count = r.u16()?;
    r.skip(6)?;
    let mut core = || -> Result<CoreStats, BadMessage> {
        let (number, load, role) = (r.u16()?, r.u16()?, r.u8()?);
        r.skip(1)?;
        Ok(CoreStats {
            number,
            load: (load != UNKNOWN).then_some(load),
            role: ROLES.get(usize::from(role)).copied(),
            workloads: r.u16()?,
            packets: r.u64()?,
            dropped: r.u64()?,
            flows: r.u32()?,
            first: r.u32()?,
        })
    };
    (0..count).map(|_| core()).collect()
}
