//! Which links are interfaces, what keeps them with the kernel, and how they begin and end.

use super::*;
use crate::{
    net::Vlan,
    plan::{Hop, Interface, InterfaceId},
};

fn red(links: Vec<Link>) -> Dump {
    Dump { links, ..Dump::default() }
}

/// A host with ports, VLAN 100 of port 0 as link 3, and `links` in `red`.
fn bench(links: Vec<Link>) -> Bench {
    let host = vec![physical(1), physical(2), vlan(3, 100, (HOST, 1)), vlan(4, 7, (HOST, 3)), physical(9)];
    let mut bench = Bench::with(Limits::default(), red(host));
    bench.add_red(red(links));
    bench
}

fn view(bench: &Bench, namespace: NamespaceId, ifindex: u32) -> Option<InterfaceView> {
    bench.mirror.interfaces().find(|i| (i.namespace, i.ifindex) == (namespace, ifindex))
}

use super::super::InterfaceView;

#[test]
fn interfaces_are_ports_and_their_vlan_and_macvlan_children() {
    let mode = |mode| Link { kind: LinkKind::Macvlan(mode), ..macvlan(20, (HOST, 1)) };
    let rows: Vec<(&str, Link, Option<(u8, &str)>)> = vec![
        ("macvlan of a port", macvlan(20, (HOST, 1)), Some((0, "-"))),
        ("macvlan of the other port", macvlan(20, (HOST, 2)), Some((1, "-"))),
        ("macvlan, private", mode(MacvlanMode::Private), Some((0, "-"))),
        ("macvlan, vepa", mode(MacvlanMode::Vepa), Some((0, "-"))),
        ("macvlan of a VLAN child", macvlan(20, (HOST, 3)), Some((0, "100"))),
        ("macvlan of two tags", macvlan(20, (HOST, 4)), Some((0, "100.7"))),
        ("VLAN of a port", vlan(20, 5, (HOST, 2)), Some((1, "5"))),
        ("VLAN of a VLAN", vlan(20, 5, (HOST, 3)), Some((0, "100.5"))),
        ("three tags", vlan(20, 5, (HOST, 4)), None),
        ("macvlan of another device", macvlan(20, (HOST, 9)), None),
        ("macvlan of an unknown namespace's device", macvlan(20, (77, 1)), None),
        ("veth", link(20, LinkKind::Other("veth".into()), Some((HOST, 1))), None),
        ("no device below", physical(20), None),
    ];
    for (name, link, expected) in rows {
        let view = view(&bench(vec![link]), RED, 20);
        let found = view.as_ref().map(|v| (v.port, v.vlan.to_string()));
        assert_eq!(found, expected.map(|(port, vlan)| (port, vlan.to_string())), "{name}");
        assert!(view.is_none_or(|v| v.ipv4 && v.ipv6 && v.transmit && v.reasons4.is_empty()), "{name}");
    }
}

