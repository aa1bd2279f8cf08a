//! Captures replayed through subjects: what comes out, when, and what is reported. These need root, and run in their
//! own namespaces (`make test-root`).

use std::{
    fs::File,
    io::{BufRead, BufReader, Read},
    net::{Ipv6Addr, UdpSocket},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output, Stdio},
    thread,
    time::Duration,
};

use etherparse::PacketBuilder;
use lab::{
    command,
    namespace::{Namespace, unique_run_name},
    packet::{Stamp, Target, checksum},
    replay::{
        Pace, Replay,
        capture::{self, Capture},
        difference::{Comparison, Kind, compare},
    },
    subject,
    testbed::PORT_OUT,
};
use pcap_file::pcap::{PcapPacket, PcapWriter};
use serde_json::{Value, json};

mod faulty;
use faulty::Faulty;

const ROUTER: [u8; 6] = [2, 9, 9, 9, 9, 9];
const HOST: [u8; 6] = [2, 8, 8, 8, 8, 8];
const TRIES: usize = 10;
const FEWEST_TRIES: usize = 5;

fn write(path: &Path, frames: &[Vec<u8>], gap: Duration) {
    let mut writer = PcapWriter::new(File::create(path).unwrap()).unwrap();
    for (number, frame) in frames.iter().enumerate() {
        let time = Duration::from_secs(1_000_000) + gap * number as u32;
        writer.write_packet(&PcapPacket::new(time, frame.len() as u32, frame)).unwrap();
    }
}

fn captured(frames: &[Vec<u8>], gap: Duration) -> Capture {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a.pcap");
    write(&file, frames, gap);
    capture::read(&file, lab::replay::MACS, None).unwrap()
}

