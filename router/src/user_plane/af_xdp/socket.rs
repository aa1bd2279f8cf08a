//! The system calls of an AF_XDP socket. `unsafe` is needed for those that libc only declares.
//!
//! Kernel source: `include/uapi/linux/if_xdp.h`, `net/xdp/xsk.c`.

use super::{
    Fault,
    ring_memory::{Offsets, RingMemory},
    umem::Umem,
};
use memmap2::MmapOptions;
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

/// Packets that a socket did not receive or send since it was made (`struct xdp_statistics` of the kernel).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Packets that are too long for a frame, or for which there was no frame.
    pub received_dropped: u64,
    /// Frames in the fill ring that do not belong to the memory.
    pub received_invalid: u64,
    /// Packets in the TX ring that are not wholly within a frame of the memory.
    pub sent_invalid: u64,
    /// Packets that found the RX ring full, because the path did not keep up.
    pub receive_ring_full: u64,
    /// Times that the kernel found the queue's fill ring empty; the same for all sockets of a queue.
    pub fill_ring_empty: u64,
    /// Times that the kernel found the TX ring empty, which is normal.
    pub transmit_ring_empty: u64,
}

/// A kind of ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    Receive,
    Transmit,
    Fill,
    Completion,
}

impl Which {
    fn option(self) -> libc::c_int {
        match self {
            Which::Receive => libc::XDP_RX_RING,
            Which::Transmit => libc::XDP_TX_RING,
            Which::Fill => libc::XDP_UMEM_FILL_RING,
            Which::Completion => libc::XDP_UMEM_COMPLETION_RING,
        }
    }

    /// The offset at which the ring is mapped.
    fn page(self) -> u64 {
        match self {
            Which::Receive => libc::XDP_PGOFF_RX_RING as u64,
            Which::Transmit => libc::XDP_PGOFF_TX_RING as u64,
            Which::Fill => libc::XDP_UMEM_PGOFF_FILL_RING,
            Which::Completion => libc::XDP_UMEM_PGOFF_COMPLETION_RING,
        }
    }

    fn words(self) -> usize {
        match self {
            Which::Receive | Which::Transmit => 2,
            Which::Fill | Which::Completion => 1,
        }
    }
}

