//! Linux forwarding in a virtual router: a namespace with a macvlan child of each port (M1, M2). Since Linux 3.0,
//! packets do not pass the backlog queue of the paper.

use anyhow::Result;

use super::{Subject, virtual_router::VirtualRouter};
use crate::testbed::Testbed;

pub(super) struct LinuxMacvlan(VirtualRouter);

impl LinuxMacvlan {
    pub(super) fn start(testbed: &Testbed) -> Result<Self> {
        Ok(Self(VirtualRouter::macvlan(testbed)?))
    }
}

impl Subject for LinuxMacvlan {
    fn name(&self) -> &'static str {
        "linux-macvlan"
    }

    fn router(&self) -> u16 {
        self.0.number()
    }
}
