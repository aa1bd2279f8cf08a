//! The slow path: packets that the kernel plane hands over come in here, and leave from here.
//!
//! They come in by the perf buffers. A thread reads these and feeds the switch thread. Packets leave to ports by
//! packet sockets, and to NORMAL and LOCAL through a program ([`crate::plane::Injector`]). Packets that do not fit
//! or cannot be sent are lost, and counted.
//!
//! Measured on veth, the median of hundreds of 60-byte frames: 2 us to a port, 12 us to NORMAL, 16 us to LOCAL. For
//! each packet to NORMAL or LOCAL the kernel makes and empties a pool of pages.

use super::Event;
use crate::{
    base::privileges,
    plane::FlowMaps,
    switch::seam::{Gauge, SwitchPort},
};
use anyhow::{Context, Result};
use logic::{
    flow::{RulePort, kernel::Notice},
    net::Mac,
    openflow::agent::Effect,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsRawFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Duration,
};

/// The most bytes of packets that may wait for the switch thread.
const WAITING_BYTES: usize = 16 << 20;
/// The memory that a waiting packet takes beside its own bytes.
const OVERHEAD_BYTES: usize = 128;

const THREAD: &str = "starting the thread that reads packets for user space";

/// The thread that reads packets from the kernel plane, and the packets that it has read; it ends with the process.
///
/// On Debian's kernels only a thread with CAP_SYS_ADMIN can open the buffers (`kernel.perf_event_paranoid` is 3
/// there). So this thread starts before the switch thread gives that up. It gives up all its privileges once the
/// buffers are open.
pub struct Reader {
    maps: Sender<Arc<FlowMaps>>,
    opened: Receiver<Result<()>>,
    packets: Receiver<(Notice, Vec<u8>)>,
    /// Bytes of `packets`, with their overhead.
    waiting: Arc<AtomicUsize>,
    /// There may be packets: the thread has sent [`Event::Noticed`].
    pub noticed: bool,
}

impl Reader {
    /// Starts the thread, which waits for maps.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(wake: Sender<Event>, gauge: Arc<Gauge>) -> Result<Reader> {
        let (maps, given) = channel();
        let (opened_to, opened) = channel();
        let (to, packets) = channel();
        let waiting = Arc::<AtomicUsize>::default();
        let its = waiting.clone();
        let reader = move || {
            let take = |notice, frame: &[u8]| {
                let bytes = frame.len() + OVERHEAD_BYTES;
                let before = its.fetch_add(bytes, Relaxed);
                if before + bytes > WAITING_BYTES {
                    its.fetch_sub(bytes, Relaxed);
                    gauge.slow_lost.fetch_add(1, Relaxed);
                } else if to.send((notice, frame.to_vec())).is_ok() && before == 0 {
                    let _ = wake.send(Event::Noticed);
                }
            };
            let lost = |count: u64| {
                gauge.slow_lost.fetch_add(count, Relaxed);
            };
            // After a failure the next maps are other ones.
            let open = given.iter().find_map(|maps: Arc<FlowMaps>| match maps.notices(take, lost) {
                Ok(notices) => Some((maps, notices)),
                Err(error) => {
                    let _ = opened_to.send(Err(error));
                    None
                }
            });
            let Some((_maps, notices)) = open else { return };
            privileges::serve_with_nothing("flow-notices");
            let _ = opened_to.send(Ok(()));
            loop {
                if let Err(error) = notices.wait(Duration::from_secs(60)) {
                    tracing::error!("packets for user space are lost: {error:#}");
                    return;
                }
            }
        };
        thread::Builder::new().name("flow-notices".into()).spawn(reader).context(THREAD)?;
        Ok(Reader { maps, opened, packets, waiting, noticed: false })
    }

    /// Makes the thread read from these maps. When this returns, the buffers are open.
    ///
    /// # Errors
    /// The kernel refuses the buffers.
    pub fn read(&self, maps: Arc<FlowMaps>) -> Result<()> {
        self.maps.send(maps).context(THREAD)?;
        self.opened.recv().context(THREAD)?
    }

    /// The next packet.
    pub fn take(&mut self) -> Option<(Notice, Vec<u8>)> {
        let packet = self.packets.try_recv().ok();
        let bytes = packet.as_ref().map(|(_, frame)| frame.len() + OVERHEAD_BYTES);
        // If none wait any more, the thread sends an event with the next one.
        self.noticed = bytes.is_some_and(|bytes| self.waiting.fetch_sub(bytes, Relaxed) != bytes);
        packet
    }
}

/// The ways by which packets leave user space.
pub struct Exits {
    maps: Arc<FlowMaps>,
    ports: BTreeMap<RulePort, Exit>,
    gauge: Arc<Gauge>,
}

struct Exit {
    ifindex: u32,
    mac: Mac,
    generic: bool,
    socket: OwnedFd,
    /// A new socket may be tried: the control loop has sent the ports since the last try.
    may_reopen: bool,
}

impl Exit {
    /// Sends a frame. The kernel unbinds a socket when its device leaves the namespace. The device may be back with
    /// the same index, so this tries a new socket.
    fn send(&mut self, frame: &[u8]) -> Result<()> {
        let sent = send(&self.socket, frame);
        let unbound =
            sent.as_ref().is_err_and(|e| matches!(e.raw_os_error(), Some(libc::ENXIO | libc::ENODEV)));
        if unbound && std::mem::take(&mut self.may_reopen) {
            self.socket = open(self.ifindex)?;
            return Ok(send(&self.socket, frame)?);
        }
        Ok(sent?)
    }
}

