//! Captures are read back. If a file cannot be written, lost copies are counted and packets go on.

use super::{sink::Whole, *};
use logic::{
    elements::{Batch, Chain, Discard, Loss, Mirror, NoCopy, Now, Verdict},
    net::Mac,
    tables::Ingress,
};
use pcap_file::{DataLink, TsResolution, pcap::PcapReader};
use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    sync::Mutex,
};

const MIB: u64 = 1 << 20;

fn mirror(file: PathBuf) -> MirrorSettings {
    MirrorSettings { file, snap_bytes: 100, file_bytes: MIB, every_packets: 1 }
}

/// A chain that copies, and drops.
fn chain(captures: &Captures, mirror: &MirrorSettings) -> Chain {
    let mirror = Mirror::new(captures.copies(&mirror.file), mirror.snap_bytes, mirror.every_packets);
    Chain::new(vec![Box::new(mirror), Box::new(Discard)]).unwrap()
}

fn frame(number: u32, length: usize) -> Vec<u8> {
    let ethernet = etherparse::PacketBuilder::ethernet2([9; 6], Mac([2; 6]).0);
    let mut frame = Vec::new();
    let payload: Vec<u8> = number.to_be_bytes().into_iter().cycle().take(length - 42).collect();
    ethernet.ipv4([198, 51, 100, 1], [10; 4], 9).udp(1, 2).write(&mut frame, &payload).unwrap();
    frame
}

/// Packets come at this time. Copying does not change what happens to them.
fn come(chain: &mut Chain, ns: u64, numbers: std::ops::Range<u32>, length: usize) {
    let mut frames: Vec<_> = numbers.map(|number| frame(number, length)).collect();
    for some in frames.chunks_mut(256) {
        let mut batch = Batch::default();
        for frame in some {
            let end = frame.len();
            batch.push(frame, 0, end, Ingress::default()).unwrap();
        }
        chain.run(&Now { ns, ports: 0 }, &mut batch);
        assert!(batch.packets().iter().all(|packet| packet.verdict() == Verdict::Drop(Loss::Discarded)));
    }
}

fn counted(chain: &Chain) -> BTreeMap<&'static str, u64> {
    chain.counters().next().unwrap().2.into_iter().filter(|(_, n)| *n > 0).collect()
}

/// No core belongs to a worker.
fn start(mirror: &MirrorSettings) -> CaptureThreads {
    CaptureThreads::start([mirror], &BTreeSet::new()).unwrap()
}

fn conditions(threads: &mut CaptureThreads) -> Vec<String> {
    threads.conditions(Instant::now())
}

type Record = (Duration, Vec<u8>, u32);

fn records(bytes: &[u8]) -> Vec<Record> {
    let mut reader = PcapReader::new(bytes).unwrap();
    let header = reader.header();
    assert_eq!((header.datalink, header.ts_resolution), (DataLink::ETHERNET, TsResolution::NanoSecond));
    let mut records = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap();
        records.push((packet.timestamp, packet.data.to_vec(), packet.orig_len));
    }
    records
}

fn of_file(file: &Path) -> Vec<Record> {
    records(&fs::read(file).unwrap())
}