/// A macvlan in `red` above VLAN 100 above port 0. Each row changes one thing.
#[test]
fn an_unsafe_interface_stays_with_the_kernel_and_shows_why() {
    type Change = fn(&mut Link);
    const UP: [bool; 3] = [true; 3];
    let rows: Vec<(NamespaceId, u32, Change, [bool; 3], &str)> = vec![
        (RED, 20, |_| {}, UP, ""),
        (RED, 20, |l| l.ipv4.forwarding = false, [false, true, true], "IPv4 forwarding is off on if20"),
        (RED, 20, |l| l.ipv6.forwarding = false, [true, false, true], "IPv6 forwarding is off on if20"),
        (RED, 20, |l| l.ipv6.disabled = true, [true, false, true], "IPv6 is disabled on if20"),
        (HOST, 1, |l| l.ipv4.forwarding = false, UP, ""),
        (RED, 20, |l| l.up = false, [false; 3], "if20 is down"),
        (HOST, 3, |l| l.up = false, [false; 3], "if3 is down"),
        (HOST, 1, |l| l.up = false, [false; 3], "if1 is down"),
        (HOST, 1, |l| l.carrier = false, [true, true, false], ""),
        (HOST, 1, |l| l.running = false, [true, true, false], ""),
        (RED, 20, |l| l.running = false, [true, true, false], ""),
        (RED, 20, |l| l.ipv4.accept_local = true, UP, ""),
        (
            HOST,
            1,
            |l| l.kind = LinkKind::Other("vrf".into()),
            [false; 3],
            "if1 is a vrf, which cannot be a port",
        ),
        (RED, 20, |l| l.hazards.push(Code::Qdisc.cause("qdisc tbf")), [false; 3], "qdisc tbf"),
        (
            HOST,
            1,
            |l| l.hazards.push(Code::TcFilter.cause("tc filter")),
            [false; 3],
            "below, on if1: tc filter",
        ),
        (RED, 20, |l| l.xdp = Some(Code::Xdp.cause("XDP")), [false; 3], "XDP"),
        (HOST, 3, |l| l.xdp = Some(Code::Xdp.cause("XDP")), [false; 3], "XDP"),
        (HOST, 1, |l| l.xdp = Some(Code::Xdp.cause("ours")), UP, ""),
        (
            RED,
            20,
            |l| l.kind = LinkKind::Macvtap(MacvlanMode::Bridge),
            [false; 3],
            "if20 is a macvtap: its packets go to the program that has it open",
        ),
        (RED, 20, |l| l.master = Some(30), [false; 3], "if20 is enslaved to the vrf if30"),
        (HOST, 3, |l| l.master = Some(77), [false; 3], "if3 is enslaved to another device"),
        (
            RED,
            20,
            |l| l.ipv4.unusual.push("route_localnet".into()),
            [false, true, true],
            "IPv4 setting route_localnet is on for if20",
        ),
        (
            RED,
            20,
            |l| l.ipv6.unusual.push("seg6_enabled".into()),
            [true, false, true],
            "IPv6 setting seg6_enabled is on for if20",
        ),
        (
            RED,
            20,
            |l| l.kind = LinkKind::Macvlan(MacvlanMode::Passthru),
            [false; 3],
            "if20 is a macvlan of mode passthru",
        ),
        (
            RED,
            20,
            |l| l.kind = LinkKind::Macvlan(MacvlanMode::Source),
            [false; 3],
            "if20 is a macvlan of mode source",
        ),
        (RED, 20, |l| l.mac = Mac::default(), [false; 3], "if20 has no MAC address of its own"),
    ];
    for (namespace, ifindex, change, expected, reason) in rows {
        let links = || vec![macvlan(20, (HOST, 3)), link(30, LinkKind::Other("vrf".into()), None)];
        let mut bench = bench(links());
        let host = [physical(1), vlan(3, 100, (HOST, 1))];
        let mut changed = links().into_iter().chain(host).find(|l| l.ifindex == ifindex).unwrap();
        let before = changed.clone();
        change(&mut changed);
        bench.after([Event::Link(namespace, changed)]);
        let now = view(&bench, RED, 20).unwrap();
        assert_eq!([now.ipv4, now.ipv6, now.transmit], expected, "{reason}");
        let mut reasons = [now.reasons4, now.reasons6].concat();
        reasons.dedup();
        assert_eq!(reasons, Vec::from_iter((!reason.is_empty()).then_some(reason)));
        let planned = &bench.model.interfaces[&now.interface.unwrap()];
        assert_eq!([planned.ipv4, planned.ipv6, planned.transmit], expected, "{reason}");
        let accepts = bench.mirror.link(RED, 20).unwrap().ipv4.accept_local;
        assert_eq!(planned.accept_local, accepts, "{reason}");
        bench.after([Event::Link(namespace, before)]);
        let now = view(&bench, RED, 20).unwrap();
        assert_eq!([now.ipv4, now.ipv6, now.transmit], UP, "{reason}: and back");
    }
}

