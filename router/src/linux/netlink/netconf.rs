//! `RTM_NEWNETCONF`: the kernel sends it when certain per-device settings change.
//!
//! Kernel source: `inet_netconf_fill_devconf`, `inet6_netconf_fill_devconf`, `include/uapi/linux/netconf.h`.

use super::{INET, INET6, wire};

const NETCONFA_IFINDEX: u16 = 1;
const NETCONFA_FORWARDING: u16 = 2;
const NETCONFA_RP_FILTER: u16 = 3;
const NETCONFA_IGNORE_ROUTES_WITH_LINKDOWN: u16 = 6;
const NETCONFA_FORCE_FORWARDING: u16 = 9;

/// Settings of a device, or of `conf/all`. `None`: the message does not have this setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Netconf {
    /// True for IPv6, false for IPv4.
    pub v6: bool,
    /// A device's index, -1 for `conf/all`, -2 for `conf/default`.
    pub ifindex: i32,
    pub forwarding: Option<u32>,
    pub rp_filter: Option<u32>,
    pub ignore_routes_with_linkdown: Option<u32>,
    /// `force_forwarding` of IPv6, since Linux 6.17.
    pub force_forwarding: Option<u32>,
}

/// Parses the payload of an `RTM_NEWNETCONF`.
pub fn parse(payload: &[u8]) -> Option<Netconf> {
    let v6 = match *payload.first()? {
        INET => false,
        INET6 => true,
        _ => return None,
    };
    let mut conf = Netconf { v6, ..Netconf::default() };
    let mut ifindex = None;
    for (kind, value) in wire::attributes_after(payload, 1) {
        let value = wire::u32_at(value, 0);
        match kind {
            NETCONFA_IFINDEX => ifindex = value,
            NETCONFA_FORWARDING => conf.forwarding = value,
            NETCONFA_RP_FILTER => conf.rp_filter = value,
            NETCONFA_IGNORE_ROUTES_WITH_LINKDOWN => conf.ignore_routes_with_linkdown = value,
            NETCONFA_FORCE_FORWARDING => conf.force_forwarding = value,
            _ => (),
        }
    }
    conf.ifindex = ifindex? as i32;
    Some(conf)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn settings_in_the_message_are_read() {
        let bytes = [2, 0, 0, 0, 8, 0, 1, 0, 255, 255, 255, 255, 8, 0, 3, 0, 2, 0, 0, 0];
        let expected = Netconf { ifindex: -1, rp_filter: Some(2), ..Netconf::default() };
        assert_eq!(parse(&bytes), Some(expected));
        assert_eq!(parse(&bytes[..4]), None);
        let bytes = [2, 1, 6, 9].map(|kind| [8, 0, kind, 0, 10 + kind, 0, 0, 0]).concat();
        let expected = Netconf {
            v6: true,
            ifindex: 11,
            forwarding: Some(12),
            rp_filter: None,
            ignore_routes_with_linkdown: Some(16),
            force_forwarding: Some(19),
        };
        assert_eq!(parse(&[&[INET6, 0, 0, 0], &bytes[..]].concat()), Some(expected));
        assert_eq!(parse(&[&[7, 0, 0, 0], &bytes[..]].concat()), None, "bridges");
    }

    proptest! {
        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = parse(&bytes);
        }
    }
}
