//! Files of paths for captures: `[[path]]`, and the ports and routes that Linux has in other cases, `[[port]]` and
//! `[[route]]`. docs/inside/user-plane.md has an example. [`super::workers`] has the paths of the daemon.
//!
//! Names become numbers here: ports and paths in the order of the file, routers in the order in which they are first
//! named. Everything is checked, including chains ([`Chain::new`]).

use super::{
    ConfigError, CoreList, Weight,
    class::{AddressesText, ClassSettings, MacText},
    elements::{Captures, ElementSettings, MirrorSettings},
    from_toml,
    runs::{self, RunsSettings},
    sas::{self, LibraryText, SaSettings, SasConfig, SasSettings},
    text_of,
};
use crate::{
    base::{BadValue, PortName},
    plane::MAX_PORTS,
};
use logic::{
    elements::{BadChain, Chain},
    esp::SaTable,
    memory::{Capacity, HeapMemory, Memory},
    net::{Addresses, Mac},
    paths::{
        class::{Class, Impossible},
        rows::Otherwise,
    },
    plan::{PortId, RouterId},
};
use serde::{Deserialize, Deserializer, de::Error as _};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    str::FromStr,
    sync::Arc,
};
use toml::Spanned;

const MOST_PATHS: usize = 64;
const MOST_ROUTES: usize = 100_000;
const MOST_ELEMENTS: usize = 32;
/// Each mirror has memory of its own, and in the daemon also a thread.
const MOST_MIRRORS: usize = 16;

/// The file, as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Settings {
    experimental: RunsSettings,
    /// Weights of routers, by name; other routers have 1.
    router_weights: BTreeMap<Spanned<String>, Weight>,
    port: Vec<PortSettings>,
    route: Vec<RouteSettings>,
    path: Vec<PathSettings>,
    /// The library that encrypts; `None`: the fastest.
    crypto: Option<LibraryText>,
    sa: Vec<SaSettings>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PortSettings {
    name: Spanned<PortName>,
    mac: Option<Spanned<MacText>>,
    router: Option<Name>,
    #[serde(default = "ethernet")]
    mtu: Mtu,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RouteSettings {
    prefix: Spanned<AddressesText>,
    via: Spanned<MacText>,
    port: Spanned<PortName>,
}

/// `[[path]]`, also of the daemon's file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathSettings {
    pub(super) name: Spanned<Name>,
    pub(super) router: Option<Spanned<Name>>,
    pub(super) class: Option<Spanned<ClassSettings>>,
    pub(super) chain: Spanned<Vec<ElementSettings>>,
    #[serde(default = "one")]
    weight: Weight,
    #[serde(default = "thousand")]
    ring: RingSize,
    cores: Option<CoreList>,
    /// It has no effect with captures, because workers can take all their packets.
    #[serde(default)]
    pub(super) otherwise: OtherwiseText,
}

fn ethernet() -> Mtu {
    Mtu(1500)
}
fn one() -> Weight {
    Weight(1)
}
fn thousand() -> RingSize {
    RingSize(1024)
}

bounded!(
    /// The longest IP packet, bytes.
    Mtu, |v| (68..=65_000).contains(&v), "68 to 65000 bytes"
);
bounded!(
    /// The number of packets that may wait for a path.
    RingSize, |v| v.is_power_of_two() && (64..=16_384).contains(&v), "a power of two from 64 to 16384 packets"
);

/// What happens to packets that no worker can take: `up` or `drop`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OtherwiseText(pub Otherwise);

impl FromStr for OtherwiseText {
    type Err = BadValue;
    fn from_str(s: &str) -> Result<Self, BadValue> {
        match s {
            "up" => Ok(Self(Otherwise::Up)),
            "drop" => Ok(Self(Otherwise::Drop)),
            _ => Err(BadValue(format!("{s:?} is not allowed: \"up\" or \"drop\""))),
        }
    }
}

/// The name of a path, a router or an SA.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name(pub String);

impl FromStr for Name {
    type Err = BadValue;
    fn from_str(s: &str) -> Result<Self, BadValue> {
        let fine = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if (1..=31).contains(&s.len()) && s.chars().all(fine) {
            return Ok(Self(s.into()));
        }
        Err(BadValue(format!("{s:?} is not allowed: 1 to 31 letters, digits, '-', '_' and '.'")))
    }
}

/// A file of paths, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct PathsConfig {
    /// Ports, by number.
    pub ports: Vec<PortConfig>,
    /// Name and weight of each router, by number. The first is `host`, to which everything without a router belongs.
    pub routers: Vec<(String, u16)>,
    /// Routes, in the order of the file.
    pub routes: Vec<RouteConfig>,
    /// Paths, by number.
    pub paths: Vec<PathConfig>,
    pub sas: SasConfig,
    pub runs: RunsSettings,
}

