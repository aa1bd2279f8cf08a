//! The other server: sends flows to virtual machines, each frame in a VXLAN packet (RFC 7348) with the flow's source
//! port, as the kernel's tunnels do. One thread sends all of them in turn, at given rates, and sleeps in between.

use std::{
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rustix::net::sockopt;

use crate::{addresses::Mac, cpu, namespace::Namespace, sys};

/// Network identifier of the tunnel.
pub const VNI: u32 = 42;
/// UDP port of tunnels (RFC 7348, section 5).
pub const VXLAN_PORT: u16 = 4789;
/// UDP port on which machines listen, inside the tunnel.
pub const INNER_PORT: u16 = 5001;
/// VXLAN, Ethernet, IPv4 and UDP before the payload.
const HEADERS_BYTES: usize = 8 + 14 + 20 + 8;
/// Time between two looks at what is due.
const TICK: Duration = Duration::from_millis(1);
/// Packets that were due longer ago are counted and not sent.
const LATEST_S: f64 = 0.005;
/// More than all queues on the way hold. Packets count until they are freed there, and the sender must not wait for a
/// server.
const BUFFER_BYTES: usize = 1 << 29;

/// MAC address of a virtual machine; its last byte is the machine's number.
pub const fn machine_mac(machine: u8) -> Mac {
    [2, 0x76, 0x6d, 0, 0, machine]
}

/// Its IPv4 address inside of the tunnel.
pub const fn machine_ip(machine: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 168, 7, machine)
}

/// Packets to a virtual machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flow {
    /// Number of the machine, from 1.
    pub machine: u8,
    /// Source port of the outer packets, by which hashes distinguish flows.
    pub source_port: u16,
    /// Packets a second.
    pub pps: f64,
    /// Bytes of the payload inside.
    pub payload_bytes: u16,
    /// When it begins, after the start of the sender.
    pub begins: Duration,
}

/// Counts of a flow's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Given to the port.
    pub packets: u64,
    /// Due, while the sender had no time.
    pub skipped: u64,
}

/// Flows on their way. Dropping this ends them.
pub struct Sender {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    sent: Vec<[AtomicU64; 2]>,
    /// Id of the thread; 0 until it runs.
    thread_id: AtomicI32,
    ends: AtomicBool,
    failed: AtomicBool,
}

struct Sending {
    flow: Flow,
    socket: UdpSocket,
    bytes: Vec<u8>,
    done: u64,
}

impl Sender {
    /// Sends from this namespace to the tunnel's end at `to`. The thread goes before all normal ones. It begins on
    /// `core`, but may run on all, so that it is not a pinned workload.
    pub fn start(namespace: &Namespace, to: Ipv4Addr, flows: &[Flow], core: usize) -> Result<Self> {
        let sending = |flow: &Flow| {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, flow.source_port))
                .with_context(|| format!("source port {}", flow.source_port))?;
            socket.connect(SocketAddrV4::new(to, VXLAN_PORT))?;
            sockopt::set_socket_send_buffer_size_force(&socket, BUFFER_BYTES)?;
            // RFC 7348, section 5: it should be zero.
            sys::without_checksum(socket.as_fd())?;
            Ok(Sending { flow: *flow, socket, bytes: packet(flow), done: 0 })
        };
        let mut all = namespace.enter(|| flows.iter().map(sending).collect::<Result<Vec<Sending>>>())?;
        let shared = Arc::new(Shared {
            sent: flows.iter().map(|_| Default::default()).collect(),
            thread_id: AtomicI32::new(0),
            ends: AtomicBool::new(false),
            failed: AtomicBool::new(false),
        });
        let own = shared.clone();
        let run = move || {
            own.thread_id.store(sys::thread_id(), Ordering::Relaxed);
            let prepared = sys::set_affinity(0, &[core])
                .and_then(|()| sys::set_realtime(0, Some(1)))
                .and_then(|()| sys::set_affinity(0, &[]));
            if prepared.and_then(|()| own.send(&mut all)).is_err() {
                own.failed.store(true, Ordering::Relaxed);
            }
        };
        let thread = thread::Builder::new().name("sender".into()).spawn(run).context("the sender")?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Counts until now, in the order of flows.
    pub fn sent(&self) -> Result<Vec<Sent>> {
        ensure!(!self.shared.failed.load(Ordering::Relaxed), "the sender failed");
        let read = |[packets, skipped]: &[AtomicU64; 2]| Sent {
            packets: packets.load(Ordering::Relaxed),
            skipped: skipped.load(Ordering::Relaxed),
        };
        Ok(self.shared.sent.iter().map(read).collect())
    }
}

