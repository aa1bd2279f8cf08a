//! ESP, memory to memory, beside the library alone.
//!
//! 512 frames of 2,048 bytes, in batches of 64. `library`: only [`Aead::seal`] of jobs over texts in these frames. `esp_encrypt`: a batch
//! through `check`, `esp_encrypt` (tunnel mode, IPv4) and `forward`. The first 64 bytes of each packet are written again before each pass
//! over the frames, because its header was encrypted. This is done to the library's frames too, and its time does not count for either.
//! `both`: the same with `esp_decrypt` behind it, beside seal and open of the library. Here nothing is written again, because decryption
//! restores it. Sizes are those of the encrypted part: the IP packet, padding and trailer; also IMIX ([`super::IMIX`]).
//!
//! Rounds alternate (library, element, library, element). Each takes 40 ms of this thread's CPU time, which is read around each pass.

use anyhow::Context;
use logic::{
    elements::{Batch, Chain, Check, Element, EspDecrypt, EspEncrypt, Forward, Now, Verdict},
    esp::{Aead, Common, Dont, Ends, Inbound, Job, Key, Mode, Outbound, SaTable, Selectors, TAG},
    tables::{Ingress, encoding::IF_IPV4},
};
use router::config::Library;
use std::{hint::black_box, sync::Arc};

use super::{
    Case, IMIX, Ways,
    forwarding::{FRAME, Frame, HEAD_ROOM as HEAD},
};

const FRAMES: usize = 512;
const ETHERNET: usize = 14;
const BATCH: usize = 64;
/// The last bytes of a key (RFC 4106 section 4).
const SALT: usize = 4;

struct World {
    library: Library,
    key_bytes: usize,
    aead: Arc<dyn Aead>,
    pool: Vec<Frame>,
    /// Length of the encrypted part of each frame.
    texts: Vec<usize>,
    headers: Vec<[u8; 64]>,
    encrypt: Chain,
    both: Chain,
}

/// The best library that is here, and a chain with it that encrypts (AES-128-GCM, tunnel mode) and forwards.
pub(crate) fn encrypting() -> anyhow::Result<(Library, Vec<Box<dyn Element>>)> {
    let library = [Library::IpsecMb, Library::AwsLc].into_iter().find(|library| library.check().is_ok());
    let library = library.context("no library encrypts here")?;
    let table = associations(library, 16 + SALT).0;
    let encrypt = Box::new(EspEncrypt::new(table, "a"));
    Ok((library, vec![Box::new(Check), encrypt, Box::new(Forward::new(2))]))
}

/// Security associations of both ends, with one key.
fn associations(library: Library, key_bytes: usize) -> (Arc<SaTable>, Arc<dyn Aead>) {
    let key = Key::new(&vec![7; key_bytes]).expect("a key");
    let aead = library.expand(&key).expect("it was checked");
    let table = Arc::new(SaTable::default());
    let common = |forth: bool| {
        let (a, b) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        let ends = if forth { Ends::new(a, b) } else { Ends::new(b, a) };
        Common {
            spi: 0x1001,
            key: &key,
            aead: aead.clone(),
            mode: Mode::Tunnel,
            is_extended: true,
            ends: ends.expect("both are IPv4"),
            udp: None,
            selectors: Selectors::default(),
        }
    };
    let outbound = Outbound::new(common(true), 9000, Dont::Copy, 0);
    outbound.sequence.reserve(u64::MAX);
    table.set_outbound("a", Arc::new(outbound));
    assert!(table.add_inbound("a", Arc::new(Inbound::new(common(false), 1024, u16::MAX).expect("a window"))));
    (table, aead)
}

impl World {
    fn new(library: Library, key_bytes: usize, size: &dyn Fn(usize) -> usize) -> Self {
        let (table, aead) = associations(library, key_bytes);
        let encrypt = || Box::new(EspEncrypt::new(table.clone(), "a"));
        let decrypt = Box::new(EspDecrypt::new(table.clone(), vec!["a".into()]));
        let forward = || Box::new(Forward::new(2));
        let texts: Vec<usize> = (0..FRAMES).map(size).collect();
        let mut pool = vec![Frame([1; FRAME]); FRAMES];
        let mut headers = Vec::new();
        for (Frame(frame), text) in pool.iter_mut().zip(&texts) {
            let build = etherparse::PacketBuilder::ethernet2([9; 6], [2, 0, 0, 0, 0, 1]);
            let mut packet = Vec::new();
            let payload = vec![3; text - 2 - 28];
            build
                .ipv4([10, 0, 0, 1], [10, 1, 0, 1], 64)
                .udp(1, 2)
                .write(&mut packet, &payload)
                .expect("written");
            frame[HEAD..HEAD + packet.len()].copy_from_slice(&packet);
            headers.push(frame[HEAD..HEAD + 64].try_into().expect("64 bytes"));
        }
        World {
            library,
            key_bytes,
            aead,
            pool,
            texts,
            headers,
            encrypt: Chain::new(vec![Box::new(Check), encrypt(), forward()]).expect("a chain"),
            both: Chain::new(vec![Box::new(Check), encrypt(), decrypt, forward()]).expect("a chain"),
        }
    }

