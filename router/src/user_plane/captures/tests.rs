//! Captures read back, and files that cannot be had: what was lost is counted, and packets go on.

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

/// They all come at this time, and none goes another way for being copied.
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

/// No core is a worker's.
fn start(mirror: &MirrorSettings) -> CaptureThreads {
    CaptureThreads::start([mirror], &BTreeSet::new()).unwrap()
}

fn troubles(threads: &mut CaptureThreads) -> Vec<String> {
    threads.troubles(Instant::now())
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

/// What it is of, of whole or cut frames.
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
    // Made anew, as over other tables.
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
    // Nobody writes any more.
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
            until("a trouble", || !troubles(&mut second).is_empty());
            let told =
                format!("mirror {}: another process writes it, or another mirror", mirror.file.display());
            assert_eq!(troubles(&mut second), [told]);
        }
        assert_eq!(threads.finish(), [""; 0]);
        are(&of_file(&mirror.file), 0..part * 10 + 10, 200);
        // A record of 100 bytes of which not all was written, and then not even all of its head.
        let mut file = File::options().append(true).open(&mirror.file).unwrap();
        let head = [1_u32, 2, 100, 200].map(u32::to_le_bytes).concat();
        file.write_all(if part == 0 { &head } else { &head[..7] }).unwrap();
    }
}

