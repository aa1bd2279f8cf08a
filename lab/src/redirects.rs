//! Counts packets that redirects lost, by tracepoints.

use std::collections::HashMap;

use anyhow::{Context, Result};
use libbpf_rs::{
    Link, MapCore, MapFlags,
    skel::{OpenSkel, SkelBuilder},
};

use crate::{
    bpf::{self, Value, redirects as skeleton},
    namespace::Namespace,
};

/// Counts packets that are lost after redirects, as long as it exists (redirects.bpf.c).
pub struct Redirects {
    skeleton: skeleton::RedirectsSkel<'static>,
    _links: Vec<Link>,
}

impl Redirects {
    /// Starts to count.
    pub fn watch() -> Result<Self> {
        let open = skeleton::RedirectsSkelBuilder::default().open(bpf::storage())?;
        let skeleton = open.load().context("counting lost redirects needs tracepoints with BTF (tp_btf)")?;
        let programs = [&skeleton.progs.on_transmit, &skeleton.progs.on_redirect, &skeleton.progs.on_enqueue];
        let links = programs.into_iter().map(|program| program.attach_trace()).collect::<Result<_, _>>();
        let links = links.context("counting lost redirects")?;
        Ok(Self { skeleton, _links: links })
    }

    /// Packets lost in any of these namespaces. This takes a few system calls.
    pub fn lost_in<'a>(&self, namespaces: impl Iterator<Item = &'a Namespace>) -> Result<u64> {
        let inodes = namespaces.map(Namespace::inode).collect::<Result<Vec<_>>>()?;
        let lost = self.lost()?;
        Ok(lost.iter().filter(|((inode, ..), _)| inodes.contains(inode)).map(|(_, packets)| packets).sum())
    }

    /// Packets lost, by (inode of the namespace, interface index, why).
    pub(crate) fn lost(&self) -> Result<HashMap<(u32, u32, u32), u64>> {
        let mut all = HashMap::new();
        for key in self.skeleton.maps.lost.keys() {
            let place = skeleton::types::place::from_bytes(&key)?;
            let rows = self.skeleton.maps.lost.lookup_percpu(&key, MapFlags::ANY)?.unwrap_or_default();
            let packets = rows.iter().map(|row| u64::from_bytes(row)).sum::<Result<u64>>()?;
            all.insert((place.namespace, place.ifindex, place.why), packets);
        }
        Ok(all)
    }
}