#[test]
fn routers_have_reasons_of_their_own() {
    let default_table = Route { table: 253, ..route4("10.0.0.0/8", dev(20)) };
    let settings = |hazards4: &[&str], hazards6: &[&str]| {
        let owned = |list: &[&str]| list.iter().map(|s| Code::PolicyRule.cause(*s)).collect();
        Event::Settings(
            RED,
            Settings { hazards4: owned(hazards4), hazards6: owned(hazards6), ..Settings::default() },
        )
    };
    let rows: Vec<(Event, [&[&str]; 2])> = vec![
        (settings(&["nftables"], &[]), [&["nftables"], &[]]),
        (settings(&[], &["a policy rule"]), [&[], &["a policy rule"]]),
        (settings(&[], &[]), [&[], &[]]),
        (Event::Route4(RED, Change::Add, local4("10.7.0.0/16")), [&[], &[]]),
        (
            Event::Route4(RED, Change::Add, default_table.clone()),
            [&["table default (253) holds routes"], &[]],
        ),
        (Event::Route4(RED, Change::Delete, default_table), [&[], &[]]),
    ];
    let mut bench = bench(vec![macvlan(20, (HOST, 1))]);
    for (at, (event, [reasons4, reasons6])) in rows.into_iter().enumerate() {
        bench.after([event]);
        let router = bench.mirror.routers().find(|r| r.name == "red").unwrap();
        assert_eq!(
            (texts(&router.ipv4), texts(&router.ipv6)),
            (reasons4.to_vec(), reasons6.to_vec()),
            "row {at}"
        );
        let interface = view(&bench, RED, 20).unwrap();
        assert_eq!((interface.ipv4, interface.ipv6), (reasons4.is_empty(), reasons6.is_empty()), "row {at}");
        assert_eq!((interface.reasons4, interface.reasons6), (vec![], vec![]), "the interface has none");
        assert!(view(&bench, HOST, 1).unwrap().ipv4, "the host's router is not affected");
    }
}

#[test]
fn reverse_path_follows_the_addresses() {
    use ReversePath::*;
    let rows = [
        (Off, true, Off),
        (Off, false, Off),
        (Loose, true, Loose),
        (Loose, false, Strict),
        (Strict, false, Strict),
    ];
    for (setting, has_address, expected) in rows {
        let bench = bench(vec![filtering(macvlan(20, (HOST, 1)), setting, has_address)]);
        let id = view(&bench, RED, 20).unwrap().interface.unwrap();
        assert_eq!(bench.model.interfaces[&id].reverse_path, expected, "{setting:?} {has_address}");
    }
}

#[test]
fn takers_of_packets_keep_their_device_with_the_kernel() {
    let rows = [
        (
            Link { kind: LinkKind::Macvlan(MacvlanMode::Source), ..macvlan(30, (HOST, 1)) },
            "a macvlan of mode source",
        ),
        (
            Link { kind: LinkKind::Macvtap(MacvlanMode::Passthru), ..macvlan(30, (HOST, 1)) },
            "a macvtap of mode passthru",
        ),
        (link(30, LinkKind::Other("ipvlan".into()), Some((HOST, 1))), "an ipvlan"),
    ];
    for (taker, what) in rows {
        let bench = bench(vec![macvlan(20, (HOST, 1)), vlan(21, 5, (HOST, 1)), taker]);
        let reason = vec![format!("{what} (if30) takes packets of its device")];
        assert_eq!(view(&bench, RED, 20).unwrap().reasons4, reason);
        assert_eq!(view(&bench, HOST, 1).unwrap().reasons4, reason);
        assert!(view(&bench, RED, 21).unwrap().ipv4, "VLAN tags are handled first");
        assert!(view(&bench, HOST, 2).unwrap().ipv4, "another port is not affected");
    }
}

