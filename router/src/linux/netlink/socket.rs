//! Netlink sockets: requests with answers, and subscriptions.
//!
//! A socket belongs to the namespace of the thread that opened it, and never changes that. It keeps the namespace alive
//! until it is closed.
//!
//! A process with `CAP_NET_ADMIN` in a namespace can send to any netlink socket in it. It can also send to a multicast
//! group, as the kernel does. Two measures keep such messages out:
//!
//! - Sockets are connected to port id 0, the kernel's. The kernel then refuses messages of others to our port id
//!   (`netlink_getsockbyportid()`), so a flood of them never reaches a receive buffer.
//! - The sender of every message is checked. Messages that are not from port id 0 are dropped and counted. The kernel
//!   writes the sender; the `nlmsg_pid` inside a message is only the sender's claim. Multicast needs this check.
//!
//! An answer must also have our port id and the sequence number of the request. The first sequence number is random.

use super::wire::{self, Message, Request};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    rand::{GetRandomFlags, getrandom},
};
use std::{
    io, mem,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    time::{Duration, Instant},
};

/// A dump skb holds at most 32 KiB (`netlink_dump`); events are smaller.
const BUFFER_BYTES: usize = 64 << 10;
/// A kernel that does not answer for this long causes an error.
const SILENCE: Duration = Duration::from_secs(1);
/// A dump and its repetitions end after this time, even if more answers come.
const LONGEST: Duration = Duration::from_secs(10);
/// The number of attempts at a dump that the kernel reports as interrupted.
const DUMP_ATTEMPTS: usize = 20;
/// The most requests of a batch. Their answers fit into the receive buffer.
pub const LARGEST_BATCH: usize = 64;
/// The number of buffers discarded at once.
const DISCARDED_AT_ONCE: usize = 4096;

/// One netlink socket.
pub struct Socket {
    inner: netlink_sys::Socket,
    /// Our port id.
    port: u32,
    sequence: u32,
    buffer: Vec<u8>,
    /// Every exchange ends at this time.
    end: Option<Instant>,
    /// The number of the namespace that the last buffer of events came from; `None`: the socket's own.
    origin: Option<i32>,
    /// The number of messages that did not come from the kernel.
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

/// The result of one receive call.
struct Datagram {
    bytes: usize,
    /// The port id of its sender; 0: the kernel.
    sender: u32,
    /// The number of the namespace that it comes from; `None`: the socket's own.
    origin: Option<i32>,
}

/// The most entries of a table that has no limit of its own. A hostile namespace can have any number of rules or
/// filters, and a large host has some ten thousand queueing disciplines.
const LONGEST_DUMP: usize = 1 << 18;

/// How many entries of one kind a namespace may have.
#[derive(Clone, Copy, Debug)]
pub struct Most {
    pub limit: usize,
    /// The name of the entries, in the plural.
    pub what: &'static str,
    /// The rest of `limit`.
    left: usize,
    /// The number of entries that a message counts as.
    weigh: fn(&Message<'_>) -> usize,
}

impl Most {
    pub fn new(limit: usize, what: &'static str) -> Most {
        Most { limit, what, left: limit, weigh: |_| 1 }
    }

    /// Sets the number of entries that a message counts as.
    pub fn weighed(self, weigh: fn(&Message<'_>) -> usize) -> Most {
        Most { weigh, ..self }
    }

    /// The number of entries read so far.
    pub fn used(&self) -> usize {
        self.limit - self.left
    }

    /// # Errors
    /// `QuotaExceeded`, with a text for users, if this many more exceed the limit.
    pub fn check(&self, count: usize) -> io::Result<()> {
        if count <= self.left {
            return Ok(());
        }
        let text = format!("it has more than {} {}", self.limit, self.what);
        Err(io::Error::new(io::ErrorKind::QuotaExceeded, text))
    }

    fn take(&mut self, message: &Message<'_>) -> io::Result<()> {
        let weight = (self.weigh)(message);
        self.check(weight)?;
        self.left -= weight;
        Ok(())
    }
}

impl Socket {
    /// Opens a socket for requests in the namespace of the calling thread. `protocol` is `NETLINK_ROUTE` or similar.
    pub fn requests(protocol: i32) -> io::Result<Socket> {
        let socket = Self::open(protocol)?;
        // The kernel then applies filters in dump requests, and refuses invalid ones (Linux 4.20).
        let _ = socket.inner.set_netlink_get_strict_chk(true);
        Ok(socket)
    }

    /// Opens a non-blocking socket for events of these groups, in the namespace of the calling thread.
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
        let buffer = vec![0; BUFFER_BYTES];
        Ok(Socket { inner, port, sequence, buffer, end: None, origin: None, forged: 0 })
    }

    /// Also receives messages of all namespaces that have a number in this one. This keeps none of them alive.
    ///
    /// # Errors
    /// `EPERM` without CAP_NET_BROADCAST. The capability is needed here and in each of them.
    pub fn hear_all_namespaces(&self) -> io::Result<()> {
        set_option(&self.inner, libc::SOL_NETLINK, libc::NETLINK_LISTEN_ALL_NSID, 1)
    }

