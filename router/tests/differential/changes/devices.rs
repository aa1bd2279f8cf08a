//! States of devices, and other devices on them.

use super::{Change, IN_TENANT};
use crate::{
    draft::Draft,
    sides::{Side, other_mac},
};

fn lines(text: &[&str]) -> Vec<String> {
    text.iter().map(|line| (*line).to_owned()).collect()
}

/// Masters, and devices that take packets of a port.
pub fn master_or_taker(draft: &mut Draft<'_>) -> Change {
    let of_kernel = [
        ("bridge", bridge as fn(&mut Draft<'_>) -> Change),
        ("bridge", bridge),
        ("macvtap", macvtap),
        ("ipvlan", ipvlan),
        ("vrf", vrf),
        ("bond", bond),
    ];
    let mut there: Vec<_> =
        of_kernel.iter().filter(|kind| draft.kernel.has(kind.0)).map(|kind| kind.1).collect();
    there.push(macvlan_of_mode_source);
    there.push(macvlan_of_other_mode);
    there[draft.rng.usize(..there.len())](draft)
}

fn bridge(draft: &mut Draft<'_>) -> Change {
    let mut make = lines(&[
        "ip link add br0 type bridge forward_delay 0 mcast_snooping 0",
        "sysctl -qw net.ipv6.conf.br0.disable_ipv6=1",
        "ip link set br0 up",
        "ip link set p2 master br0",
    ]);
    if draft.one_in(3) {
        make.push("ip link set p1 master br0".into());
    }
    Change::new("device", make, lines(&["ip link del br0"])).shows("is enslaved to the bridge br0")
}

fn macvlan_of_mode_source(_: &mut Draft<'_>) -> Change {
    let make = lines(&[
        "ip link add ms0 link p2 type macvlan mode source",
        "sysctl -qw net.ipv6.conf.ms0.disable_ipv6=1",
        "ip link set ms0 up",
    ]);
    Change::new("device", make, lines(&["ip link del ms0"])).shows("a macvlan of mode source")
}

/// The tenant's macvlans no longer send each other packets, or send them over the wire.
fn macvlan_of_other_mode(draft: &mut Draft<'_>) -> Change {
    let device = draft.side(true).device();
    let mode = draft.pick(&["private", "vepa"]);
    Change::new(
        "device",
        vec![format!("ip link set {device} type macvlan mode {mode}")],
        vec![format!("ip link set {device} type macvlan mode bridge")],
    )
    .of(true)
}

fn macvtap(_: &mut Draft<'_>) -> Change {
    let make = lines(&[
        "ip link add mt0 link p2 address 02:00:00:00:07:07 type macvtap mode bridge",
        "sysctl -qw net.ipv6.conf.mt0.disable_ipv6=1",
        "ip link set mt0 up",
    ]);
    Change::new("device", make, lines(&["ip link del mt0"]))
}

/// A container on a port, as container platforms make it.
fn ipvlan(draft: &mut Draft<'_>) -> Change {
    let mode = draft.pick(&["l2", "l3", "l3s"]);
    let make = vec![
        format!("ip link add link p2 name iv0 netns TENANT type ipvlan mode {mode}"),
        format!("{IN_TENANT}ip addr add 10.0.2.9/24 dev iv0"),
        format!("{IN_TENANT}ip link set iv0 up"),
    ];
    draft.targets4.push("10.0.2.9".parse().unwrap());
    Change::new("device", make, vec![format!("{IN_TENANT}ip link del iv0")])
}

fn vrf(_: &mut Draft<'_>) -> Change {
    let make = lines(&[
        "ip link add vr0 type vrf table 77",
        "ip link set vr0 up",
        "ip link set p2 master vr0",
        "neighbours p2",
    ]);
    Change::new("device", make, lines(&["ip link del vr0", "neighbours p2"]))
}

fn bond(_: &mut Draft<'_>) -> Change {
    let make = lines(&["ip link add bo0 type bond", "ip link set p2 down", "ip link set p2 master bo0"]);
    let undo = lines(&["ip link del bo0", "ip link set p2 up", "neighbours p2"]);
    Change::new("device", make, undo)
}

/// A VLAN of a port, with an address and neighbours. VLAN 0 takes all frames that carry only a priority.
pub fn vlan(draft: &mut Draft<'_>) -> Change {
    if !draft.kernel.has("vlan") {
        return down(draft);
    }
    let (port, id) = (draft.rng.u8(0..3), if draft.one_in(3) { 0 } else { 7 });
    let make = vec![
        format!("ip link add link p{port} name v7 type vlan id {id}"),
        "ip addr add 10.9.7.1/24 dev v7".into(),
        "ip link set v7 up".into(),
        "ip neigh replace 10.9.7.17 lladdr 02:10:00:07:07:17 dev v7 nud permanent".into(),
    ];
    draft.targets4.push("10.9.7.17".parse().unwrap());
    Change::new("device", make, lines(&["ip link del v7"]))
}

/// Flags and sizes.
pub fn flags(draft: &mut Draft<'_>) -> Change {
    let side = any_side(draft);
    let (device, tenant) = (side.device(), side.tenant);
    // A macvlan's MTU is at most that of the port below it.
    let usual = if side.port == 2 || tenant { 1400 } else { 1500 };
    let pairs = [
        ("promisc on allmulticast on".to_owned(), "promisc off allmulticast off".to_owned()),
        ("mtu 1380".into(), format!("mtu {usual}")),
        ("mtu 1300".into(), format!("mtu {usual}")),
        ("mtu 1000".into(), format!("mtu {usual}")),
        ("multicast off".into(), "multicast on".into()),
        ("arp off".into(), "arp on".into()),
        ("txqueuelen 0".into(), "txqueuelen 1000".into()),
        ("alias backbone group 7".into(), "alias spare group 0".into()),
    ];
    let (make, undo) = pairs[draft.rng.usize(..pairs.len())].clone();
    let undo = vec![format!("ip link set {device} {undo}")];
    Change::new("flags", vec![format!("ip link set {device} {make}")], again(&side, undo)).of(tenant)
}

fn any_side(draft: &mut Draft<'_>) -> Side {
    let tenant = draft.one_in(4);
    draft.side(tenant)
}

/// Adds commands that restore the addresses and neighbours of the device. IPv6 forgets them below an MTU of 1280, and when a
/// device goes down.
fn again(side: &Side, mut commands: Vec<String>) -> Vec<String> {
    commands.extend(side.addresses());
    commands.push(format!("neighbours {}", side.device()));
    commands
}

/// Changes the MAC address of a device. Packets of hosts that know the old one are no longer received. Linux
/// forgets the device's neighbours.
pub fn mac(draft: &mut Draft<'_>) -> Change {
    let side = any_side(draft);
    let set = |mac| format!("ip link set {} address {mac}", side.device());
    let mut make = vec![set(other_mac(side.port))];
    if !draft.one_in(3) {
        make.push(format!("neighbours {}", side.device()));
    }
    let undo = vec![set(side.router_mac), format!("neighbours {}", side.device())];
    Change::new("mac", make, undo).of(side.tenant)
}

/// Deletes a macvlan of the tenant, which comes back as another device.
pub fn gone(draft: &mut Draft<'_>) -> Change {
    let side = draft.side(true);
    let (device, mac, port) = (side.device(), side.router_mac, side.port);
    let mut undo = vec![format!(
        "ip link add {device} link p{port} address {mac} netns TENANT type macvlan mode bridge"
    )];
    let commands = again(&side, vec![format!("ip link set {device} up")]);
    undo.extend(commands.into_iter().map(|line| format!("{IN_TENANT}{line}")));
    Change::new("down", vec![format!("{IN_TENANT}ip link del {device}")], undo)
}

/// Takes a device down, or the device at the other end of its wire. Linux forgets routes and neighbours of
/// the former.
pub fn down(draft: &mut Draft<'_>) -> Change {
    let side = any_side(draft);
    let device = if side.tenant || draft.rng.bool() { side.device() } else { format!("o{}", side.port) };
    let make = vec![format!("ip link set {device} down")];
    let mut undo = again(&side, vec![format!("ip link set {device} up")]);
    for v6 in [false, true] {
        let family = if v6 { "-6" } else { "-4" };
        undo.extend((0..4).map(|_| format!("ip {family} route append {}", draft.route(side.tenant, v6))));
    }
    Change::new("down", make, undo).of(side.tenant)
}
