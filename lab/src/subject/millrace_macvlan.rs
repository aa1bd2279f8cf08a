//! Millrace for a virtual router: it forwards the packets of `linux-macvlan` on the fast path.

use anyhow::Result;

use super::{Millrace, Subject, virtual_router::VirtualRouter};
use crate::{command::Running, testbed::Testbed};

pub(super) struct MillraceMacvlan {
    // The daemon stops before its router is removed.
    daemon: Millrace,
    router: VirtualRouter,
}

impl MillraceMacvlan {
    pub(super) fn start(testbed: &Testbed) -> Result<Self> {
        let router = VirtualRouter::macvlan(testbed)?;
        // The host, the testbed's routers, and this one.
        Ok(Self { daemon: Millrace::start_for(testbed, testbed.routers.len() + 2)?, router })
    }
}

impl Subject for MillraceMacvlan {
    fn name(&self) -> &'static str {
        "millrace-macvlan"
    }

    fn router(&self) -> u16 {
        self.router.number()
    }

    fn programs(&self) -> Vec<Running> {
        self.daemon.programs()
    }

    fn take_over(&mut self, testbed: &Testbed) -> Result<bool> {
        self.daemon.take_over(testbed)
    }

    fn fast_path_packets(&self) -> Result<Option<u64>> {
        self.daemon.fast_path_packets()
    }
}
