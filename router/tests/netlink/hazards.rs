//! Hazards, which the fast path would bypass or break on. They are found and named, and it is noticed when
//! they are gone.

use crate::{
    bed::*,
    program::{load_program, own},
};
use libbpf_rs::libbpf_sys as sys;
use logic::{
    cause::Cause,
    firewall::{
        ruleset::{Chain, Table},
        traffic::Version,
    },
    mirror::{InterfaceView, Limits, Mirror},
    observe::{Event, Settings},
};
use router::linux::{
    ethtool::ProblemKind::{self, CannotTransmit, PartialChecksums, VlanTagsHidden},
    netns,
    observer::{HOST, Quota},
};
use std::{
    fs::File,
    os::fd::{AsRawFd, OwnedFd},
    time::Duration,
};

/// The base chains that packets of this version pass.
fn chains(settings: &Settings, version: Version) -> Vec<String> {
    let tables = settings.firewall.rules.tables.iter().filter(|table| table.family.concerns(version));
    let chains =
        tables.flat_map(|table| table.chains.iter().map(move |(name, chain)| (&**table, name, chain)));
    let base = |(table, name, chain): (&Table, &String, &Chain)| {
        let base = chain.base.as_ref()?;
        let (family, table, rules) = (table.family, &table.name, chain.rules.len());
        let policy = if base.accepts { "" } else { ", drops" };
        Some(format!("{family} {table} {name} {}: {rules} rules{policy}", base.hook.name()))
    };
    chains.filter_map(base).collect()
}

#[test]
#[ignore = "needs root"]
fn hazards_come_and_go() {
    with_bed(|bed| {
        let host = bed.name("host");
        let mut observer = observer();
        settle(&mut observer);
        let mut expect = |command: &str, v4: &[&str], v6: &[&str]| {
            sh(command);
            until(&mut observer, command, |e| match e {
                Event::Settings(HOST, s) => {
                    let fits = |hazards: &[Cause], version, want: &[&str]| {
                        let have = hazards.iter().map(Cause::to_string).chain(chains(s, version));
                        let have: Vec<_> = have.collect();
                        have.len() == want.len() && have.iter().zip(want).all(|(h, w)| h.contains(w))
                    };
                    let both = fits(&s.hazards4, Version::V4, v4) && fits(&s.hazards6, Version::V6, v6);
                    both.then_some(())
                }
                _ => None,
            });
        };
        let forward = "inet f pass forward: 0 rules";
        expect(
            "nft 'add table inet f; add chain inet f pass { type filter hook forward priority 0; }'",
            &[forward],
            &[forward],
        );
        let ruled = "inet f pass forward: 1 rules";
        expect("nft add rule inet f pass accept", &[ruled], &[ruled]);
        expect("nft delete table inet f", &[], &[]);
        expect(
            "nft 'add table ip f; add chain ip f x { type filter hook prerouting priority 0; }'",
            &["ip f x prerouting: 0 rules"],
            &[],
        );
        expect("nft delete table ip f", &[], &[]);
        expect("ip -6 rule add priority 77 from 2001:db8::1 table 5", &[], &["ip -6 rule del priority 77"]);
        expect("ip -6 rule del priority 77", &[], &[]);
        expect("ip rule del priority 32767", &["table 253 is missing"], &[]);
        expect("ip rule add priority 32767 table 253", &[], &[]);
        expect("ip xfrm policy add src 10.0.0.0/8 dst 10.1.0.0/16 dir fwd", &["1 IPsec policies"], &[]);
        expect("ip xfrm policy flush", &[], &[]);
        expect("ip xfrm policy setdefault fwd block", &["default IPsec"], &["default IPsec"]);
        expect("ip xfrm policy setdefault fwd accept", &[], &[]);
        // Chains for the box itself are no hazard, so the next report is about the table below.
        sh("nft 'add table ip f; add chain ip f i { type filter hook input priority 0; }'");
        let mangle = [
            "FORWARD forward: 0 rules",
            "POSTROUTING postrouting: 0 rules",
            "PREROUTING prerouting: 0 rules",
        ]
        .map(|chain| format!("iptables mangle {chain}"));
        let mangle = mangle.each_ref().map(String::as_str);
        expect("iptables-legacy -t mangle -L -n >/dev/null", &mangle, &[]);
        let dropped = [&["iptables mangle FORWARD forward: 0 rules, drops"], &mangle[1..]].concat();
        expect("iptables-legacy -t mangle -P FORWARD DROP", &dropped, &[]);
        drop(host);
    });
}

