//! `millrace paths run`, the binary on captures, with the example of docs/inside/user-plane.md: bytes,
//! counts, exit codes and errors.

use pcap_file::{
    DataLink, Endianness, TsResolution,
    pcap::{PcapHeader, PcapPacket, PcapReader, PcapWriter},
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

/// Nanoseconds and a frame.
type Record = (u64, Vec<u8>);

/// The example of the documentation.
fn example() -> String {
    let text = include_str!("../../docs/inside/user-plane.md");
    let start = text.find("```toml\n").expect("an example") + "```toml\n".len();
    text[start..start + text[start..].find("```").unwrap()].into()
}

struct World {
    directory: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("p.toml"), example()).unwrap();
        World { directory }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
        command
            .args(["paths", "run", "--config", "p.toml"])
            .args(arguments)
            .current_dir(self.directory.path());
        command.output().unwrap()
    }

    /// Runs a command that must fail, and returns its error.
    fn refused(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn write(&self, name: &str, records: &[Record], datalink: DataLink, endianness: Endianness) {
        let header = PcapHeader {
            datalink,
            endianness,
            ts_resolution: TsResolution::NanoSecond,
            ..PcapHeader::default()
        };
        let mut writer = PcapWriter::with_header(Vec::new(), header).unwrap();
        for (ns, frame) in records {
            let packet = PcapPacket::new(Duration::from_nanos(*ns), frame.len() as u32, frame);
            writer.write_packet(&packet).unwrap();
        }
        fs::write(self.file(name), writer.into_writer()).unwrap();
    }

    fn ethernet(&self, name: &str, records: &[Record]) {
        self.write(name, records, DataLink::ETHERNET, Endianness::Big);
    }

    fn read(&self, name: &str) -> Vec<Record> {
        let bytes = fs::read(self.file(name)).unwrap();
        let mut reader = PcapReader::new(&bytes[..]).unwrap();
        assert_eq!(reader.header().datalink, DataLink::ETHERNET);
        let mut records = Vec::new();
        while let Some(packet) = reader.next_packet() {
            let packet = packet.unwrap();
            assert_eq!(packet.orig_len as usize, packet.data.len());
            records.push((packet.timestamp.as_nanos() as u64, packet.data.to_vec()));
        }
        records
    }
}

const HOST: [u8; 6] = [2, 0, 0, 0, 7, 7];
const LAN: [u8; 6] = [2, 0, 0, 0, 0, 1];
const WAN: [u8; 6] = [2, 0, 0, 0, 0, 2];
const NEXT_HOP: [u8; 6] = [2, 0, 0, 0, 9, 1];

/// A packet made by etherparse, which writes lengths and checksums.
fn udp4(macs: [[u8; 6]; 2], to: [u8; 4], ttl: u8) -> Vec<u8> {
    let mut frame = Vec::new();
    let builder = etherparse::PacketBuilder::ethernet2(macs[0], macs[1]).ipv4([10, 0, 0, 9], to, ttl);
    builder.udp(1000, 2000).write(&mut frame, b"some payload").unwrap();
    frame
}