/// A port.
#[derive(Clone, Debug, PartialEq)]
pub struct PortConfig {
    pub name: PortName,
    /// Its MAC address; `None`: no packets are routed there.
    pub mac: Option<Mac>,
    /// The router that it belongs to.
    pub router: RouterId,
    /// The longest IP packet that leaves there, bytes.
    pub mtu: u32,
}

/// A route. It belongs to the router of its port.
#[derive(Clone, Debug, PartialEq)]
pub struct RouteConfig {
    pub prefix: Addresses,
    /// The MAC address of the next hop.
    pub via: Mac,
    pub port: PortId,
}

/// A path.
#[derive(Clone, Debug, PartialEq)]
pub struct PathConfig {
    pub name: String,
    /// The router that owns it.
    pub router: RouterId,
    pub class: Class,
    pub(super) chain: Vec<ElementSettings>,
    /// The weight among the paths of its router.
    pub weight: u16,
    /// The number of packets that may wait.
    pub ring: usize,
    /// The cores on which it may run; `None`: all.
    pub cores: Option<CoreList>,
}

impl PathsConfig {
    /// Reads and checks a file.
    pub fn read(file: &Path) -> Result<Self, ConfigError> {
        Self::parse(file, &text_of(file)?)
    }

    /// Parses and checks `text`. `file` is only named in errors.
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigError> {
        let settings = from_toml(file, text, &[&FORMS, &sas::FORMS, &runs::FORMS])?;
        Checker::default().check(file, text, settings).map_err(|wrong| wrong.error(file, text))
    }

    /// The number of a port.
    pub fn port(&self, name: &str) -> Option<PortId> {
        let at = self.ports.iter().position(|port| port.name.as_str() == name)?;
        Some(at as PortId)
    }

    /// Makes the chain of each path, with these tables, SAs and capture files.
    pub fn chains<M: Memory + Clone + Send + 'static>(
        &self,
        memory: &M,
        sas: &Arc<SaTable>,
        captures: &Captures,
    ) -> Result<Vec<Chain>, BadValue> {
        let chain = |path: &PathConfig| {
            path.chain(memory, sas, captures, &self.ports).map_err(|e| BadValue(e.to_string()))
        };
        self.paths.iter().map(chain).collect()
    }

    /// The settings of all `mirror` elements, in the order of the file.
    pub fn mirrors(&self) -> impl Iterator<Item = &MirrorSettings> {
        self.paths.iter().flat_map(|path| &path.chain).filter_map(ElementSettings::mirror)
    }
}

impl PathSettings {
    fn class_at(&self) -> usize {
        self.class.as_ref().map_or(self.name.span().start, |class| class.span().start)
    }

    fn gets_nothing<T>(&self, class_at: usize, why: Impossible) -> Result<T, Wrong> {
        wrong(class_at, "path.class", format!("path {} gets no packet: {why}", self.name.get_ref().0))
    }
}

impl PathConfig {
    fn chain<M: Memory + Clone + Send + 'static>(
        &self,
        memory: &M,
        sas: &Arc<SaTable>,
        captures: &Captures,
        ports: &[PortConfig],
    ) -> Result<Chain, NoChain> {
        let port = |name: &PortName| (0..).zip(ports).find(|(_, port)| port.name == *name).map(|(id, _)| id);
        let elements = (1..).zip(&self.chain).map(|(at, element)| {
            let made = element.element(memory, sas, captures, port);
            made.map_err(|name| NoChain::NoPort { at, name: name.clone(), there: named(ports) })
        });
        Ok(Chain::new(elements.collect::<Result<_, _>>()?)?)
    }
}

