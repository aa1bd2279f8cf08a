use super::*;

fn parse(text: &str) -> Result<PathsConfig, String> {
    PathsConfig::parse(Path::new("p.toml"), text).map_err(|e| e.to_string())
}

/// The first five lines of the tested files.
const PORTS: &str = "[[port]]\nname = \"lan\"\nmac = \"02:00:00:00:00:01\"\n[[port]]\nname = \"tap\"\n";

#[test]
fn full_file() {
    let config = parse(
        r#"
        router_weights = { red = 3 }

        [[port]]
        name = "lan"
        mac = "02:00:00:00:00:01"
        router = "red"
        [[port]]
        name = "wan"
        mac = "02:00:00:00:00:02"
        router = "red"
        mtu = 9000
        [[port]]
        name = "tap"

        [[route]]
        prefix = "10.1.0.0/16"
        via = "02:00:00:00:09:01"
        port = "wan"
        [[route]]
        prefix = "2001:db8::/32"
        via = "02:00:00:00:09:01"
        port = "wan"

        [[path]]
        name = "web"
        router = "red"
        class = { port = "lan", ether_type = "ipv4", destination_mac = "02:00:00:00:00:01", source = "10.0.0.0/8",
                  destination = "10.1.0.0/16", protocol = "tcp", source_port = 1, destination_port = 80, tcp_syn = true,
                  bytes = { offset = 12, value = 0x0800 } }
        chain = ["check", "route", { element = "police", packets_per_second = 1000, burst_packets = 32 },
                 "ttl", "rewrite"]
        weight = 2
        ring = 64
        cores = "0-3"
        [[path]]
        name = "rest"
        chain = ["count", { element = "forward", port = "tap" }]
        "#,
    )
    .unwrap();
    assert_eq!(config.routers, [("host".into(), 1), ("red".into(), 3)]);
    let [lan, wan, tap] = &config.ports[..] else { panic!("{:?}", config.ports) };
    assert_eq!((lan.router, lan.mtu, wan.router, wan.mtu), (1, 1500, 1, 9000));
    assert_eq!((tap.router, tap.mac), (0, None));
    assert_eq!(config.port("wan"), Some(1));
    let via = Mac([2, 0, 0, 0, 9, 1]);
    let route = |prefix: &str| RouteConfig { prefix: prefix.parse().unwrap(), via, port: 1 };
    assert_eq!(config.routes, [route("10.1.0.0/16"), route("2001:db8::/32")]);
    let [web, rest] = &config.paths[..] else { panic!("{:?}", config.paths) };
    assert_eq!((web.name.as_str(), web.router, web.weight, web.ring), ("web", 1, 2, 64));
    assert_eq!(web.cores, Some("0-3".parse().unwrap()));
    let class = Class {
        port: Some(0),
        router: Some(1),
        destination_mac: Some(Mac([2, 0, 0, 0, 0, 1])),
        ether_type: Some(0x0800),
        source: Some("10.0.0.0/8".parse().unwrap()),
        destination: Some("10.1.0.0/16".parse().unwrap()),
        protocol: Some(6),
        source_port: Some(1),
        destination_port: Some(80),
        tcp_syn: true,
        bytes: Some(logic::paths::class::TwoBytes { offset: 12, mask: 0xffff, value: 0x0800 }),
        flow_rules: false,
    };
    assert_eq!(web.class, class);
    assert_eq!((rest.router, rest.weight, rest.ring, rest.cores.is_none()), (0, 1, 1024, true));
    assert_eq!(rest.class, Class::default());
    let chains = config.chains(&no_tables(), &Arc::default(), &Captures::default()).unwrap();
    let names = |chain: &Chain| chain.counters().map(|(name, ..)| name).collect::<Vec<_>>();
    assert_eq!(names(&chains[0]), ["check", "route", "police", "ttl", "rewrite"]);
    assert_eq!(names(&chains[1]), ["count", "forward"]);
}

