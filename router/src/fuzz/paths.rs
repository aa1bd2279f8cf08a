//! Any configuration of paths, over any capture.

use crate::{
    config::{PathsConfig, SaConfig},
    user_plane::{
        af_xdp::{Buffer, POOL_FRAMES, Pool, Umem},
        captures::{CaptureWriters, OfRun, Sink},
        replay::{Input, Outputs, run, tables, worker},
        sas::Sas,
    },
};
use logic::{
    elements::Verdict,
    esp::Key,
    paths::PathId,
    tables::Ingress,
    worker::{Exchange, Frame, NotTaken, Rings, Worker},
};
use pcap_file::pcap::PcapReader;
use std::{fs::File, ops::Range, path::Path};

/// The input is a configuration, a zero byte, and a capture. Every packet must have exactly one fate, and packets that leave
/// are written. The capture is then run again in frames of a pool, which must get back all of its frames.
pub(super) fn paths(bytes: &[u8]) {
    let Some(end) = bytes.iter().position(|byte| *byte == 0) else { return };
    let text = String::from_utf8_lossy(&bytes[..end]);
    let config = match PathsConfig::parse(Path::new("x.toml"), &text) {
        Ok(config) => config,
        Err(error) => return assert!(error.to_string().starts_with("x.toml:"), "{error}"),
    };
    let capture = &bytes[end + 1..];
    let Ok(input) = Input::new("it", 0, capture) else { return };
    let mut written = Vec::new();
    let outputs =
        Outputs::new([("out".to_string(), None, &mut written)], true).expect("memory takes everything");
    let Some(sas) = sas(&config) else { return };
    let report = run(&config, sas, captures(&config), &mut [input], outputs).expect("what was checked runs");
    assert_eq!(report.packets, report.out + report.up + report.dropped, "{report:?}");
    let mut reader = PcapReader::new(&written[..]).expect("what was written is read");
    let mut left = 0;
    while let Some(packet) = reader.next_packet() {
        packet.expect("what was written is read");
        left += 1;
    }
    assert_eq!(report.out, left);
    in_frames(&config, capture);
}

fn sas(config: &PathsConfig) -> Option<Sas> {
    // The input may name any file, so no key file is read and no sequence file is made.
    let key = |sa: &SaConfig| {
        let bytes: [u8; 20] = std::array::from_fn(|i| sa.name.as_bytes().get(i).copied().unwrap_or_default());
        Key::new(&bytes).expect("20 bytes are a key")
    };
    Sas::forgetful(&config.sas, key).ok()
}

fn captures(config: &PathsConfig) -> CaptureWriters<'_> {
    let nowhere = || File::options().write(true).open("/dev/null").expect("it is there");
    let nowhere = || Box::new(OfRun::new(nowhere())) as Box<dyn Sink>;
    CaptureWriters::new(config.mirrors().map(|mirror| (mirror, nowhere())))
}

/// Frames of the pool. A lost frame does not come back, and the target panics when none is left.
const IN_HAND: usize = 64;

/// Takes in as many packets as possible before paths get their turns, so that rings fill and frames run out.
fn in_frames(config: &PathsConfig, capture: &[u8]) {
    let Some(sas) = sas(config) else { return };
    let captures = captures(config);
    let mut worker = worker(config, &sas, &captures.captures()).expect("what was checked runs");
    let umem = Umem::new((IN_HAND + POOL_FRAMES) as u32, 4096).expect("there is memory");
    let pool = Pool::new(&umem, IN_HAND).expect("so many frames there are");
    let mut ends = Ends::new(config);
    let mut reader = PcapReader::new(capture).expect("it was read before");
    while let Some(Ok(packet)) = reader.next_packet() {
        let ingress = tables::ingress(config, 0, &packet.data);
        let came_ns = packet.timestamp.as_nanos() as u64;
        let buffer = pool.allocate().or_else(|| {
            ends.run(&mut worker);
            pool.allocate()
        });
        let mut buffer = buffer.expect("frames of settled packets are free");
        if buffer.fill(&packet.data) {
            ends.come(Framed { buffer, ingress, came_ns }, &mut worker);
        }
    }
    ends.run(&mut worker);
    assert_eq!(
        (ends.settled, pool.buffers()),
        (ends.came, 0),
        "each packet has one fate, and its frame is free"
    );
    drop((worker, ends, pool));
    assert_eq!(umem.free_frames(), umem.frames(), "the memory is whole");
}

/// A packet in a frame of a pool.
struct Framed {
    buffer: Buffer,
    ingress: Ingress,
    came_ns: u64,
}

impl Frame for Framed {
    fn data(&self) -> &[u8] {
        self.buffer.data()
    }
    fn parts_mut(&mut self) -> (&mut [u8], Range<usize>) {
        self.buffer.parts_mut()
    }
    fn set_range(&mut self, data: Range<usize>) {
        assert!(self.buffer.set_range(data), "elements leave a packet within its frame");
    }
    fn ingress(&self) -> Ingress {
        self.ingress
    }
    fn came_ns(&self) -> u64 {
        self.came_ns
    }
}

/// The rings that packets come from, and the packets that left.
struct Ends {
    rings: Rings<Framed>,
    /// Packets that left by ports in this turn.
    sent: Vec<Framed>,
    came: u64,
    settled: u64,
}

impl Ends {
    fn new(config: &PathsConfig) -> Self {
        let rings = Rings::new(config.paths.iter().map(|path| (path.class.clone(), path.ring)));
        Ends { rings, sent: Vec::new(), came: 0, settled: 0 }
    }

    fn come(&mut self, packet: Framed, worker: &mut Worker<Framed>) {
        let (path, packet) = match self.rings.offer(packet) {
            Ok(path) => (path, None),
            Err(NotTaken::Full(path, packet)) => (path, Some(packet)),
            Err(NotTaken::NoPath(_)) => return,
        };
        self.came += 1;
        worker.wake(path);
        if let Some(packet) = packet {
            self.run(worker);
            assert!(self.rings.offer(packet).is_ok(), "a ring whose path had its turns has room");
            worker.wake(path);
        }
    }

    /// Gives turns until no path has packets.
    fn run(&mut self, worker: &mut Worker<Framed>) {
        while let Some(turn) = worker.turn(self, || 0) {
            if self.rings.waiting(turn.path) == 0 {
                worker.sleep(turn.path);
            }
        }
    }
}

impl Exchange for Ends {
    type Frame = Framed;

    fn ports(&self) -> u64 {
        u64::MAX
    }

    fn receive(&mut self, path: PathId, most: usize, to: &mut Vec<Framed>) {
        self.rings.receive(path, most, to);
    }

    fn settle(&mut self, _: PathId, packet: Framed, verdict: Verdict) {
        self.settled += 1;
        if let Verdict::To(_) = verdict {
            self.sent.push(packet);
        }
    }

    fn leave(&mut self) {
        self.sent.clear();
    }
}