/// IPv4 with whatever fault `change` makes; the header's checksum is right.
fn ipv4(destination: [u8; 4], ttl: u8, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(HOST, ROUTER).ipv4([192, 0, 2, 1], destination, ttl);
    builder.udp(4000, 53).write(&mut frame, &[0x5a; 60]).unwrap();
    change(&mut frame);
    let header = 14 + usize::from(frame[14] & 0xf) * 4;
    frame[24..26].fill(0);
    let sum = checksum(&frame[14..header]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

fn ipv6(destination: &str, hops: u8, payload: usize) -> Vec<u8> {
    let mut frame = Vec::new();
    let (source, destination): (Ipv6Addr, Ipv6Addr) =
        ("2001:db8::1".parse().unwrap(), destination.parse().unwrap());
    let builder = PacketBuilder::ethernet2(HOST, ROUTER).ipv6(source.octets(), destination.octets(), hops);
    builder.tcp(4000, 443, 7, 1000).write(&mut frame, &vec![0xa5; payload]).unwrap();
    frame
}

/// Packets that routers forward, of every kind and length.
fn forwarded() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for (number, bytes) in (60..=1514).step_by(97).chain([1514]).enumerate() {
        let from = [10, 2, 1, number as u8];
        // Networks of the testbed itself are among them.
        let builder = || PacketBuilder::ethernet2(HOST, ROUTER).ipv4(from, [10, 1, number as u8, 9], 64);
        let (mut udp, mut tcp, mut echo) = (Vec::new(), Vec::new(), Vec::new());
        let payload = vec![number as u8; bytes];
        builder().udp(1000, 2000).write(&mut udp, &payload[..bytes - 42]).unwrap();
        builder().tcp(1000, 443, 5, 99).write(&mut tcp, &payload[..bytes - 54]).unwrap();
        builder().icmpv4_echo_request(7, number as u16).write(&mut echo, &payload[..bytes - 42]).unwrap();
        frames.extend([udp, tcp, echo]);
        frames.push(ipv6("2001:db8:7::9", 64, bytes.saturating_sub(74).max(1)));
    }
    // Padding, which Linux removes.
    let mut short = ipv4([198, 51, 100, 7], 9, |frame| {
        frame.truncate(46);
        frame[16..18].copy_from_slice(&32u16.to_be_bytes());
        frame[38..40].copy_from_slice(&12u16.to_be_bytes());
        frame[40..42].fill(0);
    });
    short.resize(60, 0);
    frames.push(short);
    // A first and a last fragment, a router-alert option, and a wrong UDP checksum.
    frames.push(ipv4([198, 51, 100, 8], 64, |frame| frame[20..22].copy_from_slice(&[0x20, 0])));
    frames.push(ipv4([198, 51, 100, 8], 64, |frame| frame[20..22].copy_from_slice(&[0, 9])));
    frames.push(ipv4([198, 51, 100, 9], 64, |frame| {
        frame[14] = 0x46;
        frame[16..18].copy_from_slice(&92u16.to_be_bytes());
        frame.splice(34..34, [0x94, 4, 0, 0]);
    }));
    frames.push(ipv4([198, 51, 100, 10], 64, |frame| frame[40] ^= 1));
    let mut tagged = ipv4([198, 51, 100, 11], 64, |_| {});
    tagged.splice(12..12, [0x81, 0, 0, 42]);
    frames.push(tagged);
    frames
}

/// Packets that routers keep, and the counts by reason.
fn kept() -> (Vec<Vec<u8>>, Value) {
    let mut wrong = ipv4([198, 51, 100, 1], 64, |_| {});
    wrong[25] ^= 1;
    let mut group = ipv4([224, 0, 0, 5], 64, |_| {});
    group[..6].copy_from_slice(&[1, 0, 0x5e, 0, 0, 5]);
    let mut arp = [&[0xff; 6][..], &HOST, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &HOST].concat();
    arp.extend([192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 192, 0, 2, 2]);
    arp.resize(60, 0);
    // These seem to come from the router itself.
    let mut local = ipv6("2001:db8:7::9", 64, 100);
    local[22..38].copy_from_slice(&"fe80::1".parse::<Ipv6Addr>().unwrap().octets());
    let mut nobody = local.clone();
    nobody[22..38].fill(0);
    let frames = vec![
        local,
        nobody,
        ipv4([198, 51, 100, 1], 64, |frame| frame[26..30].copy_from_slice(&[10, 1, 0, 1])),
        ipv4([198, 51, 100, 1], 1, |_| {}),
        ipv6("2001:db8:7::9", 1, 100),
        wrong,
        group,
        ipv4([239, 1, 1, 1], 64, |_| {}),
        ipv6("ff05::2", 64, 100),
        ipv6("fe80::2", 64, 100),
        ipv4([10, 1, 0, 1], 64, |_| {}),
        arp,
    ];
    let why = json!({"whose TTL ends here": 1, "whose hop limit ends here": 1, "with a wrong IPv4 header checksum": 1,
        "to an Ethernet group address": 2, "multicast": 2, "link-local": 2, "from or to the router itself": 2,
        "for other reasons": 1});
    (frames, why)
}

fn replay(file: &Path, arguments: &str, json: &Path) -> Output {
    replay_with(Path::new("/none"), file, arguments, json)
}

/// Runs it with this program as xdp-forward.
fn replay_with(xdp_forward: &Path, file: &Path, arguments: &str, json: &Path) -> Output {
    let mut lab = Command::new(env!("CARGO_BIN_EXE_millrace-lab"));
    lab.arg("replay").arg(file).args(arguments.split_whitespace()).arg("--json").arg(json);
    lab.env("MILLRACE_LAB_XDP_FORWARD", xdp_forward).output().unwrap()
}

fn lines(json: &Path, record: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(json).unwrap();
    let all = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    all.filter(|line| line["record"] == record).collect()
}

#[test]
#[ignore = "needs root"]
fn the_same_packets_come_out_of_linux_and_millrace() {
    let directory = tempfile::tempdir().unwrap();
    let (file, json) = (directory.path().join("all.pcap"), directory.path().join("all.jsonl"));
    let (forwarded, (kept, why)) = (forwarded(), kept());
    write(&file, &[forwarded.clone(), kept.clone()].concat(), Duration::from_micros(100));
    let done = replay(&file, "--loops 2 --speed 0.5", &json);
    let text = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{text}{}", String::from_utf8_lossy(&done.stderr));
    let all = (forwarded.len() + kept.len()) as u64;
    assert_eq!(lines(&json, "capture")[0]["untagged"], 1);
    let compared = lines(&json, "comparison");
    assert_eq!(compared.len(), 2);
    for line in &compared {
        let sample = &line["sample"];
        assert_eq!(
            (&sample["sent"], &sample["came_out"]),
            (&json!(all), &json!(forwarded.len())),
            "{line}\n{text}"
        );
        assert_eq!(sample["kept"], why, "{line}");
        assert_eq!(sample["lost"]["box.ip4.InHdrErrors"], 2, "{line}");
    }
    let zeros = ["missing", "extra", "changed"].map(|name| compared[1]["sample"][name].clone());
    assert_eq!(zeros, [0, 0, 0].map(Value::from), "{}", compared[1]);
    let example = "1 for other reasons (tcp [::]:4000 -> [2001:db8:7::9]:443, ttl 64, 174 bytes)";
    assert!(text.contains(example), "{text}");
    assert!(text.contains(&format!("| millrace | {all} | {} | 0 | 0 | 0 |", forwarded.len())), "{text}");
    for line in lines(&json, "sample") {
        let sample = &line["sample"];
        assert_eq!(sample["sent"], 2 * all, "{line}");
        assert_eq!((&sample["marked"]["duplicates"], &sample["missed"]), (&json!(0), &json!(0)), "{line}");
        assert!(sample["latency"]["p50_ns"].as_u64().unwrap() > 0, "{line}");
    }
}

#[test]
#[ignore = "needs root"]
fn a_subject_that_forwards_differently_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let (file, json) = (directory.path().join("a.pcap"), directory.path().join("a.jsonl"));
    let frames = [ipv4([198, 51, 100, 1], 64, |_| {}), ipv4([198, 51, 100, 2], 1, |_| {})];
    write(&file, &frames, Duration::ZERO);
    let done = replay(&file, "--subjects linux,redirect --repeat 0", &json);
    let errors = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{errors}");
    assert!(errors.contains("redirect: 0 missing, 1 extra, 1 changed, of 1 out of linux"), "{errors}");
    let text = String::from_utf8_lossy(&done.stdout);
    assert!(
        text.contains("redirect: Changed: udp 192.0.2.1:4000 -> 198.51.100.1:53, ttl 63, 102 bytes"),
        "{text}"
    );
    assert!(text.contains("^^"), "{text}");
    let found = &lines(&json, "comparison")[1]["differences"];
    assert_eq!((&found[0]["kind"], &found[1]["kind"]), (&json!("changed"), &json!("extra")), "{found}");
    for (bytes, why) in [
        (&b"no capture"[..], "is neither a pcap nor a pcapng file"),
        (&std::fs::read(&file).unwrap()[..90], "is broken at packet 1"),
    ] {
        let broken = directory.path().join("broken.pcap");
        std::fs::write(&broken, bytes).unwrap();
        let done = replay(&broken, "", &json);
        assert!(!done.status.success() && String::from_utf8_lossy(&done.stderr).contains(why), "{done:?}");
    }
    let before = std::fs::read(&file).unwrap();
    let errors = replay(&file, "", &file).stderr;
    let errors = String::from_utf8_lossy(&errors);
    assert!(errors.contains("that is") && errors.contains("a.pcap, which is read"), "{errors}");
    assert_eq!(std::fs::read(&file).unwrap(), before);
    write(&file, &frames, Duration::from_secs(100_000));
    let errors = replay(&file, "", &json).stderr;
    let errors = String::from_utf8_lossy(&errors);
    assert!(errors.contains("would take 1.2 days: --pace N"), "{errors}");
}