#[derive(Debug, thiserror::Error)]
enum NoChain {
    #[error(transparent)]
    Bad(#[from] BadChain),
    #[error("element {at}, forward, sends to port {name}, which is not a [[port]] of this file ({there})")]
    NoPort { at: usize, name: PortName, there: String },
}

/// The names of these ports, for errors.
fn named(ports: &[PortConfig]) -> String {
    let names: Vec<String> = ports.iter().map(|port| port.name.to_string()).collect();
    if names.is_empty() { "it has none".into() } else { names.join(", ") }
}

/// An error, and the byte where it is.
pub(super) struct Wrong {
    at: usize,
    key: String,
    message: String,
}

pub(super) fn wrong<T>(at: usize, key: impl Into<String>, message: impl ToString) -> Result<T, Wrong> {
    Err(Wrong { at, key: key.into(), message: message.to_string() })
}

impl Wrong {
    /// The error with file and line.
    pub(super) fn error(self, file: &Path, text: &str) -> ConfigError {
        ConfigError::at(file, text, self.at, Some(self.key), self.message)
    }
}

/// Checks paths, and gives numbers to the names of ports and routers.
pub(super) struct Checker {
    ports: Vec<PortConfig>,
    routers: Vec<(String, u16)>,
}

impl Default for Checker {
    fn default() -> Self {
        Checker { ports: Vec::new(), routers: vec![("host".into(), 1)] }
    }
}

impl Checker {
    fn check(mut self, file: &Path, text: &str, settings: Settings) -> Result<PathsConfig, Wrong> {
        let Settings { experimental: runs, router_weights, port, route, path, crypto, sa } = settings;
        let counts = [
            ("port", port.len(), MAX_PORTS, port.get(MAX_PORTS).map(|port| port.name.span())),
            ("route", route.len(), MOST_ROUTES, route.get(MOST_ROUTES).map(|route| route.prefix.span())),
            ("path", path.len(), MOST_PATHS, path.get(MOST_PATHS).map(|path| path.name.span())),
        ];
        for (what, count, most, too_many) in counts {
            if let Some(first) = too_many {
                return wrong(first.start, what, format!("{count} are given, {most} are possible"));
            }
        }
        if port.is_empty() || path.is_empty() {
            let what = if port.is_empty() { "port" } else { "path" };
            return wrong(0, what, format!("none is given: at least one [[{what}]] is needed"));
        }
        for port in port {
            self.add_port(port)?;
        }
        let mut prefixes = BTreeSet::new();
        let routes = route.into_iter().map(|route| self.route(route, &mut prefixes));
        let routes = routes.collect::<Result<_, _>>()?;
        let (mut paths, mut chains_at) = (Vec::<PathConfig>::new(), Vec::new());
        for path in path {
            chains_at.push(path.chain.span().start);
            let path = self.path(path, &paths)?;
            paths.push(path);
        }
        let chains: Vec<_> = paths
            .iter()
            .zip(chains_at)
            .map(|(path, at)| (at, path.name.as_str(), path.chain.as_slice()))
            .collect();
        let settings = SasSettings { crypto, later: Vec::new(), sas: sa };
        let sas = SasConfig::check(file, text, settings, &chains)?;
        for (name, weight) in router_weights {
            match self.routers.iter_mut().find(|router| router.0 == *name.get_ref()) {
                Some(router) => router.1 = weight.0 as u16,
                None => {
                    let at = name.span().start;
                    return wrong(at, "router_weights", format!("router {:?} has no port", name.get_ref()));
                }
            }
        }
        Ok(PathsConfig { ports: self.ports, routers: self.routers, routes, paths, sas, runs })
    }

    /// The number of a port's router. A new name gets a number.
    fn router(&mut self, name: Option<Name>) -> RouterId {
        let Some(Name(name)) = name else { return 0 };
        let known = self.routers.iter().position(|router| router.0 == name);
        // 64 ports name at most 64 routers, so the number fits.
        known.unwrap_or_else(|| {
            self.routers.push((name, 1));
            self.routers.len() - 1
        }) as RouterId
    }

    /// The number of a path's router. It must have a port, because the path gets only packets of its ports.
    fn router_with_port(&self, name: &Spanned<Name>) -> Result<RouterId, Wrong> {
        let (Name(wanted), at) = (name.get_ref(), name.span().start);
        let has_port = |router: RouterId| self.ports.iter().any(|port| port.router == router);
        let with_port = || (0..).zip(&self.routers).filter(|(router, _)| has_port(*router));
        match with_port().find(|(_, (name, _))| name == wanted) {
            Some((router, _)) => Ok(router),
            None => {
                let names: Vec<_> = with_port().map(|(_, (name, _))| name.as_str()).collect();
                let message =
                    format!("router {wanted:?} has no port; those with ports: {}", names.join(", "));
                wrong(at, "path.router", message)
            }
        }
    }

    fn find_port(&self, name: &PortName, at: usize, key: &str) -> Result<PortId, Wrong> {
        match self.ports.iter().position(|port| port.name == *name) {
            Some(port) => Ok(port as PortId),
            None => {
                wrong(at, key, format!("port {name} is not a [[port]] of this file ({})", named(&self.ports)))
            }
        }
    }

