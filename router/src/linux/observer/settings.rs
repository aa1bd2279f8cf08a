//! Effective settings of a device: its own settings with `conf/all` folded in, as the kernel does it (`IN_DEV_ORCONF`,
//! `IN_DEV_MAXCONF` in `include/linux/inetdevice.h`; `ip6_forward` for IPv6).

use super::sysctl::Values;
use crate::linux::netlink::netconf::Netconf;
use logic::{
    observe::{LinkConf4, LinkConf6},
    plan::ReversePath,
};

/// `IPV4_DEVCONF_*` minus one: positions in `IFLA_INET_CONF`.
mod v4 {
    pub const FORWARDING: usize = 0;
    pub const ACCEPT_REDIRECTS: usize = 3;
    pub const SEND_REDIRECTS: usize = 5;
    pub const RP_FILTER: usize = 7;
    pub const ACCEPT_LOCAL: usize = 22;
    pub const SRC_VMARK: usize = 23;
    pub const ROUTE_LOCALNET: usize = 25;
    pub const IGNORE_ROUTES_WITH_LINKDOWN: usize = 28;
}

/// `DEVCONF_*`: positions in `IFLA_INET6_CONF`.
mod v6 {
    pub const FORWARDING: usize = 0;
    pub const MTU6: usize = 2;
    pub const ACCEPT_REDIRECTS: usize = 4;
    pub const PROXY_NDP: usize = 22;
    pub const DISABLE_IPV6: usize = 26;
    pub const IGNORE_ROUTES_WITH_LINKDOWN: usize = 39;
    pub const SEG6_ENABLED: usize = 44;
    pub const RPL_SEG_ENABLED: usize = 51;
    pub const IOAM6_ENABLED: usize = 53;
    pub const FORCE_FORWARDING: usize = 59;
}

fn value(conf: &[u32], place: usize) -> u32 {
    conf.get(place).copied().unwrap_or(0)
}

/// IPv4, from a device's own values; `None`: IPv4 is not set up on it.
pub fn fold4(conf: Option<&[u32]>, all: &Values, has_address: bool) -> LinkConf4 {
    let Some(conf) = conf else { return LinkConf4::default() };
    let own = |place| value(conf, place);
    let unusual = [
        ("route_localnet", own(v4::ROUTE_LOCALNET) | all.route_localnet),
        ("src_valid_mark", own(v4::SRC_VMARK) | all.src_valid_mark),
    ];
    LinkConf4 {
        forwarding: own(v4::FORWARDING) != 0,
        rp_filter: match own(v4::RP_FILTER).max(all.rp_filter) {
            0 => ReversePath::Off,
            2 => ReversePath::Loose,
            _ => ReversePath::Strict,
        },
        send_redirects: own(v4::SEND_REDIRECTS) | all.send_redirects != 0,
        accept_local: own(v4::ACCEPT_LOCAL) | all.accept_local != 0,
        unusual: names(&unusual),
        ignore_routes_with_linkdown: own(v4::IGNORE_ROUTES_WITH_LINKDOWN) | all.ignore_routes_with_linkdown
            != 0,
        has_address,
    }
}

/// IPv6. The kernel forwards if `conf/all/forwarding` is on, regardless of the device, or if the device's
/// `force_forwarding` is on. A device's own `forwarding` only decides whether the kernel acts as a router or as a host
/// on it.
pub fn fold6(conf: Option<&[u32]>, all: &Values, mtu: u32) -> LinkConf6 {
    let Some(conf) = conf else { return LinkConf6 { disabled: true, ..LinkConf6::default() } };
    let own = |place| value(conf, place);
    let unusual = names(&[
        ("seg6_enabled", own(v6::SEG6_ENABLED)),
        ("rpl_seg_enabled", own(v6::RPL_SEG_ENABLED)),
        ("ioam6_enabled", own(v6::IOAM6_ENABLED)),
        ("proxy_ndp", own(v6::PROXY_NDP) | all.proxy_ndp),
    ]);
    let mtu6 = own(v6::MTU6);
    LinkConf6 {
        forwarding: all.forwarding6 != 0 || own(v6::FORCE_FORWARDING) != 0,
        disabled: own(v6::DISABLE_IPV6) != 0,
        ignore_routes_with_linkdown: own(v6::IGNORE_ROUTES_WITH_LINKDOWN) != 0,
        mtu: if mtu6 < mtu { mtu6 } else { 0 },
        unusual,
    }
}

/// Does the device accept ICMP redirects, which change the gateway for one address, also for forwarded packets? The
/// result is for IPv4 (`IN_DEV_RX_REDIRECTS`) and IPv6 (`rt6_do_redirect()`).
pub fn take_redirects(conf4: Option<&[u32]>, conf6: Option<&[u32]>, all: &Values) -> [bool; 2] {
    let ipv4 = conf4.is_some_and(|conf| {
        let own = value(conf, v4::ACCEPT_REDIRECTS) != 0;
        let of_all = all.accept_redirects != 0;
        if value(conf, v4::FORWARDING) != 0 { own && of_all } else { own || of_all }
    });
    let ipv6 = conf6.is_some_and(|conf| {
        value(conf, v6::DISABLE_IPV6) == 0
            && value(conf, v6::ACCEPT_REDIRECTS) != 0
            && value(conf, v6::FORWARDING) == 0
    });
    [ipv4, ipv6]
}

