//! Our actions. The bytes after the action's header and [`EXPERIMENTER`] are the same in both versions.

use crate::{
    flow::{Action, CoreChoice, FcfPlace, Refused, Vxlan},
    openflow::{
        BadMessage, EXPERIMENTER,
        wire::{Reader, Write},
    },
};

/// OFPAT_VENDOR and OFPAT_EXPERIMENTER.
const ACTION: u16 = 0xffff;
/// Subtypes.
const ENCAP_VXLAN: u16 = 1;
const DECAP_VXLAN: u16 = 2;
const SET_FCF: u16 = 3;
const SET_CORE: u16 = 4;

/// Core numbers for `choose` and `choose_first`.
const CHOOSE: u16 = 0xffff;
const CHOOSE_FIRST: u16 = 0xfffe;

/// Reads an action of the experimenter `id`, from the byte after the id.
pub fn read(id: u32, r: &mut Reader<'_>) -> Result<Action, BadMessage> {
    if id != EXPERIMENTER {
        return Err(BadMessage::ActionExperimenter);
    }
    Ok(match r.u16()? {
        ENCAP_VXLAN => Action::EncapVxlan(read_vxlan(r)?),
        DECAP_VXLAN => r.skip(6).map(|()| Action::DecapVxlan)?,
        SET_FCF => read_fcf(r)?,
        SET_CORE => {
            let core = r.u16()?;
            r.skip(4)?;
            Action::SetCore(match core {
                CHOOSE => CoreChoice::Choose,
                CHOOSE_FIRST => CoreChoice::ChooseFirst,
                core => CoreChoice::This(core),
            })
        }
        _ => return Err(BadMessage::ActionExperimenterType),
    })
}

fn read_vxlan(r: &mut Reader<'_>) -> Result<Vxlan, BadMessage> {
    let udp_port = r.u16()?;
    let vxlan = Vxlan {
        udp_port,
        vni: r.u32()?,
        source: r.array::<4>()?.into(),
        destination: r.array::<4>()?.into(),
        eth_source: r.array()?,
        eth_destination: r.array()?,
    };
    r.skip(4)?;
    Ok(vxlan)
}

fn read_fcf(r: &mut Reader<'_>) -> Result<Action, BadMessage> {
    let place = match r.u8()? {
        0 => FcfPlace::Tos,
        1 => FcfPlace::Vlan,
        _ => return Err(Refused::BadArgument.into()),
    };
    let priority = match r.u8()? {
        0 => false,
        1 => true,
        _ => return Err(Refused::BadArgument.into()),
    };
    let workload = r.u16()?;
    r.skip(2)?;
    Ok(Action::SetFcf { place, workload, priority })
}

/// Appends one of our actions with its header. Other actions append nothing.
pub fn write(action: &Action, out: &mut Vec<u8>) {
    let from = out.len();
    match *action {
        Action::EncapVxlan(outer) => {
            begin(ENCAP_VXLAN, out);
            out.u16(outer.udp_port);
            out.u32(outer.vni);
            out.extend(outer.source.octets());
            out.extend(outer.destination.octets());
            out.extend(outer.eth_source);
            out.extend(outer.eth_destination);
            out.zeros(4);
        }
        Action::DecapVxlan => {
            begin(DECAP_VXLAN, out);
            out.zeros(6);
        }
        Action::SetFcf { place, workload, priority } => {
            begin(SET_FCF, out);
            out.u8(if place == FcfPlace::Tos { 0 } else { 1 });
            out.u8(priority.into());
            out.u16(workload);
            out.zeros(2);
        }
        Action::SetCore(core) => {
            begin(SET_CORE, out);
            out.u16(match core {
                CoreChoice::This(core) => core,
                CoreChoice::Choose => CHOOSE,
                CoreChoice::ChooseFirst => CHOOSE_FIRST,
            });
            out.zeros(4);
        }
        _ => return,
    }
    out.patch_length(from + 2, from);
}

fn begin(subtype: u16, out: &mut Vec<u8>) {
    out.u16(ACTION);
    out.u16(0);
    out.u32(EXPERIMENTER);
    out.u16(subtype);
}