    /// Sets the time at which every exchange ends.
    pub fn end_at(&mut self, end: Instant) {
        self.end = Some(end);
    }

    /// Sets how many bytes of events the kernel may hold for us. The value may exceed `net.core.rmem_max`.
    pub fn set_receive_buffer(&self, bytes: usize) -> io::Result<()> {
        // The kernel doubles the value and keeps it in an int.
        let bytes = i32::try_from(bytes.min(1 << 29)).unwrap_or(1 << 29);
        set_option(&self.inner, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes)
    }

    /// The number of messages that did not come from the kernel. All were dropped.
    pub fn forged(&self) -> u64 {
        self.forged
    }

    /// Receives one buffer of events. It is empty if its sender was not the kernel. `Ok(None)`: none is waiting.
    /// `ENOBUFS`: events were lost.
    pub fn events(&mut self) -> io::Result<Option<&[u8]>> {
        match receive(&self.inner, &mut self.buffer) {
            Ok(Datagram { bytes, sender: 0, origin }) => {
                self.origin = origin;
                Ok(Some(&self.buffer[..bytes]))
            }
            Ok(_) => {
                self.forged += 1;
                Ok(Some(&[]))
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// As [`Socket::events`], with the number of the namespace that the buffer comes from; `None`: the socket's own.
    pub fn events_with_origin(&mut self) -> io::Result<Option<(Option<i32>, &[u8])>> {
        let length = self.events()?.map(<[u8]>::len);
        Ok(length.map(|length| (self.origin, &self.buffer[..length])))
    }

    /// The number of the namespace that the last buffer came from; `None`: the socket's own.
    pub fn origin(&self) -> Option<i32> {
        self.origin
    }

    /// As [`Socket::events`], but returns the buffer itself and the length of its content. The caller must give it back
    /// with [`Socket::return_buffer`].
    pub fn take_buffer(&mut self) -> io::Result<Option<(Vec<u8>, usize)>> {
        let length = self.events()?.map(<[u8]>::len);
        Ok(length.map(|length| (mem::take(&mut self.buffer), length)))
    }

    /// Takes back the buffer of [`Socket::take_buffer`].
    pub fn return_buffer(&mut self, buffer: Vec<u8>) {
        self.buffer = buffer;
    }

    /// Discards waiting messages. Lost messages do not matter here. Returns false if more may wait: a flood must not
    /// hold up the caller.
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

    /// Receives the next answer of the kernel into the buffer. Returns its length.
    fn answer(&mut self, deadline: Instant) -> io::Result<usize> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the kernel did not answer in time"));
            }
            match receive(&self.inner, &mut self.buffer) {
                Ok(Datagram { bytes, sender: 0, .. }) => return Ok(bytes),
                Ok(_) => self.forged += 1,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => wait(&self.inner, left)?,
                Err(e) => return Err(e),
            }
        }
    }