/// A device of an unknown kind may take packets of the device that it names, with any tags, or packets of any device in
/// its namespace. A device of a kind that is known to take none does not.
#[test]
fn devices_of_unknown_kinds_keep_packets_with_the_kernel() {
    let other = |kind: &str, below| link(30, LinkKind::Other(kind.into()), below);
    let (host1, red20) = (Some((HOST, 1)), Some((RED, 20)));
    let takes = "(if30) takes packets of its device";
    let any = "(if30) may take packets of any device here: its kind is not known";
    // (namespace, device, its name in the sentence, the end of the sentence, whether this affects: port 0, VLAN 100 on
    // it, port 1, a macvlan on port 0)
    let rows = [
        (RED, other("rmnet", host1), "a rmnet", takes, [true, true, false, true]),
        (HOST, other("dsa", host1), "a dsa", takes, [true, true, false, true]),
        (RED, link(30, LinkKind::Physical, host1), "a device", takes, [true, true, false, true]),
        (HOST, other("hsr", None), "a hsr", any, [true; 4]),
        (RED, other("hsr", None), "a hsr", any, [false, false, false, true]),
        (RED, other("rmnet", red20), "a rmnet", takes, [false, false, false, true]),
        (RED, other("ipvlan", red20), "an ipvlan", takes, [false, false, false, true]),
        (RED, other("macsec", host1), "MACsec", takes, [true, false, false, true]),
        (RED, other("veth", host1), "", "", [false; 4]),
        (RED, other("gre", host1), "", "", [false; 4]),
        (HOST, other("vxlan", None), "", "", [false; 4]),
        (HOST, other("bridge", None), "", "", [false; 4]),
    ];
    for (namespace, link, what, does, concerned) in rows {
        let kind = link.kind.clone();
        let mut bench = bench(vec![macvlan(20, (HOST, 1))]);
        bench.after([Event::Link(namespace, link)]);
        let devices = [(HOST, 1), (HOST, 3), (HOST, 2), (RED, 20)];
        for ((namespace, ifindex), concerned) in devices.into_iter().zip(concerned) {
            let view = view(&bench, namespace, ifindex).unwrap();
            let expected = Vec::from_iter(concerned.then(|| format!("{what} {does}")));
            assert_eq!(view.reasons4, expected, "{kind:?}: device {ifindex} of namespace {namespace}");
            assert_eq!((view.ipv4, view.transmit), (expected.is_empty(), expected.is_empty()), "{kind:?}");
        }
    }
}

#[test]
fn frames_of_vlan_0_are_untagged_where_no_device_has_that_vlan() {
    let tagged = |bench: &Bench, namespace, ifindex| {
        let id = view(bench, namespace, ifindex).unwrap().interface.unwrap();
        bench.model.interfaces[&id].priority_tags
    };
    let mut bench = bench(vec![macvlan(20, (HOST, 1))]);
    assert!(tagged(&bench, HOST, 1) && tagged(&bench, HOST, 2) && tagged(&bench, RED, 20));
    assert!(!tagged(&bench, HOST, 3), "a VLAN has a tag of its own");
    bench.after([Event::Link(RED, vlan(21, 0, (HOST, 1)))]);
    assert!(!tagged(&bench, HOST, 1) && tagged(&bench, HOST, 2) && !tagged(&bench, RED, 20));
    bench.after([Event::LinkGone(RED, 21), Event::Link(RED, vlan(22, 0, (RED, 20)))]);
    assert!(tagged(&bench, HOST, 1) && !tagged(&bench, RED, 20));
}

#[test]
fn a_new_mac_is_a_new_interface() {
    let mut bench = Bench::host(vec![route4("10.0.0.0/8", dev(1))], vec![]);
    bench.after([Event::Neighbour(HOST, neighbour(1, "10.0.0.9", Some(mac(99))))]);
    let ops = bench.after([Event::Link(HOST, Link { mac: mac(50), ..physical(1) })]);
    let wanted = Interface {
        router: 0,
        port: 0,
        vlan: Vlan::NONE,
        mac: mac(50),
        ipv4: true,
        ipv6: true,
        transmit: true,
        reverse_path: ReversePath::Off,
        redirects: true,
        accept_local: false,
        priority_tags: true,
        look_at_sources: false,
        group: 0,
    };
    let target = Target::Hop(Hop { interface: 3, gateway: None, mtu: 1500 });
    let quiet = Interface { ipv4: false, ipv6: false, ..wanted.clone() };
    assert_eq!(
        ops,
        [
            Op::InterfaceGone(1),
            Op::Interface(3, quiet),
            Op::Neighbour(3, ip("10.0.0.9"), Some(mac(99))),
            Op::Route4(0, p4("10.0.0.0/8"), Some(target)),
            Op::Interface(3, wanted),
        ]
    );
}