/// Sends a whole frame without waiting, or fails.
fn send(socket: &OwnedFd, frame: &[u8]) -> io::Result<()> {
    // SAFETY: a readable buffer of that length.
    let sent =
        unsafe { libc::send(socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), libc::MSG_DONTWAIT) };
    if sent == frame.len() as isize { Ok(()) } else { Err(io::Error::last_os_error()) }
}

impl Exits {
    pub fn new(maps: Arc<FlowMaps>, gauge: Arc<Gauge>) -> Exits {
        Exits { maps, ports: BTreeMap::new(), gauge }
    }

    /// Opens a socket for each port that has a device.
    pub fn set_ports(&mut self, ports: &[SwitchPort]) {
        let mut before = std::mem::take(&mut self.ports);
        for port in ports {
            let Some(ifindex) = port.ifindex else { continue };
            let number = super::rules::number(port);
            let kept = before.remove(&number).filter(|exit| exit.ifindex == ifindex);
            let socket = kept.map_or_else(|| open(ifindex), |exit| Ok(exit.socket));
            match socket {
                Ok(socket) => {
                    let (mac, generic) = (port.mac, port.generic);
                    self.ports.insert(number, Exit { ifindex, mac, generic, socket, may_reopen: true });
                }
                Err(error) => {
                    tracing::warn!("packets from user space to port {} will be lost: {error:#}", port.name);
                }
            }
        }
    }

    /// Sends the packet of an effect. Ignores effects without a packet.
    pub fn leave(&mut self, effect: &Effect) {
        if self.try_leave(effect).is_none() {
            self.gauge.slow_lost.fetch_add(1, Relaxed);
        }
    }

    fn try_leave(&mut self, effect: &Effect) -> Option<()> {
        match effect {
            Effect::Transmit { port, frame, .. } => self.ports.get_mut(port)?.send(frame).ok(),
            Effect::Normal { in_port, frame } => {
                let ifindex = self.ingress(*in_port, frame)?;
                self.maps.with_injector(|injector| injector.normal(ifindex, frame))?.ok()
            }
            Effect::Local { in_port, frame } => {
                let ifindex = self.ingress(*in_port, frame)?;
                self.maps.with_injector(|injector| injector.local(ifindex, frame))?.ok()
            }
            Effect::Send { .. } | Effect::Read(_) | Effect::Close { .. } | Effect::ConfigurePort { .. } => {
                Some(())
            }
        }
    }

    /// The device by which a packet comes in: that of its port. For a packet that a controller made, it is the
    /// device to which the packet is addressed. It is never one in generic mode: the stack would give the packet to
    /// the port's program again, without end.
    fn ingress(&self, in_port: RulePort, frame: &[u8]) -> Option<u32> {
        let addressed = || self.ports.values().find(|exit| frame.starts_with(&exit.mac.0));
        let exit = self.ports.get(&in_port).or_else(addressed)?;
        (!exit.generic).then_some(exit.ifindex)
    }
}

/// Opens a socket that sends whole frames to a device and receives nothing. Like redirects, the frames bypass the
/// queueing discipline.
fn open(ifindex: u32) -> Result<OwnedFd> {
    let failed = |what: &str| Err(io::Error::last_os_error()).with_context(|| what.to_owned());
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None)
        .context("opening a packet socket")?;
    let fd = socket.as_raw_fd();
    let yes: libc::c_int = 1;
    // SAFETY: a readable word of that length.
    let rc = unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_PACKET,
            libc::PACKET_QDISC_BYPASS,
            (&raw const yes).cast(),
            size_of_val(&yes) as u32,
        )
    };
    if rc < 0 {
        return failed("setting PACKET_QDISC_BYPASS");
    }
    // SAFETY: zero is valid for a plain C structure.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_ifindex = ifindex as i32;
    // SAFETY: `address` is readable for the size given.
    let rc = unsafe { libc::bind(fd, (&raw const address).cast(), size_of_val(&address) as u32) };
    if rc < 0 { failed("binding a packet socket") } else { Ok(socket) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn run(line: &str) {
        let mut words = line.split_whitespace();
        let status = Command::new(words.next().unwrap()).args(words).status().unwrap();
        assert!(status.success(), "{line}");
    }

    #[test]
    #[ignore = "needs root"]
    fn a_port_that_comes_back_with_the_same_index_is_sent_to_again() {
        // SAFETY: moves only this thread, which is the test's own, into a new network namespace.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "{}", io::Error::last_os_error());
        run("ip link add p1 type veth peer name q1");
        run("ip link set q1 up");
        run("ip link set p1 up");
        // SAFETY: a NUL-terminated name.
        let ifindex = unsafe { libc::if_nametoindex(c"p1".as_ptr()) };
        let socket = open(ifindex).unwrap();
        let mut exit = Exit { ifindex, mac: Mac([2; 6]), generic: false, socket, may_reopen: true };
        exit.send(&[0; 60]).unwrap();
        let mut elsewhere =
            Command::new("unshare").args(["-n", "cat"]).stdin(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(300));
        let (there, here) = (elsewhere.id(), rustix::thread::gettid().as_raw_nonzero());
        run(&format!("ip link set p1 netns {there}"));
        run(&format!("nsenter -t {there} -n ip link set p1 netns {here}"));
        run("ip link set p1 up");
        exit.send(&[0; 60]).unwrap();
        run("ip link del p1");
        assert!(exit.send(&[0; 60]).is_err());
        assert!(!exit.may_reopen, "each try takes as long as a grace period");
        drop(elsewhere.stdin.take());
        elsewhere.wait().unwrap();
    }
}
