//! Forwarders with a known fault (faulty.bpf.c).

use lab::{
    bpf,
    testbed::{PORT_IN, PORT_OUT, Testbed},
};
use libbpf_rs::{
    Link, MapCore, MapFlags,
    skel::{OpenSkel, SkelBuilder},
};

#[allow(clippy::all, clippy::undocumented_unsafe_blocks)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/faulty.skel.rs"));
}

/// A program of faulty.bpf.c on the port towards the generator.
pub struct Faulty {
    _link: Link,
    _skeleton: skeleton::FaultySkel<'static>,
}

impl Faulty {
    pub fn start(testbed: &Testbed, program: &str) -> Self {
        let skeleton = skeleton::FaultySkelBuilder::default().open(bpf::storage()).unwrap().load().unwrap();
        let namespace = &testbed.box_namespace;
        let (port_in, port_out) =
            (namespace.interface_index(PORT_IN).unwrap(), namespace.interface_index(PORT_OUT).unwrap());
        let link = namespace.enter(|| {
            let value = [&port_out.to_ne_bytes()[..], &[0; 4]].concat();
            skeleton.maps.out.update(&0u32.to_ne_bytes(), &value, MapFlags::ANY)?;
            for key in 0..2u32 {
                skeleton.maps.twice.update(&key.to_ne_bytes(), &value, MapFlags::ANY)?;
            }
            let programs = &skeleton.progs;
            let program = match program {
                "drop" => &programs.faulty_drop,
                "swap" => &programs.faulty_swap,
                "duplicate" => &programs.faulty_duplicate,
                "delay" => &programs.faulty_delay,
                _ => &programs.faultless,
            };
            Ok(program.attach_xdp(port_in as i32)?)
        });
        Self { _link: link.unwrap(), _skeleton: skeleton }
    }
}
