//! What a testbed is made of, as data: read from a small TOML file (lab/README.md says how to write one), and refused before
//! anything is built if it cannot exist.

use std::{collections::HashSet, path::Path, str::FromStr};

use anyhow::{Context, Result, bail, ensure};
use logic::net::{Address, Prefix, Prefix4, Prefix6};
use serde::Deserialize;

use crate::addresses::MAX_NEXTHOP;

/// Most ports: the addressing plan has room for these.
pub const MAX_PORTS: usize = 16;
/// Most queues of a port.
pub const MAX_QUEUES: u16 = 16;
/// Most virtual routers.
pub const MAX_ROUTERS: u16 = 256;
/// Most interfaces of a virtual router on one port.
pub const MAX_INTERFACES_ON_PORT: u16 = 256;
/// Most interfaces of all virtual routers together.
pub const MAX_INTERFACES: usize = 4096;

/// Longest name of a network device (IFNAMSIZ less its end).
const MAX_DEVICE: usize = 15;
const MAX_HOST: usize = 32;

/// Those that come with the lab: name and text.
const BUILT_IN: [(&str, &str); 8] = [
    ("rfc2544", include_str!("../topologies/rfc2544.toml")),
    ("virtual-routers", include_str!("../topologies/virtual-routers.toml")),
    ("two-in", include_str!("../topologies/two-in.toml")),
    ("three-in", include_str!("../topologies/three-in.toml")),
    ("pairs", include_str!("../topologies/pairs.toml")),
    ("shared", include_str!("../topologies/shared.toml")),
    ("interfaces", include_str!("../topologies/interfaces.toml")),
    ("queues", include_str!("../topologies/queues.toml")),
];

/// A testbed to be.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// The name it was found by.
    #[serde(skip)]
    pub name: String,
    /// What it is for, in a line.
    pub description: String,
    /// Which core does what.
    pub cores: Cores,
    /// Ports of the machine under test; their number is their place here, from 0.
    #[serde(rename = "port", default)]
    pub ports: Vec<Port>,
    /// Virtual routers beside the host's own.
    #[serde(rename = "router", default)]
    pub routers: Vec<Routers>,
}

/// Which core does what.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cores {
    /// The generator, and everything else of the lab.
    pub generator: usize,
    /// The router under test: threads of its ports' queues, in turn.
    pub router: Vec<usize>,
    /// The hosts' ends of the cables, with the sink. None: they run in the router's threads and take no core of their own.
    #[serde(default)]
    pub sink: Vec<usize>,
    /// Applications that share the machine with the router.
    #[serde(default)]
    pub applications: Vec<usize>,
}

/// A port, with a cable to a host.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// Name of the device.
    pub name: String,
    /// The host at the other end; several ports may lead to one.
    pub host: String,
    /// Receive queues, and as many transmit queues, at both ends.
    #[serde(default = "one")]
    pub queues: u16,
    /// What routers reach through this port.
    #[serde(default)]
    pub behind: Vec<Network>,
    /// Next hops behind it.
    #[serde(default = "one_nexthop")]
    pub next_hops: u8,
}

/// Virtual routers that are alike.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Routers {
    /// How many.
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

fn one_nexthop() -> u8 {
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
        if let Some((_, text)) = BUILT_IN.iter().find(|(name, _)| *name == name_or_path) {
            return Self::parse(name_or_path, text);
        }
        let path = Path::new(name_or_path);
        if !path.exists() {
            let names = BUILT_IN.map(|(name, _)| name).join(", ");
            bail!("no topology is called {name_or_path}, and there is no such file; there are: {names}");
        }
        let text = std::fs::read_to_string(path).with_context(|| name_or_path.to_owned())?;
        Self::parse(name_or_path, &text)
    }

    /// One router between a generator and a sink: what is measured unless something else is asked for.
    pub fn rfc2544() -> Self {
        Self::named("rfc2544").expect("a test reads all that are built in")
    }

    /// All that are built in.
    pub fn built_in() -> impl Iterator<Item = Result<Self>> {
        BUILT_IN.iter().map(|(name, text)| Self::parse(name, text))
    }

    fn parse(name: &str, text: &str) -> Result<Self> {
        let topology: Self = toml::from_str(text).with_context(|| format!("topology {name}"))?;
        Ok(Self { name: name.to_owned(), ..topology })
    }

    /// So many virtual routers like the first that are described, or on all ports.
    pub fn with_routers(mut self, count: u16) -> Self {
        self.first_routers().count = count;
        self.routers.truncate(1);
        self
    }

    /// So many interfaces of each virtual router on each port; one router if none is described.
    pub fn with_interfaces(mut self, interfaces: u16) -> Self {
        self.first_routers();
        self.routers.iter_mut().for_each(|routers| routers.interfaces = interfaces);
        self
    }

    /// On other cores.
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
                Some(names) => names.iter().map(|name| self.port(name)).collect::<Result<_>>()?,
                None => every.clone(),
            };
            for _ in 0..routers.count {
                all.push(self.router(all.len() as u16, &ports, routers.interfaces));
            }
        }
        Ok(all)
    }

    /// A router on these ports, with so many interfaces on each.
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

    /// Can it exist on a machine with so many cores? If not, says why, and what would do.
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
            let Port { name, host, queues, next_hops, .. } = port;
            check_device(name)?;
            ensure!(names.insert(name), "two ports are called {name}; rename one");
            check_host(host)?;
            ensure!((1..=MAX_QUEUES).contains(queues), "port {name}: {queues} queues: 1 to {MAX_QUEUES}");
            ensure!(
                (1..=MAX_NEXTHOP).contains(next_hops),
                "port {name}: {next_hops} next hops: 1 to {MAX_NEXTHOP}"
            );
        }
        Ok(())
    }

    fn check_networks(&self) -> Result<()> {
        // What the addressing plan takes (crate::addresses).
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
        for router in &all {
            for Interface { device, port, number } in &router.interfaces {
                let port = &self.ports[usize::from(*port)];
                ensure!(
                    device.len() <= MAX_DEVICE,
                    "port {}: its interface {device} in a virtual router has a name of {} characters, at most {MAX_DEVICE} \
                     are possible; give the port a shorter name",
                    port.name,
                    device.len()
                );
                for network in &port.behind {
                    ensure!(
                        network.part(u16::from(*number), router.interfaces_on_port).is_some(),
                        "port {}: {network} cannot be cut into {} parts, one per interface; use a larger network",
                        port.name,
                        router.interfaces_on_port
                    );
                }
            }
        }
        Ok(())
    }
}

/// Interface `i` of a virtual router on a port: called as the port, those beyond the first also by their number.
fn interface_name(port: &str, i: u16) -> String {
    if i == 0 { port.to_owned() } else { format!("{port}-{i}") }
}

fn those_there(count: usize) -> String {
    format!("this machine has cores 0 to {}", count - 1)
}

fn check_device(name: &str) -> Result<()> {
    let right = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    ensure!(
        !name.is_empty() && name.chars().all(right) && !name.starts_with(['.', '-']),
        "{name:?} is no name for a port: use letters, digits, '-', '_' and '.', as in eth1"
    );
    // Directories of /proc/sys/net/*/conf.
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
        "{name:?} is no name for a host: use 1 to {MAX_HOST} letters, digits, '-' and '_', as in gen"
    );
    let router = name.strip_prefix('r').is_some_and(|rest| rest.parse::<u16>().is_ok());
    ensure!(name != "box" && !router, "host {name}: that is a router's name here; use another, as in gen");
    Ok(())
}

impl Network {
    /// Part `i` of `count` (a power of two) equal ones; `None` if it has not that many addresses.
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