#[test]
#[ignore = "needs root"]
fn a_signal_ends_a_run_and_its_measurements_are_printed() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a.pcap");
    let frames = [ipv4([198, 51, 100, 1], 64, |_| {}), ipv4([198, 51, 100, 2], 64, |_| {})];
    write(&file, &frames, Duration::from_secs(2));
    for signal in ["-INT", "-TERM"] {
        let mut lab = Command::new(env!("CARGO_BIN_EXE_millrace-lab"));
        lab.arg("replay").arg(&file).args(["--subjects", "linux", "--repeat", "100"]);
        let mut lab = lab.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut errors = BufReader::new(lab.stderr.take().unwrap());
        let mut said = String::new();
        while !said.contains("linux: 2 sent") {
            assert!(errors.read_line(&mut said).unwrap() > 0, "{said}");
        }
        // It then waits for the output of the next run.
        thread::sleep(Duration::from_secs(1));
        command::run(Command::new("kill").args([signal, &lab.id().to_string()])).unwrap();
        errors.read_to_string(&mut said).unwrap();
        let done = lab.wait_with_output().unwrap();
        assert_eq!(done.status.code(), Some(130), "{signal}: {said}");
        assert!(said.ends_with("stopped; everything is cleaned up\n"), "{signal}: {said}");
        let text = String::from_utf8_lossy(&done.stdout);
        let (_, runs) = text.split_once("Replayed as recorded").expect("a table of runs");
        assert!(runs.contains("| linux | 2 |"), "{signal}: {text}");
    }
}

