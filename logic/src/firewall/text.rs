//! Sentences about rules. Names in them are foreign text.

use super::{
    prove::{Exception, Obstacle, Why},
    ruleset::Family,
};
use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Obstacle { family, table, chain, handle, why } = self;
        match handle {
            Some(0) => write!(f, "a rule of ")?,
            Some(handle) if !family.is_legacy() => write!(f, "rule with handle {handle} of ")?,
            Some(handle) => write!(f, "rule {handle} of ")?,
            None => (),
        }
        match family.is_legacy() {
            true => write!(f, "legacy {family} chain {table} {chain} ")?,
            false => write!(f, "nftables chain {family} {table} {chain} ")?,
        }
        match why {
            Why::Drops => f.write_str("may drop packets"),
            Why::Policy => f.write_str("drops packets that no rule accepts"),
            Why::Does(what) => write!(f, "may apply \"{what}\""),
            Why::AsksChangingMap(map) => write!(f, "looks up @{map}, which packets can change"),
            Why::Malformed => {
                f.write_str("refers to something that does not exist, or nests jumps too deeply")
            }
            Why::TooMuch => f.write_str("needs too many steps to check"),
            Why::UnknownHook => f.write_str("uses a hook that this version of Millrace does not know"),
            Why::BelowVlan => f.write_str("sees frames with their VLAN tags"),
            Why::Translates(what) => write!(f, "may translate connections to any address (\"{what}\")"),
            Why::Hidden => f.write_str("is too long to be read"),
        }
    }
}

impl fmt::Display for Family {
    /// As nft calls it, or the tool of legacy iptables.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::Inet => "inet",
            Family::Ipv4 => "ip",
            Family::Ipv6 => "ip6",
            Family::Netdev => "netdev",
            Family::Iptables => "iptables",
            Family::Ip6tables => "ip6tables",
        })
    }
}

impl fmt::Display for Exception {
    /// As `10.0.0.0-10.0.0.255`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (address(&self.low), address(&self.high)) {
            (Some(low), Some(high)) if low == high => write!(f, "{low}"),
            (Some(low), Some(high)) => write!(f, "{low}-{high}"),
            _ => f.write_str("?"),
        }
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(|bytes| IpAddr::from(Ipv4Addr::from(bytes)));
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(|bytes| IpAddr::from(Ipv6Addr::from(bytes)))).ok()
}
