//! Settings that affect forwarded packets, and some that do not, although their names suggest it.

use super::Change;
use crate::draft::Draft;

/// A setting of a namespace, its default in a bed, and other values.
const GLOBAL: &[(&str, &str, &[&str])] = &[
    ("net.ipv4.ip_forward_use_pmtu", "0", &["1"]),
    ("net.ipv4.ip_forward_update_priority", "1", &["0"]),
    ("net.ipv4.ip_default_ttl", "64", &["33"]),
    ("net.ipv4.ip_no_pmtu_disc", "0", &["1", "2", "3"]),
    ("net.ipv4.ip_nonlocal_bind", "0", &["1"]),
    ("net.ipv4.fib_multipath_hash_policy", "0", &["1", "2", "3"]),
    ("net.ipv4.fib_multipath_use_neigh", "0", &["1"]),
    ("net.ipv4.fib_multipath_hash_seed", "7", &["1", "99", "4711"]),
    ("net.ipv4.icmp_errors_use_inbound_ifaddr", "0", &["1"]),
    ("net.ipv4.icmp_echo_ignore_all", "0", &["1"]),
    ("net.ipv4.nexthop_compat_mode", "1", &["0"]),
    ("net.ipv4.fwmark_reflect", "0", &["1"]),
    ("net.ipv6.fib_multipath_hash_policy", "0", &["1", "2", "3"]),
    ("net.ipv6.seg6_flowlabel", "0", &["1"]),
    ("net.ipv6.anycast_src_echo_reply", "0", &["1"]),
    ("net.ipv6.icmp.echo_ignore_all", "0", &["1"]),
    ("net.ipv4.ip_forward", "1", &["0"]),
    ("net.ipv6.conf.all.forwarding", "1", &["0"]),
];

/// The same for a device, or for `all`.
const OF_DEVICE: &[(&str, &str, &[&str])] = &[
    ("net.ipv4.conf.DEVICE.forwarding", "1", &["0"]),
    ("net.ipv4.conf.DEVICE.rp_filter", "0", &["1", "2"]),
    ("net.ipv4.conf.DEVICE.accept_local", "0", &["1"]),
    ("net.ipv4.conf.DEVICE.route_localnet", "0", &["1"]),
    ("net.ipv4.conf.DEVICE.send_redirects", "1", &["0"]),
    ("net.ipv4.conf.DEVICE.shared_media", "1", &["0"]),
    ("net.ipv4.conf.DEVICE.accept_redirects", "0", &["1"]),
    ("net.ipv4.conf.DEVICE.secure_redirects", "1", &["0"]),
    ("net.ipv4.conf.DEVICE.accept_source_route", "0", &["1"]),
    ("net.ipv4.conf.DEVICE.bc_forwarding", "0", &["1"]),
    ("net.ipv4.conf.DEVICE.proxy_arp", "0", &["1"]),
    ("net.ipv4.conf.DEVICE.proxy_arp_pvlan", "0", &["1"]),
    ("net.ipv4.conf.DEVICE.src_valid_mark", "0", &["1"]),
    ("net.ipv4.conf.DEVICE.medium_id", "0", &["1", "-1"]),
    ("net.ipv4.conf.DEVICE.disable_policy", "0", &["1"]),
    ("net.ipv4.conf.DEVICE.disable_xfrm", "0", &["1"]),
    ("net.ipv4.conf.DEVICE.drop_unicast_in_l2_multicast", "0", &["1"]),
    ("net.ipv4.conf.DEVICE.ignore_routes_with_linkdown", "0", &["1"]),
    ("net.ipv4.conf.DEVICE.arp_filter", "0", &["1"]),
    ("net.ipv6.conf.DEVICE.forwarding", "1", &["0"]),
    ("net.ipv6.conf.DEVICE.force_forwarding", "0", &["1"]),
    ("net.ipv6.conf.DEVICE.disable_ipv6", "0", &["1"]),
    ("net.ipv6.conf.DEVICE.disable_policy", "0", &["1"]),
    ("net.ipv6.conf.DEVICE.accept_source_route", "0", &["1", "-1"]),
    ("net.ipv6.conf.DEVICE.accept_redirects", "0", &["1"]),
    ("net.ipv6.conf.DEVICE.drop_unicast_in_l2_multicast", "0", &["1"]),
    ("net.ipv6.conf.DEVICE.ignore_routes_with_linkdown", "0", &["1"]),
    ("net.ipv6.conf.DEVICE.proxy_ndp", "0", &["1"]),
    ("net.ipv6.conf.DEVICE.seg6_enabled", "0", &["1"]),
    ("net.ipv6.conf.DEVICE.rpl_seg_enabled", "0", &["1"]),
    ("net.ipv6.conf.DEVICE.ioam6_enabled", "0", &["1"]),
    ("net.ipv6.conf.DEVICE.hop_limit", "64", &["33"]),
    ("net.ipv6.conf.DEVICE.mtu", "1400", &["1280", "1300"]),
    ("net.ipv6.conf.DEVICE.keep_addr_on_down", "0", &["1"]),
];

/// One setting, or sometimes two.
pub fn setting(draft: &mut Draft<'_>) -> Change {
    let tenant = draft.one_in(4);
    let (mut make, mut undo) = (Vec::new(), Vec::new());
    for _ in 0..if draft.one_in(3) { 2 } else { 1 } {
        let side = draft.side(tenant);
        let device = side.device();
        let place = draft.pick(&["all", &device, &device, &device]).to_owned();
        let table = if draft.one_in(3) { GLOBAL } else { OF_DEVICE };
        let (name, default, values) = table[draft.rng.usize(..table.len())];
        let value = draft.pick(values);
        let name = name.replace("DEVICE", &place);
        if !draft.kernel.has_sysctl(&name.replace(&place, "all")) {
            continue;
        }
        make.push(format!("sysctl -qw {name}={value}"));
        undo.push(format!("sysctl -qw {name}={default}"));
        if name.contains("disable_ipv6") {
            // IPv6 starts without addresses and neighbours.
            let sides: Vec<_> = draft.sides.iter().filter(|side| side.tenant == tenant).collect();
            undo.extend(sides.iter().flat_map(|side| side.addresses()));
            undo.extend(sides.iter().map(|side| format!("neighbours {}", side.device())));
        }
    }
    Change::new("settings", make, undo).of(tenant)
}