fn udp6(macs: [[u8; 6]; 2], hops: u8) -> Vec<u8> {
    let address = |last| [0x20, 1, 0xd, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
    let mut frame = Vec::new();
    let builder = etherparse::PacketBuilder::ethernet2(macs[0], macs[1]).ipv6(address(1), address(2), hops);
    builder.udp(1000, 2000).write(&mut frame, b"some payload").unwrap();
    frame
}

fn syn(macs: [[u8; 6]; 2], ttl: u8, port: u16) -> Vec<u8> {
    let mut frame = Vec::new();
    let builder =
        etherparse::PacketBuilder::ethernet2(macs[0], macs[1]).ipv4([10, 0, 0, 9], [10, 1, 2, 3], ttl);
    builder.tcp(port, 80, 1, 1000).syn().write(&mut frame, &[]).unwrap();
    frame
}

fn arp() -> Vec<u8> {
    [&[0xff; 6][..], &HOST, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &[0; 38]].concat()
}

const COMES: [[u8; 6]; 2] = [HOST, LAN];
const LEAVES: [[u8; 6]; 2] = [WAN, NEXT_HOP];

#[test]
fn the_documented_example_forwards_these_bytes() {
    let world = World::new();
    let padded = [udp4(COMES, [10, 1, 0, 2], 9), vec![0xee; 9]].concat();
    let lan = [
        (1_000, udp4(COMES, [10, 1, 0, 1], 64)),
        (2_001, udp6(COMES, 64)),
        (3_000, arp()),
        (4_000, udp4(COMES, [10, 1, 0, 1], 1)),
        (5_000, udp4(COMES, [10, 9, 0, 1], 64)),
        (6_000, syn(COMES, 64, 1)),
        (6_000, syn(COMES, 64, 2)),
        (6_000, syn(COMES, 64, 3)),
        (7_000, udp4([HOST, WAN], [10, 1, 0, 1], 64)),
        (8_000, padded),
        (1_006_000, syn(COMES, 64, 4)),
    ];
    world.ethernet("lan.pcap", &lan);
    // This packet comes in by another port, of a router without a path.
    world.ethernet("tap.pcap", &[(2_000, udp4(COMES, [10, 1, 0, 1], 64))]);
    let output = world.run(&[
        "--pcap",
        "lan=lan.pcap",
        "--pcap",
        "tap=tap.pcap",
        "--out",
        "all.pcap",
        "--out",
        "tap=arp.pcap",
        "--json",
    ]);
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]), "{output:?}");
    let expected = [
        (1_000, udp4(LEAVES, [10, 1, 0, 1], 63)),
        (2_001, udp6(LEAVES, 63)),
        (3_000, arp()),
        (6_000, syn(LEAVES, 63, 1)),
        (6_000, syn(LEAVES, 63, 2)),
        (8_000, udp4(LEAVES, [10, 1, 0, 2], 8)),
        (1_006_000, syn(LEAVES, 63, 4)),
    ];
    assert_eq!(world.read("all.pcap"), expected);
    assert_eq!(world.read("arp.pcap"), [(3_000, arp())]);

    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let count = |pointer: &str| report.pointer(pointer).and_then(serde_json::Value::as_u64);
    let counts = ["packets", "out", "up", "dropped", "no_path", "truncated"]
        .map(|name| count(&format!("/{name}")).unwrap());
    assert_eq!(counts, [12, 7, 4, 1, 1, 0]);
    for (pointer, expected) in [
        ("/paths/0/packets", 4),
        ("/paths/0/out/wan", 3),
        ("/paths/0/dropped/over_rate", 1),
        ("/paths/1/out/tap", 1),
        ("/paths/2/packets", 6),
        ("/paths/2/out/wan", 3),
        ("/paths/2/up/ttl_exceeded", 1),
        ("/paths/2/up/no_route", 1),
        ("/paths/2/up/not_our_mac", 1),
        ("/paths/2/elements/0/packets", 6),
        ("/paths/2/elements/0/up/not_our_mac", 1),
        ("/paths/2/elements/3/packets", 3),
    ] {
        assert_eq!(count(pointer), Some(expected), "{pointer}: {report:#}");
    }
    let names = [0, 1, 2].map(|n| report.pointer(&format!("/paths/{n}/path")).unwrap().as_str().unwrap());
    assert_eq!(names, ["syn", "arp", "routed"]);

    // The report as text. The first port is lan.
    let output = world.run(&["--pcap", "lan.pcap"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("packets     11 in: 7 out, 3 up, 1 dropped\n"), "the report is: {text}");
    assert!(
        text.contains("to wan 3, up no_route 1, up not_our_mac 1, up ttl_exceeded 1"),
        "the report is: {text}"
    );
}

