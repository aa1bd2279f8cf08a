//! Veth ports with AF_XDP on one end, whose frames go into the rings of paths. Each frame carries its path
//! and a number.

use crate::common::{ifindex, run};
use libbpf_rs::{MapCore, MapFlags, Object, ObjectBuilder};
use router::{
    plane::{Mode, PortLink},
    user_plane::af_xdp::{Buffer, Io, MOST_PATHS, Queue, Receiver, Rings, Sender, Umem, Wanted},
};
use std::{
    fs,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/paths.bpf.o"));
/// As in `bpf/paths.bpf.c`.
const PATHS: u32 = 4;

/// Small rings, which soon fill and wrap.
pub const SMALL: Rings = Rings { fill: 128, completion: 64, receive: 64, transmit: 64 };

/// Makes the veth pair `pN` and `qN` with this many queues. Both are up, and without IPv6, so that the kernel
/// sends nothing of its own.
pub fn make_port(n: usize, queues: usize) {
    let queues = format!("numrxqueues {queues} numtxqueues {queues}");
    run(&format!("ip link add p{n} {queues} type veth peer name q{n} {queues}"));
    for device in [format!("p{n}"), format!("q{n}")] {
        fs::write(format!("/proc/sys/net/ipv6/conf/{device}/disable_ipv6"), "1").unwrap();
        run(&format!("ip link set {device} up"));
    }
}

pub fn load() -> Object {
    ObjectBuilder::default().open_memory(PROGRAM).unwrap().load().unwrap()
}

pub fn program<'a>(object: &'a Object, name: &str) -> BorrowedFd<'a> {
    let program = object.progs().find(|program| program.name() == name).unwrap();
    // SAFETY: the descriptor is the object's, open as long as it lives.
    unsafe { BorrowedFd::borrow_raw(program.as_fd().as_raw_fd()) }
}

/// A port with the program attached, and the program's maps.
pub struct XdpPort {
    pub object: Object,
    _link: PortLink,
}

impl XdpPort {
    /// Attaches the program that sends frames to paths.
    pub fn attach(device: &str) -> XdpPort {
        Self::with(device, "millrace_to_path")
    }

    pub fn with(device: &str, program: &str) -> XdpPort {
        let object = load();
        let link = PortLink::attach(self::program(&object, program), ifindex(device), Mode::Native).unwrap();
        XdpPort { _link: link, object }
    }

    /// Sends the packets of the receiver's path into its ring from now on.
    pub fn redirect(&self, receiver: &Receiver) {
        let slot = receiver.wanted().queue * PATHS + receiver.path() as u32;
        let socket = receiver.as_fd().as_raw_fd();
        let map = self.object.maps().find(|map| map.name() == "paths").unwrap();
        map.update(&slot.to_ne_bytes(), &socket.to_ne_bytes(), MapFlags::ANY).unwrap();
    }
}

pub fn wanted(device: &str, queue: u32, rings: Rings) -> Wanted {
    Wanted { rings, ..Wanted::new(ifindex(device), queue) }
}

/// An open queue, and the RX rings of its paths.
pub struct Opened {
    pub queue: Queue,
    receivers: Vec<Receiver>,
}

impl Opened {
    /// Gives the queue and its rings to one worker.
    pub fn add_to(self, io: &mut Io) {
        io.add_queue(self.queue);
        self.receivers.into_iter().for_each(|receiver| io.add_receiver(receiver));
    }
}

/// Opens a queue with an RX ring for each of these paths, and sends the packets of the paths there.
pub fn open(umem: &Arc<Umem>, port: &XdpPort, wanted: Wanted, paths: &[usize]) -> (Opened, Sender) {
    let (queue, sender) = Queue::open(umem, wanted).unwrap();
    let receivers = paths.iter().map(|path| ring(port, &queue, *path)).collect();
    (Opened { queue, receivers }, sender)
}

/// Opens an RX ring of a path, and sends the path's packets there.
pub fn ring(port: &XdpPort, queue: &Queue, path: usize) -> Receiver {
    let receiver = queue.opener().receiver(path).unwrap();
    port.redirect(&receiver);
    receiver
}

/// A frame of a path, with a number, of `length` bytes. No two frames are equal.
pub fn frame(path: u8, number: u32, length: usize) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 9, 9, 0x88, 0xb5, path]);
    frame.extend(number.to_be_bytes());
    frame.extend((frame.len()..length).map(|n| (n as u32).wrapping_mul(number | 1) as u8));
    frame
}

/// The number of a frame.
pub fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(*frame[15..].first_chunk().unwrap())
}

pub fn numbers(buffers: &[Buffer]) -> Vec<u32> {
    buffers.iter().map(|buffer| number(buffer.data())).collect()
}

/// Sends frames out of one end of a wire by AF_XDP. A frame sent by queue n arrives on queue n of the other
/// end.
pub struct Generator {
    umem: Arc<Umem>,
    io: Io,
    packets: Vec<Buffer>,
}

impl Generator {
    pub fn new(device: &str, queues: u32) -> Generator {
        let umem = Umem::new(4096, 2048).unwrap();
        let mut io = Io::new(&umem, 256).unwrap();
        for queue in 0..queues {
            let (queue, sender) = Queue::open(&umem, wanted(device, queue, SMALL)).unwrap();
            io.add_queue(queue);
            io.add_output(sender, 0).unwrap();
        }
        Generator { umem, io, packets: Vec::new() }
    }

    /// Returns when all frames have arrived at the other end, or were dropped there.
    pub fn send(&mut self, queue: usize, frames: impl IntoIterator<Item = Vec<u8>>) {
        let mut frames = frames.into_iter().peekable();
        while frames.peek().is_some() {
            for bytes in frames.by_ref().take(32) {
                let mut buffer = self.io.pool().allocate().expect("a frame to send");
                assert!(buffer.fill(&bytes));
                self.packets.push(buffer);
            }
            self.io.send(queue, &mut self.packets).unwrap();
            until("the generator's frames to arrive", || {
                self.io.flush();
                self.io.outputs()[queue].sender().in_flight() == 0
            });
        }
        assert_eq!(self.io.outputs()[queue].counts().dropped_full, 0);
    }

    pub fn end(self) {
        let Generator { umem, io, .. } = self;
        drop(io);
        whole(&umem);
    }
}

/// Asserts that all frames are free again.
#[track_caller]
pub fn whole(umem: &Umem) {
    assert_eq!((umem.free_frames(), umem.retired_frames()), (umem.frames(), 0), "(free, retired) frames");
}

#[track_caller]
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(10), "timed out waiting for {what}");
        thread::sleep(Duration::from_micros(200));
    }
}

/// Receives packets of a path until there are `count`.
#[track_caller]
pub fn receive(io: &mut Io, path: usize, count: usize) -> Vec<Buffer> {
    let mut packets = Vec::new();
    until(&format!("{count} packets of path {path}"), || {
        io.receive(path, count - packets.len(), &mut packets);
        packets.len() == count
    });
    packets
}

/// Takes the rings as they are, so that another thread can continue with them.
pub fn dismantle(mut io: Io) -> (Vec<Sender>, Vec<Receiver>, Vec<Queue>) {
    let senders = (0..io.outputs().len()).map(|_| io.take_output(0).sender).collect();
    let receivers = (0..MOST_PATHS).flat_map(|path| io.take_path(path)).collect();
    let queues = (0..io.queues().len()).map(|_| io.take_queue(0)).collect();
    (senders, receivers, queues)
}