fn names(settings: &[(&str, u32)]) -> Vec<String> {
    settings.iter().filter(|s| s.1 != 0).map(|s| s.0.to_owned()).collect()
}

/// Stores the values that a message gives for one device.
pub fn apply_to_device(conf: &mut [u32], message: &Netconf) {
    let places = if message.v6 {
        [
            (v6::FORWARDING, message.forwarding),
            (v6::FORCE_FORWARDING, message.force_forwarding),
            (v6::IGNORE_ROUTES_WITH_LINKDOWN, message.ignore_routes_with_linkdown),
        ]
    } else {
        [
            (v4::FORWARDING, message.forwarding),
            (v4::RP_FILTER, message.rp_filter),
            (v4::IGNORE_ROUTES_WITH_LINKDOWN, message.ignore_routes_with_linkdown),
        ]
    };
    for (place, new) in places {
        if let (Some(slot), Some(new)) = (conf.get_mut(place), new) {
            *slot = new;
        }
    }
}

/// Stores the values that a message gives for `conf/all`.
pub fn apply_to_all(all: &mut Values, message: &Netconf) {
    if message.v6 {
        all.forwarding6 = message.forwarding.unwrap_or(all.forwarding6);
    } else {
        all.rp_filter = message.rp_filter.unwrap_or(all.rp_filter);
        all.ignore_routes_with_linkdown =
            message.ignore_routes_with_linkdown.unwrap_or(all.ignore_routes_with_linkdown);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_folds_by_or_and_maximum() {
        let mut conf = [0; 33];
        conf[v4::RP_FILTER] = 1;
        let all = Values {
            rp_filter: 2,
            send_redirects: 1,
            accept_local: 1,
            route_localnet: 1,
            ..Values::default()
        };
        let folded = fold4(Some(&conf), &all, true);
        assert_eq!(folded.rp_filter, ReversePath::Loose);
        assert!(folded.send_redirects && !folded.forwarding && folded.has_address);
        assert!(folded.accept_local);
        assert_eq!(folded.unusual, ["route_localnet"]);
        let strict = fold4(Some(&conf), &Values::default(), false);
        assert_eq!(strict.rp_filter, ReversePath::Strict);
        assert!(!strict.send_redirects);
    }

    #[test]
    fn redirects_are_accepted_as_in_linux() {
        let conf = |places: &[usize]| {
            let mut conf = [0; 60];
            places.iter().for_each(|place| conf[*place] = 1);
            conf
        };
        let ipv4 = |places: &[usize], all| {
            let all = Values { accept_redirects: all, ..Values::default() };
            take_redirects(Some(&conf(places)), None, &all)[0]
        };
        let (own, forwards) = (v4::ACCEPT_REDIRECTS, v4::FORWARDING);
        assert_eq!([ipv4(&[], 0), ipv4(&[], 1), ipv4(&[own], 0), ipv4(&[own], 1)], [false, true, true, true]);
        let forwarding = [ipv4(&[forwards], 1), ipv4(&[forwards, own], 0), ipv4(&[forwards, own], 1)];
        assert_eq!(forwarding, [false, false, true]);
        let ipv6 = |places: &[usize]| take_redirects(None, Some(&conf(places)), &Values::default())[1];
        let (own, forwards, off) = (v6::ACCEPT_REDIRECTS, v6::FORWARDING, v6::DISABLE_IPV6);
        assert_eq!(
            [ipv6(&[]), ipv6(&[own]), ipv6(&[own, forwards]), ipv6(&[own, off])],
            [false, true, false, false]
        );
        assert_eq!(
            take_redirects(None, None, &Values { accept_redirects: 1, ..Values::default() }),
            [false; 2]
        );
    }

    #[test]
    fn ipv6_forwards_by_all_or_force() {
        let mut conf = [0; 60];
        conf[v6::FORWARDING] = 1;
        conf[v6::MTU6] = 1280;
        let folded = fold6(Some(&conf), &Values::default(), 1500);
        assert!(!folded.forwarding && !folded.disabled);
        assert_eq!((folded.mtu, folded.unusual.len()), (1280, 0));
        assert_eq!(fold6(Some(&conf), &Values::default(), 1280).mtu, 0, "the same as the link");
        assert!(fold6(Some(&conf), &Values { forwarding6: 1, ..Values::default() }, 1280).forwarding);
        conf[v6::FORCE_FORWARDING] = 1;
        assert!(fold6(Some(&conf), &Values::default(), 1280).forwarding);
        assert!(fold6(None, &Values::default(), 1500).disabled);
    }

    #[test]
    fn messages_change_only_what_they_hold() {
        let mut conf = vec![1; 33];
        apply_to_device(&mut conf, &Netconf { rp_filter: Some(0), ..Netconf::default() });
        assert_eq!((conf[v4::FORWARDING], conf[v4::RP_FILTER]), (1, 0));
        apply_to_device(&mut conf[..3], &Netconf { rp_filter: Some(2), ..Netconf::default() });
        let mut all = Values::default();
        apply_to_all(&mut all, &Netconf { v6: true, forwarding: Some(1), ..Netconf::default() });
        assert_eq!(all, Values { forwarding6: 1, ..Values::default() });
    }
}