impl Sender {
    /// CPU time of the thread so far.
    pub fn cpu_ns(&self) -> Result<u64> {
        Ok(cpu::Threads(vec![self.shared.thread_id.load(Ordering::Relaxed)]).times()?[0].busy_ns)
    }
}

impl Shared {
    fn send(&self, all: &mut [Sending]) -> std::io::Result<()> {
        let start = Instant::now();
        let mut tick = start;
        while !self.ends.load(Ordering::Relaxed) {
            let now = start.elapsed();
            let due: Vec<u64> = all.iter().map(|sending| sending.flow.due(now)).collect();
            for (place, (sending, due)) in all.iter_mut().zip(&due).enumerate() {
                let most = (sending.flow.pps * LATEST_S).ceil() as u64;
                let skipped = due.saturating_sub(sending.done + most);
                sending.done += skipped;
                self.sent[place][1].fetch_add(skipped, Ordering::Relaxed);
            }
            // Flows take turns, as if they came from two machines at once.
            let mut more = true;
            while more {
                more = false;
                for (place, (sending, due)) in all.iter_mut().zip(&due).enumerate() {
                    if sending.done < *due {
                        sending.socket.send(&sending.bytes)?;
                        sending.done += 1;
                        self.sent[place][0].fetch_add(1, Ordering::Relaxed);
                        more = true;
                    }
                }
            }
            tick = Instant::now().max(tick + TICK);
            thread::sleep(tick.saturating_duration_since(Instant::now()));
        }
        Ok(())
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Flow {
    /// Packets that should have left by this time after the start of the sender.
    fn due(&self, after: Duration) -> u64 {
        (after.saturating_sub(self.begins).as_secs_f64() * self.pps) as u64
    }
}

/// Payload of a flow's datagrams: VXLAN header, Ethernet, IPv4, UDP without checksum, payload.
fn packet(flow: &Flow) -> Vec<u8> {
    let payload = usize::from(flow.payload_bytes);
    let mut bytes = Vec::with_capacity(HEADERS_BYTES + payload);
    bytes.extend([8, 0, 0, 0]);
    bytes.extend((VNI << 8).to_be_bytes());
    bytes.extend(machine_mac(flow.machine));
    bytes.extend(machine_mac(100 + flow.machine));
    bytes.extend([8, 0]);
    let ip = bytes.len();
    bytes.extend([0x45, 0]);
    bytes.extend((28 + flow.payload_bytes).to_be_bytes());
    bytes.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    bytes.extend(machine_ip(100 + flow.machine).octets());
    bytes.extend(machine_ip(flow.machine).octets());
    let sum = checksum(&bytes[ip..]);
    bytes[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
    bytes.extend(INNER_PORT.to_be_bytes());
    bytes.extend(INNER_PORT.to_be_bytes());
    bytes.extend((8 + flow.payload_bytes).to_be_bytes());
    bytes.extend([0, 0]);
    bytes.resize(HEADERS_BYTES + payload, 0);
    bytes
}

/// Checksum of a header of even length (RFC 1071).
fn checksum(header: &[u8]) -> u16 {
    let words = header.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use etherparse::{SlicedPacket, TransportSlice};

    use super::*;

    const FLOW: Flow = Flow {
        machine: 2,
        source_port: 50_000,
        pps: 1000.0,
        payload_bytes: 64,
        begins: Duration::from_millis(500),
    };

    #[test]
    fn a_flow_begins_late_and_goes_on_at_its_rate() {
        let due = |ms| FLOW.due(Duration::from_millis(ms));
        assert_eq!([due(0), due(500), due(600), due(1500)], [0, 0, 100, 1000]);
    }

    #[test]
    fn a_packet_holds_a_frame_to_its_machine() {
        let bytes = packet(&FLOW);
        assert_eq!(bytes[..8], [8, 0, 0, 0, 0, 0, VNI as u8, 0]);
        assert_eq!(bytes[8..14], machine_mac(2));
        let frame = SlicedPacket::from_ethernet(&bytes[8..]).unwrap();
        let Some(etherparse::NetSlice::Ipv4(ip)) = &frame.net else { panic!("{frame:?}") };
        assert_eq!(ip.header().destination_addr(), machine_ip(2));
        assert_eq!(ip.header().header_checksum(), ip.header().to_header().calc_header_checksum());
        let Some(TransportSlice::Udp(udp)) = &frame.transport else { panic!("{frame:?}") };
        assert_eq!((udp.destination_port(), udp.payload().len()), (INNER_PORT, 64));
    }
}
