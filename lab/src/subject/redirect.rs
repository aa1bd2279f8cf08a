//! A bare XDP redirect from port to port, without parsing: the floor of any XDP forwarder.

use anyhow::{Context, Result};
use libbpf_rs::{
    Link, MapCore, MapFlags,
    skel::{OpenSkel, SkelBuilder},
};

use super::{Rewrite, Subject};
use crate::{
    bpf::{self, baselines},
    testbed::{PORT_IN, PORT_OUT, Testbed},
};

pub(super) struct Redirect {
    _program: Attached,
}

impl Redirect {
    pub(super) fn start(testbed: &Testbed) -> Result<Self> {
        Ok(Self { _program: Attached::start(testbed, "redirect", [0; 6], [0; 6])? })
    }
}

impl Subject for Redirect {
    fn name(&self) -> &'static str {
        "redirect"
    }

    fn rewrites(&self) -> Rewrite {
        Rewrite::None
    }
}

/// A program of baselines.bpf.c on the port towards the generator. Dropping it unloads it.
pub(super) struct Attached {
    _link: Link,
    _skeleton: baselines::BaselinesSkel<'static>,
}

impl Attached {
    pub(super) fn start(testbed: &Testbed, program: &str, to: [u8; 6], from: [u8; 6]) -> Result<Self> {
        let mut open = baselines::BaselinesSkelBuilder::default().open(bpf::storage())?;
        let constants = open.maps.rodata_data.as_mut().context("baselines without rodata")?;
        constants.next_hop_mac = to;
        constants.source_mac = from;
        let skeleton = open.load().context("baseline programs")?;
        let namespace = &testbed.box_namespace;
        let (port_in, port_out) = (namespace.interface_index(PORT_IN)?, namespace.interface_index(PORT_OUT)?);
        let link = namespace.enter(|| {
            let mut value = port_out.to_ne_bytes().to_vec();
            value.extend([0; 4]);
            skeleton.maps.out.update(&0u32.to_ne_bytes(), &value, MapFlags::ANY)?;
            let program = match program {
                "touch" => &skeleton.progs.touch,
                "pass" => &skeleton.progs.pass,
                _ => &skeleton.progs.redirect,
            };
            program.attach_xdp(port_in as i32).context("attaching a baseline")
        })?;
        Ok(Self { _link: link, _skeleton: skeleton })
    }
}
