//! The metrics of a live daemon: over TCP, in a file, after a reload. Counters of devices beside those of interfaces.

use crate::{
    bed::{Bed, addresses, be_router, ping, run},
    connections::{HOME, until_ruled},
    daemon::{Daemon, Leftovers, eventually, eventually_true},
    firewall::nft,
    user_plane::numbered,
};
use lab::namespace::Namespace;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    path::Path,
    time::Duration,
};

const PAGE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/metrics.md"));

/// Metrics that have a series only after an event that this test does not make.
const EVENTS: [&str; 12] = [
    "millrace_series_left_out",
    "millrace_conditions",
    // Without NAPI threads, packets of a veth are received where they are sent.
    "millrace_queue_core",
    "millrace_port_lost_packets_total",
    "millrace_router_share_ratio",
    "millrace_path_lost_packets_total",
    "millrace_path_past_packets_total",
    "millrace_path_refused_packets_total",
    "millrace_path_dropped_packets_total",
    "millrace_workers_lost_packets_total",
    "millrace_worker_other_ratio",
    "millrace_queue_moves_total",
];

/// The page that a scraper in this namespace gets, or the error.
fn scrape(namespace: &Namespace, address: &str, path: &str) -> Result<String, String> {
    let error = |error: std::io::Error| error.to_string();
    let connected = namespace.enter(|| Ok(TcpStream::connect(address)));
    let mut stream = connected.unwrap().map_err(error)?;
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").map_err(error)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(error)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("no head")?;
    if head.starts_with("HTTP/1.1 200 ") { Ok(body.into()) } else { Err(head.into()) }
}

/// Names of the samples of a page, with a series each.
fn names(page: &str) -> BTreeSet<&str> {
    let samples = page.lines().filter(|line| !line.starts_with('#'));
    samples.map(|line| line.split(['{', ' ']).next().unwrap()).collect()
}

fn value(page: &str, series: &str) -> Option<f64> {
    let mut values = page.lines().filter_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    values.next()?.parse().ok()
}

/// Paths, SAs, flow rules, a listener for controllers, and a page over TCP.
fn rich(bed: &Bed, directory: &Path) -> String {
    let (red, directory) = (bed.red_name(), directory.display());
    format!(
        r#"
ports = ["p1", "p2"]
[metrics]
listen = "127.0.0.1:9111"
[export]
sflow = ["127.0.0.1:6343"]
[openflow]
controllers = ["ptcp:0:127.0.0.1"]
[workers]
cores = "0"
[[path]]
name = "to"
router = "{red}"
class = {{ destination = "10.9.0.0/24" }}
chain = ["check", "ttl", {{ element = "esp_encrypt", sa = "to-server" }}, "route", "rewrite"]
otherwise = "drop"
[[path]]
name = "udp"
router = "{red}"
class = {{ protocol = "udp", destination_port = 4000 }}
chain = ["check", "count", "route", "ttl", "rewrite"]
[[sa]]
name = "to-server"
spi = 1001
mode = "tunnel"
local = "10.7.2.1"
remote = "10.7.2.2"
key_file = "{directory}/key"
sequence_file = "{directory}/sequence"
"#
    )
}

