//! Checks whether a topology can exist. Every refusal names the cause and what to do.

use std::{collections::HashSet, str::FromStr};

use anyhow::{Context, Result, bail, ensure};
use logic::net::{Address, Prefix};

use super::{Cores, Interface, Network, PortSpec, Router, Routers, Topology};
use crate::addresses::MAX_NEXTHOP;

/// Maximum number of ports, for which the addressing plan has room.
pub const MAX_PORTS: usize = 16;
/// Maximum number of queues of a port.
pub const MAX_QUEUES: u16 = 16;
/// Maximum number of virtual routers.
pub const MAX_ROUTERS: u16 = 256;
/// Maximum number of interfaces of a virtual router on one port.
pub const MAX_INTERFACES_ON_PORT: u16 = 256;
/// Maximum number of interfaces of all virtual routers together.
pub const MAX_INTERFACES: usize = 4096;

/// Maximum length of a network device's name (IFNAMSIZ without its terminator).
const MAX_DEVICE: usize = 15;
const MAX_HOST: usize = 32;

impl Topology {
    /// Can it exist on a machine with this many cores? If not, the error says why, and what would work.
    pub fn check(&self, cores: usize) -> Result<()> {
        self.check_cores(cores)
            .and_then(|()| self.check_ports())
            .and_then(|()| self.check_networks())
            .and_then(|()| self.check_routers())
            .with_context(|| format!("topology {}", self.name))
    }

    fn check_cores(&self, count: usize) -> Result<()> {
        let Cores { generator, router, sink, applications } = &self.cores;
        ensure!(!router.is_empty(), "cores: the router has none; give it one, as in router = [1]");
        ensure!(*generator < count, "cores: the generator on core {generator}; {}", those_there(count));
        for (role, cores) in [("router", router), ("sink", sink), ("applications", applications)] {
            if let Some(core) = cores.iter().find(|core| **core >= count) {
                bail!("cores: {role} on core {core}; {}", those_there(count));
            }
            ensure!(
                !cores.contains(generator),
                "cores: generator and {role} on core {generator}; the generator never sleeps and needs a core of its own"
            );
            let mut seen = HashSet::new();
            if let Some(core) = cores.iter().find(|core| !seen.insert(**core)) {
                bail!("cores: {role} has core {core} twice; name each once");
            }
        }
        Ok(())
    }

    fn check_ports(&self) -> Result<()> {
        let count = self.ports.len();
        ensure!((1..=MAX_PORTS).contains(&count), "{count} ports: 1 to {MAX_PORTS}");
        let mut names = HashSet::new();
        for port in &self.ports {
            let PortSpec { name, host, queues, next_hops, .. } = port;
            check_device(name)?;
            ensure!(names.insert(name), "two ports are called {name}; rename one");
            check_host(host)?;
            ensure!((1..=MAX_QUEUES).contains(queues), "port {name}: {queues} queues: 1 to {MAX_QUEUES}");
            ensure!(
                (1..=MAX_NEXTHOP.into()).contains(next_hops),
                "port {name}: {next_hops} next hops: 1 to {MAX_NEXTHOP}"
            );
        }
        Ok(())
    }

    fn check_networks(&self) -> Result<()> {
        // Networks of the addressing plan (crate::addresses).
        let own = ["10.0.0.0/8", "fd00::/16"].map(|text| Network::from_str(text).expect("prefixes"));
        let mut seen: Vec<(&str, Network)> =
            own.map(|network| ("the testbed's own addresses", network)).into();
        for port in &self.ports {
            for network in &port.behind {
                if let Some((whose, other)) = seen.iter().find(|(_, other)| other.overlaps(network)) {
                    bail!(
                        "port {}: {network} behind it overlaps {other} ({whose}); every network has one place",
                        port.name
                    );
                }
                seen.push((&port.name, *network));
            }
        }
        Ok(())
    }

    fn check_routers(&self) -> Result<()> {
        let count: usize = self.routers.iter().map(|routers| usize::from(routers.count)).sum();
        ensure!(count <= MAX_ROUTERS.into(), "{count} virtual routers: at most {MAX_ROUTERS}");
        for routers in &self.routers {
            let Routers { ports, interfaces, .. } = routers;
            ensure!(
                interfaces.is_power_of_two() && *interfaces <= MAX_INTERFACES_ON_PORT,
                "{interfaces} interfaces of a virtual router on a port: 1, 2, 4, 8 ... {MAX_INTERFACES_ON_PORT} \
                 (networks behind a port are cut into equal parts)"
            );
            let mut seen = HashSet::new();
            for name in ports.iter().flatten() {
                ensure!(seen.insert(name), "a virtual router is on port {name} twice; name each port once");
            }
            ensure!(
                ports.as_ref().is_none_or(|ports| !ports.is_empty()),
                "a virtual router has no ports; leave `ports` out for all"
            );
        }
        let all = self.all_routers()?;
        let interfaces: usize = all.iter().skip(1).map(|router| router.interfaces.len()).sum();
        ensure!(
            interfaces <= MAX_INTERFACES,
            "{interfaces} interfaces of virtual routers: at most {MAX_INTERFACES} together"
        );
        all.iter().try_for_each(|router| self.check_interfaces(router))
    }

