//! Runs captures in memory through paths: every packet has one fate, which does not depend on speed.

use super::*;
use crate::{
    config::{MirrorSettings, PathsConfig},
    user_plane::{
        captures::{CaptureWriters, OfRun, Sink},
        sas::Sas,
    },
};
use pcap_file::pcap::{PcapPacket, PcapReader, PcapWriter};
use proptest::prelude::*;
use std::{fs::File, path::Path, time::Duration};

/// A record: microseconds, data, length on the wire.
type Record = (u64, Vec<u8>, u32);

const PORTS: &str = r#"
[[port]]
name = "lan"
mac = "02:00:00:00:00:01"
router = "red"
[[port]]
name = "wan"
mac = "02:00:00:00:00:02"
router = "red"
[[port]]
name = "tap"
[[route]]
prefix = "10.1.0.0/16"
via = "02:00:00:00:09:01"
port = "wan"
[[route]]
prefix = "2001:db8:1::/48"
via = "02:00:00:00:09:01"
port = "wan"
"#;

fn whole(us: u64, data: Vec<u8>) -> Record {
    let length = data.len() as u32;
    (us, data, length)
}

fn capture(records: &[Record]) -> Vec<u8> {
    let mut writer = PcapWriter::new(Vec::new()).unwrap();
    for (us, data, length) in records {
        writer.write_packet(&PcapPacket::new(Duration::from_micros(*us), *length, data)).unwrap();
    }
    writer.into_writer()
}

/// Returns the report, and the written packets.
fn replay(paths: &str, captures: &[(u8, Vec<u8>)]) -> (PathsReport, Vec<Record>) {
    let config = PathsConfig::parse(Path::new("p.toml"), &format!("{PORTS}{paths}")).unwrap();
    let inputs = captures.iter().map(|(port, bytes)| Input::new("in.pcap", *port, &bytes[..]).unwrap());
    let mut written = Vec::new();
    let outputs = Outputs::new([("out.pcap".to_string(), None, &mut written)], false).unwrap();
    let report =
        run(&config, Sas::default(), CaptureWriters::default(), &mut inputs.collect::<Vec<_>>(), outputs)
            .unwrap();
    let mut reader = PcapReader::new(&written[..]).unwrap();
    let mut records = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap();
        records.push((packet.timestamp.as_micros() as u64, packet.data.to_vec(), packet.orig_len));
    }
    (report, records)
}

fn udp(mac: u8, to: [u8; 4], ttl: u8, payload: &[u8]) -> Vec<u8> {
    let ethernet = etherparse::PacketBuilder::ethernet2([9; 6], [2, 0, 0, 0, 0, mac]);
    let mut frame = Vec::new();
    ethernet.ipv4([198, 51, 100, 1], to, ttl).udp(1000, 2000).write(&mut frame, payload).unwrap();
    frame
}

fn is_whole(report: &PathsReport) {
    assert_eq!(report.packets, report.out + report.up + report.dropped, "{report:?}");
    let of_paths: u64 = report.paths.iter().map(|path| path.packets).sum();
    assert_eq!(report.packets, of_paths + report.no_path + report.truncated + report.too_long);
    for path in &report.paths {
        let fates = [&path.out, &path.up, &path.dropped].map(|counts| counts.values().sum::<u64>());
        assert_eq!(path.packets, fates.iter().sum::<u64>(), "{path:?}");
        // Elements counted the settled packets.
        for (settled, of) in [(&path.up, 0), (&path.dropped, 1)] {
            let mut counted = std::collections::BTreeMap::<String, u64>::new();
            for element in &path.elements {
                for (name, count) in if of == 0 { &element.up } else { &element.dropped } {
                    *counted.entry(name.clone()).or_default() += count;
                }
            }
            assert_eq!(&counted, settled, "{path:?}");
        }
    }
}