#[test]
fn vxlan_elements_need_ends_of_one_ip_version_and_numbers_in_bounds() {
    let parse = |parameters: &str| {
        let chain = format!("[{{ element = \"vxlan_{parameters} }}, \"route\", \"rewrite\"]");
        let forward = "{ element = \"forward\", port = \"lan\" }";
        let chain = match parameters.starts_with("decap") {
            true => format!("[\"check\", {{ element = \"vxlan_{parameters} }}, {forward}]"),
            false => chain,
        };
        let text = format!("{PORTS}[[path]]\nname = \"a\"\nchain = {chain}");
        PathsConfig::parse(Path::new("p.toml"), &text).map_err(|e| e.to_string())
    };
    let right = [
        "encap\", vni = 0, local = \"192.0.2.1\", remote = \"192.0.2.2\"",
        "encap\", vni = 16777215, local = \"2001:db8::1\", remote = \"2001:db8::2\", udp_port = 8472, mtu = 9000, ttl = 1, df = \"set\"",
        "decap\", vni = 100, local = \"192.0.2.1\"",
        "decap\", vni = 100, local = \"192.0.2.1\", remote = \"192.0.2.2\", udp_port = 65535",
    ];
    for parameters in right {
        assert_eq!(parse(parameters).map(|_| ()), Ok(()), "{parameters}");
    }
    let wrong = [
        ("encap\"", "vxlan_encap needs a vni: { element"),
        ("encap\", vni = 1", "vxlan_encap needs local, our address"),
        ("encap\", vni = 1, local = \"192.0.2.1\"", "vxlan_encap needs a remote"),
        (
            "encap\", vni = 1, local = \"192.0.2.1\", remote = \"2001:db8::2\"",
            "192.0.2.1 and 2001:db8::2 are not of one version of IP",
        ),
        (
            "encap\", vni = 16777216, local = \"2001:db8::1\", remote = \"2001:db8::2\"",
            "vni = 16777216 is not allowed: 0 to 16777215",
        ),
        (
            "encap\", vni = 1, local = \"2001:db8::1\", remote = \"2001:db8::2\", ttl = 0",
            "ttl = 0 is not allowed: 1 to 255",
        ),
        (
            "encap\", vni = 1, local = \"2001:db8::1\", remote = \"2001:db8::2\", mtu = 65001",
            "mtu = 65001 is not allowed: 128 to 65000",
        ),
        (
            "encap\", vni = 1, local = \"2001:db8::1\", remote = \"2001:db8::2\", df = \"copy\"",
            "df = \"copy\" is not allowed: \"set\" or \"clear\"",
        ),
        ("decap\", vni = 1, local = \"2001:db8::1\", mtu = 1500", "vxlan_decap has no parameter mtu"),
        (
            "decap\", vni = 1, local = \"2001:db8::1\", udp_port = 0",
            "vxlan_decap: udp_port = 0 is not allowed: 1 to 65535",
        ),
        ("decap\", vni = 1", "vxlan_decap needs local"),
    ];
    for (parameters, message) in wrong {
        let error = parse(parameters).unwrap_err();
        assert!(error.starts_with("p.toml:8: path.chain: ") && error.contains(message), "{error}");
    }
}

#[test]
fn mirrors_have_a_file_each_and_numbers_in_bounds() {
    let mirrors = |elements: &str| {
        let text = format!(
            "[[port]]\nname = \"lan\"\n[[path]]\nname = \"arp\"\nclass = {{ ether_type = \"arp\" }}\nchain = [{{ element = \"mirror\", file = \"d/arp\" }}, \"discard\"]\n\
             [[path]]\nname = \"a\"\nchain = [{elements}, \"discard\"]"
        );
        parse(&text).map(|config| config.mirrors().cloned().collect::<Vec<_>>())
    };
    let settings = |file: &str, snap_bytes, mib: u64, every_packets| MirrorSettings {
        file: file.into(),
        snap_bytes,
        file_bytes: mib << 20,
        every_packets,
    };
    let given =
        "{ element = \"mirror\", file = \"a/b\", snap_bytes = 14, file_mib = 4096, every_packets = 1048576 }";
    let usual = settings("d/arp", 256, 100, 1);
    assert_eq!(mirrors(given), Ok(vec![usual.clone(), settings("a/b", 14, 4096, 1 << 20)]));
    let one = |text: &str| format!("{{ element = \"mirror\"{text} }}");
    let file = ", file = \"x\"";
    for (text, error) in [
        (String::from("\"mirror\""), "mirror needs a file: { element = \"mirror\", file = "),
        (one(", file = \"\""), "mirror needs a file"),
        (one(&format!("{file}, snap_bytes = 13")), "snap_bytes = 13 is not allowed: 14 to 65535"),
        (one(&format!("{file}, snap_bytes = 65536")), "snap_bytes = 65536 is not allowed"),
        (one(&format!("{file}, file_mib = 0")), "file_mib = 0 is not allowed: 1 to 4096"),
        (one(&format!("{file}, every_packets = 0")), "every_packets = 0 is not allowed: 1 to 1048576"),
        (one(&format!("{file}, ttl = 1")), "mirror has no parameter ttl"),
        (one(", file = \"d//./arp\""), "path a: mirror: another one has the file d//./arp"),
        (
            (0..16).map(|n| one(&format!(", file = \"{n}\""))).collect::<Vec<_>>().join(", "),
            "path a: mirror: too many are given, 16 are possible",
        ),
    ] {
        let told = mirrors(&text).unwrap_err();
        assert!(told.starts_with("p.toml:9: path.chain: ") && told.contains(error), "{text}: {told}");
    }
}

