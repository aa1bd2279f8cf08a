//! Fuzz targets for everything that reads data from others. A target takes any bytes. `cargo test` runs a few thousand
//! inputs; `make fuzz` runs as many as the time allows, guided by coverage. Seeds, and inputs that once failed, are in
//! `fuzz/seeds/`.
//!
//! | file | holds |
//! |---|---|
//! | this one | the parsers |
//! | `agent` | the switch's side of OpenFlow |
//! | `paths` | a capture through forwarding paths |
//! | `pipeline` | a packet through flow rules |
//! | `rules` | flow rules, and whether the program finds what the tables say |

mod agent;
mod paths;
mod pipeline;
mod rules;

use crate::{
    api::status::ExplainRequest,
    base::{
        hex,
        packet::{Headers, PacketText},
    },
    capture::{Names, pcapng::Writer},
    cli::frames,
    config::Config,
    cores::{irqs, threads},
    export::{
        flows::FlowCache,
        sample::{Output, Sample},
        sflow::Sflow,
    },
    linux::{conntrack, hazards, netlink, nftables, xtables},
    user_plane::{
        calibrate::Calibration,
        sas::{key, sequence_file},
    },
};
use logic::{
    capture::{
        filter::{Classic, ROOM, compile},
        record::{HEAD_BYTES, Record},
    },
    cpus,
    firewall::{
        prove::prove,
        ruleset::Ruleset,
        traffic::{Device, Scope, Traffic, Version},
    },
    flow::{
        FlowCommand, Key, RulePort,
        execute::{Context, Packet, execute},
        packet::VXLAN_PORT,
        text::{FlowText, parse_actions, parse_flow},
    },
    net::{Mac, Vlan},
    openflow::{
        BadMessage, Message, v10, v13,
        wire::{self, Split},
    },
};
use std::{io::Cursor, net::Ipv4Addr, path::Path};

/// A target panics if it handles an input wrongly.
pub type Target = fn(&[u8]);

/// All targets, with the names of their directories of seeds.
pub const TARGETS: [(&str, Target); 17] = [
    ("actions", actions),
    ("agent", agent::agent),
    ("api", api),
    ("capture", capture),
    ("config", config),
    ("filter", filter),
    ("flow", flow),
    ("frame", frame),
    ("kept", kept),
    ("netlink", netlink),
    ("openflow", openflow),
    ("packet", packet),
    ("paths", paths::paths),
    ("pipeline", pipeline::pipeline),
    ("proc", proc),
    ("sas", sas),
    ("xtables", xtables),
];

/// A line of actions, followed by the packet that they are applied to.
fn actions(bytes: &[u8]) {
    let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else { return };
    let frame = &bytes[end + 1..];
    let before = Key::of(frame, RulePort(1), VXLAN_PORT);
    let Ok(list) = parse_actions(&String::from_utf8_lossy(&bytes[..end])) else { return };
    let (mut packet, mut sent) = (Packet::new(frame, RulePort(1)), Vec::new());
    let _ = execute(&mut packet, &list, &Context::PLAIN, &mut sent);
    assert!(sent.len() <= list.len(), "{list:?}");
    if list.is_empty() {
        assert_eq!(Key::of(&packet.frame, RulePort(1), VXLAN_PORT), before);
    }
}

/// A flow in the syntax of `ovs-ofctl`. A flow that can be parsed is written so that it parses to the same flow.
fn flow(bytes: &[u8]) {
    let Ok(flow) = parse_flow(&String::from_utf8_lossy(bytes), FlowCommand::Add) else { return };
    let text = FlowText { flow: &flow, counted: None }.to_string();
    let again = parse_flow(&text, FlowCommand::Add).unwrap_or_else(|e| panic!("{text}: {e}"));
    assert_eq!(
        (again.matching, again.priority, &again.instructions),
        (flow.matching, flow.priority, &flow.instructions),
        "{text}"
    );
}

/// A stream of OpenFlow messages. A message that can be read and written is read again as the same; any other has an
/// error.
fn openflow(mut bytes: &[u8]) {
    type Decode = fn(&[u8]) -> Result<(wire::Header, Message), BadMessage>;
    while let Split::Message(header, message) = wire::split(bytes) {
        bytes = &bytes[message.len()..];
        let decode: Decode = if header.version == 1 { v10::decode } else { v13::decode };
        let mut again = Vec::new();
        match decode(message) {
            Err(bad) => {
                let _ = if header.version == 1 { v10::error(bad, message) } else { v13::error(bad, message) };
            }
            Ok((_, read)) => {
                let written = if header.version == 1 {
                    v10::encode(&read, header.xid, &mut again)
                } else {
                    v13::encode(&read, header.xid, &mut again)
                };
                if written.is_ok() {
                    assert_eq!(decode(&again).map(|(_, message)| message), Ok(read));
                }
            }
        }
    }
}

