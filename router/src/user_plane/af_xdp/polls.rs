//! Whether the kernel polls a device when a worker asks for packets (SO_PREFER_BUSY_POLL).
//!
//! The kernel polls for a socket that may ask for it (CAP_NET_ADMIN), if it knows the NAPI instance of the socket's queue
//! (SO_INCOMING_NAPI_ID). It learns the instance at this time:
//!
//! | Linux | when |
//! |---|---|
//! | up to 6.12 | at the socket's first packet (`sk_mark_napi_id_once_xdp`), also on veth; in zero-copy mode also when it sends |
//! | later | when it is bound (`xsk_bind`), if the driver reports the instance of a queue (`netif_queue_set_napi`), which veth does not; with some kernels only in zero-copy mode |
//!
//! So the kernel is asked when a socket is opened, and again after its first packets.

use super::{open::Polling, socket::Socket};
use crate::base::guard::locked;
use std::{fmt, io, sync::Mutex};

/// Whether the kernel polls for the socket of an RX ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Polls {
    /// It shall not, or may not.
    Not,
    /// The kernel does not know the NAPI instance. `had_packets`: packets had come when it was asked.
    Unknown { had_packets: bool },
    /// It polls this NAPI instance.
    By(u32),
}

/// Why workers do not poll the device of a queue, although polling is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotPolled {
    /// No packet has come yet, and the kernel may learn from the first.
    NotYet,
    /// Neither the driver nor a packet showed the NAPI instance.
    UnknownNapi,
    /// The kernel refuses.
    Refused(String),
}

impl fmt::Display for NotPolled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotPolled::NotYet => f.write_str(
                "its driver does not report which NAPI instance a queue has, and no packet has come that may show it: packets come by interrupts",
            ),
            NotPolled::UnknownNapi => f.write_str(
                "neither its driver nor its packets show this kernel which NAPI instance a queue has: packets come by interrupts",
            ),
            NotPolled::Refused(why) => write!(f, "the kernel does not allow sockets to poll (this needs CAP_NET_ADMIN): {why}"),
        }
    }
}

/// What is known of a queue from all of its sockets.
#[derive(Debug, Default)]
pub(super) struct QueuePolls(Mutex<Option<Result<(), NotPolled>>>);

impl QueuePolls {
    /// `None`: the kernel was not asked.
    pub fn stand(&self) -> Option<Result<(), NotPolled>> {
        locked(&self.0).clone()
    }

    /// One socket that polls is enough; otherwise the last answer counts.
    fn learn(&self, of_socket: Result<(), NotPolled>) {
        let mut stand = locked(&self.0);
        if *stand != Some(Ok(())) {
            *stand = Some(of_socket);
        }
    }

    /// Makes a socket poll as configured. Returns whether it may.
    pub fn set(&self, socket: &Socket, polling: Polling) -> bool {
        let Polling::Busy { microseconds, budget } = polling else { return false };
        let set = socket.poll_busily(microseconds, budget);
        if let Err(why) = &set {
            self.learn(Err(NotPolled::Refused(why.to_string())));
        }
        set.is_ok()
    }
}

impl Polls {
    /// The state of a socket that may poll, from the kernel's answer.
    pub fn of(queue: &QueuePolls, napi: io::Result<Option<u32>>, had_packets: bool) -> Polls {
        let (polls, stand) = match napi {
            Ok(Some(napi)) => (Polls::By(napi), Ok(())),
            Ok(None) if had_packets => (Polls::Unknown { had_packets }, Err(NotPolled::UnknownNapi)),
            Ok(None) => (Polls::Unknown { had_packets }, Err(NotPolled::NotYet)),
            Err(why) => (Polls::Not, Err(NotPolled::Refused(why.to_string()))),
        };
        queue.learn(stand);
        polls
    }

    pub fn napi(self) -> Option<u32> {
        if let Polls::By(napi) = self { Some(napi) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_has_the_best_state_of_its_sockets() {
        let queue = QueuePolls::default();
        assert_eq!(queue.stand(), None);
        assert_eq!(Polls::of(&queue, Ok(None), false), Polls::Unknown { had_packets: false });
        assert_eq!(queue.stand(), Some(Err(NotPolled::NotYet)));
        assert_eq!(Polls::of(&queue, Ok(None), true), Polls::Unknown { had_packets: true });
        assert_eq!(queue.stand(), Some(Err(NotPolled::UnknownNapi)));
        let refused = Polls::of(&queue, Err(io::Error::from_raw_os_error(libc::ENOPROTOOPT)), true);
        assert!(matches!((refused, queue.stand()), (Polls::Not, Some(Err(NotPolled::Refused(_))))));
        let by = Polls::of(&queue, Ok(Some(8193)), false);
        assert_eq!((by.napi(), queue.stand()), (Some(8193), Some(Ok(()))));
        // The socket of another path has had no packet yet.
        Polls::of(&queue, Ok(None), false);
        assert_eq!(queue.stand(), Some(Ok(())));
    }
}