/// A device that accepts ICMP redirects changes the gateways of packets that others forward through it,
/// without a message.
#[test]
#[ignore = "needs root"]
fn devices_that_take_redirects_keep_their_router_with_the_kernel() {
    with_bed(|_| {
        sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
        let mut observer = observer();
        let hazards = |e: &Event| match e {
            Event::Settings(HOST, s) => Some([s.hazards4.clone(), s.hazards6.clone()]),
            Event::Dump(HOST, dump) => Some([dump.settings.hazards4.clone(), dump.settings.hazards6.clone()]),
            _ => None,
        };
        assert_eq!(until(&mut observer, "the first dump", hazards), [Vec::<Cause>::new(), Vec::new()]);
        let mut expect = |setting: &str, wanted: [Option<&str>; 2]| {
            sh(&format!("sysctl -qw {setting}"));
            until(&mut observer, setting, |e| {
                let fits = |(have, want): (&Vec<Cause>, Option<&str>)| match (&have[..], want) {
                    ([], None) => true,
                    ([one], Some(want)) => one.contains("accepts ICMP redirects") && one.contains(want),
                    _ => false,
                };
                hazards(e)?.iter().zip(wanted).all(fits).then_some(())
            });
        };
        // Devices that forward accept redirects if both settings allow it, other devices if one does.
        expect("net.ipv4.conf.all.accept_redirects=1", [Some("accept_redirects=0"), None]);
        expect("net.ipv4.conf.all.accept_redirects=0", [None, None]);
        expect("net.ipv4.conf.port0.forwarding=0", [Some("net/ipv4/conf/port0/accept_redirects=0"), None]);
        expect("net.ipv4.conf.port0.accept_redirects=0", [None, None]);
        expect("net.ipv6.conf.port0.forwarding=0", [None, Some("net/ipv6/conf/port0/accept_redirects=0")]);
        expect("net.ipv6.conf.port0.accept_redirects=0", [None, None]);
    });
}

#[test]
#[ignore = "needs root"]
fn qdiscs_and_filters_are_reported_with_their_device() {
    with_bed(|_| {
        let mut observer = observer();
        settle(&mut observer);
        let mut expect = |command: &str, wanted: Option<&str>| {
            sh(command);
            until(&mut observer, command, |e| match e {
                Event::Link(HOST, l) if l.name == "port0" => match (wanted, &l.hazards[..]) {
                    (None, []) => Some(()),
                    (Some(wanted), [hazard]) => hazard.contains(wanted).then_some(()),
                    _ => None,
                },
                _ => None,
            });
        };
        expect("tc qdisc add dev port0 root tbf rate 1mbit burst 10k latency 10ms", Some("qdisc tbf"));
        expect("tc qdisc del dev port0 root", None);
        sh("tc qdisc add dev port0 clsact");
        expect(
            "tc filter add dev port0 ingress protocol ip u32 match u32 0 0",
            Some("tc filters on its qdisc clsact"),
        );
        expect("tc qdisc del dev port0 clsact", None);
        sh("tc qdisc add dev port0 clsact");
        expect("tc filter add dev port0 egress protocol all u32 match u32 0 0", Some("its qdisc clsact"));
        expect("tc qdisc del dev port0 clsact", None);
        // A filter of a shared block belongs to no device, and is in force on every device that has the
        // block.
        sh("tc qdisc add dev port0 ingress_block 7 ingress");
        expect("tc filter add block 7 protocol ip u32 match u32 0 0", Some("its qdisc ingress"));
        expect("tc qdisc del dev port0 ingress", None);
        sh("tc qdisc add dev port0 egress_block 8 clsact");
        expect("tc filter add block 8 chain 5 protocol ip u32 match u32 0 0", Some("its qdisc clsact"));
        expect("tc filter del block 8 chain 5", None);
        sh("tc qdisc del dev port0 clsact");
        // A qdisc of a kind that can hold packets back, although it does not with its options.
        expect("tc qdisc add dev port0 root pfifo limit 1000", Some("qdisc pfifo,"));
        expect("tc qdisc replace dev port0 root pfifo_fast", None);
    });
}