#[test]
fn a_link_down_is_one_operation_and_comes_first() {
    let mut bench = Bench::host(vec![route4("10.0.0.0/8", dev(1))], vec![]);
    let route = route4("10.2.0.0/16", dev(2));
    let ops = bench.after([
        Event::Route4(HOST, Change::Add, route.clone()),
        Event::Link(HOST, Link { up: false, ..physical(1) }),
    ]);
    assert!(matches!(&ops[0], Op::Interface(1, i) if !i.transmit && !i.ipv4 && !i.ipv6), "{ops:?}");
    assert_eq!(ops.len(), 2);
    let ops = bench.after([Event::Link(HOST, physical(1)), Event::Route4(HOST, Change::Delete, route)]);
    assert!(
        matches!(&ops[1], Op::Interface(1, i) if i.transmit && i.ipv4 && i.ipv6),
        "and on comes last: {ops:?}"
    );
}

#[test]
fn namespaces_and_ports_take_everything_with_them() {
    let mut bench = bench(vec![macvlan(20, (HOST, 1)), macvlan(21, (HOST, 2))]);
    bench.after([Event::Route4(RED, Change::Add, route4("10.0.0.0/8", dev(21)))]);
    let ids = [20, 21].map(|ifindex| view(&bench, RED, ifindex).unwrap().interface.unwrap());
    let ops = bench.after([Event::PortGone(1)]);
    assert!(ops.contains(&Op::InterfaceGone(ids[1])) && !bench.model.interfaces.contains_key(&ids[1]));
    let not_a_port = Target::Pass { reason: crate::reason::Reason::EgressNotAPort, unicast: true };
    assert_eq!(bench.model.routers[&1].routes4[&p4("10.0.0.0/8")], not_a_port);
    assert_eq!(bench.after([Event::NamespaceGone(RED)]), [Op::InterfaceGone(ids[0]), Op::RouterGone(1)]);
    assert_eq!(bench.mirror.link_of(ids[0]), None);
}

#[test]
fn a_namespace_without_interfaces_is_no_router_but_is_remembered() {
    let mut bench = bench(vec![physical(1)]);
    bench.after([
        Event::Route4(RED, Change::Add, route4("10.0.0.0/8", dev(20))),
        Event::Route4(RED, Change::Add, local4("10.0.0.1/32")),
        Event::Neighbour(RED, neighbour(20, "10.0.0.9", Some(mac(99)))),
    ]);
    assert_eq!(bench.model.routers.len(), 1);
    let router = bench.mirror.routers().find(|r| r.name == "red").unwrap();
    assert_eq!(
        (router.router, router.ipv4),
        (None, vec![Code::NoInterface.cause("it has no interface on a port")])
    );
    bench.after([Event::Link(RED, macvlan(20, (HOST, 1)))]);
    let id = view(&bench, RED, 20).unwrap().interface.unwrap();
    assert!(
        matches!(&bench.model.routers[&1].routes4[&p4("10.0.0.0/8")], Target::Hop(h) if h.interface == id)
    );
    assert_eq!(bench.model.neighbours[&(id, ip("10.0.0.9"))], mac(99));
    assert!(bench.model.routers[&1].addresses.contains(&0x0a00_0001));
}

#[test]
fn a_link_that_moves_is_with_the_kernel_while_it_is_seen_twice() {
    let mut bench = bench(vec![]);
    let moved = macvlan(20, (HOST, 1));
    bench.after([Event::Link(HOST, moved.clone())]);
    bench.after([Event::Link(RED, moved)]);
    let (old, new) = (view(&bench, HOST, 20).unwrap(), view(&bench, RED, 20).unwrap());
    assert_eq!((old.ipv4, old.transmit, new.interface), (false, false, None));
    assert_eq!(new.reasons4, ["same port, VLAN and MAC as if20"]);
    bench.after([Event::LinkGone(HOST, 20)]);
    assert!(view(&bench, RED, 20).unwrap().ipv4);
}