#[test]
#[ignore = "needs root"]
fn packets_that_should_not_be_forwarded_count_as_extra() {
    let directory = tempfile::tempdir().unwrap();
    let (file, json) = (directory.path().join("a.pcap"), directory.path().join("a.jsonl"));
    let (mut frames, _) = kept();
    frames.push(ipv4([198, 51, 100, 1], 64, |_| {}));
    write(&file, &frames, Duration::ZERO);
    let done = replay(&file, "--subjects linux,redirect --repeat 0", &json);
    let errors = String::from_utf8_lossy(&done.stderr);
    let right = format!("redirect: 0 missing, {} extra, 1 changed, of 1 out of linux", frames.len() - 1);
    assert!(errors.contains(&right), "{errors}");
    let redirect = &lines(&json, "comparison")[1];
    assert_eq!(redirect["sample"]["kept"], json!({}), "{redirect}");
    let arp = "EtherType 0x0806, 60 bytes";
    let of_arp = |difference: &&Value| difference["packet"] == arp && difference["kind"] == "extra";
    assert_eq!(redirect["differences"].as_array().unwrap().iter().filter(of_arp).count(), 1, "{redirect}");
}

#[test]
#[ignore = "needs root"]
fn only_a_subject_that_was_not_compared_is_left_out_of_runs() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name| directory.path().join(name);
    let (file, json, program) = (path("a.pcap"), path("a.jsonl"), path("xdp-forward"));
    write(&file, &[ipv4([198, 51, 100, 1], 64, |_| {})], Duration::ZERO);
    // It starts once, and leaves everything to Linux.
    std::fs::write(&program, "#!/bin/sh\n[ -e $0.ran ] && exit 1\ntouch $0.ran\n").unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    for (program, compared, why) in [
        (&*program, 2, "a run of xdp-forward"),
        (Path::new("/none"), 1, "xdp-forward was not compared: MILLRACE_LAB_XDP_FORWARD is /none"),
    ] {
        let _ = std::fs::remove_file(&json);
        let done = replay_with(program, &file, "--subjects linux,xdp-forward", &json);
        let errors = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.code() == Some(1) && errors.contains(why), "{errors}");
        assert_eq!(lines(&json, "comparison").len(), compared);
        let ran: Vec<Value> = lines(&json, "sample").iter().map(|line| line["subject"].clone()).collect();
        assert_eq!(ran, ["linux"]);
    }
}

#[test]
#[ignore = "needs root"]
fn arrivals_between_runs_do_not_count() {
    let frames = [ipv4([198, 51, 100, 1], 64, |_| {}), ipv4([198, 51, 100, 2], 64, |_| {})];
    let mut replay = Replay::new(captured(&frames, Duration::ZERO)).unwrap();
    let _linux = subject::start("linux", &replay.testbed).unwrap();
    let late = |replay: &Replay| {
        let sent = replay
            .testbed
            .box_namespace
            .enter(|| Ok(UdpSocket::bind("0.0.0.0:0")?.send_to(&[0x77; 60], "198.51.100.9:9")?));
        sent.unwrap();
        thread::sleep(Duration::from_millis(500));
    };
    let first = replay.comparable(|why| eprintln!("{why}")).unwrap();
    late(&replay);
    let again = replay.comparable(|why| eprintln!("{why}")).unwrap();
    assert_eq!((again.frames.len(), again.frames), (2, first.frames));
    assert!(again.own.iter().all(|frame| !frame.ends_with(&[0x77; 60])), "{:?}", again.own);
    // A captured frame does not count as a mark.
    late(&replay);
    let seen = replay.run(Pace::Rate(100), 1, false, &mut |_| {}).unwrap();
    assert_eq!((seen.marked.unwrap().received, seen.missed), (2, 0));
    assert!(seen.arrived_ms.unwrap() < 400.0, "{:?} ms", seen.arrived_ms);
    let seen = replay.run(Pace::Rate(100), 1, true, &mut |_| {}).unwrap();
    assert_eq!((seen.sent, seen.marked, seen.arrived_ms), (2, None, None));
}

