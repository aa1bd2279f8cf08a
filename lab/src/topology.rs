//! What a testbed is made of, as data: read from a small TOML file (lab/README.md describes it). A topology that cannot
//! exist is refused before anything is built.

use std::{collections::HashSet, str::FromStr};

use anyhow::{Context, Result, bail};
use logic::net::{Prefix, Prefix4, Prefix6};
use serde::Deserialize;

use crate::built_in;

mod check;

pub use check::{MAX_INTERFACES, MAX_INTERFACES_ON_PORT, MAX_PORTS, MAX_QUEUES, MAX_ROUTERS};

/// Built-in topologies: name and text.
const BUILT_IN: [(&str, &str); 9] = [
    ("rfc2544", include_str!("../topologies/rfc2544.toml")),
    ("virtual-routers", include_str!("../topologies/virtual-routers.toml")),
    ("two-in", include_str!("../topologies/two-in.toml")),
    ("three-in", include_str!("../topologies/three-in.toml")),
    ("two-ways", include_str!("../topologies/two-ways.toml")),
    ("pairs", include_str!("../topologies/pairs.toml")),
    ("shared", include_str!("../topologies/shared.toml")),
    ("interfaces", include_str!("../topologies/interfaces.toml")),
    ("queues", include_str!("../topologies/queues.toml")),
];

/// Description of a testbed.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// The name by which it was found.
    #[serde(skip)]
    pub name: String,
    /// What it is for, in a line.
    pub description: String,
    /// Which core does what.
    pub cores: Cores,
    /// Ports of the machine under test; their number is their place here, from 0.
    #[serde(rename = "port", default)]
    pub ports: Vec<PortSpec>,
    /// Virtual routers beside the host's own.
    #[serde(rename = "router", default)]
    pub routers: Vec<Routers>,
}

/// Which core does what.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cores {
    /// Core of the generator, and of everything else of the lab.
    pub generator: usize,
    /// Cores of the router under test: threads of its ports' queues, in turn.
    pub router: Vec<usize>,
    /// Cores of the hosts' ends of the cables, with the sink. Empty: they run in the router's threads, on no core of
    /// their own.
    #[serde(default)]
    pub sink: Vec<usize>,
    /// Cores of applications that share the machine with the router.
    #[serde(default)]
    pub applications: Vec<usize>,
}

/// A port, with a cable to a host.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortSpec {
    /// Name of the device.
    pub name: String,
    /// The host at the other end; several ports may lead to one.
    pub host: String,
    /// Receive queues, and as many transmit queues, at both ends.
    #[serde(default = "one")]
    pub queues: u16,
    /// Networks that routers reach through this port.
    #[serde(default)]
    pub behind: Vec<Network>,
    /// Number of next hops behind it.
    #[serde(default = "one")]
    pub next_hops: u16,
}

/// Virtual routers that are alike.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Routers {
    /// Number of these routers.
    #[serde(default = "one")]
    pub count: u16,
    /// Names of the ports they are on; all if not given.
    pub ports: Option<Vec<String>>,
    /// Interfaces of each on each port, a power of two.
    #[serde(default = "one")]
    pub interfaces: u16,
}

fn one() -> u16 {
    1
}

/// A network behind a port.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "String")]
pub enum Network {
    /// IPv4.
    V4(Prefix4),
    /// IPv6.
    V6(Prefix6),
}

/// A router as it will be built.
#[derive(Clone, Debug, PartialEq)]
pub struct Router {
    /// 0 is the host's own, then r1, r2, ...
    pub number: u16,
    /// Interfaces on each of its ports.
    pub interfaces_on_port: u16,
    /// All interfaces, port by port.
    pub interfaces: Vec<Interface>,
}

/// An interface of a router.
#[derive(Clone, Debug, PartialEq)]
pub struct Interface {
    /// Name of the device, in the router's namespace.
    pub device: String,
    /// Number of the port.
    pub port: u8,
    /// Its number on that port, from 0.
    pub number: u8,
}

impl Topology {
    /// A built-in one by its name, or one from a file.
    pub fn named(name_or_path: &str) -> Result<Self> {
        Self::parse(name_or_path, &built_in::text("topology", &BUILT_IN, name_or_path)?)
    }

    /// One router between a generator and a sink: the default of measurements.
    pub fn rfc2544() -> Self {
        Self::named("rfc2544").expect("a test reads all that are built in")
    }

    /// All built-in topologies.
    pub fn built_in() -> impl Iterator<Item = Result<Self>> {
        BUILT_IN.iter().map(|(name, text)| Self::parse(name, text))
    }