#[test]
fn errors_name_line_key_and_what_is_allowed() {
    // Each row has what follows after PORTS, from line 6 on, and what the error must contain, in order.
    let cases: &[(&str, &[&str])] = &[
        (
            "[[path]]\nname = \"a\"\nchain = [\"check\", \"rout\"]",
            &[
                "p.toml:8: path.chain: ",
                "\"rout\" is not an element: ",
                "\"check\", \"route\"",
                "\"discard\"",
            ],
        ),
        (
            "[[path]]\nname = \"a\"\nchain = [\n  \"check\",\n  { element = \"forwrd\", port = \"lan\" },\n]",
            &["p.toml:10: path.chain: ", "\"forwrd\" is not an element: "],
        ),
        (
            "[[path]]\nname = \"a\"\nchain = [{ element = \"forward\", prt = \"lan\" }]",
            &[
                "p.toml:8: path.chain: forward has no parameter prt: { element = \"forward\", port = \"eth1\" }",
            ],
        ),
        (
            "[[path]]\nname = \"a\"\nchain = [{ element = \"check\", port = \"lan\" }]",
            &["p.toml:8: path.chain: check has no parameter port: \"check\" alone"],
        ),
        (
            "[[path]]\nname = \"a\"\nchain = [\"forward\"]",
            &["p.toml:8: path.chain: forward needs a port: { element = \"forward\", port = \"eth1\" }"],
        ),
        (
            "[[path]]\nname = \"a\"\nchain = [{ element = \"forward\", port = \"eth7\" }]",
            &[
                "p.toml:8: path.chain: path a: element 1, forward, sends to port eth7, which is not a [[port]] of this file (lan, tap)",
            ],
        ),
        (
            "[[path]]\nname = \"a\"\nchain = [{ element = \"police\", packets_per_second = 1, burst_bytes = 1 }]",
            &[
                "p.toml:8: path.chain: police needs a rate and the burst that goes with it",
                "burst_packets = 32",
            ],
        ),
        (
            "[[path]]\nname = \"a\"\nchain = [{ element = \"police\", packets_per_second = 0, burst_packets = 1 }]",
            &["p.toml:8: path.chain: police: packets_per_second = 0 is not allowed: 1 to 1099511627776"],
        ),
        (
            "[[path]]\nname = \"a\"\nchain = [\"route\", \"ttl\", \"rewrite\"]",
            &[
                "p.toml:8: path.chain: path a: element 1, route, needs to know",
                "the position of the headers (check)",
            ],
        ),
        (
            "[[path]]\nname = \"a\"\nchain = [\"check\"]",
            &[
                "p.toml:8: path.chain: path a: no element sets where packets leave: add rewrite, forward or discard",
            ],
        ),
        (
            "[[path]]\nname = \"a\"\nchain = []",
            &["p.toml:8: path.chain: path a: a chain has at least one element"],
        ),
        (
            "[[path]]\nname = \"a\"\nchain = \"check\"",
            &["p.toml:8: path.chain: ", "example: chain = [\"check\", \"route\", \"ttl\", \"rewrite\"]"],
        ),
        ("[[path]]\nname = \"a\"", &["p.toml:6: missing field 'chain'"]),
        ("[[path]]\nchain = [\"discard\"]", &["p.toml:6: missing field 'name'"]),
        ("[[path]]\nname = \"\"\nchain = [\"discard\"]", &["p.toml:7: path.name: ", "1 to 31 letters"]),
        (
            "[[path]]\nname = \"a\"\nclass = { tcp_syn = true }\nchain = [\"discard\"]\n[[path]]\nname = \"a\"\nchain = [\"discard\"]",
            &["p.toml:11: path.name: path a is given twice"],
        ),
        (
            "[[path]]\nname = \"a\"\nchain = [\"discard\"]\nweight = 0",
            &["p.toml:9: path.weight: 0 is not allowed: 1 to 1000"],
        ),
        (
            "[[path]]\nname = \"a\"\nchain = [\"discard\"]\nring = 100",
            &["p.toml:9: path.ring: 100 is not allowed: a power of two from 64 to 16384"],
        ),
        (
            "[[path]]\nname = \"a\"\nchain = [\"discard\"]\ncores = \"x\"",
            &["p.toml:9: path.cores: \"x\" is not allowed: a list of core numbers"],
        ),
        (
            "[[path]]\nname = \"a\"\nchian = [\"discard\"]",
            &["p.toml:8: path.chian: unknown field 'chian'", "'class'", "'chain'"],
        ),
        (
            "[[path]]\nname = \"a\"\nclass = { protocol = \"udp\", tcp_syn = true }\nchain = [\"discard\"]",
            &["p.toml:8: path.class: path a gets no packet: no packet has both tcp_syn and protocol 17"],
        ),
        (
            "[[path]]\nname = \"a\"\nrouter = \"red\"\nclass = { port = \"lan\" }\nchain = [\"discard\"]\n[[port]]\nname = \"wan\"\nrouter = \"red\"",
            &["p.toml:9: path.class: ", "no packet has both port lan (of router host) and router red"],
        ),
        (
            "[[path]]\nname = \"a\"\nchain = [\"discard\"]\n[[path]]\nname = \"b\"\nclass = { tcp_syn = true }\nchain = [\"discard\"]",
            &["p.toml:11: path.class: path b gets no packet: path a, before it, gets all of them"],
        ),
        (
            "[[path]]\nname = \"a\"\nrouter = \"host\"\nchain = [\"discard\"]\n[[path]]\nname = \"b\"\nclass = { port = \"lan\" }\nchain = [\"discard\"]",
            &["p.toml:12: path.class: path b gets no packet: path a, before it, gets all of them"],
        ),
        (
            "[[port]]\nname = \"x\"\nrouter = \"red\"\n[[path]]\nname = \"a\"\nrouter = \"rde\"\nchain = [\"discard\"]",
            &["p.toml:11: path.router: router \"rde\" has no port; those with ports: host, red"],
        ),
        (
            "[[path]]\nname = \"a\"\nclass = { ethertype = 1 }\nchain = [\"discard\"]",
            &["p.toml:8: path.class: unknown field 'ethertype'", "'ether_type'"],
        ),
        (
            "[[path]]\nname = \"a\"\nclass = { ether_type = \"ip\" }\nchain = [\"discard\"]",
            &[
                "p.toml:8: path.class: \"ip\" is not allowed: \"ipv4\", \"ipv6\", \"arp\" or a number from 0x0600",
            ],
        ),
        (
            "[[path]]\nname = \"a\"\nclass = { protocol = 256 }\nchain = [\"discard\"]",
            &["p.toml:8: path.class: \"256\" is not allowed: \"icmp\", \"tcp\"", "0 to 255"],
        ),
        (
            "[[path]]\nname = \"a\"\nclass = { source = \"10.0.0.1\" }\nchain = [\"discard\"]",
            &["p.toml:8: path.class: not an IP prefix such as 192.0.2.0/24"],
        ),
        (
            "[[path]]\nname = \"a\"\nclass = { port = \"eth7\" }\nchain = [\"discard\"]",
            &["p.toml:8: path.class: port eth7 is not a [[port]] of this file"],
        ),
        (
            "[[path]]\nname = \"a\"\nclass = { bytes = { offset = 63, value = 0 } }\nchain = [\"discard\"]",
            &["p.toml:8: path.class: 63 is not allowed: 0 to 62"],
        ),
        (
            "[[path]]\nname = \"a\"\nclass = { bytes = { offset = 0, mask = 0xff, value = 0x100 } }\nchain = [\"discard\"]",
            &[
                "p.toml:8: path.class: path a gets no packet: bytes with mask 0x00ff never have the value 0x0100",
            ],
        ),
        (
            "[[path]]\nname = \"a\"\nclass = { tcp_syn = false }\nchain = [\"discard\"]",
            &["p.toml:8: path.class: false is not allowed: true, or leave it out"],
        ),
        ("", &["p.toml:1: path: none is given: at least one [[path]] is needed"]),
        (
            "[[path]]\nname = \"a\"\nchain = [\"discard\"]\n[[rout]]",
            &["p.toml:9: ", "unknown field 'rout'", "'route'"],
        ),
        ("[[port]]\nname = \"lan\"", &["p.toml:7: port.name: port lan is given twice"]),
        (
            "[[port]]\nname = \"x\"\nmac = \"2:0:0:0:0:1\"",
            &["p.toml:8: port.mac: \"2:0:0:0:0:1\" is not a MAC address such as \"02:00:00:00:00:01\""],
        ),
        (
            "[[port]]\nname = \"x\"\nmac = \"03:00:00:00:00:01\"",
            &["p.toml:8: port.mac: 03:00:00:00:00:01 is not the address of one station"],
        ),
        ("[[port]]\nname = \"x\"\nmtu = 67", &["p.toml:8: port.mtu: 67 is not allowed: 68 to 65000"]),
        (
            "[[route]]\nprefix = \"10.0.0.0/8\"\nvia = \"02:00:00:00:00:09\"\nport = \"eth7\"",
            &["p.toml:9: route.port: port eth7 is not a [[port]]"],
        ),
        (
            "[[route]]\nprefix = \"10.0.0.0/8\"\nvia = \"02:00:00:00:00:09\"\nport = \"tap\"",
            &["p.toml:9: route.port: port tap has no mac"],
        ),
        (
            "[[route]]\nprefix = \"10.0.0.0/8\"\nvia = \"00:00:00:00:00:00\"\nport = \"lan\"",
            &["p.toml:8: route.via: 00:00:00:00:00:00 is not the address of one station"],
        ),
    ];
    for (text, wanted) in cases {
        // A file needs a path. Texts without one get one at their end.
        let with_path = text.contains("[[path]]") || text.is_empty();
        let end = if with_path { "" } else { "\n[[path]]\nname = \"z\"\nchain = [\"discard\"]" };
        let error = parse(&format!("{PORTS}{text}{end}")).expect_err(text);
        let mut rest = error.as_str();
        for part in *wanted {
            let at = rest.find(part).unwrap_or_else(|| panic!("{text:?}: {error:?} lacks {part:?}"));
            rest = &rest[at + part.len()..];
        }
    }
    let path = "[[path]]\nname = \"z\"\nchain = [\"discard\"]";
    assert_eq!(parse(path).unwrap_err(), "p.toml:1: port: none is given: at least one [[port]] is needed");
    let weight = format!("# Weights.\nrouter_weights = {{ host = 3, red = 2 }}\n{PORTS}{path}");
    assert_eq!(parse(&weight).unwrap_err(), "p.toml:2: router_weights: router \"red\" has no port");
    let all_red = "[[port]]\nname = \"x\"\nrouter = \"red\"\n[[path]]\nname = \"a\"\nrouter = \"host\"\nchain = [\"discard\"]";
    assert_eq!(
        parse(all_red).unwrap_err(),
        "p.toml:6: path.router: router \"host\" has no port; those with ports: red"
    );
    let route = "[[route]]\nprefix = \"10.1.0.0/8\"\nvia = \"02:00:00:00:00:09\"\nport = \"lan\"\n";
    let twice = parse(&format!("{PORTS}{route}{route}{path}")).unwrap_err();
    assert_eq!(twice, "p.toml:11: route.prefix: 10.0.0.0/8 is given twice in router host");
}

