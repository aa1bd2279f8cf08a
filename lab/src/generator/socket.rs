//! A packet socket that only sends (packet(7)). All `unsafe` of the sender is here.

use std::{
    io, mem,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

use router::linux::netlink::socket::set_option;

use crate::sys;

/// More than the rings between here and the sink hold. Frames count until they are freed there, and the sender must not
/// wait for a router.
const SEND_BUFFER_BYTES: libc::c_int = 1 << 29;

/// Sends frames out of one device, past its queueing discipline.
pub(crate) struct PacketSocket(OwnedFd);

impl PacketSocket {
    /// Opens a socket for a device in the calling thread's namespace.
    pub(crate) fn open(device: &str) -> io::Result<Self> {
        // Protocol 0: it receives nothing.
        // SAFETY: takes no pointers.
        let fd = check(unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) })?;
        // SAFETY: `fd` was just opened, and nothing else owns it.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        set_option(&socket, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1)?;
        set_option(&socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BUFFER_BYTES)?;
        // SAFETY: an all-zero sockaddr_ll is valid.
        let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_ifindex = sys::interface_index(device)? as i32;
        let length = size_of_val(&address) as libc::socklen_t;
        // SAFETY: `address` is valid for `length` bytes.
        check(unsafe { libc::bind(fd, (&raw const address).cast(), length) })?;
        Ok(Self(socket))
    }

    /// Hands frames to the device, in order. Returns how many it had no room for; older kernels do not report any.
    pub(crate) fn send(&self, frames: &[Vec<u8>]) -> io::Result<u64> {
        let (mut left, mut refused) = (frames, 0);
        while !left.is_empty() {
            let taken = self.offer(left)?;
            refused += u64::from(taken == 0);
            left = &left[taken.max(1)..];
        }
        Ok(refused)
    }

    /// Returns how many of the frames, from the first on, the device took. It has no room for the next one, but may
    /// have room for others.
    pub(super) fn offer(&self, frames: &[Vec<u8>]) -> io::Result<usize> {
        let part = |frame: &Vec<u8>| libc::iovec {
            iov_base: frame.as_ptr().cast_mut().cast(),
            iov_len: frame.len(),
        };
        let mut parts: Vec<libc::iovec> = frames.iter().map(part).collect();
        let message = |part: &mut libc::iovec| {
            // SAFETY: an all-zero mmsghdr is a message without address, parts and control data.
            let mut message: libc::mmsghdr = unsafe { mem::zeroed() };
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
            message
        };
        let mut messages: Vec<libc::mmsghdr> = parts.iter_mut().map(message).collect();
        let mut taken = 0;
        while taken < messages.len() {
            let left = &mut messages[taken..];
            // SAFETY: each message has one part, in `parts`, which is a frame of `frames`; both outlive the call, and
            // frames are only read.
            let result =
                check(unsafe { libc::sendmmsg(self.0.as_raw_fd(), left.as_mut_ptr(), left.len() as u32, 0) });
            // A refused frame ends a call. The call reports the refusal only if the frame was its first.
            match result {
                Ok(sent) => taken += sent as usize,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(taken)
    }
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