    fn bare(&mut self, open: bool) {
        let mut nonce = 0u64;
        let frames = self.pool.chunks_mut(BATCH).zip(self.texts.chunks(BATCH));
        let mut jobs: Vec<Job<'static>> = Vec::with_capacity(BATCH);
        for (frames, texts) in frames {
            let mut of_batch: Vec<Job<'_>> = jobs.into_iter().map_while(|_| None).collect();
            for (Frame(frame), text) in frames.iter_mut().zip(texts) {
                nonce += 1;
                let mut bytes = [0; 12];
                bytes[4..].copy_from_slice(&nonce.to_be_bytes());
                let at = HEAD + ETHERNET;
                let text = &mut frame[at..at + text + TAG];
                of_batch.push(Job { nonce: bytes, aad: bytes, aad_bytes: 12, is_right: false, text });
            }
            assert!(self.aead.seal(&mut of_batch));
            if open {
                self.aead.open(&mut of_batch);
            }
            of_batch.clear();
            jobs = of_batch.into_iter().map_while(|_| None).collect();
        }
    }

    fn write_headers(&mut self) {
        for (Frame(frame), header) in self.pool.iter_mut().zip(&self.headers) {
            frame[HEAD..HEAD + 64].copy_from_slice(header);
        }
    }

    fn element(&mut self, open: bool) {
        let ingress = Ingress { port: 1, router: 0, interface: 1, flags: IF_IPV4 };
        let now = Now { ns: 0, ports: u64::MAX };
        let chain = if open { &mut self.both } else { &mut self.encrypt };
        let mut batch = Batch::default();
        let frames = self.pool.chunks_mut(BATCH);
        for (frames, texts) in frames.zip(self.texts.chunks(BATCH)) {
            let mut of_batch = batch.emptied();
            for (Frame(frame), text) in frames.iter_mut().zip(texts) {
                of_batch.push(frame, HEAD, ETHERNET + text - 2, ingress).expect("it is within the frame");
            }
            chain.run(&now, &mut of_batch);
            let sent = of_batch.packets().iter().filter(|packet| packet.verdict() == Verdict::To(2));
            assert_eq!(black_box(sent.count()), texts.len());
            batch = of_batch.emptied();
        }
    }
}

/// CPU time of this thread, so that other work of the machine counts less.
fn thread_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Nanoseconds a packet.
fn round(world: &mut World, open: bool, pass: impl Fn(&mut World)) -> f64 {
    let (mut ns, mut packets) = (0, 0);
    while ns < 40_000_000 {
        if !open {
            world.write_headers();
        }
        let start = thread_ns();
        pass(world);
        ns += thread_ns() - start;
        packets += FRAMES;
    }
    ns as f64 / packets as f64
}

/// Measures library and element in turn.
fn measure(size: &str, mut world: World, open: bool, ways: &mut Ways<'_>) -> anyhow::Result<()> {
    world.element(open);
    world.bare(open);
    // What the library alone leaves in the frames is not a packet.
    let (mut bare, mut element) = (Vec::new(), Vec::new());
    let kept = World::new(world.library, world.key_bytes, &|n| world.texts[n]).pool;
    for _ in 0..ways.rounds {
        bare.push(round(&mut world, open, |world| world.bare(open)));
        world.pool.clone_from_slice(&kept);
        element.push(round(&mut world, open, |world| world.element(open)));
    }
    let bytes = world.texts.iter().sum::<usize>() as f64 / FRAMES as f64;
    let bits = (world.key_bytes - SALT) * 8;
    let what = if open { "esp_encrypt, esp_decrypt" } else { "esp_encrypt" };
    for (part, ns) in [("library of", bare), ("", element)] {
        let name = format!("{part} {what}, AES-{bits}, {size}, {}", world.library).trim_start().to_owned();
        ways.add(Case { name, bytes, frames: FRAMES, batch: BATCH, ns })?;
    }
    Ok(())
}

/// Measures every library that is here, and reports which is not.
pub(super) fn run(ways: &mut Ways<'_>) -> anyhow::Result<()> {
    if !ways.wants("esp") {
        return Ok(());
    }
    for library in [Library::IpsecMb, Library::AwsLc] {
        if let Err(why) = library.check() {
            ways.without(&why.to_string());
            continue;
        }
        for key_bytes in [16 + SALT, 32 + SALT] {
            for open in [false, true] {
                for size in [64, 1400] {
                    measure(&format!("{size} B"), World::new(library, key_bytes, &|_| size), open, ways)?;
                }
                let imix = |n: usize| IMIX[n % IMIX.len()];
                measure("IMIX", World::new(library, key_bytes, &imix), open, ways)?;
            }
        }
    }
    Ok(())
}
