//! Netlink sockets: requests with answers, and subscriptions.
//!
//! A socket belongs to the namespace of the thread that opened it, for good; it keeps that namespace alive until it is
//! closed.
//!
//! Whoever has `CAP_NET_ADMIN` in a namespace can send to any netlink socket in it, and to a multicast group as the kernel
//! does. Two things keep such messages out:
//!
//! - Sockets are connected to port id 0, the kernel's. The kernel then refuses what others send to our port id
//!   (`netlink_getsockbyportid()`), so a flood of it never reaches a receive buffer.
//! - The sender of every message is read, and what is not from port id 0 is dropped and counted. The kernel writes the
//!   sender; the `nlmsg_pid` inside a message is the sender's own claim. Multicast needs this.
//!
//! An answer must also name our port id and the request's sequence number, which begins at a random one.

use super::wire::{self, Message, Request};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    rand::{GetRandomFlags, getrandom},
};
use std::{
    io, mem,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    ptr,
    time::{Duration, Instant},
};

/// A dump skb holds at most 32 KiB (`netlink_dump`); events are smaller.
const BUFFER_BYTES: usize = 64 << 10;
/// A kernel that answers nothing for this long is an error, not a wait.
const SILENCE: Duration = Duration::from_secs(1);
/// A dump and its repetitions end after this long, however much still comes.
const LONGEST: Duration = Duration::from_secs(10);
/// How often a dump that the kernel says was interrupted is started over.
const DUMP_ATTEMPTS: usize = 20;
/// Buffers thrown away at once.
const DISCARDED_AT_ONCE: usize = 4096;

/// One netlink socket.
pub struct Socket {
    inner: netlink_sys::Socket,
    /// Our port id.
    port: u32,
    sequence: u32,
    buffer: Vec<u8>,
    /// Messages that came from others than the kernel.
    forged: u64,
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.inner.as_raw_fd()
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open for as long as `self` is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.inner.as_raw_fd()) }
    }
}

/// What one receive call returned.
struct Datagram {
    bytes: usize,
    /// The port id of its sender; 0: the kernel.
    sender: u32,
}

impl Socket {
    /// For requests, in the namespace of the calling thread. `protocol`: `NETLINK_ROUTE` and so on.
    pub fn requests(protocol: i32) -> io::Result<Socket> {
        let socket = Self::open(protocol)?;
        // Filters in dump requests are honoured, nonsense in them is an error (Linux 4.20).
        let _ = socket.inner.set_netlink_get_strict_chk(true);
        Ok(socket)
    }

    /// For events of these groups, non-blocking, in the namespace of the calling thread.
    pub fn subscription(protocol: i32, groups: &[u32], receive_buffer_bytes: usize) -> io::Result<Socket> {
        let socket = Self::open(protocol)?;
        socket.set_receive_buffer(receive_buffer_bytes)?;
        for group in groups {
            socket.inner.add_membership(*group)?;
        }
        Ok(socket)
    }

    fn open(protocol: i32) -> io::Result<Socket> {
        let mut inner = netlink_sys::Socket::new(protocol as isize)?;
        let port = inner.bind_auto()?.port_number();
        inner.connect(&netlink_sys::SocketAddr::new(0, 0))?;
        let _ = inner.set_ext_ack(true);
        let mut first = [0; 4];
        let _ = getrandom(&mut first, GetRandomFlags::empty())?;
        let sequence = u32::from_ne_bytes(first);
        Ok(Socket { inner, port, sequence, buffer: vec![0; BUFFER_BYTES], forged: 0 })
    }

    /// How many bytes of events the kernel may hold for us, beyond `net.core.rmem_max`.
    pub fn set_receive_buffer(&self, bytes: usize) -> io::Result<()> {
        // The kernel doubles the value and keeps it in an int.
        let bytes = i32::try_from(bytes.min(1 << 29)).unwrap_or(1 << 29);
        set_option(&self.inner, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes)
    }

    /// How many messages came from others than the kernel; all were dropped.
    pub fn forged(&self) -> u64 {
        self.forged
    }

    /// One buffer of events, empty if its sender was not the kernel. `Ok(None)`: nothing there. `ENOBUFS`: events were
    /// lost.
    pub fn events(&mut self) -> io::Result<Option<&[u8]>> {
        match receive(&self.inner, &mut self.buffer) {
            Ok(Datagram { bytes, sender: 0 }) => Ok(Some(&self.buffer[..bytes])),
            Ok(_) => {
                self.forged += 1;
                Ok(Some(&[]))
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// As [`Socket::events`], with the buffer itself and how much of it is filled; give it back afterwards.
    pub fn take_buffer(&mut self) -> io::Result<Option<(Vec<u8>, usize)>> {
        let length = self.events()?.map(<[u8]>::len);
        Ok(length.map(|length| (mem::take(&mut self.buffer), length)))
    }

    /// The buffer that [`Socket::take_buffer`] lent.
    pub fn return_buffer(&mut self, buffer: Vec<u8>) {
        self.buffer = buffer;
    }

    /// Throws away what waits; whether anything was lost is of no interest here. False: more may wait, and a flood must
    /// not hold the caller.
    pub fn discard(&mut self) -> bool {
        for _ in 0..DISCARDED_AT_ONCE {
            match self.events() {
                Ok(None) => return true,
                // ENOBUFS is reported once per overrun.
                Err(e) if e.raw_os_error() != Some(libc::ENOBUFS) => return true,
                _ => (),
            }
        }
        false
    }

    /// The next answer of the kernel, in the buffer; its length.
    fn answer(&mut self, deadline: Instant) -> io::Result<usize> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the kernel did not answer in time"));
            }
            match receive(&self.inner, &mut self.buffer) {
                Ok(Datagram { bytes, sender: 0 }) => return Ok(bytes),
                Ok(_) => self.forged += 1,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => wait(&self.inner, left)?,
                Err(e) => return Err(e),
            }
        }
    }

