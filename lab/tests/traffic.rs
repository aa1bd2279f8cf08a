//! Compares the generator and the sink with independent tools: Rust's own construction of each packet, tcpdump, trafgen
//! and tcpreplay (`scripts/setup.sh` installs them). These need root, and run in their own namespaces, one at a time
//! (`make test-root`).

use std::{
    net::IpAddr,
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use lab::{
    addresses::ingress_mac,
    command,
    generator::{Load, Order, Pace, Sizes, Stream},
    measure::{Disorder, Window, measure, measure_streams},
    packet::{Protocol, Stamp, Tags, Target},
    sink::Watch,
    subject, sys,
    testbed::{PORT_IN, Priority, Testbed},
    topology::Topology,
    workload::{Family, Workload},
};

const WATCH_ORDER: Watch = Watch { order: true, ..Watch::NOTHING };

fn testbed() -> Testbed {
    let mut testbed = Testbed::new(&Topology::rfc2544()).unwrap();
    testbed.set_priority(Priority::Rates).unwrap();
    testbed
}

/// One target of each kind.
fn all_kinds() -> Vec<Target> {
    let mut targets = Vec::new();
    for destination in ["198.18.0.7", "2001:2::7"] {
        let destination: IpAddr = destination.parse().unwrap();
        for protocol in [Protocol::Udp, Protocol::Tcp, Protocol::Echo] {
            for tags in [Tags::None, Tags::Vlan(7), Tags::Stacked { outer: 4094, inner: 8 }] {
                let source_port = 1024 + targets.len() as u16;
                let router_mac = ingress_mac(0);
                targets.push(Target { port: 0, destination, router_mac, source_port, protocol, tags });
            }
        }
    }
    targets
}

/// Asserts that every frame equals, byte for byte, the one that Rust builds for its stamp. Returns the count for each
/// target.
fn assert_frames(frames: &[Vec<u8>], stream: &Stream, sizes: &[u16]) -> Vec<usize> {
    let mut counts = vec![0; stream.targets.len()];
    for frame in frames {
        let bytes = frame.len() as u16;
        assert!(sizes.contains(&bytes), "{bytes} bytes");
        let is_this = |target: &&Target| {
            Stamp::of(target.headers(), frame).is_some_and(|stamp| target.frame(bytes, stamp) == *frame)
        };
        let unstamped = |target: &&Target| target.frame(bytes, Stamp::default()) == *frame;
        let target = stream.targets.iter().find(is_this).or(stream.targets.iter().find(unstamped));
        let target = target.unwrap_or_else(|| panic!("no target makes {frame:02x?}"));
        let place = stream.targets.iter().position(|other| other == target).unwrap();
        if bytes >= target.min_stamped() {
            let stamp = Stamp::of(target.headers(), frame).unwrap();
            assert_eq!(stamp.flow as usize, place, "{frame:02x?}");
        }
        counts[place] += 1;
    }
    counts
}

#[test]
#[ignore = "needs root"]
fn sent_frames_equal_rusts_for_every_kind_and_size() {
    let mut testbed = testbed();
    let _redirect = subject::start("redirect", &testbed).unwrap();
    for target in all_kinds() {
        for bytes in [target.min_frame(), target.min_stamped(), target.min_stamped() + 1, 590, 1514] {
            testbed.generator.set_targets(vec![target], bytes).unwrap();
            let generator = &mut testbed.generator;
            let frames = testbed.sink.capture(3, || generator.send(bytes, 3)).unwrap();
            let stream = &testbed.generator.streams()[0];
            assert_eq!(assert_frames(&frames, stream, &[bytes]), [3], "{target:?} {bytes}");
            if bytes >= target.min_stamped() {
                let number = |frame: &Vec<u8>| Stamp::of(target.headers(), frame).unwrap().sequence;
                assert_eq!(frames.iter().map(number).collect::<Vec<_>>(), [0, 1, 2]);
            }
        }
    }
}

#[test]
#[ignore = "needs root"]
fn kinds_and_sizes_in_one_stream_leave_nothing_in_each_others_frames() {
    let mut testbed = testbed();
    let _redirect = subject::start("redirect", &testbed).unwrap();
    // With 5 sizes and 18 kinds, every kind gets every size in the end.
    let sizes = [86, 1514, 87, 590, 101];
    let mut stream = Stream::new(all_kinds(), 86, Pace::Rate(20_000));
    stream.sizes = Sizes(sizes.to_vec());
    testbed.generator.set_streams(vec![stream.clone()]).unwrap();
    testbed.generator.start_streams().unwrap();
    // The kernel starts to reuse pages after the first few hundred packets.
    sys::sleep(Duration::from_millis(200)).unwrap();
    let frames = testbed.sink.capture(1000, || Ok(sys::sleep(Duration::from_millis(60))?)).unwrap();
    testbed.generator.stop().unwrap();
    let counts = assert_frames(&frames, &stream, &sizes);
    assert!(counts.iter().all(|&count| count >= 10), "{counts:?}");
    assert!(sizes.iter().all(|&bytes| frames.iter().any(|frame| frame.len() == usize::from(bytes))));
}

/// A program in a namespace, ended when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// tcpdump's text of what the generator sends to a box without XDP, and the capture, written to `file`. By the same
/// port the kernel sends neighbour and listener discovery, all to groups.
fn sniffed(testbed: &mut Testbed, stream: &Stream, packets: u32, file: &str) -> String {
    let mut tcpdump = testbed.box_namespace.command("tcpdump");
    let arguments = format!(
        "-i {PORT_IN} -Q in -n -U -B 8192 -c {packets} -w {file} ether src 02:6e:01:00:00:01 and not ether multicast"
    );
    tcpdump.args(arguments.split_whitespace()).stderr(Stdio::piped());
    let mut running = Running(tcpdump.spawn().unwrap());
    let mut listening = [0; 16];
    std::io::Read::read(running.0.stderr.as_mut().unwrap(), &mut listening).unwrap();
    testbed.generator.set_streams(vec![stream.clone()]).unwrap();
    testbed.generator.send_stream(packets).unwrap();
    let status = command::wait(&mut running.0, Duration::from_secs(10)).unwrap();
    assert!(status.is_some_and(|status| status.success()), "tcpdump did not see {packets} packets");
    let mut show = testbed.box_namespace.command("tcpdump");
    command::run(show.args(["-r", file, "-n", "-e", "-vv"])).unwrap()
}

#[test]
#[ignore = "needs root"]
fn other_tools_read_what_is_sent_and_what_they_send_is_counted() {
    let mut testbed = testbed();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("sent.pcap").display().to_string();
    let mut stream = Stream::new(all_kinds(), 101, Pace::FlatOut);
    stream.sizes = Sizes(vec![101, 1514, 86, 590, 87]);
    // There are 18 kinds; a ring holds 256 frames.
    let packets = 180;
    // tcpdump calls UDP over IPv6 without a checksum bad. RFC 6935 allows it, and the generator does not take time for
    // more.
    let text =
        sniffed(&mut testbed, &stream, packets, &file).replace("[bad udp cksum 0x0000", "[no checksum");
    for wrong in ["[bad", "bad cksum", "(wrong", "(incorrect", "truncated", "invalid"] {
        assert!(!text.contains(wrong), "{text}");
    }
    let count = |what: &str| text.matches(what).count();
    let seen = [
        count("> 198.18.0.7.9: Flags [.]"),
        count("> 2001:2::7.9: Flags [.]"),
        count("> 198.18.0.7.9: [no cksum] UDP"),
        count("> 2001:2::7.9: [no checksum ->"),
        count("> 198.18.0.7: ICMP echo request"),
        count("> 2001:2::7: [icmp6 sum ok] ICMP6, echo request"),
        count("vlan 7,"),
        count("vlan 4094,"),
        count("vlan 8,"),
        count("(correct)"),
    ];
    assert_eq!(seen, [30, 30, 30, 30, 30, 30, 60, 60, 60, 60], "{text}");

    // tcpreplay sends the same again, through a bare redirect.
    let _redirect = subject::start("redirect", &testbed).unwrap();
    testbed.sink.set_flows(&[stream.targets.len()]).unwrap();
    testbed.sink.watch(WATCH_ORDER).unwrap();
    let before = testbed.sink.arrived_in_all().unwrap();
    let mut replay = testbed.host("gen").unwrap().command("tcpreplay");
    command::run(replay.args(["-q", "-i", "eth0", "--pps=2000", &file])).unwrap();
    sys::sleep(Duration::from_millis(200)).unwrap();
    assert_eq!(testbed.sink.arrived_in_all().unwrap() - before, u64::from(packets));
    let flows = testbed.sink.flows().unwrap();
    assert!(
        flows.iter().all(|flow| (flow.received, flow.reordered, flow.duplicates) == (10, 0, 0)),
        "{flows:?}"
    );

    // trafgen's packets are counted if they have the mark of test packets. Without it the sink ignores them.
    for (mark, counted) in [("6d, 0x6c", 500), ("6d, 0x6d", 0)] {
        let before = testbed.sink.arrived_in_all().unwrap();
        trafgen(&testbed, mark, 500, &directory.path().join("packet.trafgen").display().to_string());
        assert_eq!(testbed.sink.arrived_in_all().unwrap() - before, counted, "{mark}");
    }
}

/// Sends UDP packets to the test port with this identification.
fn trafgen(testbed: &Testbed, mark: &str, packets: u32, file: &str) {
    let text = format!(
        "{{ 0x02,0x6d,0x01,0,0,0, 0x02,0x6e,0x01,0,0,1, 0x08,0, 0x45,0,0,46, 0x{mark}, 0x40,0, 64,17,0,0, \
         10,1,255,1, 198,18,0,7, 4,0, 0,9, 0,26, 0,0, fill(0, 18) }}"
    );
    std::fs::write(file, text).unwrap();
    let mut trafgen = testbed.host("gen").unwrap().command("trafgen");
    let arguments = format!("--dev eth0 --conf {file} --num {packets} --cpus 1 --gap 200us");
    command::run(trafgen.args(arguments.split_whitespace())).unwrap();
    sys::sleep(Duration::from_millis(200)).unwrap();
}

#[test]
#[ignore = "needs root"]
fn zipf_arrives_as_it_was_drawn() {
    const FLOWS: u32 = 100;
    let mut testbed = testbed();
    let _redirect = subject::start("redirect", &testbed).unwrap();
    let targets = Workload::benchmark(Family::V4, FLOWS, 0..=0).targets;
    let mut stream = Stream::new(targets, 60, Pace::Rate(50_000));
    stream.order = Order::Zipf { exponent: 1.0, seed: 1 };
    testbed.generator.set_streams(vec![stream]).unwrap();
    let window = Window::new(Duration::from_millis(100), Duration::from_millis(1000)).watching(WATCH_ORDER);
    let seen = measure_streams(&mut testbed, window).unwrap();
    let order = seen.order.unwrap();
    assert_eq!(
        (order.lost, order.reordered, order.duplicates),
        (seen.sent - seen.received, 0, 0),
        "{seen:?}"
    );
    let received: Vec<f64> = testbed.sink.flows().unwrap().iter().map(|flow| flow.received.into()).collect();
    let total: f64 = (1..=FLOWS).map(|n| 1.0 / f64::from(n)).sum();
    for (n, received) in (1..).zip(received) {
        let expected = seen.received as f64 / f64::from(n) / total;
        let sigma = expected.sqrt();
        assert!((received - expected).abs() < 5.0 * sigma, "flow {n}: {received}, not {expected}");
    }
}

#[test]
#[ignore = "needs root"]
fn packets_that_cannot_be_told_apart_are_refused() {
    let mut testbed = testbed();
    let workload = Workload::benchmark(Family::V6, 1, 0..=0);
    testbed.generator.set_targets(workload.targets, 62).unwrap();
    let window = Window::new(Duration::ZERO, Duration::from_millis(10)).watching(WATCH_ORDER);
    let load = Load { frame_bytes: 62, pace: Pace::Rate(1000) };
    let error = measure(&mut testbed, load, window).unwrap_err().to_string();
    assert!(error.contains("too short to be told apart: at least 74 (with FCS 78)"), "{error}");
    let load = Load { frame_bytes: 74, ..load };
    assert_eq!(measure(&mut testbed, load, window).unwrap().order, Some(Disorder::default()));
}

/// Packets due since the run began, and when this was read. They were sent, or skipped because the machine had no time.
fn due(testbed: &Testbed) -> (u64, Instant) {
    let sent = testbed.generator.sent().unwrap();
    (sent.iter().map(|sent| sent.packets + sent.skipped).sum(), Instant::now())
}

#[test]
#[ignore = "needs root"]
fn pacing_is_exact_to_one_per_cent() {
    let mut testbed = testbed();
    let _redirect = subject::start("redirect", &testbed).unwrap();
    let workload = Workload::benchmark(Family::V4, 10, 0..=0);
    testbed.generator.set_targets(workload.targets, 60).unwrap();
    for pps in [10_000, 100_000, 1_000_000, 2_000_000] {
        testbed.generator.start(Load { frame_bytes: 60, pace: Pace::Rate(pps) }).unwrap();
        sys::sleep(Duration::from_millis(100)).unwrap();
        // Repeat if the machine had no time for the generator at the moment of reading.
        let mut errors = Vec::new();
        for _ in 0..10 {
            let (first, started) = due(&testbed);
            sys::sleep(Duration::from_millis(1000)).unwrap();
            let (last, ended) = due(&testbed);
            let rate = (last - first) as f64 / (ended - started).as_secs_f64();
            errors.push(rate / pps as f64 - 1.0);
            if errors.last().is_some_and(|error| error.abs() < 0.01) {
                break;
            }
        }
        let skipped = testbed.generator.skipped().unwrap();
        testbed.generator.stop().unwrap();
        assert!(errors.last().is_some_and(|error| error.abs() < 0.01), "{pps}: {errors:?}");
        if skipped > 0 {
            eprintln!(
                "inconclusive at {pps} pps: the machine took the core away, {skipped} packets were skipped"
            );
        }
    }
}