/// The mirror's file has the path's packets of this run. A full disk does not affect packets.
#[test]
fn a_mirror_writes_copies() {
    let world = World::new();
    let with = |mirror: &str| {
        let chain = "chain = [{ element = \"forward\", port = \"tap\" }]";
        let chained = format!(
            "chain = [{{ element = \"mirror\", {mirror} }}, {{ element = \"forward\", port = \"tap\" }}]"
        );
        fs::write(world.file("p.toml"), example().replace(chain, &chained)).unwrap();
    };
    let long: Vec<u8> = arp().into_iter().chain([5; 300]).collect();
    world.ethernet("in.pcap", &[(1_000_000_001, arp()), (2, udp6(COMES, 64)), (3_000_000_000, long.clone())]);
    with("file = \"arp.pcap\", snap_bytes = 100");
    // A file that is not a capture of Millrace stays, and no other is made.
    fs::write(world.file("arp.pcap"), "x".repeat(5000)).unwrap();
    let error = world.refused(&["--pcap", "in.pcap", "--out", "out.pcap"]);
    let told = "cannot write arp.pcap: it exists and is not a capture of Millrace: move it away";
    assert_eq!(error, format!("millrace: {told}\n"));
    assert_eq!(fs::read(world.file("arp.pcap")).unwrap(), [b'x'; 5000]);
    assert!(!world.file("out.pcap").exists());
    fs::remove_file(world.file("arp.pcap")).unwrap();
    world.run(&["--pcap", "in.pcap"]);
    // A capture of an earlier run is written from the start again.
    let output = world.run(&["--pcap", "in.pcap", "--out", "out.pcap", "--json"]);
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]), "{output:?}");
    let bytes = fs::read(world.file("arp.pcap")).unwrap();
    let mut reader = PcapReader::new(&bytes[..]).unwrap();
    let mut record = || {
        let packet = reader.next_packet()?.unwrap();
        Some((packet.timestamp.as_nanos(), packet.data.to_vec(), packet.orig_len))
    };
    assert_eq!(record(), Some((1_000_000_001, arp(), 60)));
    assert_eq!(record(), Some((3_000_000_000, long[..100].to_vec(), 360)));
    assert_eq!(record(), None);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let counted =
        |report: &serde_json::Value| report.pointer("/paths/1/elements/0/counted").cloned().unwrap();
    let all = serde_json::json!({ "written": 2, "mirror_full": 0, "mirror_disk": 0, "mirror_limit": 0 });
    assert_eq!(counted(&report), all);

    with("file = \"/dev/full\"");
    let output = world.run(&["--pcap", "in.pcap", "--out", "out.pcap", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(error, "millrace: mirror /dev/full: cannot write it: No space left on device (os error 28)\n");
    assert_eq!(world.read("out.pcap").len(), 3);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(counted(&report)["mirror_disk"], 2);
}

#[test]
fn a_run_that_is_not_possible_is_refused_and_writes_nothing() {
    let world = World::new();
    world.ethernet("in.pcap", &[(1, arp())]);
    let run = |arguments: &[&str]| world.refused(arguments);
    assert!(run(&["--pcap", "no.pcap", "--out", "out.pcap"]).contains("cannot read no.pcap: No such file"));
    world.write("raw.pcap", &[], DataLink::RAW, Endianness::Little);
    let error = run(&["--pcap", "raw.pcap", "--out", "out.pcap"]);
    assert_eq!(error, "millrace: raw.pcap holds RAW frames, not Ethernet\n");
    let error = run(&["--pcap", "eth0=in.pcap", "--out", "out.pcap"]);
    assert!(
        error.contains("\"eth0\" in \"eth0=in.pcap\" is not a port of the configuration: lan, wan, tap"),
        "{error}"
    );
    let error = run(&["--pcap", "in.pcap", "--out", "out.pcap", "--out", "./in.pcap"]);
    assert_eq!(error, "millrace: refused to overwrite ./in.pcap: it is an input\n");
    let error = run(&["--pcap", "in.pcap", "--out", "p.toml"]);
    assert_eq!(error, "millrace: refused to overwrite p.toml: it is the configuration\n");
    assert!(!world.file("out.pcap").exists());
    let error = run(&["--pcap", "in.pcap", "--out", "out.pcap", "--out", "tap=out.pcap"]);
    assert_eq!(error, "millrace: refused to overwrite out.pcap: it is another output\n");
    assert!(run(&["--pcap", "in.pcap", "--out", "none/out.pcap"]).contains("cannot write none/out.pcap"));
    let mirrored = |file: &str| {
        let element = format!("{{ element = \"mirror\", file = \"{file}\" }}");
        fs::write(
            world.file("p.toml"),
            example().replace("{ element = \"police\"", &format!("{element}, {{ element = \"police\"")),
        )
        .unwrap();
    };
    let refused =
        [("./in.pcap", "an input"), ("p.toml", "the configuration"), ("out.pcap", "another output")];
    for (file, why) in refused {
        mirrored(file);
        let error = run(&["--pcap", "in.pcap", "--out", "new.pcap", "--out", "lan=out.pcap"]);
        assert_eq!(error, format!("millrace: refused to overwrite {file}: it is {why}\n"));
        assert_eq!(world.file("new.pcap").exists(), why == "another output");
    }
    mirrored("none/m.pcap");
    assert!(run(&["--pcap", "in.pcap"]).contains("cannot write none/m.pcap: No such file"));
    fs::write(world.file("p.toml"), example()).unwrap();
    fs::write(world.file("old.pcap"), "something").unwrap();
    run(&["--pcap", "in.pcap", "--out", "old.pcap", "--out", "none/out.pcap"]);
    assert_eq!(fs::read(world.file("old.pcap")).unwrap(), b"something");
    assert_eq!(world.read("in.pcap"), [(1, arp())]);

    fs::write(world.file("p.toml"), example().replace("\"ttl\"", "\"tll\"")).unwrap();
    let output = world.run(&["--pcap", "in.pcap", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let error = report["error"].as_str().unwrap();
    assert!(
        error.starts_with("p.toml:") && error.contains("path.chain: \"tll\" is not an element: "),
        "{error}"
    );
}

#[test]
fn a_broken_capture_is_run_up_to_where_it_is_broken() {
    let world = World::new();
    world.ethernet("in.pcap", &[(1, arp()), (2, arp())]);
    let bytes = fs::read(world.file("in.pcap")).unwrap();
    fs::write(world.file("in.pcap"), &bytes[..bytes.len() - 1]).unwrap();
    let output = world.run(&["--pcap", "in.pcap", "--out", "out.pcap"]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.starts_with("millrace: in.pcap is broken at packet 2; those before it were run: "),
        "{error}"
    );
    assert!(
        String::from_utf8(output.stdout).unwrap().starts_with("packets     1 in: 1 out, 0 up, 0 dropped\n")
    );
    assert_eq!(world.read("out.pcap"), [(1, arp())]);
}

#[test]
fn a_broken_capture_ends_and_the_others_are_run() {
    let world = World::new();
    let times = |first: u64| -> Vec<Record> { (0..20).map(|n| (first + 10 * n, arp())).collect() };
    world.ethernet("broken.pcap", &times(0));
    world.ethernet("whole.pcap", &times(5));
    // The capture ends within its seventh record.
    let bytes = fs::read(world.file("broken.pcap")).unwrap();
    fs::write(world.file("broken.pcap"), &bytes[..24 + 6 * (16 + arp().len()) + 20]).unwrap();
    let output =
        world.run(&["--pcap", "broken.pcap", "--pcap", "wan=whole.pcap", "--out", "out.pcap", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.starts_with("millrace: broken.pcap is broken at packet 7; those before it"), "{error}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["packets"], &report["out"]), (&26.into(), &26.into()));
    assert_eq!(report["errors"].as_array().map(Vec::len), Some(1), "{report:#}");
    let mut expected = [&times(0)[..6], &times(5)].concat();
    expected.sort_by_key(|record| record.0);
    assert_eq!(world.read("out.pcap"), expected);
}

#[test]
fn results_are_reported_even_if_the_output_cannot_be_written() {
    if !Path::new("/dev/full").exists() {
        return;
    }
    let world = World::new();
    world.ethernet("in.pcap", &[(1, arp()), (2, arp())]);
    let output = world.run(&["--pcap", "in.pcap", "--out", "/dev/full", "--out", "out.pcap"]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.starts_with("millrace: cannot write /dev/full: ") && error.contains("No space left"),
        "{error}"
    );
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("packets     2 in: 2 out, 0 up, 0 dropped\n"), "the report is: {text}");
    assert_eq!(world.read("out.pcap"), [(1, arp()), (2, arp())]);
}