/// Checks that records hold these frames, whole or cut.
fn are(records: &[Record], numbers: std::ops::Range<u32>, length: usize) {
    let expected = numbers.map(|number| frame(number, length)[..length.min(100)].to_vec());
    assert!(records.iter().map(|(_, data, _)| data.clone()).eq(expected), "{} records", records.len());
    assert!(records.iter().all(|(_, _, original)| *original as usize == length));
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !is() {
        assert!(Instant::now() < deadline, "waited for {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn now_ns() -> u64 {
    let clock = Clock::of_process();
    clock.ns(clock.cycles())
}

#[test]
fn a_file_of_the_daemon_has_all_that_was_copied_before_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let mirror = mirror(directory.path().join("a.pcap"));
    let threads = start(&mirror);
    let mut chain = chain(&threads.captures(), &mirror);
    let began = unix_ns();
    come(&mut chain, now_ns(), 0..300, 60);
    // A new chain, as over other tables.
    let before = std::mem::replace(&mut chain, self::chain(&threads.captures(), &mirror));
    chain.go_on_from(&before);
    come(&mut chain, now_ns(), 300..1000, 1400);
    assert_eq!(threads.finish(), [""; 0]);
    let ended = unix_ns();
    let all = of_file(&mirror.file);
    are(&all[..300], 0..300, 60);
    are(&all[300..], 300..1000, 1400);
    assert!(all.is_sorted_by_key(|(at, ..)| *at));
    let bounds = Duration::from_nanos(began - 1_000_000)..=Duration::from_nanos(ended + 1_000_000);
    assert!(all.iter().all(|(at, ..)| bounds.contains(at)), "{:?} in {bounds:?}", all[0].0);
    assert_eq!(counted(&chain), BTreeMap::from([("written", 1000)]));
    assert_eq!(fs::metadata(&mirror.file).unwrap().permissions().mode() & 0o777, 0o600);
    // The writer is gone.
    come(&mut chain, now_ns(), 0..3, 60);
    assert_eq!(counted(&chain), BTreeMap::from([("written", 1000), ("mirror_disk", 3)]));
}

#[test]
fn a_daemon_that_starts_again_goes_on_behind_the_last_whole_packet() {
    let directory = tempfile::tempdir().unwrap();
    let mirror = mirror(directory.path().join("a.pcap"));
    for part in 0..3 {
        let threads = start(&mirror);
        let mut chain = chain(&threads.captures(), &mirror);
        come(&mut chain, now_ns(), part * 10..part * 10 + 10, 200);
        // A second one has to wait for the first.
        if part == 1 {
            until("the file", || counted(&chain).contains_key("written"));
            let mut second = start(&mirror);
            until("a condition", || !conditions(&mut second).is_empty());
            let condition =
                format!("mirror {}: another process writes it, or another mirror", mirror.file.display());
            assert_eq!(conditions(&mut second), [condition]);
        }
        assert_eq!(threads.finish(), [""; 0]);
        are(&of_file(&mirror.file), 0..part * 10 + 10, 200);
        // First a record of 100 bytes without its data, then one without its whole head.
        let mut file = File::options().append(true).open(&mirror.file).unwrap();
        let head = [1_u32, 2, 100, 200].map(u32::to_le_bytes).concat();
        file.write_all(if part == 0 { &head } else { &head[..7] }).unwrap();
    }
}

#[test]
fn an_existing_file_that_is_not_ours_is_left_alone_and_reported() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("text"), "twenty-four bytes and some more").unwrap();
    fs::write(at("open.pcap"), sink::HEADER).unwrap();
    fs::set_permissions(at("open.pcap"), fs::Permissions::from_mode(0o622)).unwrap();
    fs::write(at("target.pcap"), sink::HEADER).unwrap();
    symlink(at("target.pcap"), at("link.pcap")).unwrap();
    symlink(at("not-there"), at("dangling.pcap")).unwrap();
    let mut broken = sink::HEADER.to_vec();
    broken.extend([1_u32, 2, 70_000, 70_000].map(u32::to_le_bytes).concat());
    fs::write(at("broken.pcap"), broken).unwrap();
    fs::create_dir(at("directory")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    for (name, why) in [
        ("text", "it exists and is not a capture of Millrace: move it away"),
        ("open.pcap", "it exists, but not only this user may write it (chmod 600)"),
        ("link.pcap", "cannot open it: Too many levels of symbolic links (os error 40)"),
        ("dangling.pcap", "cannot open it: Too many levels of symbolic links (os error 40)"),
        ("broken.pcap", "it is broken: move it away"),
        ("fifo", "it exists and is not a file"),
        ("directory", "cannot open it: Is a directory (os error 21)"),
        ("none/a.pcap", "cannot create it: No such file or directory (os error 2)"),
    ] {
        let read = |name: &str| {
            fs::metadata(at(name)).ok().filter(|data| data.is_file()).map(|_| fs::read(at(name)).unwrap())
        };
        let before = read(name);
        let mirror = mirror(at(name));
        let mut threads = start(&mirror);
        until("a condition", || !conditions(&mut threads).is_empty());
        assert_eq!(conditions(&mut threads), [format!("mirror {}: {why}", mirror.file.display())]);
        let mut chain = chain(&threads.captures(), &mirror);
        come(&mut chain, 1, 0..5, 60);
        assert_eq!(counted(&chain), BTreeMap::from([("mirror_disk", 5)]), "{name}");
        assert_eq!(threads.finish(), [format!("mirror {}: {why}", mirror.file.display())]);
        assert_eq!(read(name), before, "{name}");
    }
    assert!(!at("not-there").exists());
    assert_eq!(fs::read(at("target.pcap")).unwrap(), sink::HEADER);
}