    fn check_interfaces(&self, router: &Router) -> Result<()> {
        let mut seen = HashSet::new();
        for Interface { device, port, number } in &router.interfaces {
            let port = &self.ports[usize::from(*port)];
            let (name, length) = (&port.name, device.len());
            ensure!(
                length <= MAX_DEVICE,
                "port {name}: its interface {device} in a virtual router has a name of {length} characters, at most \
                 {MAX_DEVICE} are possible; give the port a shorter name"
            );
            ensure!(
                seen.insert(device),
                "port {name}: a virtual router has another interface called {device}; rename the port"
            );
            for network in &port.behind {
                let count = router.interfaces_on_port;
                ensure!(
                    network.part((*number).into(), count).is_some(),
                    "port {name}: {network} cannot be cut into {count} parts, one per interface; use a larger network"
                );
            }
        }
        Ok(())
    }
}

fn those_there(count: usize) -> String {
    format!("this machine has cores 0 to {}", count - 1)
}

fn check_device(name: &str) -> Result<()> {
    let right = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    ensure!(
        !name.is_empty() && name.chars().all(right) && !name.starts_with(['.', '-']),
        "{name:?} is not a name for a port: use letters, digits, '-', '_' and '.', as in eth1"
    );
    // Linux has directories of these names in /proc/sys/net/*/conf.
    ensure!(!["lo", "all", "default"].contains(&name), "port {name}: Linux has taken this name; use another");
    ensure!(
        name.len() <= MAX_DEVICE,
        "port {name}: {} characters, a device's name has at most {MAX_DEVICE}",
        name.len()
    );
    Ok(())
}

fn check_host(name: &str) -> Result<()> {
    let right = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    ensure!(
        !name.is_empty() && name.len() <= MAX_HOST && name.chars().all(right),
        "{name:?} is not a name for a host: use 1 to {MAX_HOST} letters, digits, '-' and '_', as in gen"
    );
    let router = name.strip_prefix('r').is_some_and(|rest| rest.parse::<u16>().is_ok());
    ensure!(name != "box" && !router, "host {name}: that is a router's name here; use another, as in gen");
    Ok(())
}

