//! Faults of a port that its sockets do not show: the kernel takes packets from a TX ring, or leaves them there, and none leaves.

use super::Fault;
use crate::linux::{ethtool::Ethtool, netns};
use std::{io, path::Path};

/// The device of a queue, in the namespace that it was opened in.
pub(super) struct Device {
    ethtool: Ethtool,
    namespace: Option<netns::Key>,
    ifindex: u32,
    queue: u32,
    transmits: bool,
}

impl Device {
    /// Opens a device of the calling thread's namespace.
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

    /// The namespace that it was opened in.
    pub(super) fn namespace(&self) -> Option<netns::Key> {
        self.namespace
    }

    /// There was a TX queue of that number when it was opened, as far as the driver reports. The kernel also binds a socket to an RX
    /// queue without a TX queue, and takes no packet from its TX ring (`xsk_generic_xmit`).
    #[inline]
    pub(super) fn transmits(&self) -> bool {
        self.transmits
    }

    /// Checks the carrier. Without one, the kernel drops the packets that it takes, one per call (`__dev_direct_xmit`).
    pub(super) fn check(&self) -> Result<(), Fault> {
        let name = self.ethtool.name(self.ifindex).ok().flatten();
        // Its sockets show whether it is gone or down.
        match name.map(|name| self.ethtool.is_running(&name)) {
            Some(Ok(false)) => Err(Fault::NoCarrier),
            _ => Ok(()),
        }
    }
}
