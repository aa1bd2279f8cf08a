//! What is to be known of a port that its sockets do not tell: packets are taken from a TX ring, or wait in it, and none leaves.

use super::Fault;
use crate::linux::{ethtool::Ethtool, netns};
use std::{io, path::Path};

/// A queue's device, asked in the namespace it was opened in.
pub(super) struct Device {
    ethtool: Ethtool,
    namespace: Option<netns::Key>,
    ifindex: u32,
    queue: u32,
    transmits: bool,
}

impl Device {
    /// In the calling thread's namespace.
    pub(super) fn open(ifindex: u32, queue: u32) -> io::Result<Device> {
        let ethtool = Ethtool::open()?;
        let queues = match ethtool.name(ifindex)? {
            Some(name) => ethtool.tx_queues(&name)?,
            None => None,
        };
        let namespace = netns::Key::at(Path::new("/proc/thread-self/ns/net")).ok();
        Ok(Device {
            ethtool,
            namespace,
            ifindex,
            queue,
            transmits: queues.is_none_or(|queues| queue < queues),
        })
    }

    pub(super) fn queue(&self) -> u32 {
        self.queue
    }

    /// The one it was opened in.
    pub(super) fn namespace(&self) -> Option<netns::Key> {
        self.namespace
    }

    /// There was a TX queue of that number when it was opened, as far as the driver tells. The kernel binds a socket to an RX queue
    /// without one, and takes no packet from its TX ring (`xsk_generic_xmit`).
    #[inline]
    pub(super) fn transmits(&self) -> bool {
        self.transmits
    }

    /// Without a carrier the kernel drops what it takes, one packet a call (`__dev_direct_xmit`).
    pub(super) fn check(&self) -> Result<(), Fault> {
        let name = self.ethtool.name(self.ifindex).ok().flatten();
        // Whether it is gone, or down, its sockets say.
        match name.map(|name| self.ethtool.is_running(&name)) {
            Some(Ok(false)) => Err(Fault::NoCarrier),
            _ => Ok(()),
        }
    }
}