#[test]
#[ignore = "needs root"]
fn a_comparison_goes_on_without_packets_lost_at_every_rate() {
    let frames = [ipv4([198, 51, 100, 1], 64, |_| {}), ipv6("2001:db8:7::9", 64, 1400)];
    let mut replay = Replay::new(captured(&frames, Duration::ZERO)).unwrap();
    let _linux = subject::start("linux", &replay.testbed).unwrap();
    // The cable's other end takes smaller packets, and the router does not know.
    let (namespace, device) = replay.testbed.host_ends().pop().unwrap();
    namespace.ip_batch(&format!("link set {device} mtu 1280\n")).unwrap();
    let mut told = Vec::new();
    let came = replay.comparable(|why| told.push(why.to_string())).unwrap();
    assert_eq!((came.frames.len(), came.lost.get(&format!("box.{PORT_OUT}.tx_dropped"))), (1, Some(&1)));
    assert!(told.last().unwrap().contains("the same at every rate"), "{told:?}");
}

/// Numbered packets, which the faulty forwarders take for test packets.
fn numbered(count: u32, time_ns: impl Fn(u32) -> u32) -> Vec<Vec<u8>> {
    let target = Target::udp("198.18.0.7".parse().unwrap(), ROUTER, 1024);
    (0..count)
        .map(|sequence| target.frame(100, Stamp { flow: 0, sequence, time_ns: time_ns(sequence) }))
        .collect()
}

#[test]
#[ignore = "needs root"]
fn every_kind_of_fault_has_its_name() {
    let came_out = |time_ns: fn(u32) -> u32, programs: &[&str]| -> Vec<Vec<Vec<u8>>> {
        let mut replay = Replay::new(captured(&numbered(300, time_ns), Duration::ZERO)).unwrap();
        let through = |program: &&str| {
            let _faulty = Faulty::start(&replay.testbed, program);
            replay.comparable(|why| eprintln!("{why}")).unwrap().frames
        };
        programs.iter().map(through).collect()
    };
    let counts = |found: Comparison| {
        let kinds: Vec<Kind> = found.differences.iter().map(|difference| difference.kind).collect();
        ((found.missing, found.extra, found.changed, found.reordered_flows), kinds)
    };
    let came = came_out(|number| number, &["none", "none", "drop", "duplicate", "swap"]);
    let with = |other: usize| counts(compare(&came[0], &came[other], 1).unwrap());
    assert_eq!(came[0].len(), 300);
    assert_eq!(with(1), ((0, 0, 0, 0), vec![]));
    assert_eq!(with(2), ((3, 0, 0, 0), vec![Kind::Missing]));
    assert_eq!(with(3), ((0, 3, 0, 0), vec![Kind::Extra]));
    assert_eq!(with(4), ((0, 0, 6, 0), vec![Kind::Changed]));
    // They are equal except for their numbers. Two that exchange numbers change places.
    let came = came_out(|_| 0, &["none", "swap"]);
    assert_eq!(counts(compare(&came[0], &came[1], 1).unwrap()), ((0, 0, 0, 1), vec![]));
}