impl Network {
    fn overlaps(&self, other: &Self) -> bool {
        fn either<A: Address>(a: Prefix<A>, b: Prefix<A>) -> bool {
            a.covers(b) || b.covers(a)
        }
        match (self, other) {
            (Self::V4(a), Self::V4(b)) => either(*a, *b),
            (Self::V6(a), Self::V6(b)) => either(*a, *b),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::tests::{CORES, GOOD};

    fn error(text: &str) -> String {
        let topology = Topology::parse("it", text);
        let error = topology.and_then(|topology| topology.check(CORES)).expect_err(text);
        format!("{error:#}")
    }

    #[test]
    fn an_impossible_topology_is_refused_with_the_cause_and_what_to_do() {
        let port = |n: usize| format!("[[port]]\nname = \"p{n}\"\nhost = \"h\"\n[[router]]");
        let seventeen = (0..15).map(port).collect::<String>().replace("[[router]][[port]]", "[[port]]");
        let cases: &[(&str, &str, &[&str])] = &[
            ("generator = 0", "generators = 0", &["unknown field `generators`", "expected"]),
            ("count = 2", "number = 2", &["unknown field `number`", "expected"]),
            ("router = [1]", "router = [2]", &["router on core 2", "cores 0 to 1"]),
            ("generator = 0", "generator = 7", &["generator on core 7", "cores 0 to 1"]),
            ("router = [1]", "router = [1]\nsink = [3]", &["sink on core 3", "cores 0 to 1"]),
            ("router = [1]", "router = [1]\napplications = [3]", &["applications on core 3", "cores 0 to 1"]),
            ("router = [1]", "router = [0]", &["generator and router on core 0", "a core of its own"]),
            ("router = [1]", "router = [1]\nsink = [0]", &["generator and sink on core 0"]),
            ("router = [1]", "router = []", &["router has none", "router = [1]"]),
            ("router = [1]", "router = [1, 1]", &["router has core 1 twice", "name each once"]),
            ("name = \"eth2\"", "name = \"eth1\"", &["two ports are called eth1", "rename"]),
            ("name = \"eth2\"", "name = \"lo\"", &["port lo", "use another"]),
            ("name = \"eth2\"", "name = \"a/b\"", &["\"a/b\" is not a name for a port", "as in eth1"]),
            (
                "name = \"eth2\"",
                "name = \"a-very-long-port\"",
                &["a-very-long-port", "16 characters", "at most 15"],
            ),
            ("host = \"sink\"", "host = \"box\"", &["host box", "use another"]),
            ("host = \"sink\"", "host = \"r7\"", &["host r7", "use another"]),
            ("host = \"sink\"", "host = \"a b\"", &["\"a b\" is not a name for a host", "as in gen"]),
            ("queues = 2", "queues = 0", &["port eth2: 0 queues: 1 to 16"]),
            ("queues = 2", "queues = 17", &["port eth2: 17 queues: 1 to 16"]),
            ("next_hops = 8", "next_hops = 0", &["port eth2: 0 next hops: 1 to 250"]),
            ("next_hops = 8", "next_hops = 251", &["port eth2: 251 next hops: 1 to 250"]),
            ("next_hops = 8", "next_hops = 300", &["port eth2: 300 next hops: 1 to 250"]),
            ("description = \"for tests\"", "", &["`description = ", "is missing; it goes at the top"]),
            (
                "description = \"for tests\"\n        [cores]",
                "[cores]\n        description = \"for tests\"",
                &["it goes at the top"],
            ),
            ("[[router]]", &seventeen, &["17 ports: 1 to 16"]),
            ("198.18.0.0/15", "198.18.0.0", &["not an IP prefix", "192.0.2.0/24", "198.18.0.0"]),
            ("2001:2::/48", "198.19.0.0/16", &["port eth2: 198.19.0.0/16", "overlaps 198.18.0.0/15 (eth2)"]),
            ("2001:2::/48", "0.0.0.0/0", &["0.0.0.0/0", "overlaps 10.0.0.0/8", "own addresses"]),
            ("2001:2::/48", "fd00:2::/32", &["fd00:2::/32", "overlaps fd00::/16"]),
            ("198.18.0.0/15", "198.18.0.0/31", &["198.18.0.0/31 cannot be cut into 4 parts", "larger"]),
            ("2001:2::/48", "2001:2::/127", &["2001:2::/127 cannot be cut into 4 parts", "larger"]),
            ("count = 2", "count = 257", &["257 virtual routers: at most 256"]),
            ("interfaces = 4", "interfaces = 3", &["3 interfaces", "1, 2, 4"]),
            ("interfaces = 4", "interfaces = 0", &["0 interfaces", "1, 2, 4"]),
            ("interfaces = 4", "interfaces = 512", &["512 interfaces", "256"]),
            ("count = 2", "count = 256", &[]),
            ("count = 2\n", "count = 256\n[[router]]\n", &["257 virtual routers"]),
            (
                "interfaces = 4",
                "interfaces = 256\n[[router]]\ncount = 7\ninterfaces = 256",
                &["4608 interfaces", "at most 4096"],
            ),
            (
                "[\"eth1\", \"eth2\"]",
                "[\"eth1\", \"eth9\"]",
                &["no port is called eth9", "there are: eth1, eth2"],
            ),
            ("[\"eth1\", \"eth2\"]", "[\"eth1\", \"eth1\"]", &["on port eth1 twice", "once"]),
            ("[\"eth1\", \"eth2\"]", "[]", &["has no ports", "leave `ports` out"]),
        ];
        Topology::parse("it", GOOD).unwrap().check(CORES).unwrap();
        for (from, to, parts) in cases {
            assert!(GOOD.contains(from), "{from}");
            let text = GOOD.replacen(from, to, 1);
            if parts.is_empty() {
                Topology::parse("it", &text).unwrap().check(CORES).unwrap();
                continue;
            }
            let error = error(&text);
            assert!(error.starts_with("topology it: "), "{error}");
            for part in *parts {
                assert!(error.contains(part), "{to}: {error}");
            }
        }
    }

    #[test]
    fn names_that_interfaces_make_too_long_or_equal_are_refused() {
        let text = GOOD.replace("eth2", "fourteen-chars");
        assert!(error(&text).contains("fourteen-chars-1 in a virtual router has a name of 16 characters"));
        let text = GOOD.replace("eth2", "eth1-3");
        assert!(
            error(&text)
                .contains("port eth1-3: a virtual router has another interface called eth1-3; rename")
        );
    }

    #[test]
    fn built_in_topologies_can_exist_on_two_cores() {
        let all: Vec<Topology> = Topology::built_in().map(Result::unwrap).collect();
        assert!(all.len() >= 8);
        for topology in &all {
            topology.check(CORES).unwrap();
            assert!(!topology.description.is_empty());
            assert_eq!(Topology::named(&topology.name).unwrap(), *topology);
        }
    }
}