#[test]
fn interfaces_and_routers_over_the_limit_wait_and_show_why() {
    let links = (0..4).map(|i| macvlan(20 + i, (HOST, 1))).chain([physical(1), physical(2)]).collect();
    let mut bench = Bench::with(Limits { routers: 1, interfaces: 5, ..Limits::default() }, red(links));
    let waiting = view(&bench, HOST, 23).unwrap();
    assert_eq!(waiting.interface, None);
    assert_eq!(waiting.reasons4, ["there are too many interfaces: no number is free"]);
    let addresses = |bench: &Bench| bench.model.others.iter().map(|a| (a.0, a.2)).collect::<Vec<_>>();
    assert_eq!(addresses(&bench), [(0, mac(23))], "it is still an address of this box");
    bench.add_red(red(vec![macvlan(40, (HOST, 2))]));
    let router = bench.mirror.routers().find(|r| r.name == "red").unwrap();
    assert_eq!(router.ipv4, ["there are too many routers: no number is free"]);
    assert_eq!(router.ipv6, router.ipv4);
    assert_eq!(view(&bench, RED, 40).unwrap().reasons4, ["there are too many routers: no number is free"]);
    assert_eq!(addresses(&bench), [(0, mac(23)), (1, mac(40))]);

    let freed: InterfaceId = view(&bench, HOST, 20).unwrap().interface.unwrap();
    bench.see(Event::LinkGone(HOST, 20));
    let plans: Vec<Vec<Op>> = (0..3).map(|_| bench.mirror.plan()).collect();
    plans.iter().for_each(|ops| bench.model.apply(ops));
    assert_eq!((&plans[0][..], &plans[1][..]), (&[Op::InterfaceGone(freed)][..], &[][..]));
    assert!(matches!(plans[2][0], Op::Interface(id, _) if id == freed), "after a whole cycle: {plans:?}");
    assert!(view(&bench, HOST, 23).unwrap().ipv4);
    assert_eq!(addresses(&bench), [(1, mac(40))]);
}

/// A dump of macvlans on port 0, `count` from number `first` on.
fn macvlans(first: u8, count: u8) -> Dump {
    let link = |i| macvlan(100 + u32::from(i), (HOST, 1));
    red((first..first + count).map(link).collect())
}

#[test]
fn a_namespace_with_many_interfaces_leaves_the_last_numbers_to_others() {
    let host = red(vec![physical(1), physical(2)]);
    let mut bench = Bench::with(Limits { interfaces: 32, ..Limits::default() }, host);
    bench.add(RED, namespace("red"), macvlans(0, 40));
    let has = |bench: &Bench, of: NamespaceId| {
        let interfaces = bench.mirror.interfaces();
        interfaces.filter(|i| i.namespace == of && i.interface.is_some()).count()
    };
    // Of the 30 numbers that the host leaves, this party gets 29.
    assert_eq!(has(&bench, RED), 29);
    let refused = view(&bench, RED, 139).unwrap();
    assert_eq!(
        refused.reasons4,
        ["the namespace or its owner has too many interfaces: the last free numbers are kept for others"]
    );
    assert_eq!(bench.model.others.len(), 11, "they are still addresses of this box");
    bench.add(2, namespace("blue"), macvlans(40, 1));
    assert_eq!(has(&bench, 2), 1);
}

#[test]
fn an_owner_with_many_namespaces_leaves_the_last_routers_to_others() {
    let host = red(vec![physical(1), physical(2)]);
    let mut bench = Bench::with(Limits { routers: 19, ..Limits::default() }, host);
    let mut add = |id: u8, owner| {
        let about = Namespace { owner, ..namespace(&format!("n{id}")) };
        bench.add(id.into(), about, macvlans(id, 1));
        let router = bench.mirror.routers().find(|r| r.namespace == id.into()).unwrap();
        (router.router.is_some(), router.ipv4)
    };
    // The host has one.
    for id in 1..=17 {
        assert!(add(id, Owner::User(1000)).0, "{id}");
    }
    let refused = Code::NoNumber
        .cause("the namespace or its owner has too many routers: the last free numbers are kept for others");
    assert_eq!(add(18, Owner::User(1000)), (false, vec![refused]));
    assert!(add(19, Owner::Machine).0);
    let none = Code::NoNumber.cause("there are too many routers: no number is free");
    assert_eq!(add(20, Owner::UserNamespace(1000)), (false, vec![none]));
}