/// Many more packets than rings hold: none is lost, and they leave in the order in which they came, although two paths take turns.
#[test]
fn the_file_waits_for_full_rings() {
    let paths = r#"
[[path]]
name = "some"
class = { destination_port = 2001 }
chain = [{ element = "forward", port = "tap" }]
ring = 64
[[path]]
name = "none"
class = { tcp_syn = true }
chain = ["discard"]
[[path]]
name = "rest"
chain = ["check", "route", "ttl", "rewrite"]
ring = 64
"#;
    let records: Vec<_> = (0..5000u64)
        .map(|n| {
            let mut frame = udp(1, [10, 1, 0, 1], 64, &n.to_be_bytes());
            frame[37] = if n / 200 % 3 == 0 { 0xd1 } else { 0xd0 };
            whole(n, frame)
        })
        .collect();
    let (report, written) = replay(paths, &[(0, capture(&records))]);
    is_whole(&report);
    assert_eq!((report.packets, report.out), (5000, 5000));
    let order: Vec<_> = written.iter().map(|(us, data, _)| (*us, data[42..50].to_vec())).collect();
    let expected: Vec<_> = (0..5000u64).map(|n| (n, n.to_be_bytes().to_vec())).collect();
    assert_eq!(order, expected);
    let [some, none, rest] = &report.paths[..] else { panic!() };
    assert_eq!((none.packets, none.runs), (0, 0));
    assert_eq!((some.out["tap"], rest.out["wan"]), (1800, 3200));
    assert!(rest.ns_per_packet.is_some_and(|ns| ns > 0) && rest.runs >= 3200 / 256);
}

/// The first run has eight packets that take long. The others take no time, or take long too. The length of runs and the measured
/// cost follow the settings of the file.
#[test]
fn runs_are_as_long_and_measured_as_often_as_the_file_says() {
    const PATH: &str =
        "[[path]]\nname = \"crc\"\nchain = [\"crc_append\", { element = \"forward\", port = \"tap\" }]\n";
    let crc = |sample_every: u32, longest_run: &str, (dear, bytes): (u64, usize)| {
        let runs =
            format!("[experimental]\nsample_every = {sample_every}\nlongest_run = \"{longest_run}\"\n");
        let long = |n| if n < dear { bytes } else { 0 };
        let records: Vec<_> =
            (0..400).map(|n| whole(n, udp(1, [10, 1, 0, 1], 64, &vec![7; long(n)]))).collect();
        let (report, _) = replay(&format!("{runs}{PATH}"), &[(0, capture(&records))]);
        is_whole(&report);
        assert_eq!((report.out, u32::from(report.sample_every)), (400, sample_every));
        assert_eq!(format!("{}us", report.longest_run_us), longest_run);
        report.paths[0].clone()
    };
    // A packet takes between 2 us and 50 us, the latter beside other work.
    let [short, long] = ["10us", "1000us"].map(|run| crc(1, run, (400, 6000)).runs);
    assert!(short > 3 * long, "{short} and {long} runs");
    let [often, once] = [1, 10_000].map(|every| crc(every, "100us", (8, 60_000)).ns_per_packet.unwrap());
    assert!(once > 3 * often, "{once} ns by the first run, {often} by all");
}

/// The clock is the file's: 1,000 packets per second and 5 at once, in a capture of two seconds.
#[test]
fn rates_are_those_of_the_capture() {
    let paths = r#"
[[path]]
name = "all"
chain = [{ element = "police", packets_per_second = 1000, burst_packets = 5 }, { element = "forward", port = "tap" }]
"#;
    let records: Vec<_> = (0..20_000u64).map(|n| whole(n * 100, udp(1, [10, 1, 0, 1], 64, &[]))).collect();
    let (report, written) = replay(paths, &[(0, capture(&records))]);
    is_whole(&report);
    let passed: Vec<u64> = written.iter().map(|(us, ..)| us / 100).collect();
    // Five pass at once. Meanwhile the bucket fills by a tenth with each packet.
    let expected: Vec<u64> = (0..5).chain((1..2000).map(|ms| ms * 10)).collect();
    assert_eq!(passed, expected);
    assert_eq!(report.paths[0].dropped["over_rate"], 20_000 - expected.len() as u64);
}

