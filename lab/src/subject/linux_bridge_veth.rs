//! Linux forwarding in a virtual router behind software bridges, the paper's other baseline (M, section 3):
//!
//! ```text
//!  box: eth1 ─ bridge mlbr-in ─ mlve-in ──veth── eth1 : r1 : eth2 ──veth── mlve-out ─ bridge mlbr-out ─ eth2
//! ```
//!
//! Bridges have no spanning tree, no multicast snooping and no VLAN filtering, and hand nothing to netfilter. The MAC
//! addresses of the router and of next hops are entered, so nothing is flooded. The inner veth pairs keep the defaults
//! of `ip link add`: no GRO and no NAPI. So each receives through its core's backlog queue, as in the paper.

use anyhow::{Context, Result};

use super::{Subject, virtual_router::VirtualRouter};
use crate::testbed::Testbed;

pub(super) struct LinuxBridgeVeth(VirtualRouter);

impl LinuxBridgeVeth {
    pub(super) fn start(testbed: &Testbed) -> Result<Self> {
        Ok(Self(VirtualRouter::bridge_veth(testbed).context("a virtual router behind bridges")?))
    }
}

impl Subject for LinuxBridgeVeth {
    fn name(&self) -> &'static str {
        "linux-bridge-veth"
    }

    fn router(&self) -> u16 {
        self.0.number()
    }
}
