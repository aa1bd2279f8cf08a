//! Frames that do not fit into a page, which the generator's thread sends itself: bytes, order, pace, and losses. These
//! need root, and run in their own namespaces (`make test-root`).

use std::{
    io::Read,
    net::IpAddr,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use lab::{
    addresses::{egress_mac, ingress_mac, nexthop_mac},
    check::check_forwarding,
    command,
    generator::{Load, MAX_FRAME, MAX_JUMBO, Order, Pace, Sizes, Stream},
    losses::Losses,
    measure::{Disorder, Window, measure_streams},
    packet::{Protocol, Stamp, Tags, Target},
    sink::Watch,
    subject, sys,
    testbed::{PORT_OUT, Priority, Testbed},
    topology::Topology,
};
use serde_json::{Value, json};

const MTU: u16 = 9000;
const PPS: u64 = 5000;
/// A build without optimisation takes some time for the checksums of this many.
const ONE_OF_EACH_PPS: u64 = 500;

fn testbed() -> Testbed {
    let mut testbed = Testbed::new(&Topology::rfc2544()).unwrap();
    testbed.set_mtu(MTU).unwrap();
    testbed.set_priority(Priority::Rates).unwrap();
    testbed
}

/// Two flows of each kind.
fn targets() -> Vec<Target> {
    let mut targets = Vec::new();
    for destination in ["198.18.0.7", "198.19.0.7", "2001:2::7", "2001:2::8"] {
        let destination: IpAddr = destination.parse().unwrap();
        for protocol in [Protocol::Udp, Protocol::Tcp, Protocol::Echo] {
            let source_port = 1024 + targets.len() as u16;
            let router_mac = ingress_mac(0);
            targets.push(Target {
                port: 0,
                destination,
                router_mac,
                source_port,
                protocol,
                tags: Tags::None,
            });
        }
    }
    targets
}

fn udp() -> Vec<Target> {
    targets().into_iter().filter(|target| target.protocol == Protocol::Udp).collect()
}

/// Some of its frames fit into a page.
fn stream(pace: Pace) -> Stream {
    let mut stream = Stream::new(targets(), MAX_JUMBO, pace);
    stream.sizes = Sizes(vec![MAX_JUMBO, 90, MAX_FRAME, MAX_FRAME + 1, 5000]);
    stream
}

/// A program in a namespace, ended when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The first `frames` frames that leave the box while `work` runs.
fn leaving(testbed: &mut Testbed, frames: usize, work: impl FnOnce(&mut Testbed)) -> Vec<Vec<u8>> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("sent.pcap");
    let mut tcpdump = testbed.box_namespace.command("tcpdump");
    let arguments = format!(
        "-i {PORT_OUT} -Q out -n -U -B 8192 -c {frames} ether src 02:6d:02:00:00:00 and not ether multicast -w"
    );
    tcpdump.args(arguments.split_whitespace()).arg(&file).stderr(Stdio::piped());
    let mut running = Running(tcpdump.spawn().unwrap());
    running.0.stderr.as_mut().unwrap().read_exact(&mut [0; 16]).unwrap();
    work(testbed);
    let status = command::wait(&mut running.0, Duration::from_secs(10)).unwrap();
    assert!(status.is_some_and(|status| status.success()), "tcpdump did not see {frames} packets");
    records(&std::fs::read(file).unwrap())
}

/// The frames in a pcap file of this machine. Asserts that they are whole.
fn records(file: &[u8]) -> Vec<Vec<u8>> {
    let mut rest = &file[24..];
    let mut frames = Vec::new();
    while !rest.is_empty() {
        let word = |at: usize| u32::from_ne_bytes(rest[at..at + 4].try_into().unwrap()) as usize;
        let (kept, whole) = (word(8), word(12));
        assert_eq!(kept, whole, "a cut frame");
        frames.push(rest[16..16 + kept].to_vec());
        rest = &rest[16 + kept..];
    }
    frames
}