#[test]
fn packets_that_cannot_be_run_are_counted() {
    let paths = "[[path]]\nname = \"a\"\nclass = { port = \"lan\" }\nchain = [{ element = \"forward\", port = \"tap\" }]";
    let frame = udp(1, [10, 1, 0, 1], 64, &[1; 20]);
    let cut = (2, frame[..40].to_vec(), frame.len() as u32);
    let lan = capture(&[whole(1, frame.clone()), cut, whole(3, vec![7; 65_215]), whole(4, vec![7; 65_216])]);
    let wan = capture(&[whole(2, frame.clone())]);
    let (report, written) = replay(paths, &[(0, lan), (1, wan)]);
    is_whole(&report);
    let PathsReport { packets, out, no_path, truncated, too_long, .. } = report;
    assert_eq!((packets, out, no_path, truncated, too_long), (5, 2, 1, 1, 1));
    assert_eq!(written, [whole(1, frame), whole(3, vec![7; 65_215])]);
}

#[test]
fn packets_before_a_broken_one_are_run() {
    let paths = "[[path]]\nname = \"a\"\nchain = [{ element = \"forward\", port = \"tap\" }]";
    let bytes = capture(&[whole(1, vec![1; 60]), whole(2, vec![2; 60])]);
    let (report, written) = replay(paths, &[(0, bytes[..bytes.len() - 1].to_vec())]);
    is_whole(&report);
    assert_eq!(written, [whole(1, vec![1; 60])]);
    let [error] = &report.errors[..] else { panic!("{:?}", report.errors) };
    assert!(error.starts_with("in.pcap is broken at packet 2; those before it were run: "), "{error}");
}

/// Accepts this many bytes.
struct Full(usize);

impl std::io::Write for Full {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let taken = bytes.len().min(self.0);
        self.0 -= taken;
        if taken == 0 { Err(std::io::ErrorKind::StorageFull.into()) } else { Ok(taken) }
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Packets that have come still have their fates, and are in the other file.
#[test]
fn an_output_that_fails_ends_the_run() {
    let paths = "[[path]]\nname = \"a\"\nchain = [{ element = \"forward\", port = \"tap\" }]\nring = 64";
    let config = PathsConfig::parse(Path::new("p.toml"), &format!("{PORTS}{paths}")).unwrap();
    let bytes = capture(&(0..5000).map(|n| whole(n, vec![1; 60])).collect::<Vec<_>>());
    let mut inputs = [Input::new("in.pcap", 0, &bytes[..]).unwrap()];
    let mut written = Vec::new();
    let files: [(_, _, Box<dyn std::io::Write>); 2] = [
        ("full.pcap".to_string(), None, Box::new(Full(24 + 76 * 10))),
        ("out.pcap".to_string(), None, Box::new(&mut written)),
    ];
    let report = run(
        &config,
        Sas::default(),
        CaptureWriters::default(),
        &mut inputs,
        Outputs::new(files, false).unwrap(),
    )
    .unwrap();
    is_whole(&report);
    assert_eq!(report.errors.len(), 1, "{:?}", report.errors);
    assert!(report.errors[0].starts_with("cannot write full.pcap: "), "{:?}", report.errors);
    assert!((11..1000).contains(&report.packets) && report.out == report.packets, "{report:?}");
    assert_eq!(written.len() as u64, 24 + 76 * report.out);
}

/// An element or two in front of an exit.
fn chains() -> impl Strategy<Value = String> {
    let before = prop_oneof![
        Just(""),
        Just("\"count\", "),
        Just("\"check\", "),
        Just("\"crc_check\", "),
        Just("\"check\", \"route\", "),
        Just("{ element = \"police\", packets_per_second = 300, burst_packets = 2 }, "),
        Just("{ element = \"police\", bits_per_second = 9000, burst_bytes = 200 }, "),
        Just("\"crc_append\", "),
    ];
    let exit = prop_oneof![
        Just("\"discard\""),
        Just("{ element = \"forward\", port = \"tap\" }"),
        Just("{ element = \"forward\", port = \"lan\" }, \"crc_append\""),
    ];
    prop_oneof![
        1 => Just("\"check\", \"route\", \"ttl\", \"rewrite\"".to_string()),
        2 => (before, exit).prop_map(|(before, exit)| format!("{before}{exit}")),
    ]
}

fn classes() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        Just("protocol = \"udp\", destination_port = 2000"),
        Just("ether_type = \"ipv6\""),
        Just("source = \"198.51.100.0/24\""),
        Just("bytes = { offset = 20, mask = 1, value = 1 }"),
        Just("destination_mac = \"02:00:00:00:00:01\""),
        Just("tcp_syn = true"),
        Just("port = \"wan\""),
    ]
}

