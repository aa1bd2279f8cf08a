//! The netdev family of generic netlink: XDP features of devices, their RX queues and their NAPI instances.
//!
//! Kernel source: `include/uapi/linux/netdev.h`, `Documentation/netlink/specs/netdev.yaml`. The family exists since
//! Linux 6.3, its queues and NAPI instances since 6.8.

use super::{
    socket::Socket,
    wire::{self, Message, Request},
};
use std::io;

const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;

const NETDEV_CMD_QUEUE_GET: u8 = 10;
const NETDEV_A_QUEUE_ID: u16 = 1;
const NETDEV_A_QUEUE_IFINDEX: u16 = 2;
const NETDEV_A_QUEUE_TYPE: u16 = 3;
const NETDEV_A_QUEUE_NAPI_ID: u16 = 4;
const NETDEV_QUEUE_TYPE_RX: u32 = 0;

const NETDEV_CMD_NAPI_GET: u8 = 11;
const NETDEV_A_NAPI_IFINDEX: u16 = 1;
const NETDEV_A_NAPI_ID: u16 = 2;
const NETDEV_A_NAPI_IRQ: u16 = 3;
const NETDEV_A_NAPI_PID: u16 = 4;
const NETDEV_A_NAPI_DEFER_HARD_IRQS: u16 = 5;
const NETDEV_A_NAPI_GRO_FLUSH_TIMEOUT: u16 = 6;
const NETDEV_A_NAPI_IRQ_SUSPEND_TIMEOUT: u16 = 7;
const NETDEV_A_NAPI_THREADED: u16 = 8;

/// `struct genlmsghdr`.
const HEADER: usize = 4;

/// A NAPI instance that receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Napi {
    /// Unique in the whole kernel, across namespaces, while the instance exists.
    pub id: u32,
    /// Its interrupt, if the driver reports it.
    pub irq: Option<u32>,
    /// Its thread, in the first PID namespace. Before Linux 6.17 the thread stays even if threaded polling was turned
    /// off.
    pub pid: Option<u32>,
    /// The thread polls. Reported since Linux 6.17.
    pub threaded: Option<bool>,
    /// A timer polls before the interrupt is enabled again. Reported since Linux 6.13.
    pub defers: bool,
}

/// An RX queue in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxQueue {
    pub index: u32,
    /// The NAPI instance that polls it, if the driver reports it.
    pub napi: Option<u32>,
}

/// Queries devices of the namespace in which it was opened.
pub struct Netdev {
    socket: Socket,
    family: u16,
}