    fn add_port(&mut self, settings: PortSettings) -> Result<(), Wrong> {
        let PortSettings { name, mac, router, mtu } = settings;
        let at = name.span().start;
        let name = name.into_inner();
        if self.ports.iter().any(|port| port.name == name) {
            return wrong(at, "port.name", format!("port {name} is given twice"));
        }
        if let Some(mac) = mac.as_ref() {
            is_of_one(mac, "port.mac")?;
        }
        let router = self.router(router);
        self.ports.push(PortConfig { name, mac: mac.map(|mac| mac.into_inner().0), router, mtu: mtu.0 });
        Ok(())
    }

    fn route(
        &mut self,
        settings: RouteSettings,
        prefixes: &mut BTreeSet<(RouterId, Addresses)>,
    ) -> Result<RouteConfig, Wrong> {
        let RouteSettings { prefix, via, port } = settings;
        let found = self.find_port(port.get_ref(), port.span().start, "route.port")?;
        let PortConfig { router, mac, name, .. } = &self.ports[usize::from(found)];
        if mac.is_none() {
            let message = format!("port {name} has no mac, which packets need as their source address");
            return wrong(port.span().start, "route.port", message);
        }
        is_of_one(&via, "route.via")?;
        let at = prefix.span().start;
        let AddressesText(prefix) = prefix.into_inner();
        if !prefixes.insert((*router, prefix)) {
            let router = &self.routers[usize::from(*router)].0;
            return wrong(at, "route.prefix", format!("{prefix} is given twice in router {router}"));
        }
        Ok(RouteConfig { prefix, via: via.into_inner().0, port: found })
    }

    fn path(&mut self, mut settings: PathSettings, before: &[PathConfig]) -> Result<PathConfig, Wrong> {
        let given = settings.router.as_ref().map(|router| self.router_with_port(router)).transpose()?;
        let class_at = settings.class_at();
        let class = settings.class.take().map(Spanned::into_inner).unwrap_or_default();
        let port =
            class.port.as_ref().map(|port| self.find_port(port, class_at, "path.class")).transpose()?;
        // Packets of a port belong to its router, and an earlier path may get all packets of this router.
        let of_port = port.and_then(|port| self.ports.get(usize::from(port))).map(|port| port.router);
        let class = class.class(port, given.or(of_port));
        if class.flow_rules {
            let name = &settings.name.get_ref().0;
            let message = format!(
                "path {name} gets no packet: flow_rules = true works only in the daemon, as there are no flow rules here"
            );
            return wrong(class_at, "path.class", message);
        }
        self.is_possible(&class).or_else(|why| settings.gets_nothing(class_at, why))?;
        self.checked(settings, class_at, given.unwrap_or(0), class, before)
    }

    /// A checker for ports and routers of Linux, with all names in these paths. A port or router need not exist yet,
    /// and every router may have interfaces on every port.
    pub(super) fn of_names(paths: &[PathSettings]) -> Checker {
        let class_port =
            |path: &PathSettings| path.class.as_ref().and_then(|class| class.get_ref().port.clone());
        let forwards =
            paths.iter().flat_map(|path| path.chain.get_ref()).filter_map(|element| match element {
                ElementSettings::Forward(name) => Some(name.clone()),
                _ => None,
            });
        let ports: BTreeSet<PortName> = paths.iter().filter_map(class_port).chain(forwards).collect();
        let routers: BTreeSet<&str> = paths
            .iter()
            .filter_map(|path| path.router.as_ref())
            .map(|name| name.get_ref().0.as_str())
            .collect();
        Checker {
            ports: ports
                .into_iter()
                .map(|name| PortConfig { name, mac: None, router: 0, mtu: ethernet().0 })
                .collect(),
            routers: routers.into_iter().map(|name| (name.to_owned(), 1)).collect(),
        }
    }

    /// Checks one of the paths of [`Checker::of_names`].
    pub(super) fn path_by_names(
        &mut self,
        mut settings: PathSettings,
        before: &[PathConfig],
    ) -> Result<PathConfig, Wrong> {
        let router = settings.router.as_ref().and_then(|name| {
            self.routers.iter().position(|(known, _)| *known == name.get_ref().0).map(|at| at as RouterId)
        });
        let class_at = settings.class_at();
        let class = settings.class.take().map(Spanned::into_inner).unwrap_or_default();
        let port =
            class.port.as_ref().map(|port| self.find_port(port, class_at, "path.class")).transpose()?;
        self.checked(settings, class_at, router.unwrap_or(0), class.class(port, router), before)
    }