fn frames() -> impl Strategy<Value = Vec<u8>> {
    let to = prop_oneof![Just([10, 1, 0, 1]), Just([10, 2, 0, 1]), any::<[u8; 4]>()];
    let made = (1u8..3, to, 0u8..4, prop::collection::vec(any::<u8>(), 0..60))
        .prop_map(|(mac, to, ttl, payload)| udp(mac, to, ttl, &payload));
    let broken = (made, prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3)).prop_map(
        |(mut frame, broken)| {
            let length = frame.len();
            broken.into_iter().for_each(|(at, value)| frame[at.index(length)] = value);
            frame
        },
    );
    prop_oneof![4 => broken, 1 => prop::collection::vec(any::<u8>(), 0..80)]
}

fn records() -> impl Strategy<Value = Vec<Record>> {
    let record = (0u64..5_000_000, frames(), prop::bool::weighted(0.1)).prop_map(|(us, data, cut)| {
        let length = data.len() as u32 + u32::from(cut);
        (us, data, length)
    });
    prop::collection::vec(record, 0..200)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    /// Any packets through any paths: each has one fate, the same in every run, whatever the scheduler does.
    #[test]
    fn every_packet_has_one_fate(
        lan in records(),
        wan in records(),
        settings in prop::collection::btree_map(classes(), (chains(), 1u16..9), 1..5),
        rest in prop::option::of(chains()),
    ) {
        let mut paths = String::new();
        for (n, (class, (chain, weight))) in settings.iter().enumerate() {
            paths += &format!("[[path]]\nname = \"p{n}\"\nclass = {{ {class} }}\nchain = [{chain}]\nweight = {weight}\nring = 64\n");
        }
        if let Some(chain) = rest {
            paths += &format!("[[path]]\nname = \"rest\"\nchain = [{chain}]\n");
        }
        let captures = [(0, capture(&lan)), (1, capture(&wan))];
        let (mut report, written) = replay(&paths, &captures);
        is_whole(&report);
        prop_assert_eq!(report.packets as usize, lan.len() + wan.len());
        prop_assert_eq!(written.len() as u64, report.out);
        let (mut again, rewritten) = replay(&paths, &captures);
        for path in report.paths.iter_mut().chain(&mut again.paths) {
            // Sampled.
            (path.runs, path.ns_per_packet) = (0, None);
            (path.io_bytes_per_packet, path.memory_bytes_per_packet) = (None, None);
        }
        prop_assert_eq!(report, again);
        prop_assert_eq!(written, rewritten);
    }
}

/// Its time, its bytes, and its length on the wire.
type Copied = (u64, Vec<u8>, u32);