#[test]
fn a_file_that_can_be_created_later_is_created_later() {
    let directory = tempfile::tempdir().unwrap();
    let mirror = mirror(directory.path().join("none/a.pcap"));
    let mut threads = start(&mirror);
    let mut chain = chain(&threads.captures(), &mirror);
    until("a condition", || !conditions(&mut threads).is_empty());
    fs::create_dir(directory.path().join("none")).unwrap();
    until("no condition", || conditions(&mut threads).is_empty());
    come(&mut chain, 1, 0..5, 60);
    assert_eq!(threads.finish(), [""; 0]);
    are(&of_file(&mirror.file), 0..5, 60);
}

#[test]
fn a_file_does_not_exceed_its_limit_and_a_new_one_begins_when_it_is_moved_away() {
    let directory = tempfile::tempdir().unwrap();
    let mirror = mirror(directory.path().join("a.pcap"));
    let mut threads = start(&mirror);
    let mut chain = chain(&threads.captures(), &mirror);
    // Records of 116 bytes; one of them would cross the limit.
    let fit = ((MIB - 24) / 116) as u32;
    for from in (0..fit + 1000).step_by(1000) {
        come(&mut chain, now_ns(), from..(from + 1000).min(fit + 1000), 200);
        until("all", || counted(&chain).values().sum::<u64>() == u64::from((from + 1000).min(fit + 1000)));
    }
    let all = BTreeMap::from([("written", u64::from(fit)), ("mirror_limit", 1000)]);
    assert_eq!(counted(&chain), all);
    let condition = "it has reached its limit of 1 MiB; if you move it away, a new one begins";
    assert_eq!(conditions(&mut threads), [format!("mirror {}: {condition}", mirror.file.display())]);
    assert_eq!(fs::metadata(&mirror.file).unwrap().len(), 24 + u64::from(fit) * 116);
    let moved = directory.path().join("b.pcap");
    fs::rename(&mirror.file, &moved).unwrap();
    until("another file", || mirror.file.exists() && conditions(&mut threads).is_empty());
    come(&mut chain, now_ns(), 7..9, 200);
    assert_eq!(threads.finish(), [""; 0]);
    are(&of_file(&moved), 0..fit, 200);
    are(&of_file(&mirror.file), 7..9, 200);
}

/// A disk with room for this many bytes.
#[derive(Clone)]
struct Disk(Arc<Mutex<(Vec<u8>, usize)>>);

impl Sink for Disk {
    fn open(&mut self) -> Result<u64> {
        let (has, _) = &mut *self.0.lock().unwrap();
        has.extend(sink::HEADER);
        Ok(has.len() as u64)
    }
    fn write(&mut self, at: u64, records: &[u8]) -> Result<(), sink::Failed> {
        let (has, room) = &mut *self.0.lock().unwrap();
        has.truncate(at as usize);
        if has.len() + records.len() > *room {
            let fit = sink::Whole::of(&records[..room.saturating_sub(has.len())]);
            has.extend(&records[..fit.bytes]);
            return Err(sink::Failed { error: io::ErrorKind::StorageFull.into(), fit });
        }
        has.extend(records);
        Ok(())
    }
    fn is_gone(&self) -> bool {
        false
    }
}