/// The body of a request to the API.
fn api(bytes: &[u8]) {
    let Ok(request) = serde_json::from_slice::<ExplainRequest>(bytes) else { return };
    let _ = request.packet.map(|text| text.parse::<PacketText>());
    let _ = request.frame.map(|text| hex::decode(&text));
}

/// A capture, and the headers of its frames.
fn capture(bytes: &[u8]) {
    let Ok(capture) = frames::frames(Cursor::new(bytes), "it") else { return };
    assert!(capture.frames.len() <= frames::MAX_FRAMES);
    for frame in capture.frames.into_iter().flatten() {
        let _ = Headers::read(&frame);
    }
}

/// The filter of a capture, eight bytes for each instruction. The same bytes as a record of the program.
fn filter(bytes: &[u8]) {
    let instruction = |bytes: &[u8]| Classic {
        code: u16::from_le_bytes([bytes[0], bytes[1]]),
        jt: bytes[2],
        jf: bytes[3],
        k: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
    };
    let classic: Vec<_> = bytes.chunks_exact(8).map(instruction).collect();
    if let Ok(program) = compile(&classic) {
        assert!(program.len() <= ROOM);
    }
    if let Some(record) = Record::read(bytes) {
        let frame = record.as_it_came_in().unwrap_or_default();
        assert!(frame.len() <= record.in_bytes as usize);
        Writer::new(Names::default(), 100).put(&record);
    }
}

/// A configuration file.
fn config(bytes: &[u8]) {
    if let Err(error) = Config::parse(Path::new("x.toml"), &String::from_utf8_lossy(bytes)) {
        assert!(error.to_string().contains("x.toml"), "{error}");
    }
}

/// A request to set security associations, for a configuration that uses two names; or a key.
fn sas(bytes: &[u8]) {
    let uses = r#"
        sas_later = ["in", "out"]
        [workers]
        cores = "0"
        [[path]]
        name = "in"
        class = { protocol = "esp" }
        chain = ["check", { element = "esp_decrypt", sas = ["in"] }, { element = "forward", port = "p" }]
        [[path]]
        name = "out"
        chain = ["check", "ttl", { element = "esp_encrypt", sa = "out" }, { element = "forward", port = "p" }]
        otherwise = "drop"
    "#;
    let config = Config::parse(Path::new("x.toml"), uses).expect("it is right");
    match config.sas.more(Path::new("y.toml"), &String::from_utf8_lossy(bytes)) {
        Ok(sas) => assert!(sas.iter().all(|sa| ["in", "out"].contains(&sa.name.as_str()))),
        Err(error) => assert!(error.to_string().contains("y.toml"), "{error}"),
    }
    if let Err(error) = key::parse(bytes, "the key") {
        assert!(error.starts_with("the key "), "{error}");
    }
}

/// Files that an earlier Millrace left: sequence numbers that may have been used, and a calibration.
fn kept(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Some((key, used)) = sequence_file::parse(&text) {
        assert_eq!(sequence_file::parse(&sequence_file::line(key, used)), Some((key, used)));
    }
    if let Ok(calibration) = Calibration::parse(&text) {
        assert!(calibration.switch_cycles.is_finite() && calibration.switch_cycles > 0.0);
    }
}

/// The headers of any frame, and the frame as a sample for collectors.
fn frame(bytes: &[u8]) {
    assert_eq!(Headers::read(bytes).is_some(), bytes.len() >= 14);
    let sample = Sample {
        time_ns: 0,
        input: 1,
        output: Output::Unknown,
        router: None,
        ahead: 1,
        bytes: bytes.len() as u32,
        head: &bytes[..bytes.len().min(HEAD_BYTES)],
    };
    let (mut flows, mut sflow) = (FlowCache::default(), Sflow::new(Ipv4Addr::LOCALHOST.into(), 1));
    flows.add(&sample);
    assert_eq!(flows.take().len() as u64 + flows.not_ip, 1);
    sflow.add(&sample);
    assert!(sflow.take().iter().all(|datagram| datagram.len() % 4 == 0));
}

/// A file of /proc or /sys about cores, threads and interrupts, or the name of one.
fn proc(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let lists = [cpus::parse_list(&text), cpus::parse_mask(&text)];
    assert!(lists.iter().flatten().all(|cores| cores.len() <= usize::from(cpus::MOST_CORES)));
    let _ = threads::Stat::parse(&text);
    let _ = irqs::queue_of(&text, "eth0");
}