#[test]
#[ignore = "needs root"]
fn sent_frames_equal_rusts_to_the_last_byte() {
    let mut testbed = testbed();
    let stream = stream(Pace::FlatOut);
    let packets = 120;
    let frames = leaving(&mut testbed, packets, |testbed| {
        testbed.generator.set_streams(vec![stream.clone()]).unwrap();
        testbed.generator.send_stream(packets as u32).unwrap();
    });
    assert_eq!(testbed.generator.packets().unwrap(), packets as u64);
    assert_eq!(testbed.generator.sent_by_flow().unwrap(), [10; 12]);
    // Linux lets TCP wait for more of its flow, so there is no order between flows.
    let mut next = vec![0; stream.targets.len()];
    for frame in &frames {
        let is_this = |(flow, target): &(usize, &Target)| {
            let Some(stamp) = Stamp::of(target.headers(), frame) else { return false };
            let place = next[*flow] as usize * stream.targets.len() + flow;
            let right = Stamp { flow: *flow as u32, sequence: next[*flow], ..stamp };
            let bytes = stream.sizes.0[place % stream.sizes.0.len()];
            target.forwarded(nexthop_mac(1), egress_mac(0), bytes, right) == *frame
        };
        let found = stream.targets.iter().enumerate().find(is_this);
        let (flow, _) = found
            .unwrap_or_else(|| panic!("next are {next:?}, not {} bytes: {:02x?}", frame.len(), &frame[..86]));
        next[flow] += 1;
    }
    assert_eq!(next, [10; 12]);
}

/// Packets due since the run began, and when: sent, or skipped because the machine had no time.
fn due(testbed: &Testbed) -> (u64, Instant) {
    let sent = testbed.generator.sent().unwrap();
    (sent.iter().map(|sent| sent.packets + sent.skipped).sum(), Instant::now())
}

/// Errors of the rate over a second. Repeated if the machine had no time for the generator at the moment of reading.
fn rate_errors(testbed: &Testbed, pps: u64) -> Vec<f64> {
    let mut errors = Vec::new();
    while errors.len() < 10 && errors.last().is_none_or(|error: &f64| error.abs() >= 0.01) {
        let (first, started) = due(testbed);
        sys::sleep(Duration::from_secs(1)).unwrap();
        let (last, ended) = due(testbed);
        errors.push((last - first) as f64 / (ended - started).as_secs_f64() / pps as f64 - 1.0);
    }
    errors
}

fn assert_all_arrive(subject: &str) {
    let mut testbed = testbed();
    let running = subject::start(subject, &testbed).unwrap();
    check_forwarding(&mut testbed, &*running, &targets(), MAX_JUMBO, |_| vec![nexthop_mac(1)]).unwrap();

    let mut large = Stream::new(udp(), MAX_JUMBO, Pace::Rate(PPS));
    large.order = Order::Uniform { seed: 1 };
    testbed.generator.set_streams(vec![stream(Pace::Rate(ONE_OF_EACH_PPS)), large]).unwrap();
    let watch = Watch { order: true, latency: true, ..Watch::NOTHING };
    let window = Window::new(Duration::from_millis(200), Duration::from_secs(1)).watching(watch);
    let sample = measure_streams(&mut testbed, window).unwrap();
    assert_eq!((sample.received, sample.unexplained), (sample.sent, 0), "{:?}", sample.lost);
    assert_eq!(sample.order, Some(Disorder::default()));
    let latency = sample.latency.unwrap();
    assert!(latency.packets > 0 && latency.p50_ns > 0, "{latency:?}");
    assert_eq!(sample.streams.iter().map(|stream| stream.received).sum::<u64>(), sample.received);

    testbed.generator.start_streams().unwrap();
    for pps in [PPS, 4 * PPS] {
        testbed.generator.set_rate(1, pps).unwrap();
        sys::sleep(Duration::from_millis(50)).unwrap();
        let errors = rate_errors(&testbed, ONE_OF_EACH_PPS + pps);
        assert!(errors.last().unwrap().abs() < 0.01, "{pps} packets a second: {errors:?}");
    }
    testbed.generator.stop().unwrap();
}

