//! Does the kernel poll a device itself when a worker asks for packets (SO_PREFER_BUSY_POLL)?
//!
//! It does by a socket that may ask for it (CAP_NET_ADMIN), and of which it knows the queue's NAPI instance (SO_INCOMING_NAPI_ID). From when on it knows that:
//!
//! | Linux | |
//! |---|---|
//! | to 6.12 | from the socket's first packet (`sk_mark_napi_id_once_xdp`), in zero-copy mode also from when it sends; veth, too |
//! | later | from when it is bound (`xsk_bind`), if the driver says which instance a queue has (`netif_queue_set_napi`); some kernels only in zero-copy mode. veth does not say |
//!
//! So it is asked when a socket is opened, and once more when it had packets.

use super::{open::Polling, socket::Socket};
use crate::base::guard::locked;
use std::{fmt, io, sync::Mutex};

/// Of one RX ring's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Polls {
    /// It is not to, or may not.
    Not,
    /// The kernel does not know its NAPI instance; had it packets when that was asked?
    Unknown { had_packets: bool },
    /// This NAPI instance, by it.
    By(u32),
}

/// Why a queue's device is not polled by who asks for packets, although it was to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotPolled {
    /// No packet came yet, and the kernel may learn from the first.
    NotYet,
    /// Neither the driver nor a packet told the kernel.
    UnknownNapi,
    /// The kernel refuses.
    Refused(String),
}

impl fmt::Display for NotPolled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotPolled::NotYet => f.write_str(
                "its driver does not tell which NAPI instance a queue has, and no packet came that might tell: packets come by interrupts",
            ),
            NotPolled::UnknownNapi => f.write_str(
                "neither its driver nor its packets tell this kernel which NAPI instance a queue has: packets come by interrupts",
            ),
            NotPolled::Refused(why) => write!(f, "the kernel does not let sockets poll, which takes CAP_NET_ADMIN: {why}"),
        }
    }
}

/// What is known of a queue, by all of its sockets.
#[derive(Debug, Default)]
pub(super) struct QueuePolls(Mutex<Option<Result<(), NotPolled>>>);

impl QueuePolls {
    /// `None`: nobody asked.
    pub fn stand(&self) -> Option<Result<(), NotPolled>> {
        locked(&self.0).clone()
    }

    /// One socket is enough; else the last word.
    fn learn(&self, of_socket: Result<(), NotPolled>) {
        let mut stand = locked(&self.0);
        if *stand != Some(Ok(())) {
            *stand = Some(of_socket);
        }
    }

    /// As a socket is to.
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
    /// Asked of a socket that may poll.
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
    fn what_is_known_of_a_queue_is_the_best_of_its_sockets() {
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
        // Another path's socket had no packet yet.
        Polls::of(&queue, Ok(None), false);
        assert_eq!(queue.stand(), Some(Ok(())));
    }
}
