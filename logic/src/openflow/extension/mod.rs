//! Our vendor extension (V5): actions, and messages as OpenFlow 1.0 vendor and 1.3 experimenter messages with the same
//! subtypes and bodies. `docs/reference/openflow-extension.md` describes each byte.
//!
//! | file | holds |
//! |---|---|
//! | `mod.rs` | messages: cores and acceleration features, workloads, rules of the core table |
//! | `stats.rs` | statistics of cores |
//! | `actions.rs` | actions: VXLAN, flow control field, core |

mod actions;
mod stats;
#[cfg(test)]
mod tests;

pub use actions::{read as read_action, write as write_action};
pub use stats::CoreStats;

use super::{
    BadMessage, EXPERIMENTER,
    message::Experimenter,
    wire::{Reader, Write},
};

/// Message subtypes.
mod subtype {
    pub const SUBSCRIBE: u32 = 1;
    pub const CORES: u32 = 2;
    pub const WORKLOAD_START: u32 = 3;
    pub const WORKLOAD_STOP: u32 = 4;
    pub const CORE_FLOW_MOD: u32 = 5;
    pub const CORE_STATS_REQUEST: u32 = 6;
    pub const CORE_STATS: u32 = 7;
}

/// EtherType (IEEE 802 local experimental 1) of frames that carry an OpenFlow message through another switch. Its controller
/// sends them by packet-out, because it reaches this switch only that way.
pub const PROXY_ETHER_TYPE: u16 = 0x88b5;

/// A message of our extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extension {
    /// Controller to switch: replaces its subscriptions. The switch answers with the current state.
    Subscribe {
        cores: bool,
        workloads: bool,
    },
    Cores(Cores),
    WorkloadStart(Workload),
    WorkloadStop {
        id: u32,
        tenant: u32,
    },
    /// Controller to switch: a whole flow-mod of the connection's version, for the core table.
    CoreFlowMod(Vec<u8>),
    /// Controller to switch: asks for the [`CoreStats`](Extension::CoreStats) of one core, or of all.
    CoreStatsRequest {
        core: Option<u16>,
    },
    CoreStats(Vec<CoreStats>),
}

/// The cores and features of the machine (V2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cores {
    pub features: Features,
    pub cores: Vec<Core>,
}

/// How packets can be steered on this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// A port spreads flows over receive queues by their hash (RSS).
    pub rss: bool,
    /// A port steers flows by rules (ntuple).
    pub classifier: bool,
    /// Every port runs XDP in its driver.
    pub native_xdp: bool,
    /// Packets can be handed to another core (cpumap).
    pub core_redirect: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Core {
    pub number: u16,
    /// Thousandths of the core's time. `None`: unknown.
    pub load: Option<u16>,
    /// How many workloads are pinned to it.
    pub workloads: u16,
}

/// A virtual machine, container or process that runs here (V5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    pub id: u32,
    pub tenant: u32,
    /// The cores it is pinned to. Empty: it is pinned to no core.
    pub cores: Vec<u16>,
}

/// An unknown load.
const UNKNOWN: u16 = 0xffff;
/// Stands for all cores, in place of a core's number.
const ALL: u16 = 0xffff;

impl Extension {
    /// Reads a message of our extension.
    ///
    /// # Errors
    /// The message belongs to another experimenter ([`BadMessage::Experimenter`]), is unknown, or malformed.
    pub fn decode(message: &Experimenter) -> Result<Extension, BadMessage> {
        if message.id != EXPERIMENTER {
            return Err(BadMessage::Experimenter);
        }
        let mut r = Reader::new(&message.body, BadMessage::Length);
        let read = match message.subtype {
            subtype::SUBSCRIBE => {
                let flags = r.u32()?;
                r.skip(4)?;
                Extension::Subscribe { cores: flags & 1 != 0, workloads: flags & 2 != 0 }
            }
            subtype::CORES => Extension::Cores(read_cores(&mut r)?),
            subtype::WORKLOAD_START => {
                let (id, tenant, count) = (r.u32()?, r.u32()?, usize::from(r.u16()?));
                r.skip(2)?;
                let mut listed = r.part(padded(2 * count), BadMessage::Length)?;
                let cores = (0..count).map(|_| listed.u16()).collect::<Result<_, _>>()?;
                Extension::WorkloadStart(Workload { id, tenant, cores })
            }
            subtype::WORKLOAD_STOP => Extension::WorkloadStop { id: r.u32()?, tenant: r.u32()? },
            subtype::CORE_FLOW_MOD => Extension::CoreFlowMod(r.take(r.rest().len())?.to_vec()),
            subtype::CORE_STATS_REQUEST => {
                let core = r.u16()?;
                r.skip(6)?;
                Extension::CoreStatsRequest { core: (core != ALL).then_some(core) }
            }
            subtype::CORE_STATS => Extension::CoreStats(stats::read(&mut r)?),
            _ => return Err(BadMessage::ExperimenterType),
        };
        if r.is_empty() { Ok(read) } else { Err(BadMessage::Length) }
    }