/// Returns the report, and the packets that mirrors wrote to files; on a full disk, no packets.
fn mirrored(paths: &str, frames: &[Record], is_full: bool) -> (PathsReport, Vec<Vec<Copied>>) {
    let config = PathsConfig::parse(Path::new("p.toml"), &format!("{PORTS}{paths}")).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &Path| if is_full { "/dev/full".into() } else { directory.path().join(name) };
    let open =
        |name: &Path| File::options().write(true).create(true).truncate(false).open(file(name)).unwrap();
    let sink = |mirror: &MirrorSettings| Box::new(OfRun::new(open(&mirror.file))) as Box<dyn Sink>;
    let captures = CaptureWriters::new(config.mirrors().map(|mirror| (mirror, sink(mirror))));
    let capture = capture(frames);
    let mut inputs = [Input::new("in.pcap", 0, &capture[..]).unwrap()];
    let outputs = Outputs::<Vec<u8>>::new([], false).unwrap();
    let report = run(&config, Sas::default(), captures, &mut inputs, outputs).unwrap();
    if is_full {
        return (report, Vec::new());
    }
    let read = |mirror: &MirrorSettings| {
        let mut reader = PcapReader::new(File::open(file(&mirror.file)).unwrap()).unwrap();
        assert_eq!(reader.header().ts_resolution, pcap_file::TsResolution::NanoSecond);
        let mut records = Vec::new();
        while let Some(packet) = reader.next_packet() {
            let packet = packet.unwrap();
            records.push((packet.timestamp.as_nanos() as u64, packet.data.to_vec(), packet.orig_len));
        }
        records
    };
    (report, config.mirrors().map(read).collect())
}

fn of_mirror<'r>(report: &'r PathsReport, what: &str) -> Vec<u64> {
    let elements = report.paths.iter().flat_map(|path: &'r PathReport| &path.elements);
    let mirrors = elements.filter(|element| element.element == "mirror");
    mirrors.map(|mirror| mirror.counted.get(what).copied().unwrap_or_default()).collect()
}

/// Mirrors before and after the elements that write to packets; with more packets than a ring has room for.
#[test]
fn mirrors_copy_packets_as_they_come_and_as_they_leave() {
    const ROUTED: &str = r#"
[[path]]
name = "routed"
router = "red"
chain = [{ element = "mirror", file = "in", snap_bytes = 60 }, "check", "route", "ttl", "rewrite",
         { element = "mirror", file = "out", snap_bytes = 65535, every_packets = 2 }]
"#;
    // Every tenth packet goes up after the first mirror.
    let ttl = |n: u64| if n.is_multiple_of(10) { 1 } else { 64 };
    let come: Vec<_> =
        (0..3000).map(|n: u64| whole(n, udp(1, [10, 1, 0, 1], ttl(n), &n.to_be_bytes().repeat(5)))).collect();
    let (report, written) = mirrored(ROUTED, &come, false);
    is_whole(&report);
    assert_eq!((report.out, report.up, &report.errors), (2700, 300, &vec![]));
    assert_eq!(of_mirror(&report, "written"), [3000, 1350]);
    assert_eq!([of_mirror(&report, "mirror_full"), of_mirror(&report, "mirror_disk")], [[0, 0], [0, 0]]);
    let cut = come.iter().map(|(us, data, length)| (us * 1000, data[..60].to_vec(), *length));
    assert_eq!(written[0], cut.collect::<Vec<_>>());
    let left = come.iter().enumerate().filter(|(n, _)| n % 10 != 0).map(|(_, record)| record).step_by(2);
    let left = left.map(|(us, data, length)| {
        let routed = udp(1, [10, 1, 0, 1], 63, &data[42..]);
        (us * 1000, [&[2, 0, 0, 0, 9, 1, 2, 0, 0, 0, 0, 2][..], &routed[12..]].concat(), *length)
    });
    assert_eq!(written[1], left.collect::<Vec<_>>());
}

#[test]
fn a_mirror_that_cannot_be_written_is_reported_and_no_packet_is_lost() {
    const MIRRORED: &str = r#"
[[path]]
name = "a"
chain = [{ element = "mirror", file = "full" }, { element = "forward", port = "tap" }]
"#;
    let come: Vec<_> = (0..2000).map(|n: u64| whole(n, udp(1, [10, 1, 0, 1], 9, &n.to_be_bytes()))).collect();
    let (report, _) = mirrored(MIRRORED, &come, true);
    is_whole(&report);
    assert_eq!(report.paths[0].out["tap"], 2000);
    assert_eq!((of_mirror(&report, "written"), of_mirror(&report, "mirror_disk")), (vec![0], vec![2000]));
    assert_eq!(report.errors, ["mirror full: cannot write it: No space left on device (os error 28)"]);
}
