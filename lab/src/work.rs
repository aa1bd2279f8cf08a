//! More work for each packet that is forwarded (work.bpf.c): how a router's cores fill is measured at rates that leave the
//! generator time.

use anyhow::{Context, Result};
use libbpf_rs::{
    Link,
    skel::{OpenSkel, SkelBuilder},
};

use crate::{
    bpf::{self, work as skeleton},
    namespace::Namespace,
};

/// Packets that leave by one device take longer. Dropped, they do not any more.
pub struct Work {
    _skeleton: skeleton::WorkSkel<'static>,
    _link: Link,
}

impl Work {
    /// So much longer each.
    pub fn for_packets_by(namespace: &Namespace, device: &str, ns: u32) -> Result<Self> {
        let mut open = skeleton::WorkSkelBuilder::default().open(bpf::storage())?;
        let settings = open.maps.rodata_data.as_mut().context("work without rodata")?;
        settings.namespace = namespace.inode()?;
        settings.ifindex = namespace.interface_index(device)?;
        settings.work_ns = ns;
        let skeleton = open.load().context("work for packets needs tracepoints with BTF (tp_btf)")?;
        let link = skeleton.progs.after_transmit.attach_trace().context("work for packets")?;
        Ok(Self { _skeleton: skeleton, _link: link })
    }
}
