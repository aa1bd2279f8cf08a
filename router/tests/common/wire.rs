//! A raw socket on one end of a veth: sends frames as they are, and receives those that come out of the other
//! end.

use super::ifindex;
use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

pub struct Wire {
    socket: OwnedFd,
}

/// `PACKET_OUTGOING`: frames that we sent ourselves.
const OUTGOING: u8 = 4;
static BUFFER_BYTES: libc::c_int = 16 << 20;

impl Wire {
    pub fn open(device: &str) -> Wire {
        let all = (libc::ETH_P_ALL as u16).to_be();
        // SAFETY: plain system calls; the descriptor is ours from here on.
        let socket = unsafe {
            let fd = libc::socket(
                libc::AF_PACKET,
                libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC,
                all.into(),
            );
            assert!(fd >= 0, "packet socket: {}", io::Error::last_os_error());
            OwnedFd::from_raw_fd(fd)
        };
        // SAFETY: zero is valid for a plain C structure.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = all;
        address.sll_ifindex = ifindex(device) as i32;
        // SAFETY: `address` and `BUFFER_BYTES` are readable for the sizes given.
        unsafe {
            let rc =
                libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as u32);
            assert_eq!(rc, 0, "binding to {device}: {}", io::Error::last_os_error());
            for option in [libc::SO_RCVBUFFORCE, libc::SO_SNDBUFFORCE] {
                libc::setsockopt(
                    socket.as_raw_fd(),
                    libc::SOL_SOCKET,
                    option,
                    (&raw const BUFFER_BYTES).cast(),
                    size_of_val(&BUFFER_BYTES) as u32,
                );
            }
        }
        Wire { socket }
    }

    /// Sends a frame. As on any wire, a frame that is too long for the other end is lost, and so is one while
    /// this end is down.
    pub fn send(&self, frame: &[u8]) {
        // SAFETY: a readable buffer of that length.
        let sent = unsafe { libc::send(self.socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        let lost = [libc::ENOBUFS, libc::ENETDOWN];
        if sent < 0 && io::Error::last_os_error().raw_os_error().is_some_and(|error| lost.contains(&error)) {
            return;
        }
        assert_eq!(
            sent,
            frame.len() as isize,
            "sending {} bytes: {}",
            frame.len(),
            io::Error::last_os_error()
        );
    }

    /// Makes the socket receive nothing from now on. The kernel does this many divisions to refuse each frame
    /// that comes in by the device.
    pub fn refuse_slowly(&self, divisions: u16) {
        let [divide, end] =
            [(libc::BPF_ALU | libc::BPF_DIV | libc::BPF_K, 3), (libc::BPF_RET | libc::BPF_K, 0)]
                .map(|(code, k)| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k });
        let mut filter = vec![divide; divisions.into()];
        filter.push(end);
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: `program` and what it points to are readable for the sizes given.
        let rc = unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_FILTER,
                (&raw const program).cast(),
                size_of_val(&program) as u32,
            )
        };
        assert_eq!(rc, 0, "attaching a filter: {}", io::Error::last_os_error());
    }

    /// Linux takes VLAN tags out of frames before packet sockets see them. With this, [`Wire::receive`] puts them back.
    #[allow(dead_code, reason = "few suites have VLANs")]
    pub fn keep_tags(self) -> Wire {
        let on: libc::c_int = 1;
        // SAFETY: `on` is readable for the size given.
        let rc = unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_AUXDATA,
                (&raw const on).cast(),
                size_of_val(&on) as u32,
            )
        };
        assert_eq!(rc, 0, "asking for VLAN tags: {}", io::Error::last_os_error());
        self
    }

    /// The next frame that came out; `None` if there is none now.
    pub fn receive(&self) -> Option<Vec<u8>> {
        let (mut buffer, mut control) = (vec![0_u8; 16384], [0_u64; 8]);
        loop {
            // SAFETY: zero is valid for plain C structures.
            let (mut from, mut message): (libc::sockaddr_ll, libc::msghdr) = unsafe { std::mem::zeroed() };
            let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
            message.msg_name = (&raw mut from).cast();
            message.msg_namelen = size_of_val(&from) as u32;
            (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = size_of_val(&control);
            // SAFETY: `message` names writable buffers of the lengths given.
            let received = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut message, 0) };
            if received < 0 {
                return None;
            }
            if from.sll_pkttype != OUTGOING {
                buffer.truncate(received as usize);
                if let Some(tag) = tag(&message) {
                    buffer.splice(12..12, tag);
                }
                return Some(buffer);
            }
        }
    }
}

/// The VLAN tag that the kernel has taken out of a frame.
fn tag(message: &libc::msghdr) -> Option<[u8; 4]> {
    // SAFETY: the kernel has filled in the control messages of `message`.
    let data = unsafe {
        let first = libc::CMSG_FIRSTHDR(message);
        if first.is_null() || (*first).cmsg_type != libc::PACKET_AUXDATA {
            return None;
        }
        libc::CMSG_DATA(first).cast::<libc::tpacket_auxdata>().read_unaligned()
    };
    let [tpid, tci] = [data.tp_vlan_tpid, data.tp_vlan_tci].map(u16::to_be_bytes);
    (data.tp_status & libc::TP_STATUS_VLAN_VALID != 0).then_some([tpid[0], tpid[1], tci[0], tci[1]])
}