#[test]
#[ignore = "needs root"]
fn a_live_page_has_all_documented_metrics_and_no_others() {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    run(&bed.the_box, "ip link set lo up");
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("key"), "a1".repeat(20)).unwrap();
    fs::set_permissions(directory.path().join("key"), fs::Permissions::from_mode(0o600)).unwrap();
    let file = directory.path().join("m.toml");
    fs::write(&file, rich(&bed, directory.path())).unwrap();
    let mut daemon = Daemon::start(&bed.the_box, &bed.name, &["--config", file.to_str().unwrap()]);
    daemon.until_accelerated(2);
    // The path forwards these itself. Later it passes some up, for which rules of red decide.
    assert_eq!(numbered(&bed, "10.7.1.2:4000", "10.7.2.2:4000", 200).len(), 200);
    // The cost of a packet is sampled.
    assert_eq!(numbered(&bed, "10.8.1.2:4001", "10.8.2.2:4001", 1000).len(), 1000);
    assert_eq!(numbered(&bed, "10.7.1.2:4001", "10.7.2.2:4001", 1000).len(), 1000);
    nft(&bed, HOME);
    until_ruled(&mut daemon, &bed);
    let rule = daemon.millrace(&["flows", "add", "priority=1,ip,nw_src=10.99.0.1,actions=normal"]);
    assert!(rule.status.success(), "{rule:?}");
    ping(&bed.client, "10.8.2.2", 20);
    assert_eq!(numbered(&bed, "10.7.1.2:4000", "10.7.2.2:4000", 200).len(), 200);
    ping(&bed.client, "10.8.1.1", 1);

    let documented: BTreeSet<_> =
        PAGE.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    assert!(documented.len() > 100);
    let wanted: BTreeSet<_> = documented.iter().copied().filter(|name| !EVENTS.contains(name)).collect();
    let page = eventually("all metrics", || {
        let page = scrape(&bed.the_box, "127.0.0.1:9111", "/metrics")?;
        let missing: Vec<String> = wanted.difference(&names(&page)).map(ToString::to_string).collect();
        if missing.is_empty() { Ok(page) } else { Err(format!("{missing:?}")) }
    });
    let others: Vec<_> = names(&page).difference(&documented).map(ToString::to_string).collect();
    assert!(others.is_empty(), "not documented: {others:?}");
    assert!(page.ends_with("\n# EOF\n"));
    // Numbers are those of the commands.
    let interfaces = daemon.ask(&["interfaces"]);
    for interface in interfaces.as_array().unwrap() {
        let text = |name: &str| interface[name].as_str().unwrap();
        let labels =
            ["router", "interface", "port"].map(|name| format!("{name}=\"{}\"", text(name))).join(",");
        eventually_true(&labels, || {
            let page = scrape(&bed.the_box, "127.0.0.1:9111", "/metrics").unwrap();
            let interfaces = daemon.ask(&["interfaces"]);
            let same =
                |i: &&Value| i["interface"] == interface["interface"] && i["router"] == interface["router"];
            let now = interfaces.as_array().unwrap().iter().find(same).unwrap();
            let series = format!("millrace_interface_rx_packets_total{{{labels}}}");
            value(&page, &series) == now["rx_packets"].as_f64()
        });
    }
    assert!(value(&page, "millrace_forwarded_packets_total{}").unwrap() >= 40.0, "{page}");
    // Workers report once a second. A frame has 46 bytes: Ethernet, IPv4, UDP and a number of four bytes.
    let counted = "millrace_path_counted_total{path=\"udp\",at=\"2\",element=\"count\",what=\"bytes\"}";
    let page = eventually("400 packets of the path", || {
        let page = scrape(&bed.the_box, "127.0.0.1:9111", "/metrics")?;
        let run = value(&page, "millrace_path_run_packets_total{path=\"udp\"}");
        if run == Some(400.0) { Ok(page) } else { Err(format!("{run:?}")) }
    });
    // Because of rules, packets are passed up before they are counted.
    assert_eq!(value(&page, counted), Some(200.0 * 46.0), "{page}");
    scrape(&bed.the_box, "127.0.0.1:9111", "/status").unwrap_err();

    // The file for node_exporter.
    let out = directory.path().join("millrace.prom");
    let written = daemon.millrace(&["metrics", "--out", out.to_str().unwrap()]);
    assert!(written.status.success() && written.stdout.is_empty(), "{written:?}");
    let text = fs::read_to_string(&out).unwrap();
    assert_eq!(names(&text), names(&page));
    assert!(text.contains("\n# TYPE millrace_forwarded_packets_total counter\n"), "{text}");
    assert!(!text.contains("# EOF") && !text.contains("# UNIT"));
    assert_eq!(fs::metadata(&out).unwrap().permissions().mode() & 0o777, 0o644);
    let failed = daemon.millrace(&["metrics", "--out", "/nonexistent/m.prom"]);
    assert!(!failed.status.success(), "{failed:?}");
    let error = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(error.contains("cannot write /nonexistent/m.prom"), "{error}");
    let left: Vec<_> =
        fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().ends_with(".new")), "{left:?}");
    daemon.stop();
}