#[test]
fn the_numbers_of_ports_paths_and_elements_are_limited() {
    let path = |name: usize| {
        format!("[[path]]\nname = \"p{name}\"\nclass = {{ source_port = {name} }}\nchain = [\"discard\"]\n")
    };
    let paths = |count: usize| (0..count).map(path).collect::<String>();
    assert_eq!(parse(&format!("{PORTS}{}", paths(64))).unwrap().paths.len(), 64);
    assert!(
        parse(&format!("{PORTS}{}", paths(65)))
            .unwrap_err()
            .contains("p.toml:263: path: 65 are given, 64 are possible")
    );
    let ports =
        |count: usize| (0..count).map(|name| format!("[[port]]\nname = \"e{name}\"\n")).collect::<String>();
    assert!(parse(&format!("{}{}", ports(64), path(1))).is_ok());
    assert!(
        parse(&format!("{}{}", ports(65), path(1))).unwrap_err().contains("65 are given, 64 are possible")
    );
    let long = format!("{PORTS}[[path]]\nname = \"a\"\nchain = [{} \"discard\"]", "\"count\",".repeat(32));
    assert!(parse(&long).unwrap_err().contains("path a: 33 elements, 32 are possible"));
    let missing = PathsConfig::read(Path::new("/nonexistent.toml")).unwrap_err().to_string();
    assert_eq!(missing, "cannot read the configuration /nonexistent.toml");
}