/// Its address changes with each plan, and the numbers that it gives back rest. It must not use up the numbers of
/// others in that way.
#[test]
fn a_namespace_that_gives_numbers_back_has_no_more_for_that() {
    let host = red(vec![physical(1), physical(2)]);
    let mut bench = Bench::with(Limits { interfaces: 32, ..Limits::default() }, host);
    bench.add_red(macvlans(0, 9));
    for round in 0..4 {
        let moved =
            |i: u8| Link { mac: Mac([2, 0, 0, 0, round + 1, i]), ..macvlan(100 + u32::from(i), (HOST, 1)) };
        let ops = {
            (0..9).for_each(|i| bench.see(Event::Link(RED, moved(i))));
            bench.mirror.plan()
        };
        bench.model.apply(&ops);
    }
    bench.add(2, namespace("blue"), macvlans(40, 1));
    assert!(view(&bench, 2, 140).unwrap().interface.is_some());
}

/// Its namespaces come and go. The numbers that they had rest as the owner's.
#[test]
fn an_owner_whose_namespaces_go_leaves_the_last_numbers_to_others() {
    let host = red(vec![physical(1), physical(2)]);
    let mut bench = Bench::with(Limits { interfaces: 32, ..Limits::default() }, host);
    let appear = |bench: &mut Bench, id, owner, dump| {
        bench.see(Event::Namespace(id, Namespace { owner, ..namespace("n") }));
        bench.see(Event::Dump(id, Box::new(dump)));
    };
    for round in 0..3 {
        if round > 0 {
            bench.see(Event::NamespaceGone(9 + round));
        }
        appear(&mut bench, 10 + round, Owner::User(1000), macvlans(0, 14));
        if round == 2 {
            appear(&mut bench, 20, Owner::Machine, macvlans(40, 1));
        }
        let ops = bench.mirror.plan();
        bench.mirror.check();
        bench.model.apply(&ops);
    }
    assert!(view(&bench, 20, 140).unwrap().interface.is_some());
}

#[test]
fn a_device_on_one_of_a_third_namespace_stays_with_the_kernel() {
    let mut bench = bench(vec![vlan(30, 7, (HOST, 1))]);
    let on = |below| Event::Link(2, macvlan(40, below));
    bench.add(2, namespace("blue"), red(vec![]));
    bench.after([on((RED, 30))]);
    assert_eq!(
        view(&bench, 2, 40).unwrap().reasons4,
        ["it sits on if30 in the namespace red; put it on a device of its own namespace or of the host's"]
    );
    bench.after([Event::Link(2, vlan(31, 7, (HOST, 2))), on((2, 31))]);
    assert_eq!(view(&bench, 2, 40).unwrap().reasons4, [""; 0]);
}

#[test]
fn as_many_interfaces_as_promised_get_a_number() {
    let macvlan = |i: u32| {
        let [_, _, a, b] = i.to_be_bytes();
        Link { mac: Mac([2, 0, 0, 1, a, b]), ..macvlan(100 + i, (HOST, 1)) }
    };
    let links = (0..MAX_INTERFACES.into()).map(macvlan).chain([physical(1)]).collect();
    let bench = Bench::with(Limits::default(), red(links));
    let numbers: Vec<InterfaceId> = bench.mirror.interfaces().filter_map(|i| i.interface).collect();
    assert_eq!((numbers.len(), numbers.iter().max()), (4160, Some(&4160)));
}