#[test]
#[ignore = "needs root"]
fn a_reload_moves_the_page_to_another_address() {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    run(&bed.the_box, "ip link set lo up");
    let file = tempfile::NamedTempFile::new().unwrap();
    let listen = |address: Option<&str>| {
        let table = address.map_or(String::new(), |address| format!("[metrics]\nlisten = \"{address}\"\n"));
        fs::write(file.path(), format!("ports = [\"p1\", \"p2\"]\n{table}")).unwrap();
    };
    listen(None);
    let daemon = Daemon::start(&bed.the_box, &bed.name, &["--config", file.path().to_str().unwrap()]);
    let answers = |address: &str| scrape(&bed.the_box, address, "/metrics").is_ok();
    let is_closed = |address: &str| {
        eventually_true(address, || {
            scrape(&bed.the_box, address, "/").is_err_and(|error| error.contains("refused"))
        });
    };
    let (first, second) = ("127.0.0.1:9111", "[::1]:9112");
    is_closed(first);
    for (address, others) in [(Some(first), second), (Some(second), first), (None, second)] {
        listen(address);
        assert_eq!(daemon.ask(&["reload"])["changed"], serde_json::json!(["metrics.listen"]));
        assert!(address.is_none_or(answers), "{address:?}");
        is_closed(others);
    }
    listen(Some(first));
    daemon.ask(&["reload"]);
    // An address that the daemon cannot listen on changes nothing.
    let _taken = bed.the_box.enter(|| Ok(TcpListener::bind(second)?)).unwrap();
    for (address, why) in
        [(second, "Address already in use"), ("192.0.2.77:9111", "Cannot assign requested address")]
    {
        listen(Some(address));
        let refused = daemon.millrace(&["reload"]);
        let error = String::from_utf8_lossy(&refused.stderr).into_owned();
        let expected = format!("nothing was changed: metrics.listen: cannot listen on {address}: {why}");
        assert!(!refused.status.success() && error.contains(&expected), "{error}");
        assert!(answers(first));
    }
    let mut check = bed.the_box.command(crate::daemon::binary());
    let checked =
        check.args(["check", "--instance", &bed.name, "--config"]).arg(file.path()).output().unwrap();
    let said =
        String::from_utf8_lossy(&checked.stdout).into_owned() + &String::from_utf8_lossy(&checked.stderr);
    assert!(!checked.status.success(), "{said}");
    assert!(said.contains("metrics.listen: cannot listen on 192.0.2.77:9111"), "{said}");
    daemon.stop();
    is_closed(first);
}

/// RX and TX packets of the devices of a namespace, as `ip -s link` shows them.
fn device_counters(namespace: &Namespace) -> BTreeMap<String, [u64; 2]> {
    let devices: Value = serde_json::from_str(&run(namespace, "ip -j -s link show")).unwrap();
    let counters = |device: &Value| {
        let count = |way: &str| device["stats64"][way]["packets"].as_u64().unwrap();
        (device["ifname"].as_str().unwrap().to_owned(), ["rx", "tx"].map(count))
    };
    devices.as_array().unwrap().iter().map(counters).collect()
}

/// A network through the box: 10.NUMBER.1.0/24 on the client's side, 10.NUMBER.2.0/24 on the server's.
struct Net<'a> {
    number: u8,
    router: &'a Namespace,
    devices: [&'static str; 2],
}