    fn parse(name: &str, text: &str) -> Result<Self> {
        let parsed: Result<Self, toml::de::Error> = toml::from_str(text);
        let is_misplaced = |error: &toml::de::Error| error.message().contains("field `description`");
        let topology = match parsed {
            Err(error) if is_misplaced(&error) => {
                bail!("topology {name}: `description = \"what it is for\"` is missing; it goes at the top")
            }
            parsed => parsed.with_context(|| format!("topology {name}"))?,
        };
        Ok(Self { name: name.to_owned(), ..topology })
    }

    /// Sets the number of virtual routers. They are like the first one described, or on all ports if none is.
    pub fn with_routers(mut self, count: u16) -> Self {
        self.first_routers().count = count;
        self.routers.truncate(1);
        self
    }

    /// Sets the number of interfaces of each virtual router on each port. Adds one router if none is described.
    pub fn with_interfaces(mut self, interfaces: u16) -> Self {
        self.first_routers();
        self.routers.iter_mut().for_each(|routers| routers.interfaces = interfaces);
        self
    }

    /// Uses other cores.
    pub fn with_cores(mut self, cores: Cores) -> Self {
        self.cores = cores;
        self
    }

    fn first_routers(&mut self) -> &mut Routers {
        if self.routers.is_empty() {
            self.routers.push(Routers { count: 1, ports: None, interfaces: 1 });
        }
        &mut self.routers[0]
    }

    /// Names of the hosts, in the order of their first ports.
    pub fn hosts(&self) -> Vec<&str> {
        let mut seen = HashSet::new();
        self.ports.iter().map(|port| port.host.as_str()).filter(|host| seen.insert(*host)).collect()
    }

    /// The device at the other end of a port's cable: eth0, eth1, ... of the host in the order of its ports.
    pub fn host_device(&self, port: usize) -> String {
        let host = &self.ports[port].host;
        format!("eth{}", self.ports[..port].iter().filter(|other| other.host == *host).count())
    }

    /// Number of the port with this name.
    pub fn port(&self, name: &str) -> Result<usize> {
        let names = || self.ports.iter().map(|port| port.name.as_str()).collect::<Vec<_>>().join(", ");
        self.ports
            .iter()
            .position(|port| port.name == name)
            .with_context(|| format!("no port is called {name}; there are: {}", names()))
    }

    /// Number of virtual routers.
    pub fn router_count(&self) -> u16 {
        self.routers.iter().map(|routers| routers.count).sum()
    }

    /// The host's own router, then the virtual ones.
    pub fn all_routers(&self) -> Result<Vec<Router>> {
        let every: Vec<usize> = (0..self.ports.len()).collect();
        let mut all = vec![self.router(0, &every, 1)];
        for routers in &self.routers {
            let ports = match &routers.ports {
                Some(names) => {
                    let ports = names.iter().map(|name| self.port(name)).collect::<Result<_>>();
                    ports.context("ports of a virtual router")?
                }
                None => every.clone(),
            };
            for _ in 0..routers.count {
                all.push(self.router(all.len() as u16, &ports, routers.interfaces));
            }
        }
        Ok(all)
    }

    /// A router on these ports, with this many interfaces on each.
    pub fn router(&self, number: u16, ports: &[usize], interfaces_on_port: u16) -> Router {
        let on_port = |&port: &usize| {
            (0..interfaces_on_port).map(move |i| Interface {
                device: interface_name(&self.ports[port].name, i),
                port: port as u8,
                number: i as u8,
            })
        };
        Router { number, interfaces_on_port, interfaces: ports.iter().flat_map(on_port).collect() }
    }
}

/// Name of interface `i` of a virtual router on a port: the name of the port, followed by `i` if that is not 0.
fn interface_name(port: &str, i: u16) -> String {
    if i == 0 { port.to_owned() } else { format!("{port}-{i}") }
}

impl Network {
    /// Part `i` of `count` equal parts (`count` is a power of two). `None` if the network has fewer addresses.
    pub fn part(&self, i: u16, count: u16) -> Option<Self> {
        let bits = count.trailing_zeros() as u8;
        match self {
            Self::V4(prefix) => {
                let length = prefix.length() + bits;
                let offset = u64::from(i) << u32::BITS.checked_sub(length.into())?;
                Prefix::new(prefix.address() | offset as u32, length).map(Self::V4)
            }
            Self::V6(prefix) => {
                let length = prefix.length() + bits;
                let offset = u128::from(i) << u128::BITS.checked_sub(length.into())?.min(127);
                Prefix::new(prefix.address() | offset, length).map(Self::V6)
            }
        }
    }
}

impl FromStr for Network {
    type Err = logic::net::BadPrefix;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self::V4).or_else(|_| text.parse().map(Self::V6))
    }
}