    /// Checks a path that gets packets of this class, after the paths `before` it.
    fn checked(
        &self,
        settings: PathSettings,
        class_at: usize,
        router: RouterId,
        class: Class,
        before: &[PathConfig],
    ) -> Result<PathConfig, Wrong> {
        class.check().or_else(|why| settings.gets_nothing(class_at, why))?;
        let PathSettings { name, chain, weight, ring, cores, .. } = settings;
        let at = name.span().start;
        let Name(name) = name.into_inner();
        if before.len() >= MOST_PATHS {
            return wrong(at, "path", format!("too many are given, {MOST_PATHS} are possible"));
        }
        if before.iter().any(|path| path.name == name) {
            return wrong(at, "path.name", format!("path {name} is given twice"));
        }
        if let Some(first) = before.iter().find(|path| path.class.covers(&class)) {
            let message =
                format!("path {name} gets no packet: path {}, before it, gets all of them", first.name);
            return wrong(class_at, "path.class", message);
        }
        let chain_at = chain.span().start;
        let chain = chain.into_inner();
        let in_chain = |message: String| wrong(chain_at, "path.chain", format!("path {name}: {message}"));
        if chain.len() > MOST_ELEMENTS {
            return in_chain(format!("{} elements, {MOST_ELEMENTS} are possible", chain.len()));
        }
        let chains = before.iter().map(|path| &path.chain).chain([&chain]);
        if let Err(message) = are_each_once(chains.flatten().filter_map(ElementSettings::mirror)) {
            return in_chain(message);
        }
        let (weight, ring) = (weight.0 as u16, ring.0 as usize);
        let path = PathConfig { name: name.clone(), router, class, chain, weight, ring, cores };
        match path.chain(&no_tables(), &Arc::default(), &Captures::default(), &self.ports) {
            Ok(_) => Ok(path),
            Err(why) => in_chain(why.to_string()),
        }
    }

    /// Checks that the port of a class belongs to its router.
    fn is_possible(&self, class: &Class) -> Result<(), Impossible> {
        let of = |port: PortId| self.ports.get(usize::from(port));
        match (class.port.and_then(of), class.router) {
            (Some(port), Some(router)) if port.router != router => {
                let name = |router: RouterId| &self.routers[usize::from(router)].0;
                let port = format!("port {} (of router {})", port.name, name(port.router));
                Err(Impossible::Both(port, format!("router {}", name(router))))
            }
            _ => Ok(()),
        }
    }
}

/// Checks that each mirror has a file of its own, and that there are not too many.
fn are_each_once<'m>(mirrors: impl Iterator<Item = &'m MirrorSettings>) -> Result<(), String> {
    let mut files = BTreeSet::new();
    for mirror in mirrors {
        if !files.insert(&mirror.file) {
            return Err(format!("mirror: another one has the file {}", mirror.file.display()));
        }
    }
    let most = MOST_MIRRORS;
    if files.len() > most { Err(format!("mirror: too many are given, {most} are possible")) } else { Ok(()) }
}

/// Checks that this is the address of one station.
fn is_of_one(mac: &Spanned<MacText>, key: &str) -> Result<(), Wrong> {
    let MacText(address) = *mac.get_ref();
    if address.is_group() || address.is_zero() {
        return wrong(mac.span().start, key, format!("{address} is not the address of one station"));
    }
    Ok(())
}

/// Tables for making chains that are only checked.
fn no_tables() -> Arc<HeapMemory> {
    Arc::new(HeapMemory::new(Capacity {
        fib_blocks: 1,
        fib_tails: 0,
        nexthops: 1,
        neighbour_buckets: 1,
        interface_buckets: 1,
        routers: 1,
    }))
}

/// Keys, each with an example.
pub(super) const FORMS: [(&str, &str); 19] = [
    ("router_weights", "router_weights = { red = 2 }"),
    ("port.name", "name = \"eth1\""),
    ("port.mac", "mac = \"02:00:00:00:00:01\""),
    ("port.router", "router = \"red\""),
    ("port.mtu", "mtu = 1500"),
    ("route.prefix", "prefix = \"192.0.2.0/24\""),
    ("route.via", "via = \"02:00:00:00:00:02\""),
    ("route.port", "port = \"eth2\""),
    ("path.name", "name = \"web\""),
    ("path.router", "router = \"red\""),
    ("path.class", "class = { ether_type = \"ipv4\", protocol = \"tcp\", destination_port = 80 }"),
    ("path.chain", "chain = [\"check\", \"route\", \"ttl\", \"rewrite\"]"),
    ("path.weight", "weight = 2"),
    ("path.ring", "ring = 1024"),
    ("path.cores", "cores = \"0-3,8\""),
    ("path.otherwise", "otherwise = \"drop\""),
    ("port", "[[port]]"),
    ("route", "[[route]]"),
    ("path", "[[path]]"),
];

#[cfg(test)]
mod tests;