/// Nothing is written until there is room again, and the file stays a capture.
#[test]
fn a_full_disk_loses_copies_until_there_is_room() {
    let disk = Disk(Arc::new(Mutex::new((Vec::new(), 24 + 116 * 20))));
    let mirror = mirror("a.pcap".into());
    let (copies, taker) = Copies::new(0);
    let mut writer = Writer::new(taker, disk.clone(), &mirror);
    let fault = writer.fault();
    let mut chain =
        Chain::new(vec![Box::new(Mirror::new(copies.clone(), 100, 1)), Box::new(Discard)]).unwrap();
    let start = Instant::now();
    let mut at = |ms: u64, chain: &mut Chain, numbers: std::ops::Range<u32>| {
        let count = numbers.len() as u64;
        let before = counted(chain).values().sum::<u64>();
        come(chain, 1, numbers, 200);
        while writer.drain(start + Duration::from_millis(ms), 5_000_000_000) {}
        assert_eq!(counted(chain).values().sum::<u64>(), before + count, "none is on its way");
    };
    at(0, &mut chain, 0..15);
    assert_eq!((counted(&chain), writer::read(&fault)), (BTreeMap::from([("written", 15)]), None));
    // Five of these fit, and half of one.
    disk.0.lock().unwrap().1 += 58;
    at(10, &mut chain, 15..25);
    let condition = Some("mirror a.pcap: cannot write it: no storage space".to_string());
    assert_eq!(counted(&chain), BTreeMap::from([("written", 20), ("mirror_disk", 5)]));
    assert_eq!(writer::read(&fault), condition);
    // It is tried again only after a second, and reported until something is written.
    at(20, &mut chain, 15..20);
    at(1000, &mut chain, 80..90);
    assert_eq!((copies.lost(NoCopy::Disk), writer::read(&fault)), (20, condition.clone()));
    at(1010, &mut chain, 80..90);
    assert_eq!((copies.lost(NoCopy::Disk), writer::read(&fault)), (30, condition));
    disk.0.lock().unwrap().1 = usize::MAX;
    at(1999, &mut chain, 70..80);
    at(2000, &mut chain, 70..80);
    at(2010, &mut chain, 20..40);
    assert_eq!(writer::read(&fault), None);
    assert_eq!(counted(&chain), BTreeMap::from([("written", 40), ("mirror_disk", 50)]));
    let all = records(&disk.0.lock().unwrap().0);
    are(&all, 0..40, 200);
    assert!(all.iter().all(|(at, ..)| *at == Duration::new(5, 1)), "{:?}", all[0].0);
}

/// A file that cannot grow has the whole records that fit, and no partial one.
#[test]
fn records_that_fit_are_written() {
    let record = |n: u32| [[1, n, 8, 8].map(u32::to_le_bytes).concat(), vec![n as u8; 8]].concat();
    let all: Vec<u8> = (0..1000).flat_map(record).collect();
    for (bytes, records) in [(0, 0), (23, 0), (24, 1), (24 * 60 + 20, 60)] {
        assert_eq!(Whole::of(&all[..bytes]), Whole { records, bytes: 24 * records as usize });
    }
    let flags = rustix::fs::MemfdFlags::ALLOW_SEALING | rustix::fs::MemfdFlags::CLOEXEC;
    let file = File::from(rustix::fs::memfd_create("full", flags).unwrap());
    file.set_len(3 * 4096).unwrap();
    rustix::fs::fcntl_add_seals(&file, rustix::fs::SealFlags::GROW).unwrap();
    let (written, is_whole) = sink::put(&file, 30, &all);
    let failed = written.unwrap_err();
    assert_eq!(failed.fit, Whole { records: 510, bytes: 24 * 510 });
    assert_eq!((failed.error.raw_os_error(), is_whole), (Some(libc::EPERM), true));
    let mut bytes = vec![0; 30 + 24 * 510];
    assert_eq!(file.metadata().unwrap().len(), bytes.len() as u64);
    io::Read::read_exact(&mut &file, &mut bytes).unwrap();
    assert_eq!(bytes[30..], all[..24 * 510]);
}

/// A long file takes long to read, so reading stops when the daemon ends.
#[test]
fn a_long_file_is_not_read_to_its_end_when_the_daemon_ends() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.pcap");
    let file = File::create(&path).unwrap();
    file.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
    (&file).write_all(&sink::HEADER).unwrap();
    // Records without data; and a partial one.
    let length = 24 + (20 << 20);
    file.set_len(length + 7).unwrap();
    let ends = Arc::new(AtomicBool::new(true));
    let mut sink = OfDaemon::new(&path, ends.clone());
    let error = format!("{:#}", sink.open().unwrap_err());
    assert_eq!(error, "the daemon ends before it has read the existing file");
    assert_eq!(file.metadata().unwrap().len(), length + 7);
    ends.store(false, Ordering::Relaxed);
    assert_eq!(sink.open().unwrap(), length);
    assert_eq!(file.metadata().unwrap().len(), length);
}