#[test]
fn neighbours_are_planned_for_interfaces_and_known_for_keeping_alive() {
    let mut bench = Bench::host(vec![], vec![]);
    let stale = Neighbour { stale: true, ..neighbour(1, "10.0.0.9", Some(mac(99))) };
    let see = |n: &Neighbour| Event::Neighbour(HOST, n.clone());
    let planned = Op::Neighbour(1, ip("10.0.0.9"), Some(mac(99)));
    assert_eq!(bench.after([see(&stale), see(&neighbour(9, "10.0.0.9", Some(mac(99))))]), [planned]);
    let view = StaleNeighbour { namespace: HOST, ifindex: 1, interface: 1, address: ip("10.0.0.9") };
    assert_eq!(bench.mirror.stale_neighbours().collect::<Vec<_>>(), [view]);
    assert_eq!(bench.after([see(&Neighbour { stale: false, ..stale.clone() })]), []);
    assert_eq!(bench.mirror.stale_neighbours().count(), 0);
    for nobody in [None, Some(Mac::default()), Some(Mac([1, 0, 0x5e, 0, 0, 1]))] {
        bench.after([see(&stale)]);
        let gone = bench.after([see(&Neighbour { mac: nobody, ..stale.clone() })]);
        assert_eq!(gone, [Op::Neighbour(1, ip("10.0.0.9"), None)]);
        assert_eq!(bench.mirror.stale_neighbours().count(), 0);
    }
    // The link comes back as another one, without neighbours.
    bench.after([see(&stale)]);
    bench.after([Event::LinkGone(HOST, 1)]);
    let ops = bench.after([Event::Link(HOST, physical(1))]);
    assert!(!ops.iter().any(|op| matches!(op, Op::Neighbour(..))), "{ops:?}");
    assert_eq!(bench.mirror.stale_neighbours().count(), 0);
}

#[test]
fn a_device_on_a_macvlan_or_with_a_group_address_is_no_interface() {
    let mut bench = Bench::host(vec![], vec![]);
    bench.after([Event::Link(HOST, macvlan(20, (HOST, 1))), Event::Link(HOST, vlan(21, 7, (HOST, 20)))]);
    assert!(view(&bench, HOST, 20).unwrap().interface.is_some());
    assert!(view(&bench, HOST, 21).is_none_or(|i| i.interface.is_none() || !i.ipv4));
    let group = Link { mac: Mac([1, 0, 0x5e, 0, 0, 1]), ..macvlan(22, (HOST, 1)) };
    bench.after([Event::Link(HOST, group)]);
    assert!(view(&bench, HOST, 22).is_none_or(|i| !i.ipv4));
}

#[test]
fn events_before_the_first_dump_are_ignored() {
    let mut mirror = Mirror::new(Limits::default());
    mirror.observe(Event::Port(0, port(HOST, 1)));
    mirror.observe(Event::Namespace(HOST, namespace("host")));
    mirror.observe(Event::Link(HOST, physical(1)));
    assert_eq!(mirror.plan(), [Op::Port { port: 0, frags: true }]);
    assert_eq!(mirror.routers().next().unwrap().ipv4, ["the namespace has not been read yet"]);
}

#[test]
fn views_have_a_revision_and_links_are_up_down_or_gone() {
    let mut bench = Bench::host(vec![], vec![]);
    let first = bench.mirror.revision();
    assert_eq!(bench.mirror.is_up(HOST, 2), Some(true));
    bench.after([Event::Link(HOST, physical(2)), Event::Neighbour(HOST, neighbour(1, "10.0.0.9", None))]);
    bench.after([Event::LinkGone(HOST, 77), Event::Settings(HOST, choosing())]);
    assert_eq!(bench.mirror.revision(), first, "nothing new");
    bench.after([Event::Link(HOST, Link { up: false, ..physical(2) })]);
    assert_ne!(bench.mirror.revision(), first);
    assert_eq!(bench.mirror.is_up(HOST, 2), Some(false));
    bench.after([Event::LinkGone(HOST, 2)]);
    assert_eq!(bench.mirror.is_up(HOST, 2), None);
}

/// Weights and paths refer to routers by their names.
#[test]
fn another_name_of_a_namespace_is_another_mirror() {
    let mut bench = Bench::host(vec![], vec![]);
    let before = bench.mirror.revision();
    bench.after([Event::Namespace(HOST, namespace("host"))]);
    assert_eq!(bench.mirror.revision(), before, "nothing has changed");
    bench.after([Event::Namespace(HOST, namespace("renamed"))]);
    assert_ne!(bench.mirror.revision(), before);
}