#[derive(Debug)]
pub(super) struct Socket(OwnedFd);

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Socket {
    /// Opens a socket in the calling thread's namespace, which has the devices that it can be bound to.
    pub(super) fn open() -> io::Result<Socket> {
        // SAFETY: a system call without pointers.
        let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just returned to us.
        Ok(Socket(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// A socket that refuses everything.
    #[cfg(test)]
    pub(super) fn fake() -> Socket {
        Socket(std::fs::File::open("/dev/null").unwrap().into())
    }

    /// A socket whose calls the other end sees: a call to send is an empty message, and a call to receive takes one.
    #[cfg(test)]
    pub(super) fn watched() -> (Socket, std::os::unix::net::UnixDatagram) {
        let (ours, other) = std::os::unix::net::UnixDatagram::pair().unwrap();
        other.set_nonblocking(true).unwrap();
        (Socket(ours.into()), other)
    }

    /// Registers the memory of all packets.
    pub(super) fn register(&self, umem: &Umem) -> io::Result<()> {
        let registration = libc::xdp_umem_reg {
            addr: umem.memory().as_mut_ptr() as u64,
            len: u64::from(umem.frames()) * u64::from(umem.frame_bytes()),
            chunk_size: umem.frame_bytes(),
            // In addition to the kernel's own 256 bytes.
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        self.set(libc::SOL_XDP, libc::XDP_UMEM_REG, &registration)
    }

    /// Makes a ring and maps it. Both must happen before the socket is bound.
    pub(super) fn ring(&self, which: Which, entries: u32) -> io::Result<RingMemory> {
        self.set(libc::SOL_XDP, which.option(), &entries)?;
        let mut offsets =
            libc::xdp_mmap_offsets { rx: NO_OFFSETS, tx: NO_OFFSETS, fr: NO_OFFSETS, cr: NO_OFFSETS };
        self.get(libc::SOL_XDP, libc::XDP_MMAP_OFFSETS, &mut offsets)?;
        let at = match which {
            Which::Receive => offsets.rx,
            Which::Transmit => offsets.tx,
            Which::Fill => offsets.fr,
            Which::Completion => offsets.cr,
        };
        let at = Offsets {
            producer: at.producer as usize,
            consumer: at.consumer as usize,
            flags: at.flags as usize,
            entries: at.desc as usize,
        };
        let words = entries as usize * which.words();
        let map = MmapOptions::new()
            .offset(which.page())
            .len(at.entries.saturating_add(words * 8))
            .populate()
            .map_raw(self.0.as_raw_fd())?;
        RingMemory::new(Arc::new(map), at, words)
    }

    /// Binds the socket to a queue of a device, in the namespace that the socket was opened in. With `shared` it uses the memory of that
    /// socket, and has the flags of that socket.
    pub(super) fn bind(&self, ifindex: u32, queue: u32, flags: u16, shared: Option<i32>) -> io::Result<()> {
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: if shared.is_some() { libc::XDP_SHARED_UMEM } else { flags },
            sxdp_ifindex: ifindex,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: shared.unwrap_or(0) as u32,
        };
        // SAFETY: `address` is readable for the size given.
        let rc = unsafe {
            libc::bind(self.0.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as u32)
        };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Whether packets are not copied (XDP_OPTIONS).
    pub(super) fn is_zero_copy(&self) -> io::Result<bool> {
        let mut options = libc::xdp_options { flags: 0 };
        self.get(libc::SOL_XDP, libc::XDP_OPTIONS, &mut options)?;
        Ok(options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
    }

    pub(super) fn statistics(&self) -> io::Result<Statistics> {
        let mut s = libc::xdp_statistics {
            rx_dropped: 0,
            rx_invalid_descs: 0,
            tx_invalid_descs: 0,
            rx_ring_full: 0,
            rx_fill_ring_empty_descs: 0,
            tx_ring_empty_descs: 0,
        };
        self.get(libc::SOL_XDP, libc::XDP_STATISTICS, &mut s)?;
        Ok(Statistics {
            received_dropped: s.rx_dropped,
            received_invalid: s.rx_invalid_descs,
            sent_invalid: s.tx_invalid_descs,
            receive_ring_full: s.rx_ring_full,
            fill_ring_empty: s.rx_fill_ring_empty_descs,
            transmit_ring_empty: s.tx_ring_empty_descs,
        })
    }

    /// Makes the receiving thread poll the device when it asks for packets, in place of interrupts.
    pub(super) fn poll_busily(&self, microseconds: u32, budget: u16) -> io::Result<()> {
        let budget = u32::from(budget);
        for (option, value) in [
            (libc::SO_PREFER_BUSY_POLL, 1),
            (libc::SO_BUSY_POLL, microseconds),
            (libc::SO_BUSY_POLL_BUDGET, budget),
        ] {
            self.set(libc::SOL_SOCKET, option, &value)?;
        }
        Ok(())
    }

    /// Whether [`Socket::poll_busily`] succeeded.
    pub(super) fn polls_busily(&self) -> bool {
        let mut prefers = 0_i32;
        self.get(libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL, &mut prefers).is_ok() && prefers != 0
    }

    /// The NAPI instance that the kernel polls when the socket is asked for packets; `None`: the kernel knows none.
    pub(super) fn napi(&self) -> io::Result<Option<u32>> {
        let mut napi = 0_u32;
        self.get(libc::SOL_SOCKET, libc::SO_INCOMING_NAPI_ID, &mut napi)?;
        Ok(Some(napi).filter(|napi| *napi != 0))
    }

    /// Makes the kernel look at the TX ring. `Ok(false)`: it could not send everything now.
    pub(super) fn send(&self) -> Result<bool, Fault> {
        // SAFETY: an empty message.
        let rc = unsafe {
            libc::sendto(self.0.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0)
        };
        outcome(rc)
    }

    /// Makes the kernel look at the fill ring, and poll the device if that is set. The result also shows whether the port exists.
    pub(super) fn receive(&self) -> Result<bool, Fault> {
        // SAFETY: an empty message.
        let rc = unsafe {
            libc::recvfrom(
                self.0.as_raw_fd(),
                std::ptr::null_mut(),
                0,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        };
        outcome(rc)
    }

    fn set<T>(&self, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
        // SAFETY: `value` is readable for its size; the options used here read no more than that.
        let rc = unsafe {
            libc::setsockopt(
                self.0.as_raw_fd(),
                level,
                option,
                std::ptr::from_ref(value).cast(),
                size_of::<T>() as u32,
            )
        };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Reads an option.
    ///
    /// # Errors
    /// The call failed, or the kernel's answer is shorter than `T`.
    fn get<T>(&self, level: libc::c_int, option: libc::c_int, value: &mut T) -> io::Result<()> {
        let mut length = size_of::<T>() as libc::socklen_t;
        // SAFETY: `value`, a plain C structure of integers, is writable for the length given.
        let rc = unsafe {
            libc::getsockopt(
                self.0.as_raw_fd(),
                level,
                option,
                std::ptr::from_mut(value).cast(),
                &raw mut length,
            )
        };
        if rc < 0 {
            return Err(io::Error::last_os_error());
        }
        if (length as usize) < size_of::<T>() {
            return Err(io::Error::other("the kernel is too old: it lacks features of AF_XDP"));
        }
        Ok(())
    }
}

const NO_OFFSETS: libc::xdp_ring_offset =
    libc::xdp_ring_offset { producer: 0, consumer: 0, desc: 0, flags: 0 };

/// The outcome of a call that wakes the kernel. Unknown errors mean that it must be tried again, because a busy driver may return any
/// error.
fn outcome(rc: isize) -> Result<bool, Fault> {
    if rc >= 0 {
        return Ok(true);
    }
    match io::Error::last_os_error().raw_os_error() {
        // The socket was unbound: NETDEV_UNREGISTER.
        Some(libc::ENXIO) => Err(Fault::Gone),
        Some(libc::ENETDOWN) => Err(Fault::Down),
        _ => Ok(false),
    }
}

/// Sleeps until one of these is readable, but at most `longest`. Returns whether one is.
pub(super) fn wait<'a>(
    sockets: impl Iterator<Item = BorrowedFd<'a>>,
    longest: Option<Duration>,
) -> io::Result<bool> {
    let mut polled: Vec<libc::pollfd> =
        sockets.map(|fd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 }).collect();
    // Rounded up, so that less than a millisecond does not become 0.
    let longest_ms =
        longest.map_or(-1, |longest| longest.as_nanos().div_ceil(1_000_000).try_into().unwrap_or(i32::MAX));
    // SAFETY: `polled` is writable for its length.
    let ready = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, longest_ms) };
    match ready {
        0.. => Ok(ready > 0),
        _ => Err(io::Error::last_os_error()).or_else(|e| match e.kind() {
            io::ErrorKind::Interrupted => Ok(false),
            _ => Err(e),
        }),
    }
}
