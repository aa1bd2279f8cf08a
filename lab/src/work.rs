//! Extra work for each forwarded packet (work.bpf.c). It fills a router's cores at rates that leave the generator time.

use anyhow::{Context, Result};
use libbpf_rs::{
    Link,
    skel::{OpenSkel, SkelBuilder},
};

use crate::{
    bpf::{self, work as skeleton},
    namespace::Namespace,
};

/// Makes packets that leave by one device take longer, until it is dropped.
pub struct Work {
    _skeleton: skeleton::WorkSkel<'static>,
    _link: Link,
}

impl Work {
    /// Adds `ns` nanoseconds to each packet.
    pub fn for_packets_by(namespace: &Namespace, device: &str, ns: u32) -> Result<Self> {
        let mut open = skeleton::WorkSkelBuilder::default().open(bpf::storage())?;
        let settings = open.maps.rodata_data.as_mut().context("work without rodata")?;
        settings.namespace = namespace.inode()?;
        settings.ifindex = namespace.interface_index(device)?;
        settings.work_ns = ns;
        let skeleton = open.load().context("extra work for packets needs tracepoints with BTF (tp_btf)")?;
        let link =
            skeleton.progs.after_transmit.attach_trace().context("attaching extra work for packets")?;
        Ok(Self { _skeleton: skeleton, _link: link })
    }
}