#[test]
#[ignore = "needs root"]
fn marked_packets_show_loss_order_and_duplicates() {
    let mut replay = Replay::new(captured(&numbered(300, |number| number), Duration::ZERO)).unwrap();
    let mut marked = |program| {
        let _faulty = Faulty::start(&replay.testbed, program);
        let mut last = None;
        for _ in 0..TRIES {
            let seen = replay.run(Pace::Rate(5000), 2, false, &mut |_| {}).unwrap();
            let disturbed =
                seen.lost.keys().any(|name| name.ends_with("ring_full") || name.ends_with("refused"));
            last = Some(seen);
            if !disturbed {
                break;
            }
        }
        let seen = last.unwrap().marked.unwrap();
        (seen.sent, seen.received, seen.reordered, seen.duplicates)
    };
    // The numbers of the marks are at the end of these frames, which nothing changes.
    assert_eq!(marked("none"), (600, 600, 0, 0));
    assert_eq!(marked("drop"), (600, 594, 0, 0));
    assert_eq!(marked("duplicate"), (600, 600, 0, 6));
}

#[test]
#[ignore = "needs root"]
fn recorded_gaps_are_kept() {
    let frames = [ipv4([198, 51, 100, 1], 64, |_| {}), ipv4([198, 51, 100, 2], 64, |_| {})];
    let mut replay = Replay::new(captured(&frames, Duration::from_millis(20))).unwrap();
    let _linux = subject::start("linux", &replay.testbed).unwrap();
    // A busy machine makes any gap longer. If it delays the first packet, it makes the gap shorter.
    let mut span = |pace: Pace, loops: u32| {
        replay.run(pace, loops, false, &mut |_| {}).unwrap().arrived_ms.unwrap_or(0.0)
    };
    for (pace, loops, ms) in [
        (Pace::Recorded(1.0), 1, 20.0),
        (Pace::Recorded(2.0), 1, 10.0),
        (Pace::Recorded(1.0), 2, 60.0),
        (Pace::Rate(100), 1, 10.0),
    ] {
        let mut spans: Vec<f64> = Vec::new();
        let is_right = |span: &f64| (ms - 0.5..ms * 1.25).contains(span);
        while spans.len() < FEWEST_TRIES || spans.len() < TRIES && !spans.iter().any(is_right) {
            spans.push(span(pace, loops));
        }
        spans.sort_by(f64::total_cmp);
        let is_kept = spans.iter().any(is_right) && spans[spans.len() / 2] >= ms - 0.5;
        assert!(is_kept, "{pace:?}, {loops} loops, {ms} ms: {spans:?}");
    }
}

#[test]
#[ignore = "needs root"]
fn a_capture_of_tcpdump_is_replayed() {
    const PACKETS: usize = 20;
    let directory = tempfile::tempdir().unwrap();
    let (file, json) = (directory.path().join("lo.pcap"), directory.path().join("lo.jsonl"));
    let namespace = Namespace::create(format!("{}-tcpdump", unique_run_name())).unwrap();
    namespace.ip_batch("addr add 10.77.0.1/24 dev lo\naddr add 10.78.0.1/24 dev lo\n").unwrap();
    let mut tcpdump = namespace.command("tcpdump");
    tcpdump
        .args(["-i", "lo", "-n", "-U", "-c", &PACKETS.to_string(), "udp", "-w"])
        .arg(&file)
        .stderr(Stdio::piped());
    let mut tcpdump = tcpdump.spawn().unwrap();
    tcpdump.stderr.as_mut().unwrap().read_exact(&mut [0; 16]).unwrap();
    let sent = namespace.enter(|| {
        let (from, to) = (UdpSocket::bind("10.77.0.1:0")?, UdpSocket::bind("10.78.0.1:0")?);
        for number in 0..PACKETS {
            from.send_to(&vec![7; 30 + number], to.local_addr()?)?;
        }
        Ok(())
    });
    sent.unwrap();
    assert!(
        command::wait(&mut tcpdump, Duration::from_secs(10)).unwrap().is_some_and(|status| status.success())
    );
    let done = replay(&file, "--pace 1k", &json);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    for line in lines(&json, "comparison") {
        assert_eq!(
            (&line["sample"]["came_out"], &line["sample"]["kept"]),
            (&json!(PACKETS), &json!({})),
            "{line}"
        );
    }
    let contents = &lines(&json, "capture")[0]["contents"];
    assert_eq!((&contents["marked"], &contents["flows"]), (&json!(PACKETS), &json!(1)), "{contents}");
}