/// A qdisc that the kernel chooses has handle 0. Filters can be attached to it if it is the root.
#[test]
#[ignore = "needs root"]
fn filters_on_a_default_qdisc_are_found() {
    const DEFAULT: &str = "/proc/sys/net/core/default_qdisc";
    let default = |kind: &str| std::fs::write(DEFAULT, kind);
    let was = std::fs::read_to_string(DEFAULT).unwrap();
    if let Err(error) = default("fq_codel") {
        eprintln!("SKIPPED: no fq_codel in this kernel: {error}");
        return;
    }
    with_bed(|_| {
        let mut observer = observer();
        sh("ip tuntap add dev tap0 mode tap; ip link set tap0 up");
        sh("tc qdisc show dev tap0 | grep -q 'qdisc fq_codel 0: root'");
        let mut expect = |command: &str, wanted: Option<&str>| {
            sh(command);
            until(&mut observer, command, |e| match e {
                Event::Link(HOST, l) if l.name == "tap0" => match (wanted, &l.hazards[..]) {
                    (None, []) => Some(()),
                    (Some(wanted), [hazard]) => hazard.contains(wanted).then_some(()),
                    _ => None,
                },
                _ => None,
            });
        };
        let way_out = "tc filters on its qdisc fq_codel; remove them with: tc filter del dev tap0";
        expect("tc filter add dev tap0 protocol ip u32 match u32 0 0", Some(way_out));
        expect("tc filter del dev tap0", None);
    });
    default(was.trim()).unwrap();
}

/// The interface `device` of a namespace other than the host, as the mirror has it, once its reasons are as
/// wanted.
fn tenant(
    watcher: &mut Watcher,
    mirror: &mut Mirror,
    device: &str,
    command: &str,
    wanted: Option<&str>,
) -> InterfaceView {
    until(watcher, command, |event| {
        mirror.observe(event.clone());
        mirror.plan();
        let interface = mirror.interfaces().find(|i| i.namespace != HOST && i.name == device)?;
        let fits = match (wanted, &interface.reasons4[..]) {
            (None, []) => interface.ipv4 && interface.ipv6,
            (Some(wanted), [reason]) => reason.contains(wanted) && !interface.ipv4 && !interface.ipv6,
            _ => false,
        };
        fits.then_some(interface)
    })
}

/// A macvlan in another namespace gets its packets after the port's own hooks have seen them.
#[test]
#[ignore = "needs root"]
fn hazards_of_a_port_reach_the_tenants_on_it() {
    with_bed(|bed| {
        let red = bed.namespace("red");
        let forward = "net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1";
        sh(&format!(
            "ip link add link port0 name m0 netns {red} type macvlan mode bridge; \
             ip netns exec {red} sysctl -qw {forward}; ip -n {red} link set m0 up"
        ));
        let (mut observer, mut mirror) = (observer(), Mirror::new(Limits::default()));
        let mut expect = |command: &str, wanted: Option<&str>| {
            sh(command);
            tenant(&mut observer, &mut mirror, "m0", command, wanted);
        };
        expect("true", None);
        for (family, hook) in [("netdev", "ingress"), ("inet", "ingress"), ("netdev", "egress")] {
            let chain =
                format!("add chain {family} f c {{ type filter hook {hook} device port0 priority 0; }}");
            let told = format!(
                "below, on port0: Linux must apply the rules of nftables chain {family} f c to each packet at {hook} of port0; "
            );
            expect(&format!("nft 'add table {family} f; {chain}'"), None);
            expect(&format!("nft add rule {family} f c accept"), Some(&told));
            expect(&format!("nft delete table {family} f"), None);
        }
        // A chain of another device is not reported for the port, so the next report is about the qdisc
        // below.
        sh(
            "nft 'add table netdev f; add chain netdev f c { type filter hook ingress device lo priority 0; }'",
        );
        expect(
            "tc qdisc add dev port0 root tbf rate 1mbit burst 10k latency 10ms",
            Some("port0 has the qdisc tbf"),
        );
        expect("tc qdisc del dev port0 root", None);

        let program = load_program(sys::BPF_PROG_TYPE_XDP, 2, None);
        let namespace = File::open(format!("/run/netns/{red}")).unwrap();
        let attached = netns::inside(&namespace, || {
            let name = c"m0";
            // SAFETY: a terminated string.
            let ifindex = unsafe { libc::if_nametoindex(name.as_ptr()) } as i32;
            // SAFETY: no options are passed.
            unsafe { sys::bpf_xdp_attach(ifindex, program.as_raw_fd(), 0, std::ptr::null()) }
        });
        assert_eq!(attached.unwrap(), 0);
        let way_out = format!("ip netns exec {red} ip link set dev m0 xdp off");
        expect("true", Some(&format!("m0 runs an XDP program; detach it with: {way_out}")));
        expect(&way_out, None);
        // Attached by a BPF link, which the kernel does not report.
        let link = netns::inside(&namespace, || {
            // SAFETY: a terminated string; no options are passed.
            own(unsafe {
                let ifindex = libc::if_nametoindex(c"m0".as_ptr()) as i32;
                sys::bpf_link_create(program.as_raw_fd(), ifindex, sys::BPF_XDP, std::ptr::null())
            })
        });
        expect("true", Some("m0 runs an XDP program"));
        drop(link.unwrap());
        expect("true", None);
    });
}