    /// Sends one request and passes every answer to `each` until the kernel reports the end. `Ok(true)`: the dump was
    /// interrupted, so its result may be wrong.
    fn exchange(
        &mut self,
        request: &mut Request,
        end: Instant,
        each: &mut dyn FnMut(Message<'_>) -> io::Result<()>,
    ) -> io::Result<bool> {
        let end = self.end.map_or(end, |last| last.min(end));
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
                        // Both contain 0 or a negative errno. DONE of old kernels may be empty.
                        return match wire::u32_at(message.payload, 0).unwrap_or(0) as i32 {
                            0 => Ok(interrupted),
                            error => Err(io::Error::from_raw_os_error(error.saturating_neg())),
                        };
                    }
                    wire::OVERRUN => interrupted = true,
                    _ => each(message)?,
                }
            }
        }
    }

    /// Requests and parses a dump. Messages for which `parse` returns `None` are left out. An interrupted dump is
    /// repeated.
    pub fn dump<T>(
        &mut self,
        request: Request,
        parse: impl FnMut(Message<'_>) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        self.dump_at_most(&mut Most::new(LONGEST_DUMP, "entries"), request, parse)
    }

    /// As [`Socket::dump`], but with a limit: entries that are read are subtracted from `most`.
    ///
    /// # Errors
    /// `QuotaExceeded`: there are more entries. The rest waits in the socket, so the socket cannot be used any more.
    pub fn dump_at_most<T>(
        &mut self,
        most: &mut Most,
        request: Request,
        mut parse: impl FnMut(Message<'_>) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        let mut request = request;
        let end = Instant::now() + LONGEST;
        for _ in 0..DUMP_ATTEMPTS {
            let mut found = Vec::new();
            let mut left = *most;
            let mut each = |m: Message<'_>| {
                if let Some(one) = parse(m) {
                    left.take(&m)?;
                    found.push(one);
                }
                Ok(())
            };
            if !self.exchange(&mut request, end, &mut each)? {
                *most = left;
                return Ok(found);
            }
        }
        Err(io::Error::new(io::ErrorKind::Interrupted, "the table changes faster than it can be dumped"))
    }

    /// Sends a request that is answered by one message and, with [`wire::ACK`], by an acknowledgement.
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
            Ok(())
        })?;
        Ok(answer)
    }

    /// Sends up to [`LARGEST_BATCH`] requests at once. Linux executes one after the other. Those without [`wire::ACK`] are
    /// answered only if they fail. Echoes have no sequence number, so the caller must compare what they are about.
    ///
    /// # Errors
    /// No answer came in time, or answers were lost. Then it is not known which requests were executed.
    pub fn batch(&mut self, requests: &mut [Request], mut each: impl FnMut(Answer<'_>)) -> io::Result<()> {
        if requests.len() > LARGEST_BATCH {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let Some(last) = requests.len().checked_sub(1) else { return Ok(()) };
        // The end of the last one is the end of all.
        requests[last].set_flags(wire::ACK);
        let first = self.sequence.wrapping_add(1);
        let mut bytes = Vec::new();
        for request in requests {
            self.sequence = self.sequence.wrapping_add(1);
            bytes.extend_from_slice(request.bytes(self.sequence));
        }
        self.inner.send(&bytes, 0)?;
        let now = Instant::now();
        let end = self.end.map_or(now + LONGEST, |end| end.min(now + LONGEST));
        let mut patience = now + SILENCE;
        loop {
            let n = self.answer(patience.min(end))?;
            patience = Instant::now() + SILENCE;
            for message in wire::messages_to(self.port, &self.buffer[..n]) {
                let index = message.sequence.wrapping_sub(first) as usize;
                match message.kind {
                    wire::ERROR if index <= last => {
                        let result = match wire::u32_at(message.payload, 0).unwrap_or(0) as i32 {
                            0 => Ok(()),
                            error => Err(io::Error::from_raw_os_error(error.saturating_neg())),
                        };
                        each(Answer::End(index, result));
                        if index == last {
                            return Ok(());
                        }
                    }
                    wire::ERROR => (),
                    // Events have the number 0 (`ctnetlink_conntrack_event()`).
                    _ if message.sequence == 0 => each(Answer::Echo(message)),
                    _ => (),
                }
            }
        }
    }
}

/// One part of the answers to a batch.
pub enum Answer<'a> {
    /// The event of the request whose end comes next ([`wire::ECHO`]).
    Echo(Message<'a>),
    /// Linux is done with the request at this index. Requests without an end succeeded.
    End(usize, io::Result<()>),
}

/// Receives one message from the queue of the socket, without waiting.
fn receive(socket: &netlink_sys::Socket, buffer: &mut [u8]) -> io::Result<Datagram> {
    loop {
        let mut control = Control([0; 64]);
        let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        // SAFETY: all zeros is a value of these plain C structs.
        let (mut sender, mut header): (libc::sockaddr_nl, libc::msghdr) = unsafe { mem::zeroed() };
        (header.msg_name, header.msg_namelen) = ((&raw mut sender).cast(), size_of_val(&sender) as u32);
        (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
        (header.msg_control, header.msg_controllen) = (control.0.as_mut_ptr().cast(), control.0.len() as _);
        let flags = libc::MSG_TRUNC | libc::MSG_DONTWAIT;
        // SAFETY: each pointer in `header` comes with the length of the live, exclusively borrowed value that it points
        // to.
        let n = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) };
        let Ok(bytes) = usize::try_from(n) else {
            match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => continue,
                error => return Err(error),
            }
        };
        if bytes > buffer.len() || header.msg_flags & libc::MSG_CTRUNC != 0 {
            return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
        }
        // A message without a sender is not from the kernel.
        let named = header.msg_namelen as usize >= size_of_val(&sender);
        let sender = if named { sender.nl_pid } else { u32::MAX };
        return Ok(Datagram { bytes, sender, origin: origin(&header) });
    }
}

/// Space for control messages, aligned like their headers.
#[repr(align(8))]
struct Control([u8; 64]);

/// Returns the number of a namespace in the control messages of a message.
fn origin(header: &libc::msghdr) -> Option<i32> {
    // SAFETY: `header` is as the kernel left it, and its control buffer is alive. The macros stay within that buffer.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(header);
        while let Some(control) = next.as_ref() {
            if (control.cmsg_level, control.cmsg_type) == (libc::SOL_NETLINK, libc::NETLINK_LISTEN_ALL_NSID) {
                return Some(libc::CMSG_DATA(control).cast::<i32>().read_unaligned());
            }
            next = libc::CMSG_NXTHDR(header, control);
        }
    }
    None
}

/// Waits until there is something to receive, or the time is up.
fn wait(socket: &netlink_sys::Socket, at_most: Duration) -> io::Result<()> {
    let timeout = Timespec::try_from(at_most).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the descriptor is open for as long as `socket` is borrowed.
    let socket = unsafe { BorrowedFd::borrow_raw(socket.as_raw_fd()) };
    match poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Sets an option whose value is a plain C integer or struct.
pub fn set_option<T>(socket: &impl AsRawFd, level: i32, name: i32, value: T) -> io::Result<()> {
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