/// The threads, by number: name, cores, rights, and how often each has slept.
fn threads_of_this_process() -> BTreeMap<String, (String, String, u64, u64)> {
    let mut all = BTreeMap::new();
    for thread in fs::read_dir("/proc/self/task").unwrap() {
        let thread = thread.unwrap();
        // It may have ended.
        let Ok(status) = fs::read_to_string(thread.path().join("status")) else { continue };
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim_start_matches(':').trim().to_owned()
        };
        let rights = ["CapEff", "CapPrm", "CapInh"].map(|set| u64::from_str_radix(&field(set), 16).unwrap());
        let of = (
            field("Name"),
            field("Cpus_allowed_list"),
            rights.iter().fold(0, |all, set| all | set),
            field("voluntary_ctxt_switches").parse().unwrap(),
        );
        all.insert(thread.file_name().into_string().unwrap(), of);
    }
    all
}

/// Three threads sleep while nothing is copied, and one looks at all rings. They have no rights, and avoid the cores of workers.
#[test]
fn threads_of_mirrors_are_in_the_background() {
    let may = sched_getaffinity(None).unwrap();
    let may: Vec<_> = (0..CpuSet::MAX_CPU).filter(|core| may.is_set(*core)).collect();
    let (ours, workers) = may.split_first().unwrap();
    let workers: BTreeSet<CoreId> = workers.iter().map(|core| *core as CoreId).collect();
    let directory = tempfile::tempdir().unwrap();
    let mirrors = [0, 1, 2].map(|n| mirror(directory.path().join(format!("{n}.pcap"))));
    let mut threads = CaptureThreads::start(&mirrors, &workers).unwrap();
    let of = |name: &str| {
        let mut all = threads_of_this_process();
        // Threads of other tests may be anywhere.
        all.retain(|_, (its, cores, ..)| its == name && (workers.is_empty() || *cores == ours.to_string()));
        all
    };
    until("all files", || mirrors.iter().all(|mirror| mirror.file.exists()));
    until("their threads, without rights", || {
        let (threads, looker) = (of("mirror"), of("mirrors"));
        let none = threads.values().chain(looker.values()).all(|(_, _, rights, _)| *rights == 0);
        threads.len() >= 3 && !looker.is_empty() && none
    });
    let before = of("mirror");
    if !workers.is_empty() {
        assert_eq!((before.len(), of("mirrors").len()), (3, 1));
        thread::sleep(Duration::from_millis(1200));
        for (thread, (.., slept)) in of("mirror") {
            let slept = slept - before[&thread].3;
            assert!(slept < 20, "{slept} times in 1.2 s");
        }
    }
    assert_eq!(conditions(&mut threads), [""; 0]);
    // They are woken; without that they look once a second.
    let mut chain = chain(&threads.captures(), &mirrors[1]);
    let begun = Instant::now();
    for copies in 1..=10 {
        come(&mut chain, now_ns(), 0..1, 60);
        until("a copy", || counted(&chain) == BTreeMap::from([("written", copies)]));
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!(threads.finish(), [""; 0]);
}

/// If all cores belong to workers, the threads may run on all of them.
#[test]
fn a_thread_has_a_core_whatever_workers_have() {
    let all = sched_getaffinity(None).unwrap();
    let cores = |set: &CpuSet| (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect::<Vec<_>>();
    let first = cores(&all)[0] as CoreId;
    assert!(cores_but(&cores(&all).into_iter().map(|core| core as CoreId).collect()).is_none());
    assert_eq!(cores(&cores_but(&BTreeSet::new()).unwrap()), cores(&all));
    let rest = cores_but(&BTreeSet::from([first, CoreId::MAX]));
    assert_eq!(rest.map(|rest| cores(&rest)).unwrap_or_default(), cores(&all)[1..]);
}

/// A full ring is reported for some seconds, so that it is not overlooked.
#[test]
fn a_ring_that_was_full_is_reported_for_a_while() {
    let mut threads = CaptureThreads::start([], &BTreeSet::new()).unwrap();
    let (copies, _taker) = Copies::new(0);
    let mut chain =
        Chain::new(vec![Box::new(Mirror::new(copies.clone(), 100, 1)), Box::new(Discard)]).unwrap();
    let running = Running {
        file: "a.pcap".into(),
        ends: Arc::default(),
        ended: channel().1,
        thread: thread::spawn(thread::park),
        fault: Fault::default(),
        full: Full { copies, lost: 0, at: None },
    };
    threads.threads.insert("a.pcap".into(), running);
    let condition = "mirror a.pcap: copies are lost, because more come than are written (mirror_full)";
    let start = Instant::now();
    let at = |seconds: f32| start + Duration::from_secs_f32(seconds);
    assert_eq!(threads.conditions(at(0.0)), [""; 0]);
    come(&mut chain, 1, 0..2000, 200);
    assert!(counted(&chain)["mirror_full"] > 0);
    assert_eq!(threads.conditions(at(1.0)), [condition]);
    assert_eq!(threads.conditions(at(10.9)), [condition]);
    assert_eq!(threads.conditions(at(11.0)), [""; 0]);
    come(&mut chain, 1, 0..1, 200);
    assert_eq!(threads.conditions(at(12.0)), [condition]);
    drop(threads);
}

/// Comparing the clocks again does not make time go back; setting a clock does.
#[test]
fn time_goes_back_only_with_the_clock() {
    let disk = Disk(Arc::new(Mutex::new((Vec::new(), usize::MAX))));
    let mirror = mirror("a.pcap".into());
    let (copies, taker) = Copies::new(0);
    let mut writer = Writer::new(taker, disk.clone(), &mirror);
    let mut chain = Chain::new(vec![Box::new(Mirror::new(copies, 100, 1)), Box::new(Discard)]).unwrap();
    for (ns, to_unix_ns) in [(10, 2_000_000_000), (20, 1_999_999_000), (2000, 1_999_999_000), (2010, 0)] {
        come(&mut chain, ns, 0..1, 60);
        while writer.drain(Instant::now(), to_unix_ns) {}
    }
    let times = records(&disk.0.lock().unwrap().0).iter().map(|(at, ..)| at.as_nanos()).collect::<Vec<_>>();
    assert_eq!(times, [2_000_000_010, 2_000_000_010, 2_000_001_000, 2010]);
}

/// A file that was truncated in place, as by `: > a.pcap`, begins again. With a hole it would be no capture.
#[test]
fn a_file_that_another_process_cuts_has_no_hole() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.pcap");
    let mut sink = OfDaemon::new(&path, Arc::default());
    assert_eq!(sink.open().unwrap(), 24);
    let record = [[1_u32, 2, 4, 4], [3; 4]].concat().into_iter().take(5).flat_map(u32::to_le_bytes);
    let record: Vec<_> = record.collect();
    sink.write(24, &record).unwrap();
    assert!(!sink.is_gone());
    File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
    assert!(sink.is_gone());
    let error = sink.write(44, &record).unwrap_err();
    assert_eq!(error.to_string(), "another process truncated it or wrote to it");
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    assert!(sink.is_gone());
    assert_eq!(sink.open().unwrap(), 24);
    sink.write(24, &record).unwrap();
    assert!(!sink.is_gone());
    assert_eq!(records(&fs::read(&path).unwrap()), [(Duration::new(1, 2), vec![3, 0, 0, 0], 4)]);

    let mirror = mirror(directory.path().join("b.pcap"));
    let threads = start(&mirror);
    let mut chain = chain(&threads.captures(), &mirror);
    come(&mut chain, now_ns(), 0..10, 60);
    until("a file", || counted(&chain) == BTreeMap::from([("written", 10)]));
    File::create(&mirror.file).unwrap();
    until("a header", || fs::metadata(&mirror.file).unwrap().len() == 24);
    come(&mut chain, now_ns(), 10..20, 60);
    assert_eq!(threads.finish(), [""; 0]);
    are(&of_file(&mirror.file), 10..20, 60);
}

/// One call writes the last packets and reaches the limit: the earlier condition is over, and the limit is reported.
#[test]
fn a_limit_that_is_reached_when_the_disk_has_room_again_is_reported() {
    let disk = Disk(Arc::new(Mutex::new((Vec::new(), 0))));
    let mirror = MirrorSettings { file_bytes: 24 + 116 * 20, ..mirror("a.pcap".into()) };
    let mut writers = CaptureWriters::new([(&mirror, Box::new(disk.clone()) as Box<dyn Sink>)]);
    let mut chain = chain(&writers.captures(), &mirror);
    let start = Instant::now();
    come(&mut chain, 1, 0..1, 200);
    writers.writers[0].drain(start, 0);
    disk.0.lock().unwrap().1 = usize::MAX;
    let fault = writers.writers[0].fault();
    assert_eq!(writer::read(&fault).unwrap(), "mirror a.pcap: cannot write it: no storage space");
    let later = start + Duration::from_secs(1);
    writers.writers[0].drain(later, 0);
    come(&mut chain, 1, 0..25, 200);
    writers.writers[0].drain(later, 0);
    let condition = "mirror a.pcap: it has reached its limit of 0 MiB; if you move it away, a new one begins";
    assert_eq!(writer::read(&fault).unwrap(), condition);
    assert_eq!(counted(&chain), BTreeMap::from([("written", 20), ("mirror_disk", 1), ("mirror_limit", 5)]));
    // The first error is reported.
    assert_eq!(writers.finish(), ["mirror a.pcap: cannot write it: no storage space"]);
}

/// A run reports lost copies at its end, also if there was room again, or if only the limit was reached.
#[test]
fn a_run_reports_files_that_lack_copies() {
    let disk = Disk(Arc::new(Mutex::new((Vec::new(), usize::MAX))));
    let small = MirrorSettings { file_bytes: 24 + 116 * 20, ..mirror("small.pcap".into()) };
    let whole = mirror("whole.pcap".into());
    let sink = || Box::new(disk.clone()) as Box<dyn Sink>;
    let mut writers = CaptureWriters::new([(&small, sink())]);
    let mut chain = chain(&writers.captures(), &small);
    come(&mut chain, 1, 0..20, 200);
    writers.drain();
    come(&mut chain, 1, 0..1, 200);
    assert_eq!(writers.finish(), ["mirror small.pcap: it has reached its limit of 0 MiB"]);
    let mut writers = CaptureWriters::new([(&whole, sink())]);
    let mut chain = self::chain(&writers.captures(), &whole);
    come(&mut chain, 1, 0..20, 200);
    writers.drain();
    assert_eq!(writers.finish(), [""; 0]);
}

#[test]
fn a_device_reports_its_first_error_again() {
    let mut sink = OfRun::new(OfRun::claim(Path::new("/dev/full")).unwrap());
    for _ in 0..3 {
        let error = format!("{:#}", sink.open().unwrap_err());
        assert_eq!(error, "cannot write it: No space left on device (os error 28)");
    }
}

/// A file is refused if it is no capture of ours, if another process writes it, or if it is a link.
#[test]
fn a_run_claims_only_what_it_may_empty() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let claim = |name: &str| OfRun::claim(&at(name)).map_err(|error| format!("{error:#}"));
    let made = claim("new.pcap").unwrap();
    assert_eq!(made.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let error = "another process writes it, or another mirror";
    assert_eq!(claim("new.pcap").unwrap_err(), error);
    drop(made);
    claim("new.pcap").unwrap();
    fs::write(at("ours.pcap"), [&sink::HEADER[..], &[1; 9]].concat()).unwrap();
    claim("ours.pcap").unwrap();
    symlink(at("ours.pcap"), at("link.pcap")).unwrap();
    assert_eq!(claim("link.pcap").unwrap_err(), "Too many levels of symbolic links (os error 40)");
    for text in ["[[port]]", "twenty-four bytes and some more"] {
        fs::write(at("text"), text).unwrap();
        assert_eq!(claim("text").unwrap_err(), "it exists and is not a capture of Millrace: move it away");
        assert_eq!(fs::read(at("text")).unwrap(), text.as_bytes());
    }
    assert_eq!(fs::metadata(at("ours.pcap")).unwrap().len(), 33);
}

/// A thread that waited between two readings reads again, and finally gives up.
#[test]
fn clocks_are_compared_only_when_little_time_is_between() {
    let mut worker = [1_000, 900_000, 1_000_000, 1_000_200].into_iter();
    let mut unix = [7, 9_000_000].into_iter();
    let ahead = apart(|| worker.next().unwrap(), || unix.next().unwrap());
    assert_eq!(ahead, Some(9_000_000 - 1_000_100));
    let mut ns = 0;
    let mut late = || {
        ns += 200_000;
        ns
    };
    assert_eq!(apart(&mut late, || 5), None);
    assert_eq!(ns, 200_000 * 2 * COMPARES as u64);
}
