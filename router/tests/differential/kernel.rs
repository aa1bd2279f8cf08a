//! Kinds of changes that not every kernel has.

use crate::bed::Bed;
use std::{collections::BTreeSet, path::Path};

/// A name, and a command that succeeds only on a kernel that has it.
const PROBES: &[(&str, &str)] = &[
    ("vlan", "ip link add link p0 name x0 type vlan id 9"),
    ("ipvlan", "ip link add link p0 name x0 type ipvlan mode l2"),
    ("vrf", "ip link add x0 type vrf table 9"),
    ("bond", "ip link add x0 type bond"),
    ("bridge", "ip link add x0 type bridge"),
    ("macvtap", "ip link add link p0 name x0 type macvtap"),
    ("fq", "tc qdisc add dev p0 root fq"),
    ("fq_codel", "tc qdisc add dev p0 root fq_codel"),
    ("sfq", "tc qdisc add dev p0 root sfq"),
    ("prio", "tc qdisc add dev p0 root prio"),
    ("netem", "tc qdisc add dev p0 root netem"),
    ("htb", "tc qdisc add dev p0 root htb"),
    ("tbf", "tc qdisc add dev p0 root tbf rate 1gbit burst 1mb latency 50ms"),
    ("noqueue", "tc qdisc add dev p0 root noqueue"),
    ("clsact", "tc qdisc add dev p0 clsact"),
    ("nft", "nft add table inet f"),
    ("nft bridge", "nft add table bridge f"),
    ("xfrm", "ip xfrm policy add src 10.9.0.0/16 dst 10.9.0.0/16 dir fwd action block"),
    ("nexthop", "ip nexthop add id 90 blackhole"),
    ("encap ip", "ip route add 172.31.0.0/24 encap ip id 5 dst 10.0.0.10 dev p0"),
    ("encap mpls", "ip route add 172.31.1.0/24 encap mpls 100 via 10.0.0.10 dev p0"),
    ("encap seg6", "ip -6 route add 2403::/16 encap seg6 mode encap segs 2001:db8::10 dev p0"),
    ("encap seg6local", "ip -6 route add 2404::/16 encap seg6local action End dev p0"),
];

pub struct Kernel {
    has: BTreeSet<&'static str>,
}

impl Kernel {
    /// Tries all probes in one namespace, undoing links and qdiscs after each. Prints those that the kernel
    /// lacks.
    pub fn probe() -> Kernel {
        let bed = Bed::build();
        let mut kernel = Kernel { has: BTreeSet::new() };
        let mut lacks = Vec::new();
        for (name, line) in PROBES {
            match bed.run(false, line) {
                Ok(()) => drop(kernel.has.insert(*name)),
                Err(_) => lacks.push(*name),
            }
            for undo in ["ip link del x0", "tc qdisc del dev p0 root"] {
                let _ = bed.run(false, undo);
            }
        }
        eprintln!("left out, as this kernel lacks them: {}", lacks.join(", "));
        kernel
    }

    pub fn has(&self, name: &str) -> bool {
        debug_assert!(PROBES.iter().any(|probe| probe.0 == name), "{name} is not probed");
        self.has.contains(name)
    }

    /// Whether there is a setting of this name, with dots.
    pub fn has_sysctl(&self, name: &str) -> bool {
        Path::new("/proc/sys").join(name.replace('.', "/")).exists()
    }
}