impl TryFrom<String> for Network {
    type Error = logic::net::BadPrefix;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::V4(prefix) => prefix.fmt(f),
            Self::V6(prefix) => prefix.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) const CORES: usize = 2;
    /// A valid topology; each case breaks something in it.
    pub(super) const GOOD: &str = r#"
        description = "for tests"
        [cores]
        generator = 0
        router = [1]
        [[port]]
        name = "eth1"
        host = "gen"
        [[port]]
        name = "eth2"
        host = "sink"
        behind = ["198.18.0.0/15", "2001:2::/48"]
        next_hops = 8
        queues = 2
        [[router]]
        count = 2
        ports = ["eth1", "eth2"]
        interfaces = 4
    "#;

    #[test]
    fn the_readmes_example_can_exist() {
        let text =
            include_str!("../README.md").split_once("```toml\n").unwrap().1.split_once("```").unwrap().0;
        let topology = Topology::parse("README", text).unwrap();
        topology.check(CORES).unwrap();
        assert_eq!((topology.ports.len(), topology.router_count()), (2, 2));
    }

    #[test]
    fn a_file_is_a_topology_too_and_an_unknown_name_lists_the_built_in_ones() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), GOOD).unwrap();
        let topology = Topology::named(file.path().to_str().unwrap()).unwrap();
        assert_eq!((topology.router_count(), topology.description.as_str()), (2, "for tests"));
        let error = Topology::named("ring").unwrap_err().to_string();
        assert!(error.contains("called ring") && error.contains("rfc2544, virtual-routers"), "{error}");
        std::fs::write(file.path(), [0xff]).unwrap();
        for path in [file.path().to_str().unwrap(), "/"] {
            let error = Topology::named(path).unwrap_err().to_string();
            let expected = format!("cannot read {path}, where a topology was expected");
            assert!(error.starts_with(&expected), "{error}");
        }
    }

    #[test]
    fn routers_are_numbered_and_networks_cut_into_one_part_for_each_interface() {
        let topology = Topology::parse("it", GOOD).unwrap();
        let all = topology.all_routers().unwrap();
        let devices = |n: usize| all[n].interfaces.iter().map(|i| i.device.as_str()).collect::<Vec<_>>();
        assert_eq!(devices(0), ["eth1", "eth2"]);
        assert_eq!(devices(2), ["eth1", "eth1-1", "eth1-2", "eth1-3", "eth2", "eth2-1", "eth2-2", "eth2-3"]);
        assert_eq!(all.iter().map(|router| router.number).collect::<Vec<_>>(), [0, 1, 2]);
        let parts = |network: &str, count: u16| -> Vec<String> {
            let network: Network = network.parse().unwrap();
            (0..count).map(|i| network.part(i, count).unwrap().to_string()).collect()
        };
        assert_eq!(parts("198.18.0.0/15", 1), ["198.18.0.0/15"]);
        assert_eq!(
            parts("198.18.0.0/15", 4),
            ["198.18.0.0/17", "198.18.128.0/17", "198.19.0.0/17", "198.19.128.0/17"]
        );
        assert_eq!(parts("2001:2::/48", 2), ["2001:2::/49", "2001:2:0:8000::/49"]);
        assert_eq!(parts("192.0.2.8/31", 2), ["192.0.2.8/32", "192.0.2.9/32"]);
        assert_eq!(
            (parts("::/0", 1), parts("0.0.0.0/0", 1)),
            (vec!["::/0".into()], vec!["0.0.0.0/0".into()])
        );
    }

    #[test]
    fn numbers_can_be_overridden_and_are_checked_again() {
        let routers = Topology::rfc2544().with_routers(3).with_interfaces(2);
        assert_eq!(routers.all_routers().unwrap()[3].interfaces.len(), 4);
        let pairs = Topology::named("pairs").unwrap().with_routers(5);
        assert_eq!(pairs.router_count(), 5);
        assert_eq!(pairs.all_routers().unwrap()[5].interfaces.len(), 2);
        assert!(Topology::rfc2544().with_routers(300).check(CORES).is_err());
        let cores = Cores { generator: 0, router: vec![5], sink: vec![], applications: vec![] };
        assert!(Topology::rfc2544().with_cores(cores).check(CORES).is_err());
    }

    #[test]
    fn a_host_counts_its_devices() {
        let topology = Topology::named("pairs").unwrap();
        assert_eq!(topology.hosts(), ["gen", "sink"]);
        let devices: Vec<String> = (0..4).map(|port| topology.host_device(port)).collect();
        assert_eq!(devices, ["eth0", "eth0", "eth1", "eth1"]);
    }
}
