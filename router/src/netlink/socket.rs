//! Netlink sockets: requests with answers, and subscriptions.
//!
//! A socket belongs to the namespace of the thread that opened it, for good; it keeps that namespace alive until it is
//! closed.

use super::wire::{self, Message, Request};
use std::{
    io,
    os::fd::{AsRawFd, RawFd},
};

/// A dump skb holds at most 32 KiB (`netlink_dump`); events are smaller.
const BUFFER_BYTES: usize = 64 << 10;
/// A kernel that does not answer for this long is an error, not a wait.
const ANSWER_TIMEOUT_S: i64 = 10;
/// How often a dump that the kernel says was interrupted is started over.
const DUMP_ATTEMPTS: usize = 20;

/// One netlink socket.
pub struct Socket {
    inner: netlink_sys::Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.inner.as_raw_fd()
    }
}

impl Socket {
    /// For requests, in the namespace of the calling thread. `protocol`: `NETLINK_ROUTE` and so on.
    pub fn requests(protocol: i32) -> io::Result<Socket> {
        let socket = Self::open(protocol)?;
        // Filters in dump requests are honoured, nonsense in them is an error (Linux 4.20).
        let _ = socket.inner.set_netlink_get_strict_chk(true);
        let limit = libc::timeval { tv_sec: ANSWER_TIMEOUT_S, tv_usec: 0 };
        set_option(&socket.inner, libc::SOL_SOCKET, libc::SO_RCVTIMEO, limit)?;
        Ok(socket)
    }

    /// For events of these groups, non-blocking, in the namespace of the calling thread.
    pub fn subscription(protocol: i32, groups: &[u32], receive_buffer_bytes: usize) -> io::Result<Socket> {
        let socket = Self::open(protocol)?;
        socket.inner.set_non_blocking(true)?;
        socket.set_receive_buffer(receive_buffer_bytes)?;
        for group in groups {
            socket.inner.add_membership(*group)?;
        }
        Ok(socket)
    }

    fn open(protocol: i32) -> io::Result<Socket> {
        let mut inner = netlink_sys::Socket::new(protocol as isize)?;
        inner.bind_auto()?;
        let _ = inner.set_ext_ack(true);
        Ok(Socket { inner, sequence: 0, buffer: vec![0; BUFFER_BYTES] })
    }

    /// How many bytes of events the kernel may hold for us, beyond `net.core.rmem_max`.
    pub fn set_receive_buffer(&self, bytes: usize) -> io::Result<()> {
        // The kernel doubles the value and keeps it in an int.
        let bytes = i32::try_from(bytes.min(1 << 29)).unwrap_or(1 << 29);
        set_option(&self.inner, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes)
    }

    /// One buffer of events. `Ok(None)`: nothing there. `ENOBUFS`: events were lost.
    pub fn events(&mut self) -> io::Result<Option<&[u8]>> {
        match receive(&self.inner, &mut self.buffer) {
            Ok(n) => Ok(Some(&self.buffer[..n])),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// As [`Socket::events`], with the buffer itself and how much of it is filled; give it back afterwards.
    pub fn take_buffer(&mut self) -> io::Result<Option<(Vec<u8>, usize)>> {
        let length = self.events()?.map(<[u8]>::len);
        Ok(length.map(|length| (std::mem::take(&mut self.buffer), length)))
    }

    /// The buffer that [`Socket::take_buffer`] lent.
    pub fn return_buffer(&mut self, buffer: Vec<u8>) {
        self.buffer = buffer;
    }

    /// Throw away everything that waits; whether anything was lost is of no interest here.
    pub fn discard(&mut self) {
        // ENOBUFS is reported once per overrun and must not end this; the bound keeps a flood from holding us here.
        for _ in 0..1_000_000 {
            match self.events() {
                Ok(None) => return,
                Err(e) if e.raw_os_error() != Some(libc::ENOBUFS) => return,
                _ => (),
            }
        }
    }

    /// Send one request and hand every answer to `each`, until the kernel says it is done. `Ok(true)`: the dump was
    /// interrupted and is not to be trusted.
    fn exchange(&mut self, request: &mut Request, each: &mut dyn FnMut(Message<'_>)) -> io::Result<bool> {
        self.sequence = self.sequence.wrapping_add(1);
        self.inner.send(request.bytes(self.sequence), 0)?;
        let mut interrupted = false;
        loop {
            let n = receive(&self.inner, &mut self.buffer)?;
            for message in wire::messages(&self.buffer[..n]) {
                if message.sequence != self.sequence {
                    continue;
                }
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
        for _ in 0..DUMP_ATTEMPTS {
            let mut found = Vec::new();
            if !self.exchange(&mut request, &mut |m| found.extend(parse(m)))? {
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
        self.exchange(&mut request, &mut |m| {
            if answer.is_none() {
                answer = parse(m);
            }
        })?;
        Ok(answer)
    }
}

fn receive(socket: &netlink_sys::Socket, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        // SAFETY: the pointer and length are those of a live, exclusively borrowed buffer.
        let n = unsafe {
            libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_TRUNC)
        };
        match usize::try_from(n) {
            Ok(n) if n > buffer.len() => return Err(io::Error::from_raw_os_error(libc::ENOBUFS)),
            Ok(n) => return Ok(n),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
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