/// Red's network by macvlans in its namespace, and the host's by the ports, by macvlans, and by VLANs if this kernel has them.
fn nets(bed: &Bed) -> Vec<Net<'_>> {
    const MACVLANS: &str =
        "link add m1 link p1 type macvlan mode bridge\nlink add m2 link p2 type macvlan mode bridge\n";
    bed.the_box.ip_batch(MACVLANS).unwrap();
    let vlan = |port: &str, name: &str| format!("link add {name} link {port} type vlan id 5\n");
    let has_vlans = bed.the_box.ip_batch(&vlan("p1", "v1")).is_ok();
    let net = |number, router, devices| Net { number, router, devices };
    let mut nets = vec![
        net(7, &bed.red, ["in", "out"]),
        net(8, &bed.the_box, ["p1", "p2"]),
        net(9, &bed.the_box, ["m1", "m2"]),
    ];
    if has_vlans {
        bed.the_box.ip_batch(&vlan("p2", "v2")).unwrap();
        nets.push(net(10, &bed.the_box, ["v1", "v2"]));
    }
    be_router(&bed.the_box);
    // Only the device that has an address answers for it.
    bed.the_box.sysctl(&[("net/ipv4/conf/all/arp_ignore", "1")]).unwrap();
    for Net { number, devices: [near, far], .. } in nets.iter().filter(|net| net.number > 8) {
        addresses(&bed.the_box, *number, near, far);
        for (host, near, far) in [(&bed.client, 1, 2), (&bed.server, 2, 1)] {
            let (device, link) = match number {
                10 => ("v", "link add v link eth0 type vlan id 5\nlink set v up\n"),
                _ => ("eth0", ""),
            };
            host.ip_batch(&format!(
                "{link}addr add 10.{number}.{near}.2/24 dev {device}\n\
                 route add 10.{number}.{far}.0/24 via 10.{number}.{near}.1\n"
            ))
            .unwrap();
        }
    }
    nets
}

/// Packets that are sent through each network.
const SENT: u32 = 300;

impl Net<'_> {
    /// Do the port, the device on it, the device of the other side and its port count packets that are forwarded?
    fn counting(&self, bed: &Bed) -> [bool; 4] {
        let Net { number, devices: [near, far], router } = self;
        ping(&bed.client, &format!("10.{number}.2.2"), 1);
        let all = || {
            let (ports, own) = (device_counters(&bed.the_box), device_counters(router));
            [ports["p1"][0], own[*near][0], own[*far][1], ports["p2"][1]]
        };
        let before = all();
        let came = numbered(bed, &format!("10.{number}.1.2:4000"), &format!("10.{number}.2.2:4000"), SENT);
        assert_eq!(came.len(), SENT as usize, "net {number}");
        let after = all();
        let moved = |way: usize| match after[way] - before[way] {
            // ARP and neighbour discovery add more packets.
            n if (u64::from(SENT)..u64::from(SENT) + 20).contains(&n) => true,
            n if n < 20 => false,
            n => panic!("net {number}, counter {way}: {n} of {SENT}"),
        };
        [0, 1, 2, 3].map(moved)
    }
}

/// Packets that Millrace forwards are in the counters of the ports, and in none of a macvlan or a VLAN device.
/// docs/howto/monitoring.md says so.
#[test]
#[ignore = "needs root"]
fn ports_count_fast_packets_and_their_macvlans_do_not() {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    let nets = nets(&bed);
    for net in &nets {
        assert_eq!(net.counting(&bed), [true; 4], "Linux, net {}", net.number);
    }
    let daemon = bed.start(2, &[]);
    let forwarded = daemon.forwarded();
    for net in &nets {
        // The devices of net 8 are the ports themselves.
        let has_ports = net.number == 8;
        assert_eq!(net.counting(&bed), [true, has_ports, has_ports, true], "Millrace, net {}", net.number);
    }
    let all = u64::from(SENT) * nets.len() as u64;
    assert!(daemon.forwarded() >= forwarded + all, "Linux forwarded some");
    // These have all packets.
    let interfaces = daemon.ask(&["interfaces"]);
    for Net { devices: [near, far], .. } in &nets {
        let count = |name: &str, field: &str| {
            let mut list = interfaces.as_array().unwrap().iter();
            list.find(|interface| interface["interface"] == name).unwrap()[field].as_u64().unwrap()
        };
        assert!(count(near, "rx_packets") >= u64::from(SENT) && count(far, "tx_packets") >= u64::from(SENT));
    }
    daemon.stop();
    // A macvlan that is a port itself runs in generic mode.
    let ports = ["--generic", "--port", "m1", "--port", "m2"];
    let mut daemon = Daemon::start(&bed.the_box, &bed.name, &ports);
    daemon.until_accelerated(1);
    let forwarded = daemon.forwarded();
    assert_eq!(nets[2].counting(&bed), [true; 4], "generic mode");
    assert!(daemon.forwarded() >= forwarded + u64::from(SENT), "Linux forwarded some");
    daemon.stop();
}