#[test]
#[ignore = "needs root"]
fn a_macvtap_is_known_and_left_to_the_kernel() {
    with_bed(|bed| {
        let red = bed.namespace("red");
        sh(&format!(
            "ip link add link port0 name t0 netns {red} type macvtap mode bridge; \
             ip netns exec {red} sysctl -qw net.ipv4.conf.t0.forwarding=1; ip -n {red} link set t0 up"
        ));
        let (mut observer, mut mirror) = (observer(), Mirror::new(Limits::default()));
        let tap = tenant(&mut observer, &mut mirror, "t0", "macvtap", Some("t0 is a macvtap"));
        assert!(tap.interface.is_some(), "the MAC address of t0 is not in the tables");
    });
}

/// The device takes packets of the host's port like an ipvlan in a container, which this kernel lacks. It is
/// found although the port shows no sign of it.
#[test]
#[ignore = "needs root"]
fn a_device_in_a_container_that_takes_packets_keeps_its_port_with_the_kernel() {
    with_bed(|bed| {
        let pid = bed.unnamed();
        sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
        let (mut observer, mut mirror) = (observer(), Mirror::new(Limits::default()));
        let mut expect = |command: &str, wanted: Option<&str>| {
            sh(command);
            until(&mut observer, command, |event| {
                mirror.observe(event.clone());
                mirror.plan();
                let port = mirror.interfaces().find(|i| i.namespace == HOST && i.name == "port0")?;
                let fits = match (wanted, &port.reasons4[..]) {
                    (None, []) => port.ipv4 && port.transmit,
                    (Some(wanted), [reason]) => reason == &wanted && !port.ipv4 && !port.transmit,
                    _ => false,
                };
                fits.then_some(())
            });
        };
        expect("true", None);
        expect(
            &format!("ip link add link port0 name s0 netns {pid} type macvlan mode source"),
            Some("a macvlan of mode source (s0) takes packets of its device"),
        );
        expect(&format!("nsenter -t {pid} -n ip link del s0"), None);
        // A setting that changes next hops, and flags that change nothing.
        sh("ip link set port0 promisc on allmulticast on");
        expect("ip link set port0 arp off", Some("port0 does not resolve addresses (IFF_NOARP)"));
        expect("ip link set port0 arp on", None);
    });
}

/// Attaches a program that lets everything pass. It stays as long as the result lives.
fn attach_tcx(ifindex: i32) -> [OwnedFd; 2] {
    // TCX_NEXT
    let program = load_program(sys::BPF_PROG_TYPE_SCHED_CLS, -1, None);
    // SAFETY: no options are passed.
    let link = own(unsafe {
        sys::bpf_link_create(program.as_raw_fd(), ifindex, sys::BPF_TCX_INGRESS, std::ptr::null())
    });
    [program, link]
}

