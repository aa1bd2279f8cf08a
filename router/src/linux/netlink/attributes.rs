//! The meaning of every attribute and flag of routes, next hops, neighbours and addresses, for Linux 6.1 to 6.18.
//!
//! Linux is the judge, and each release adds attributes. An attribute is heeded, or known to be irrelevant for
//! forwarded packets, or it leaves its route or next hop to the kernel. An attribute without a row here does the last.
//! `docs/reference/attributes.md` shows these tables, and a test compares the two.

/// The effect of an attribute or a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The parser reads it. The text says how.
    Heeded(&'static str),
    /// It does not affect forwarded packets. The text says why.
    Irrelevant(&'static str),
    /// The route or next hop that has it stays with the kernel. The text says why.
    Kernel(&'static str),
}

/// One attribute (by its number) or one flag (by its bit).
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub number: u16,
    pub name: &'static str,
    pub class: Class,
}

/// All attributes, or all flags, of one kind of message.
pub struct Table {
    pub title: &'static str,
    pub rows: &'static [Row],
}

const fn heeded(number: u16, name: &'static str, how: &'static str) -> Row {
    Row { number, name, class: Class::Heeded(how) }
}

const fn irrelevant(number: u16, name: &'static str, why: &'static str) -> Row {
    Row { number, name, class: Class::Irrelevant(why) }
}

const fn kernel(number: u16, name: &'static str, why: &'static str) -> Row {
    Row { number, name, class: Class::Kernel(why) }
}

impl Table {
    /// The class of a number; `None`: it is not listed, which means [`Class::Kernel`].
    pub fn class(&self, number: u16) -> Option<Class> {
        self.rows.iter().find(|row| row.number == number).map(|row| row.class)
    }

    /// A bit for each irrelevant number.
    pub const fn irrelevant(&self) -> u64 {
        self.select(true, false)
    }

    /// A bit for each number that is heeded or irrelevant.
    pub const fn known(&self) -> u64 {
        self.select(true, true)
    }

    const fn select(&self, irrelevant: bool, heeded: bool) -> u64 {
        let (mut bits, mut at) = (0, 0);
        while at < self.rows.len() {
            let wanted = match self.rows[at].class {
                Class::Irrelevant(_) => irrelevant,
                Class::Heeded(_) => heeded,
                Class::Kernel(_) => false,
            };
            if wanted {
                bits |= 1 << self.rows[at].number;
            }
            at += 1;
        }
        bits
    }
}

/// Is the bit of this number set?
pub const fn has(bits: u64, number: u16) -> bool {
    number < 64 && bits >> number & 1 == 1
}

const LOCAL: &str = "only for packets that this machine creates";
const NARROW: &str = "only a filter of requests; routes do not have it";
const OFFLOAD: &str = "hardware forwards too; packets that reach software go the same way";

/// `RTA_*` of `RTM_NEWROUTE`.
pub const ROUTE: Table = Table {
    title: "Routes: attributes (`RTA_*`)",
    rows: &[
        heeded(1, "DST", "the prefix"),
        heeded(2, "SRC", "IPv6: the kernel decides about the whole prefix"),
        kernel(3, "IIF", NARROW),
        heeded(4, "OIF", "the device of the next hop"),
        heeded(5, "GATEWAY", "the next hop"),
        heeded(6, "PRIORITY", "the metric"),
        irrelevant(7, "PREFSRC", LOCAL),
        heeded(8, "METRICS", "see below"),
        heeded(9, "MULTIPATH", "next hops, each with attributes of its own"),
        kernel(10, "PROTOINFO", "no kernel sends it"),
        irrelevant(11, "FLOW", "realms serve counters and classifiers; a classifier is a reason of its own"),
        heeded(12, "CACHEINFO", "the end of the route"),
        kernel(13, "SESSION", "no kernel sends it"),
        kernel(14, "MP_ALGO", "no kernel sends it"),
        heeded(15, "TABLE", "the table"),
        kernel(16, "MARK", NARROW),
        kernel(17, "MFC_STATS", "for multicast"),
        heeded(18, "VIA", "the next hop, of either family"),
        kernel(19, "NEWDST", "for MPLS"),
        heeded(20, "PREF", "any but medium stays with the kernel"),
        kernel(21, "ENCAP_TYPE", "encapsulation"),
        kernel(22, "ENCAP", "encapsulation"),
        kernel(23, "EXPIRES", "for multicast"),
        irrelevant(24, "PAD", "padding"),
        kernel(25, "UID", NARROW),
        kernel(26, "TTL_PROPAGATE", "for MPLS"),
        kernel(27, "IP_PROTO", NARROW),
        kernel(28, "SPORT", NARROW),
        kernel(29, "DPORT", NARROW),
        heeded(30, "NH_ID", "the nexthop object"),
        kernel(31, "FLOWLABEL", NARROW),
    ],
};

/// `RTAX_*` inside `RTA_METRICS`.
pub const METRIC: Table = Table {
    title: "Routes: metrics (`RTAX_*` in `RTA_METRICS`)",
    rows: &[
        heeded(1, "LOCK", "a locked MTU without a value stays with the kernel"),
        heeded(2, "MTU", "larger packets go to the kernel"),
        irrelevant(3, "WINDOW", LOCAL),
        irrelevant(4, "RTT", LOCAL),
        irrelevant(5, "RTTVAR", LOCAL),
        irrelevant(6, "SSTHRESH", LOCAL),
        irrelevant(7, "CWND", LOCAL),
        irrelevant(8, "ADVMSS", LOCAL),
        irrelevant(9, "REORDERING", LOCAL),
        irrelevant(10, "HOPLIMIT", LOCAL),
        irrelevant(11, "INITCWND", LOCAL),
        heeded(12, "FEATURES", "ECN, SACK and timestamps concern only TCP; any other stays with the kernel"),
        irrelevant(13, "RTO_MIN", LOCAL),
        irrelevant(14, "INITRWND", LOCAL),
        irrelevant(15, "QUICKACK", LOCAL),
        irrelevant(16, "CC_ALGO", LOCAL),
        irrelevant(17, "FASTOPEN_NO_COOKIE", LOCAL),
    ],
};

/// `rtm_flags` of routes, `rtnh_flags` and `nh_flags` of next hops, by bit.
pub const ROUTE_FLAG: Table = Table {
    title: "Routes and next hops: flags, by bit (`RTNH_F_*`, `RTM_F_*`)",
    rows: &[
        heeded(0, "RTNH_F_DEAD", "the next hop is skipped"),
        irrelevant(1, "RTNH_F_PERVASIVE", "no kernel sets it"),
        irrelevant(2, "RTNH_F_ONLINK", "matters only when the route is created"),
        irrelevant(3, "RTNH_F_OFFLOAD", OFFLOAD),
        heeded(4, "RTNH_F_LINKDOWN", "the next hop is skipped if the device has ignore_routes_with_linkdown"),
        kernel(5, "RTNH_F_UNRESOLVED", "for multicast"),
        irrelevant(6, "RTNH_F_TRAP", OFFLOAD),
        irrelevant(8, "RTM_F_NOTIFY", "describes the message, not the route"),
        heeded(
            9,
            "RTM_F_CLONED",
            "a learned route to one destination: ignored, except in answers about learned routes",
        ),
        irrelevant(11, "RTM_F_PREFIX", "the origin of the route"),
        irrelevant(14, "RTM_F_OFFLOAD", OFFLOAD),
        irrelevant(15, "RTM_F_TRAP", OFFLOAD),
        irrelevant(29, "RTM_F_OFFLOAD_FAILED", OFFLOAD),
    ],
};

/// `NHA_*` of `RTM_NEWNEXTHOP`.
pub const NEXTHOP: Table = Table {
    title: "Nexthop objects: attributes (`NHA_*`)",
    rows: &[
        heeded(1, "ID", "its number"),
        heeded(2, "GROUP", "members and weights"),
        heeded(3, "GROUP_TYPE", "any but hash-threshold stays with the kernel"),
        heeded(4, "BLACKHOLE", "the kernel drops the packets"),
        heeded(5, "OIF", "the device"),
        heeded(6, "GATEWAY", "the next hop"),
        kernel(7, "ENCAP_TYPE", "encapsulation"),
        kernel(8, "ENCAP", "encapsulation"),
        kernel(9, "GROUPS", "only a filter of requests"),
        kernel(10, "MASTER", "only a filter of requests"),
        kernel(11, "FDB", "for bridges"),
        kernel(12, "RES_GROUP", "resilient groups remember their flows"),
        kernel(13, "RES_BUCKET", "resilient groups remember their flows"),
        irrelevant(14, "OP_FLAGS", "describes the request"),
        irrelevant(15, "GROUP_STATS", "counters"),
        irrelevant(16, "HW_STATS_ENABLE", "counters"),
        irrelevant(17, "HW_STATS_USED", "counters"),
    ],
};

/// `NDA_*` of `RTM_NEWNEIGH`.
pub const NEIGHBOUR: Table = Table {
    title: "Neighbours: attributes (`NDA_*`)",
    rows: &[
        heeded(1, "DST", "its address"),
        heeded(2, "LLADDR", "its MAC address"),
        irrelevant(3, "CACHEINFO", "ages"),
        irrelevant(4, "PROBES", "the number of probes sent"),
        kernel(5, "VLAN", "for bridges"),
        kernel(6, "PORT", "for VXLAN"),
        kernel(7, "VNI", "for VXLAN"),
        kernel(8, "IFINDEX", "for VXLAN"),
        kernel(9, "MASTER", "only a filter of requests"),
        kernel(10, "LINK_NETNSID", "for VXLAN"),
        kernel(11, "SRC_VNI", "for VXLAN"),
        irrelevant(12, "PROTOCOL", "the origin of the entry"),
        kernel(13, "NH_ID", "for VXLAN"),
        kernel(14, "FDB_EXT_ATTRS", "for bridges"),
        heeded(15, "FLAGS_EXT", "see below"),
        kernel(16, "NDM_STATE_MASK", "for bridges"),
        kernel(17, "NDM_FLAGS_MASK", "for bridges"),
    ],
};

/// `ndm_flags` in bits 0 to 7, `NDA_FLAGS_EXT` in bits 8 and up.
pub const NEIGHBOUR_FLAG: Table = Table {
    title: "Neighbours: flags, by bit (`NTF_*`, from bit 8 on `NTF_EXT_*`)",
    rows: &[
        irrelevant(0, "NTF_USE", "only in requests"),
        kernel(1, "NTF_SELF", "for bridges"),
        kernel(2, "NTF_MASTER", "for bridges"),
        heeded(3, "NTF_PROXY", "an address that Linux answers for, not a neighbour: the message is ignored"),
        irrelevant(4, "NTF_EXT_LEARNED", "the origin of the entry"),
        irrelevant(5, "NTF_OFFLOADED", OFFLOAD),
        kernel(6, "NTF_STICKY", "for bridges"),
        irrelevant(7, "NTF_ROUTER", "whether the neighbour is a router does not matter for packets to it"),
        irrelevant(8, "NTF_EXT_MANAGED", "the kernel keeps the entry fresh"),
        kernel(9, "NTF_EXT_LOCKED", "for bridges"),
        irrelevant(10, "NTF_EXT_EXT_VALIDATED", "another program keeps the entry fresh"),
    ],
};

/// `IFA_*` of `RTM_NEWADDR`.
pub const ADDRESS: Table = Table {
    title: "Addresses: attributes (`IFA_*`)",
    rows: &[
        heeded(1, "ADDRESS", "the address, or its peer's"),
        heeded(2, "LOCAL", "the address"),
        irrelevant(3, "LABEL", "a name"),
        irrelevant(4, "BROADCAST", "table local holds a route for it"),
        irrelevant(5, "ANYCAST", "table local holds a route for it"),
        irrelevant(6, "CACHEINFO", "a message reports the end of the address"),
        irrelevant(7, "MULTICAST", "no kernel sends it here"),
        irrelevant(8, "FLAGS", "table local decides which packets are delivered"),
        irrelevant(9, "RT_PRIORITY", "the connected route has it"),
        heeded(10, "TARGET_NETNSID", "an address of another namespace: the message is ignored"),
        irrelevant(11, "PROTO", "the origin of the address"),
    ],
};

/// All tables, in the order of `docs/reference/attributes.md`.
pub const TABLES: [&Table; 7] =
    [&ROUTE, &METRIC, &ROUTE_FLAG, &NEXTHOP, &NEIGHBOUR, &NEIGHBOUR_FLAG, &ADDRESS];

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;

    fn page() -> String {
        let mut text = String::new();
        for table in TABLES {
            write!(
                text,
                "\n## {}\n\n| number | name | class | why, or how |\n|---|---|---|---|\n",
                table.title
            )
            .unwrap();
            for row in table.rows {
                let (class, words) = match row.class {
                    Class::Heeded(how) => ("heeded", how),
                    Class::Irrelevant(why) => ("irrelevant", why),
                    Class::Kernel(why) => ("stays with the kernel", why),
                };
                writeln!(text, "| {} | `{}` | {class} | {words} |", row.number, row.name).unwrap();
            }
        }
        text
    }

    #[test]
    fn the_page_shows_the_tables() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/attributes.md");
        let text = std::fs::read_to_string(path).unwrap();
        let begin = text.find("\n## ").unwrap();
        assert_eq!(text[begin..], page(), "replace the tables with this text:\n{}", page());
    }

    #[test]
    fn no_number_is_listed_twice() {
        for table in TABLES {
            let numbers: std::collections::BTreeSet<_> = table.rows.iter().map(|row| row.number).collect();
            assert_eq!(numbers.len(), table.rows.len(), "{}", table.title);
            assert!(numbers.iter().all(|n| *n < 64), "{}", table.title);
        }
    }
}