impl Netdev {
    /// Opens a socket in the calling thread's namespace. `Ok(None)`: the kernel does not have the family.
    pub fn open() -> io::Result<Option<Netdev>> {
        let mut socket = Socket::requests(libc::NETLINK_GENERIC)?;
        let request = Request::new(GENL_ID_CTRL, wire::ACK, &[CTRL_CMD_GETFAMILY, 1, 0, 0])
            .with(CTRL_ATTR_FAMILY_NAME, b"netdev\0");
        let id = |m: Message<'_>| {
            wire::attributes_after(m.payload, HEADER)
                .find(|a| a.0 == CTRL_ATTR_FAMILY_ID)
                .and_then(|a| wire::u16_at(a.1, 0))
        };
        match socket.ask(request, id) {
            Ok(family) => Ok(family.map(|family| Netdev { socket, family })),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// `enum netdev_xdp_act` of a device.
    pub fn xdp_features(&mut self, ifindex: u32) -> io::Result<Option<u64>> {
        let request = self.request(NETDEV_CMD_DEV_GET, wire::ACK, NETDEV_A_DEV_IFINDEX, ifindex);
        self.socket.ask(request, |m| {
            let mut attributes = wire::attributes_after(m.payload, HEADER);
            let value = attributes.find(|a| a.0 == NETDEV_A_DEV_XDP_FEATURES)?.1;
            Some(u64::from_ne_bytes(*value.first_chunk()?))
        })
    }

    /// The RX queues of a device, ascending; none if the device is down. `Ok(None)`: the kernel does not report them.
    pub fn rx_queues(&mut self, ifindex: u32) -> io::Result<Option<Vec<RxQueue>>> {
        let request = self.request(NETDEV_CMD_QUEUE_GET, wire::DUMP, NETDEV_A_QUEUE_IFINDEX, ifindex);
        let queues = self.socket.dump(request, |m| parse_queue(m.payload, ifindex));
        known(queues).map(|queues| {
            queues.map(|mut queues| {
                queues.sort_unstable_by_key(|queue| queue.index);
                queues
            })
        })
    }

    /// The NAPI instances of a device that receive, ascending; none if the device is down. `Ok(None)`: the kernel does
    /// not report them.
    pub fn napis(&mut self, ifindex: u32) -> io::Result<Option<Vec<Napi>>> {
        let request = self.request(NETDEV_CMD_NAPI_GET, wire::DUMP, NETDEV_A_NAPI_IFINDEX, ifindex);
        let napis = self.socket.dump(request, |m| parse_napi(m.payload, ifindex));
        known(napis).map(|napis| {
            napis.map(|mut napis| {
                napis.sort_unstable();
                napis
            })
        })
    }

    fn request(&self, command: u8, flags: u16, attribute: u16, ifindex: u32) -> Request {
        Request::new(self.family, flags, &[command, 1, 0, 0]).with(attribute, &ifindex.to_ne_bytes())
    }
}

/// `Ok(None)`: the family lacks the command.
fn known<T>(answer: io::Result<T>) -> io::Result<Option<T>> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Parses an answer about an RX queue of this device.
pub fn parse_queue(payload: &[u8], ifindex: u32) -> Option<RxQueue> {
    let number = |kind| number(payload, kind);
    let ours = number(NETDEV_A_QUEUE_IFINDEX) == Some(ifindex)
        && number(NETDEV_A_QUEUE_TYPE) == Some(NETDEV_QUEUE_TYPE_RX);
    let index = number(NETDEV_A_QUEUE_ID).filter(|_| ours)?;
    Some(RxQueue { index, napi: number(NETDEV_A_QUEUE_NAPI_ID) })
}

/// Parses an answer about a NAPI instance of this device.
pub fn parse_napi(payload: &[u8], ifindex: u32) -> Option<Napi> {
    let number = |kind| number(payload, kind);
    let id = number(NETDEV_A_NAPI_ID).filter(|_| number(NETDEV_A_NAPI_IFINDEX) == Some(ifindex))?;
    let threaded = number(NETDEV_A_NAPI_THREADED).map(|how| how != 0);
    let timers =
        [NETDEV_A_NAPI_DEFER_HARD_IRQS, NETDEV_A_NAPI_GRO_FLUSH_TIMEOUT, NETDEV_A_NAPI_IRQ_SUSPEND_TIMEOUT];
    let defers = wire::attributes_after(payload, HEADER)
        .any(|(kind, value)| timers.contains(&kind) && value.iter().any(|byte| *byte != 0));
    Some(Napi { id, irq: number(NETDEV_A_NAPI_IRQ), pid: number(NETDEV_A_NAPI_PID), threaded, defers })
}

fn number(payload: &[u8], kind: u16) -> Option<u32> {
    wire::attributes_after(payload, HEADER).find(|a| a.0 == kind).and_then(|a| wire::u32_at(a.1, 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn answer(attributes: &[(u16, u32)]) -> Vec<u8> {
        let mut request = Request::new(0, 0, &[0; HEADER]);
        for (kind, value) in attributes {
            request = request.with(*kind, &value.to_ne_bytes());
        }
        request.bytes(0)[16..].to_vec()
    }

    #[test]
    fn queues_and_instances_of_the_device_are_read() {
        let queue = |attributes: &[(u16, u32)]| parse_queue(&answer(attributes), 7);
        assert_eq!(queue(&[(1, 3), (2, 7), (3, 0), (4, 8195)]), Some(RxQueue { index: 3, napi: Some(8195) }));
        assert_eq!(queue(&[(1, 3), (2, 7), (3, 0)]), Some(RxQueue { index: 3, napi: None }));
        assert_eq!(queue(&[(1, 3), (2, 7), (3, 1)]), None, "a TX queue");
        assert_eq!(queue(&[(1, 3), (2, 8), (3, 0)]), None, "another device");
        let napi = |attributes: &[(u16, u32)]| parse_napi(&answer(attributes), 7);
        let of = |irq, pid, threaded| Some(Napi { id: 8195, irq, pid, threaded, defers: false });
        assert_eq!(napi(&[(1, 7), (2, 8195), (3, 41)]), of(Some(41), None, None));
        assert_eq!(napi(&[(1, 7), (2, 8195), (4, 99), (8, 1)]), of(None, Some(99), Some(true)));
        assert_eq!(napi(&[(1, 7), (2, 8195), (4, 99), (8, 0)]), of(None, Some(99), Some(false)));
        assert_eq!(napi(&[(1, 8), (2, 8195)]), None, "another device");
        assert_eq!(napi(&[(1, 7), (2, 8195), (5, 0), (6, 0), (7, 0)]), of(None, None, None));
        for timer in 5..8 {
            assert!(napi(&[(1, 7), (2, 8195), (timer, 256)]).unwrap().defers);
        }
    }

    #[test]
    fn only_a_missing_command_is_no_error() {
        assert_eq!(known(Ok(5)).unwrap(), Some(5));
        let failed = |number| known::<()>(Err(io::Error::from_raw_os_error(number)));
        assert_eq!(failed(libc::EOPNOTSUPP).unwrap(), None);
        assert_eq!(failed(libc::ENODEV).unwrap_err().raw_os_error(), Some(libc::ENODEV));
    }

    proptest! {
        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = (parse_queue(&bytes, 1), parse_napi(&bytes, 1));
        }
    }
}
