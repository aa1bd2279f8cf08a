//! Packets that elements make and cannot route. The kernel sends them, as the IP packet that would have left.

use super::{
    esp::{PLAIN, Setting, packet},
    *,
};
use crate::{
    elements::{EspEncrypt, Forward, Loss, Vxlan, VxlanEncap},
    esp::{Ends, Mode, SaTable},
};

/// The packets that leave or go up with this SA, or without one, and with a next hop that is resolved or not.
fn sent(
    vxlan: Option<Vxlan>,
    setting: Option<&Setting>,
    is_resolved: bool,
    frame: &[u8],
) -> (Verdict, Vec<u8>) {
    let mut world = World::new();
    if !is_resolved {
        let gone = Op::Neighbour(2, IpAddr::from([192, 0, 2, 1]), None);
        world.tables.apply(&gone).unwrap();
        world.tables.apply(&Op::Neighbour(2, "2001:db8::1".parse().unwrap(), None)).unwrap();
    }
    let mut elements: Vec<Box<dyn Element>> = match vxlan {
        Some(vxlan) => vec![Box::new(VxlanEncap::new(vxlan))],
        None => vec![Box::new(Check), Box::new(Ttl)],
    };
    if let Some(setting) = setting {
        let table = Arc::new(SaTable::default());
        table.set_outbound("a", setting.outbound());
        elements.push(Box::new(EspEncrypt::new(table, "a")));
    }
    elements.push(Box::new(Route::new(world.memory())));
    elements.push(Box::new(Rewrite));
    let mut chain = Chain::new(elements).unwrap();
    let (verdict, data) = esp::run(&mut chain, &[frame.to_vec()]).remove(0);
    let up: u64 = chain.counters().map(|(_, counters, _)| counters.up(Reason::Unresolved)).sum();
    assert_eq!(up, u64::from(!is_resolved));
    (verdict, data)
}

#[test]
fn packets_made_here_go_up_as_the_ip_packet_that_would_have_left() {
    let tunnel = |is_v6: bool| {
        let [local, remote] =
            [["10.0.0.1", "10.1.0.1"], ["2001:db8:2::1", "2001:db8:1::1"]][usize::from(is_v6)];
        let ends = Ends::new(local.parse().unwrap(), remote.parse().unwrap()).unwrap();
        Vxlan { vni: 7, ends, port: 4789, mtu: 1500, hops: 64, is_whole: false }
    };
    let udp = Some(crate::esp::Udp { local: 4500, remote: 4501 });
    let six = Setting { is_v6: true, ..PLAIN };
    let transport = Setting { mode: Mode::Transport, ..PLAIN };
    let cases = [
        ("ESP", None, Some(PLAIN)),
        ("ESP over IPv6", None, Some(six.clone())),
        ("ESP in UDP", None, Some(Setting { udp, ..PLAIN })),
        ("VXLAN", Some(tunnel(false)), None),
        ("VXLAN over IPv6", Some(tunnel(true)), None),
        ("VXLAN in ESP, transport mode", Some(tunnel(false)), Some(transport)),
        ("VXLAN in ESP over IPv6", Some(tunnel(true)), Some(six)),
    ];
    // Ethernet padding does not belong to the packet.
    let frame = [packet(false, b"some payload", 0), vec![0xee; 3]].concat();
    for (name, vxlan, setting) in cases {
        let (verdict, left) = sent(vxlan, setting.as_ref(), true, &frame);
        assert_eq!(verdict, Verdict::To(2), "{name}");
        let (verdict, own) = sent(vxlan, setting.as_ref(), false, &frame);
        assert_eq!((verdict, &own[..]), (Verdict::Own(Reason::Unresolved), &left[14..]), "{name}");
    }
}

/// A packet made here may have a source of ours, also if its headers are checked once more. It goes up as our own.
#[test]
fn packets_made_here_are_ours_also_after_check() {
    let world = World::new();
    let of = |remote: &str| {
        let ends = Ends::new("10.9.0.1".parse().unwrap(), remote.parse().unwrap()).unwrap();
        let vxlan = Vxlan { vni: 7, ends, port: 4789, mtu: 1500, hops: 64, is_whole: false };
        let mut elements: Vec<Box<dyn Element>> = vec![Box::new(VxlanEncap::new(vxlan))];
        elements.extend(world.router());
        let frame = packet(false, b"some payload", 0);
        let inner = frame.len();
        let (verdict, data) = esp::run(&mut Chain::new(elements).unwrap(), &[frame]).remove(0);
        (verdict, data.len() - inner)
    };
    // After an Ethernet header, and without one.
    assert_eq!(of("10.1.0.1"), (Verdict::To(2), 50));
    assert_eq!(of("10.3.0.1"), (Verdict::Own(Reason::Unresolved), 36));
}

/// Linux would not forward such a packet, but it would send it as its own.
#[test]
fn packets_made_before_encryption_never_go_up() {
    let table = Arc::new(SaTable::default());
    table.set_outbound("a", Setting { is_v6: true, ..PLAIN }.outbound());
    let world = World::new();
    let of = |remote: &str, hops: u8, middle: Box<dyn Element>| {
        let ends = Ends::new("10.0.0.1".parse().unwrap(), remote.parse().unwrap()).unwrap();
        let vxlan = Vxlan { vni: 7, ends, port: 4789, mtu: 1500, hops, is_whole: false };
        let elements: Vec<Box<dyn Element>> = vec![
            Box::new(VxlanEncap::new(vxlan)),
            middle,
            Box::new(EspEncrypt::new(table.clone(), "a")),
            Box::new(Forward::new(2)),
        ];
        esp::run(&mut Chain::new(elements).unwrap(), &[packet(false, b"some payload", 0)]).remove(0).0
    };
    let route = || Box::new(Route::new(world.memory()));
    let in_clear = Verdict::Drop(Loss::InClear);
    // For the machine itself, on the link only, and without a hop left.
    assert_eq!([of("10.9.0.1", 64, route()), of("10.9.0.255", 64, route())], [in_clear; 2]);
    assert_eq!([of("10.3.0.1", 64, route()), of("10.1.0.1", 1, Box::new(Ttl))], [in_clear; 2]);
    assert_eq!(of("10.1.0.1", 64, Box::new(Ttl)), Verdict::To(2));
}
