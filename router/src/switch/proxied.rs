//! Flow-mods for the core table that come through another switch: frames with their own EtherType, from a packet
//! socket.

use super::Event;
use crate::base::privileges;
use anyhow::{Context, Result};
use logic::openflow::extension::PROXY_ETHER_TYPE;
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, socket_with};
use std::{
    io, mem,
    num::NonZero,
    os::fd::{AsRawFd, OwnedFd},
    sync::mpsc::{Sender, SyncSender, sync_channel},
    thread,
};

/// More bytes than a frame can have.
const MOST_BYTES: usize = 1 << 16;

/// A frame for the core table.
pub struct ProxiedFrame {
    /// The device that it came in by.
    pub ifindex: u32,
    pub bytes: Vec<u8>,
    /// The next frame comes after this is dropped. Until then others wait in the socket, or are lost there.
    pub _taken: SyncSender<()>,
}

/// Starts the thread that receives them; it ends with the process. It does not get frames that the program of a
/// port forwards or drops.
///
/// # Errors
/// The packet socket cannot be opened, or the thread cannot be started.
pub fn listen(to: Sender<Event>) -> Result<()> {
    let protocol = NonZero::new(u32::from(PROXY_ETHER_TYPE.to_be())).map(Protocol::from_raw);
    // The socket is bound to no device, so it receives from all devices of this namespace.
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, protocol)
        .context("opening a packet socket for openflow.proxy_ports")?;
    let hear = move || {
        privileges::serve_with_nothing("proxied");
        let mut buffer = vec![0; MOST_BYTES];
        loop {
            let (ifindex, frame) = match receive(&socket, &mut buffer) {
                Ok(Some(heard)) => heard,
                Ok(None) => continue,
                Err(error) => {
                    return tracing::error!("cannot receive flow-mods through other switches: {error}");
                }
            };
            let (taken_to, taken) = sync_channel(0);
            let bytes = frame.to_vec();
            if to.send(Event::Proxied(ProxiedFrame { ifindex, bytes, _taken: taken_to })).is_err() {
                return;
            }
            // Ends when the frame is dropped.
            let _ = taken.recv();
        }
    };
    thread::Builder::new()
        .name("proxied".into())
        .spawn(hear)
        .map(drop)
        .context("starting the thread that receives flow-mods through other switches")
}

/// Receives a frame, and the device that it came in by; `None`: this machine sent it.
fn receive<'a>(socket: &OwnedFd, buffer: &'a mut [u8]) -> io::Result<Option<(u32, &'a [u8])>> {
    // SAFETY: zero is valid for a plain C structure.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    let mut length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: both are writable for the lengths given.
    let received = unsafe {
        libc::recvfrom(
            socket.as_raw_fd(),
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            0,
            (&raw mut address).cast(),
            &raw mut length,
        )
    };
    let Ok(received) = usize::try_from(received) else {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::Interrupted { Ok(None) } else { Err(error) };
    };
    let ours = address.sll_pkttype == libc::PACKET_OUTGOING;
    Ok((!ours).then_some((address.sll_ifindex as u32, &buffer[..received.min(buffer.len())])))
}