#[test]
#[ignore = "needs root"]
fn all_arrive_through_a_redirect() {
    assert_all_arrive("redirect");
}

#[test]
#[ignore = "needs root"]
fn all_arrive_through_millrace() {
    assert_all_arrive("millrace");
}

#[test]
#[ignore = "needs root"]
fn packets_that_find_no_room_are_lost_by_name() {
    let mut testbed = testbed();
    let _redirect = subject::start("redirect", &testbed).unwrap();
    // On the generator's core the port's thread has to wait while the generator sends.
    let port_thread = testbed.router_threads().unwrap().0[0];
    sys::set_affinity(port_thread, &[testbed.topology.cores.generator]).unwrap();
    let (before, arrived) = (Losses::now(&testbed).unwrap(), testbed.sink.arrived_in_all().unwrap());
    let packets = 2000;
    testbed.generator.set_targets(udp(), MAX_JUMBO).unwrap();
    testbed.generator.send(MAX_JUMBO, packets).unwrap();
    sys::sleep(Duration::from_millis(300)).unwrap();
    testbed.router_threads().unwrap();
    let lost = Losses::now(&testbed).unwrap().since(&before);
    let arrived = testbed.sink.arrived_in_all().unwrap() - arrived;
    assert!(lost.0["generator.refused"] > 100, "{lost:?}");
    assert_eq!(arrived + lost.total(), u64::from(packets), "{lost:?}");
    assert_eq!(testbed.generator.packets().unwrap(), u64::from(packets));
}

#[test]
#[ignore = "needs root"]
fn subjects_are_compared_on_large_frames() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("compare.json");
    let compare = |arguments: &str| {
        let mut lab = Command::new(env!("CARGO_BIN_EXE_millrace-lab"));
        lab.arg("compare").args(arguments.split_whitespace()).arg("--json").arg(&file).output().unwrap()
    };
    let done = compare("--frame 9018 --pps 1000 --subjects linux,redirect,millrace --seconds 0.3 --repeat 1");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let document: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let rows: Vec<_> =
        document["samples"].as_array().unwrap().iter().map(|row| (&row["subject"], &row["loss"])).collect();
    let right = ["linux", "redirect", "millrace"].map(|name| (json!(name), json!(0.0)));
    assert_eq!(rows, right.iter().map(|(name, loss)| (name, loss)).collect::<Vec<_>>());
    for (arguments, why) in [
        ("--frame 9018", "can only be sent at a rate: add --pps"),
        ("--frame 9018 --pps 1000 --subjects ovs-packet", "ovs-packet does not forward frames of 9018 bytes"),
    ] {
        let text = String::from_utf8(compare(arguments).stderr).unwrap();
        assert!(text.contains(why), "{text}");
    }
}

#[test]
#[ignore = "needs root"]
fn streams_that_cannot_be_sent_are_refused() {
    let mut testbed = Testbed::new(&Topology::rfc2544()).unwrap();
    testbed.generator.set_targets(targets(), MAX_JUMBO).unwrap();
    let saturated = testbed.generator.start(Load { frame_bytes: MAX_JUMBO, pace: Pace::Saturate });
    assert!(saturated.unwrap_err().to_string().contains("at a rate or flat out"));
    let error = testbed.generator.send(MAX_JUMBO, 1).unwrap_err().to_string();
    assert!(error.contains("frames of up to 9014 bytes to port 0 (Testbed::set_mtu"), "{error}");
    // Both leave the generator usable, and shorter frames take the other way again.
    let arrived = testbed.sink.arrived_in_all().unwrap();
    testbed.generator.send(1514, 10).unwrap();
    sys::sleep(Duration::from_millis(100)).unwrap();
    assert_eq!(testbed.generator.packets().unwrap(), 10);
    assert_eq!(testbed.sink.arrived_in_all().unwrap() - arrived, 10);
}