/// The bytes that one receive call on a netlink socket returned.
fn netlink(bytes: &[u8]) {
    for message in netlink::wire::messages(bytes) {
        let _ = netlink::link::parse(message);
        let _ = netlink::link::parse_address4(message.payload);
        let _ = netlink::neighbour::parse(message);
        let _ = netlink::netconf::parse(message.payload);
        let _ = netlink::netdev::parse_napi(message.payload, 1);
        let _ = netlink::netdev::parse_queue(message.payload, 1);
        let _ = netlink::nexthop::parse(message);
        let _ = netlink::nsid::parse(message.payload);
        let _ = netlink::route::change(message);
        let _ = netlink::route::parse(message, std::time::Duration::ZERO);
        let _ = netlink::learned::parse(message, std::time::Duration::ZERO);
        let _ = netlink::learned::devices(message);
        let _ = hazards::netfilter::parse(message);
        let _ = hazards::rules::parse(message);
        let _ = hazards::traffic::parse(message);
        let _ = hazards::xfrm::parse(message);
        let _ = conntrack::addresses(message).map(Iterator::count);
        let _ = conntrack::message::ended(message);
        if let Some(tracked) = conntrack::message::parse(message) {
            assert_eq!(tracked.tcp_state.is_some(), tracked.protocol == 6);
        }
        proved(&nftables::read_any(message));
    }
}

/// A table of legacy iptables: what `IPT_SO_GET_INFO` returns, then the entries.
fn xtables(bytes: &[u8]) {
    let (info, entries) = bytes.split_at(bytes.len().min(84));
    for version in [Version::V4, Version::V6] {
        if let Some(table) = xtables::parse(version, "filter", info, entries) {
            proved(&Ruleset { tables: vec![std::sync::Arc::new(table)] });
        }
    }
}

/// A proof about unchecked rules ends without a panic.
fn proved(ruleset: &Ruleset) {
    let device = |ifindex, name: &str| Device { ifindex, name: name.into(), below: vec!["c".into()] };
    for scope in [Scope::All, Scope::Established { protocol: 6 }] {
        let traffic = Traffic { version: Version::V4, input: device(1, "a"), output: device(2, "b"), scope };
        let _ = prove(ruleset, &traffic);
    }
}

/// A packet described as text becomes a frame that reads back.
fn packet(bytes: &[u8]) {
    let Ok(packet) = String::from_utf8_lossy(bytes).parse::<PacketText>() else { return };
    let frame = packet.frame(Mac([2; 6]), Mac([4; 6]), packet.vlan.unwrap_or(Vlan::NONE));
    let headers = Headers::read(&frame).expect("a frame that was built has headers");
    assert_eq!((headers.source, headers.destination), (Some(packet.source), Some(packet.destination)));
    assert_eq!(headers.ttl, Some(packet.ttl));
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;
    use std::{fs, panic};

    /// Mutated seeds per target; the same in every run.
    const MUTATIONS: u64 = 2000;

    fn seeds(target: &str) -> Vec<Vec<u8>> {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds").join(target);
        let files = fs::read_dir(&directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
        let mut paths: Vec<_> = files.map(|f| f.unwrap().path()).collect();
        paths.sort();
        paths.iter().map(|p| fs::read(p).unwrap()).collect()
    }

    /// A seed with a few bytes changed, moved, repeated or cut.
    fn mutated(seeds: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
        let mut bytes = rng.choice(seeds).unwrap().clone();
        for _ in 0..rng.u32(1..6) {
            let (a, b) = (rng.usize(0..=bytes.len()), rng.usize(0..=bytes.len()));
            let range = a.min(b)..a.max(b).min(a.min(b) + 64);
            match rng.u8(0..6) {
                0 => bytes[range].fill_with(|| rng.u8(..)),
                1 => bytes.iter_mut().skip(a).take(1).for_each(|byte| *byte ^= 1 << rng.u8(0..8)),
                2 => {
                    let edge = *rng.choice(&[0, 1, 3, 4, 0x7f, 0x80, 0xff]).unwrap();
                    bytes.iter_mut().skip(a).take(rng.usize(1..5)).for_each(|byte| *byte = edge);
                }
                3 => {
                    let part = bytes[range].to_vec();
                    bytes.splice(b..b, part);
                }
                4 => drop(bytes.drain(range)),
                _ => bytes.truncate(a),
            }
        }
        bytes
    }

    #[test]
    fn no_input_panics() {
        for (name, target) in TARGETS {
            let seeds = seeds(name);
            assert!(!seeds.is_empty(), "no seeds in fuzz/seeds/{name}");
            let mut rng = Rng::with_seed(1);
            let random = (0..MUTATIONS).map(|_| mutated(&seeds, &mut rng));
            for input in seeds.iter().cloned().chain(random) {
                if let Err(panic) = panic::catch_unwind(|| target(&input)) {
                    eprintln!("target {name}, input \"{}\"", input.escape_ascii());
                    panic::resume_unwind(panic);
                }
            }
        }
    }
}