    /// Send one request and hand every answer to `each`, until the kernel says it is done. `Ok(true)`: the dump was
    /// interrupted and is not to be trusted.
    fn exchange(
        &mut self,
        request: &mut Request,
        end: Instant,
        each: &mut dyn FnMut(Message<'_>),
    ) -> io::Result<bool> {
        self.sequence = self.sequence.wrapping_add(1);
        self.inner.send(request.bytes(self.sequence), 0)?;
        let mut interrupted = false;
        let mut patience = Instant::now() + SILENCE;
        loop {
            let n = self.answer(patience.min(end))?;
            for message in wire::messages_to(self.port, &self.buffer[..n]) {
                if message.sequence != self.sequence {
                    continue;
                }
                patience = Instant::now() + SILENCE;
                interrupted |= message.flags & wire::DUMP_INTERRUPTED != 0;
                match message.kind {
                    wire::DONE | wire::ERROR => {
                        // Both carry 0 or a negative errno; DONE of old kernels may carry nothing.
                        return match wire::u32_at(message.payload, 0).unwrap_or(0) as i32 {
                            0 => Ok(interrupted),
                            error => Err(io::Error::from_raw_os_error(error.saturating_neg())),
                        };
                    }
                    wire::OVERRUN => interrupted = true,
                    _ => each(message),
                }
            }
        }
    }

    /// A dump, parsed; messages for which `parse` says `None` are left out. Started over while it is interrupted.
    pub fn dump<T>(
        &mut self,
        request: Request,
        mut parse: impl FnMut(Message<'_>) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        let mut request = request;
        let end = Instant::now() + LONGEST;
        for _ in 0..DUMP_ATTEMPTS {
            let mut found = Vec::new();
            if !self.exchange(&mut request, end, &mut |m| found.extend(parse(m)))? {
                return Ok(found);
            }
        }
        Err(io::Error::new(io::ErrorKind::Interrupted, "the table changes faster than it can be dumped"))
    }

    /// A request answered by one message and, if it asks with [`wire::ACK`], an acknowledgement.
    pub fn ask<T>(
        &mut self,
        request: Request,
        mut parse: impl FnMut(Message<'_>) -> Option<T>,
    ) -> io::Result<Option<T>> {
        let mut request = request;
        let mut answer = None;
        self.exchange(&mut request, Instant::now() + LONGEST, &mut |m| {
            if answer.is_none() {
                answer = parse(m);
            }
        })?;
        Ok(answer)
    }
}

/// One message from the socket's queue, without waiting.
fn receive(socket: &netlink_sys::Socket, buffer: &mut [u8]) -> io::Result<Datagram> {
    loop {
        // SAFETY: all zeros is a value of this plain C struct.
        let mut sender: libc::sockaddr_nl = unsafe { mem::zeroed() };
        let mut length = size_of_val(&sender) as libc::socklen_t;
        let (to, from) = (buffer.as_mut_ptr().cast(), ptr::from_mut(&mut sender).cast());
        let flags = libc::MSG_TRUNC | libc::MSG_DONTWAIT;
        // SAFETY: each pointer goes with the length of the live, exclusively borrowed thing it points to.
        let n = unsafe { libc::recvfrom(socket.as_raw_fd(), to, buffer.len(), flags, from, &raw mut length) };
        match usize::try_from(n) {
            Ok(n) if n > buffer.len() => return Err(io::Error::from_raw_os_error(libc::ENOBUFS)),
            Ok(bytes) => {
                // A sender that is not told is not the kernel.
                let told = length as usize >= size_of_val(&sender);
                return Ok(Datagram { bytes, sender: if told { sender.nl_pid } else { u32::MAX } });
            }
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

/// Until there is something to receive, or the time is up.
fn wait(socket: &netlink_sys::Socket, at_most: Duration) -> io::Result<()> {
    let timeout = Timespec::try_from(at_most).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the descriptor is open for as long as `socket` is borrowed.
    let socket = unsafe { BorrowedFd::borrow_raw(socket.as_raw_fd()) };
    match poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn set_option<T>(socket: &impl AsRawFd, level: i32, name: i32, value: T) -> io::Result<()> {
    // SAFETY: `value` lives across the call and its size is passed with it; callers pass plain C integers and structs.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