#[test]
#[ignore = "needs root"]
fn tcx_programs_are_found() {
    with_bed(|_| {
        let mut observer = observer();
        let port =
            until(&mut observer, "port", |e| if let Event::Port(0, p) = e { Some(p.ifindex) } else { None });
        settle(&mut observer);
        let attached = attach_tcx(port as i32);
        until(&mut observer, "tcx program", |e| {
            matches!(e, Event::Link(HOST, l) if l.hazards.iter().any(|h| h.contains("1 tcx program")))
                .then_some(())
        });
        drop(attached);
        until(&mut observer, "end of it", |e| {
            matches!(e, Event::Link(HOST, l) if l.hazards.is_empty()).then_some(())
        });
    });
}

/// The device of a new port has had a program for long. No event says that, so the observer reports both at once.
#[test]
#[ignore = "needs root"]
fn a_new_port_comes_with_its_programs() {
    with_bed(|bed| {
        let mut observer = observer();
        sh(&format!("ip link add other type veth peer name far9 netns {}", bed.name("peer")));
        settle(&mut observer);
        // SAFETY: a C string.
        let ifindex = unsafe { libc::if_nametoindex(c"other".as_ptr()) };
        let attached = attach_tcx(ifindex as i32);
        let ports = [(0, "port0".parse().unwrap()), (1, "other".parse().unwrap())].into();
        observer.observer.configure(&ports, Vec::new(), Quota::default());
        let events = observer.observer.poll(Duration::ZERO).unwrap();
        let has_port = |e: &Event| matches!(e, Event::Port(1, port) if port.ifindex == ifindex);
        let has_program = |e: &Event| matches!(e, Event::Link(HOST, l) if l.ifindex == ifindex && l.hazards.iter().any(|h| h.contains("tcx")));
        assert!(events.iter().any(has_port) && events.iter().any(has_program), "{events:?}");
        drop(attached);
    });
}

#[test]
#[ignore = "needs root"]
fn a_veth_peer_that_breaks_packets_is_named() {
    with_bed(|bed| {
        let peer = bed.name("peer");
        let mut observer = observer();
        let problems = |watcher: &mut Watcher| -> Vec<ProblemKind> {
            watcher.port_problems(0).iter().map(|p| p.kind).collect()
        };
        assert_eq!(problems(&mut observer), [PartialChecksums, VlanTagsHidden, CannotTransmit]);
        let text = observer.port_problems(0)[0].to_string();
        assert_eq!(
            text,
            format!(
                "veth peer far0 in namespace {peer} sends partial checksums; \
                 run: ip netns exec {peer} ethtool -K far0 tx off"
            )
        );
        // Every command that is offered must work.
        for problem in observer.port_problems(0) {
            sh(problem.text.split_once("run: ").unwrap().1);
        }
        assert_eq!(problems(&mut observer), []);
    });
}

/// This test must not run with others. The kernel does not say in which namespace such a program hooks, so
/// all of them are affected.
#[test]
#[ignore = "changes what other tests see"]
fn bpf_netfilter_programs_are_found() {
    with_bed(|_| {
        let mut observer = observer();
        settle(&mut observer);
        let load = sys::bpf_prog_load_opts {
            sz: size_of::<sys::bpf_prog_load_opts>() as sys::size_t,
            expected_attach_type: sys::BPF_NETFILTER,
            ..Default::default()
        };
        // NF_ACCEPT
        let program = load_program(sys::BPF_PROG_TYPE_NETFILTER, 1, Some(load));
        let mut options = sys::bpf_link_create_opts {
            sz: size_of::<sys::bpf_link_create_opts>() as sys::size_t,
            ..Default::default()
        };
        options.__bindgen_anon_1.netfilter.pf = libc::AF_INET6 as u32;
        options.__bindgen_anon_1.netfilter.hooknum = 2;
        options.__bindgen_anon_1.netfilter.priority = 7;
        // SAFETY: the options live across the call and say their size.
        let link = own(unsafe {
            sys::bpf_link_create(program.as_raw_fd(), 0, sys::BPF_NETFILTER, &raw const options)
        });
        until(&mut observer, "hook", |e| match e {
            Event::Settings(HOST, s) => (s.hazards4.is_empty()
                && s.hazards6.iter().any(|h| h.contains("hooks forward")))
            .then_some(()),
            _ => None,
        });
        drop(link);
        until(&mut observer, "end of it", |e| {
            matches!(e, Event::Settings(HOST, s) if s.hazards6.is_empty()).then_some(())
        });
    });
}