#[test]
fn what_is_there_and_not_ours_is_left_as_it_is_and_told() {
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
        ("text", "it is there already, and no capture of Millrace: move it away"),
        ("open.pcap", "it is there already, and not this user's alone to write (chmod 600)"),
        ("link.pcap", "cannot open it: Too many levels of symbolic links (os error 40)"),
        ("dangling.pcap", "cannot open it: Too many levels of symbolic links (os error 40)"),
        ("broken.pcap", "it is broken: move it away"),
        ("fifo", "it is there already, and no file"),
        ("directory", "cannot open it: Is a directory (os error 21)"),
        ("none/a.pcap", "cannot make it: No such file or directory (os error 2)"),
    ] {
        let read = |name: &str| {
            fs::metadata(at(name)).ok().filter(|data| data.is_file()).map(|_| fs::read(at(name)).unwrap())
        };
        let before = read(name);
        let mirror = mirror(at(name));
        let mut threads = start(&mirror);
        until("a trouble", || !troubles(&mut threads).is_empty());
        assert_eq!(troubles(&mut threads), [format!("mirror {}: {why}", mirror.file.display())]);
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
fn a_file_that_can_be_had_later_is_had_later() {
    let directory = tempfile::tempdir().unwrap();
    let mirror = mirror(directory.path().join("none/a.pcap"));
    let mut threads = start(&mirror);
    let mut chain = chain(&threads.captures(), &mirror);
    until("a trouble", || !troubles(&mut threads).is_empty());
    fs::create_dir(directory.path().join("none")).unwrap();
    until("no trouble", || troubles(&mut threads).is_empty());
    come(&mut chain, 1, 0..5, 60);
    assert_eq!(threads.finish(), [""; 0]);
    are(&of_file(&mirror.file), 0..5, 60);
}

#[test]
fn a_file_has_its_most_bytes_and_one_that_is_moved_away_is_followed_by_another() {
    let directory = tempfile::tempdir().unwrap();
    let mirror = mirror(directory.path().join("a.pcap"));
    let mut threads = start(&mirror);
    let mut chain = chain(&threads.captures(), &mirror);
    // Records of 116 bytes, one of which comes to lie across the end.
    let fit = ((MIB - 24) / 116) as u32;
    for from in (0..fit + 1000).step_by(1000) {
        come(&mut chain, now_ns(), from..(from + 1000).min(fit + 1000), 200);
        until("all", || counted(&chain).values().sum::<u64>() == u64::from((from + 1000).min(fit + 1000)));
    }
    let all = BTreeMap::from([("written", u64::from(fit)), ("mirror_limit", 1000)]);
    assert_eq!(counted(&chain), all);
    let told = "it has 1 MiB, the most it may have: move it away, and a new one begins";
    assert_eq!(troubles(&mut threads), [format!("mirror {}: {told}", mirror.file.display())]);
    assert_eq!(fs::metadata(&mirror.file).unwrap().len(), 24 + u64::from(fit) * 116);
    let moved = directory.path().join("b.pcap");
    fs::rename(&mirror.file, &moved).unwrap();
    until("another file", || mirror.file.exists() && troubles(&mut threads).is_empty());
    come(&mut chain, now_ns(), 7..9, 200);
    assert_eq!(threads.finish(), [""; 0]);
    are(&of_file(&moved), 0..fit, 200);
    are(&of_file(&mirror.file), 7..9, 200);
}

/// A disk with room for so many bytes.
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

/// Until there is room again nothing is written, and what there is stays a capture.
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
    let told = Some("mirror a.pcap: cannot write it: no storage space".to_string());
    assert_eq!(counted(&chain), BTreeMap::from([("written", 20), ("mirror_disk", 5)]));
    assert_eq!(writer::read(&fault), told);
    // Not tried again, but after a second; and still told, as nothing was written.
    at(20, &mut chain, 15..20);
    at(1000, &mut chain, 80..90);
    assert_eq!((copies.lost(NoCopy::Disk), writer::read(&fault)), (20, told.clone()));
    at(1010, &mut chain, 80..90);
    assert_eq!((copies.lost(NoCopy::Disk), writer::read(&fault)), (30, told));
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

/// A file that cannot grow has what fits, and no part of a record behind it.
#[test]
fn what_fits_is_in_the_file() {
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

/// A long file takes long to read: not when the daemon ends.
#[test]
fn a_long_file_is_not_read_to_its_end_when_the_daemon_ends() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.pcap");
    let file = File::create(&path).unwrap();
    file.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
    (&file).write_all(&sink::HEADER).unwrap();
    // Of packets of no bytes; and a part of one.
    let length = 24 + (20 << 20);
    file.set_len(length + 7).unwrap();
    let ends = Arc::new(AtomicBool::new(true));
    let mut sink = OfDaemon::new(&path, ends.clone());
    let error = format!("{:#}", sink.open().unwrap_err());
    assert_eq!(error, "the daemon ends before it has read what is there already");
    assert_eq!(file.metadata().unwrap().len(), length + 7);
    ends.store(false, Ordering::Relaxed);
    assert_eq!(sink.open().unwrap(), length);
    assert_eq!(file.metadata().unwrap().len(), length);
}

/// By name, cores and rights; and how often each slept since it began, by number.
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

/// Three threads sleep as long as nothing is copied; one looks for all. They have no rights, and stay away from workers.
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
        // Those of other tests may be anywhere.
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
    assert_eq!(troubles(&mut threads), [""; 0]);
    // They are woken: by themselves they look once a second.
    let mut chain = chain(&threads.captures(), &mirrors[1]);
    let begun = Instant::now();
    for copies in 1..=10 {
        come(&mut chain, now_ns(), 0..1, 60);
        until("a copy", || counted(&chain) == BTreeMap::from([("written", copies)]));
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!(threads.finish(), [""; 0]);
}

/// Where all cores are workers', they are where the daemon is.
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

/// Who does not keep up is told, as long as it may have been overlooked.
#[test]
fn a_ring_that_was_full_is_told_for_a_while() {
    let mut threads = CaptureThreads::default();
    let (copies, _taker) = Copies::new(0);
    let mut chain =
        Chain::new(vec![Box::new(Mirror::new(copies.clone(), 100, 1)), Box::new(Discard)]).unwrap();
    threads.threads.push(Running {
        file: "a.pcap".into(),
        ended: channel().1,
        thread: thread::spawn(thread::park),
        fault: Fault::default(),
        full: Full { copies, lost: 0, at: None },
    });
    let told = "mirror a.pcap: copies are lost, as more come than are written (mirror_full)";
    let start = Instant::now();
    let at = |seconds: f32| start + Duration::from_secs_f32(seconds);
    assert_eq!(threads.troubles(at(0.0)), [""; 0]);
    come(&mut chain, 1, 0..2000, 200);
    assert!(counted(&chain)["mirror_full"] > 0);
    assert_eq!(threads.troubles(at(1.0)), [told]);
    assert_eq!(threads.troubles(at(10.9)), [told]);
    assert_eq!(threads.troubles(at(11.0)), [""; 0]);
    come(&mut chain, 1, 0..1, 200);
    assert_eq!(threads.troubles(at(12.0)), [told]);
    drop(threads);
}

/// Clocks that are compared anew do not make time go back; one that was set does.
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

/// A file that was cut where it is, as by `: > a.pcap`, begins anew: a hole in its place would be no capture.
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
    assert_eq!(error.to_string(), "another process has cut or written it");
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

/// The file gets its last packets and is full in one go: the former trouble is over, and this one is told.
#[test]
fn a_limit_that_is_met_when_the_disk_has_room_again_is_told() {
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
    let told = "mirror a.pcap: it has 0 MiB, the most it may have: move it away, and a new one begins";
    assert_eq!(writer::read(&fault).unwrap(), told);
    assert_eq!(counted(&chain), BTreeMap::from([("written", 20), ("mirror_disk", 1), ("mirror_limit", 5)]));
    // What went wrong first.
    assert_eq!(writers.finish(), ["mirror a.pcap: cannot write it: no storage space"]);
}

/// What a run lost it tells in the end, also if there was room again, or nothing was wrong but the limit.
#[test]
fn a_run_tells_what_its_files_lack() {
    let disk = Disk(Arc::new(Mutex::new((Vec::new(), usize::MAX))));
    let small = MirrorSettings { file_bytes: 24 + 116 * 20, ..mirror("small.pcap".into()) };
    let whole = mirror("whole.pcap".into());
    let sink = || Box::new(disk.clone()) as Box<dyn Sink>;
    let mut writers = CaptureWriters::new([(&small, sink())]);
    let mut chain = chain(&writers.captures(), &small);
    come(&mut chain, 1, 0..20, 200);
    writers.drain();
    come(&mut chain, 1, 0..1, 200);
    assert_eq!(writers.finish(), ["mirror small.pcap: it has 0 MiB, the most it may have"]);
    let mut writers = CaptureWriters::new([(&whole, sink())]);
    let mut chain = self::chain(&writers.captures(), &whole);
    come(&mut chain, 1, 0..20, 200);
    writers.drain();
    assert_eq!(writers.finish(), [""; 0]);
}

#[test]
fn a_device_that_failed_is_told_as_it_failed() {
    let mut sink = OfRun::new(OfRun::claim(Path::new("/dev/full")).unwrap());
    for _ in 0..3 {
        let error = format!("{:#}", sink.open().unwrap_err());
        assert_eq!(error, "cannot write it: No space left on device (os error 28)");
    }
}

/// Neither what is no capture of ours, nor what another writes, nor what a link names.
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
        assert_eq!(
            claim("text").unwrap_err(),
            "it is there already, and no capture of Millrace: move it away"
        );
        assert_eq!(fs::read(at("text")).unwrap(), text.as_bytes());
    }
    assert_eq!(fs::metadata(at("ours.pcap")).unwrap().len(), 33);
}

/// A thread that waited between two readings reads again, and gives up at last.
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