    /// Encodes the message as body and subtype. At most 4,096 cores are written, and at most 2,000 in statistics.
    pub fn encode(&self) -> Experimenter {
        let mut body = Vec::new();
        let subtype = match self {
            Extension::Subscribe { cores, workloads } => {
                body.u32(u32::from(*cores) | u32::from(*workloads) << 1);
                body.zeros(4);
                subtype::SUBSCRIBE
            }
            Extension::Cores(cores) => {
                write_cores(cores, &mut body);
                subtype::CORES
            }
            Extension::WorkloadStart(workload) => {
                let cores = &workload.cores[..workload.cores.len().min(MOST_CORES)];
                body.u32(workload.id);
                body.u32(workload.tenant);
                body.u16(cores.len() as u16);
                body.zeros(2);
                cores.iter().for_each(|core| body.u16(*core));
                body.zeros(padded(2 * cores.len()) - 2 * cores.len());
                subtype::WORKLOAD_START
            }
            Extension::WorkloadStop { id, tenant } => {
                body.u32(*id);
                body.u32(*tenant);
                subtype::WORKLOAD_STOP
            }
            Extension::CoreFlowMod(message) => {
                body.extend_from_slice(message);
                subtype::CORE_FLOW_MOD
            }
            Extension::CoreStatsRequest { core } => {
                body.u16(core.unwrap_or(ALL));
                body.zeros(6);
                subtype::CORE_STATS_REQUEST
            }
            Extension::CoreStats(cores) => {
                stats::write(cores, &mut body);
                subtype::CORE_STATS
            }
        };
        Experimenter { id: EXPERIMENTER, subtype, body }
    }
}

/// How many cores fit into a message, with room to spare.
const MOST_CORES: usize = 4096;

fn read_cores(r: &mut Reader<'_>) -> Result<Cores, BadMessage> {
    let (bits, count) = (r.u32()?, r.u16()?);
    r.skip(2)?;
    let features = Features {
        rss: bits & 1 != 0,
        classifier: bits & 2 != 0,
        native_xdp: bits & 4 != 0,
        core_redirect: bits & 8 != 0,
    };
    let mut core = || -> Result<Core, BadMessage> {
        let (number, load, workloads) = (r.u16()?, r.u16()?, r.u16()?);
        r.skip(2)?;
        Ok(Core { number, load: (load != UNKNOWN).then_some(load), workloads })
    };
    let cores = (0..count).map(|_| core()).collect::<Result<_, _>>()?;
    Ok(Cores { features, cores })
}

fn write_cores(cores: &Cores, body: &mut Vec<u8>) {
    let f = cores.features;
    let bits = [f.rss, f.classifier, f.native_xdp, f.core_redirect];
    let listed = &cores.cores[..cores.cores.len().min(MOST_CORES)];
    body.u32(bits.iter().enumerate().fold(0, |all, (i, bit)| all | u32::from(*bit) << i));
    body.u16(listed.len() as u16);
    body.zeros(2);
    for core in listed {
        body.u16(core.number);
        body.u16(core.load.map_or(UNKNOWN, |load| load.min(1000)));
        body.u16(core.workloads);
        body.zeros(2);
    }
}

/// A length with padding so that, after the four bytes of `count` and padding, it ends at a multiple of eight, as usual in
/// OpenFlow.
fn padded(bytes: usize) -> usize {
    (bytes + 4).next_multiple_of(8) - 4
}
