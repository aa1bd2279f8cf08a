//! A topology built from network namespaces, and removed with its owner. The topology with two ports, `rfc2544`:
//!
//! ```text
//!  gen: eth0 ──veth── eth1 :box: eth2 ──veth── eth0 :sink
//!                     └─ eth1 :r1: eth2 ─┘     (macvlan children of the ports in namespaces of their own)
//! ```
//!
//! `box` is the machine under test: its own routing table is the host router, and r1.. are virtual routers. All ports
//! have threaded NAPI pinned to the router's cores. The hosts' ends have threads of their own only if the topology
//! gives the sink cores. Otherwise the sink runs in the router's threads and takes no core of its own. Neighbours are
//! static, because forwarding is what is measured.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, ensure};

use crate::{
    addresses::{self, mac_text},
    command::{self, Running},
    cpu,
    generator::{Generator, Turn},
    namespace::{Namespace, unique_run_name},
    netlink::{Change, Netlink, Route},
    prefixes::Prefixes,
    redirects::Redirects,
    rules::Rules,
    sink::Sink,
    sys,
    topology::{Interface, Network, PortSpec, Router, Topology},
};

/// The port towards the generator, of topologies with two ports.
pub const PORT_IN: &str = "eth1";
/// The port towards the sink, of topologies with two ports.
pub const PORT_OUT: &str = "eth2";

/// 87 times the weight of a normal thread (or session of threads).
const FIRST_NICE: i32 = -20;
/// Real-time priority of NAPI threads. They go before all normal threads, as the softirqs do whose work they have.
/// Without it a woken thread would wait for a time slice of the thread that has the core, however light, and a ring is full
/// after 256 packets. Used only where packets are sent to one port: real-time threads of equal priority take turns of
/// 100 ms, while softirqs take turns of 64 packets.
pub(crate) const NAPI_LEVEL: i32 = 1;

/// Which threads go first on busy cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Generator and router, before all other work of the machine. Rates then depend on the router, and not on a
    /// neighbour's compiler.
    Rates,
    /// Everything before the generator (which never sleeps), to measure how fast a daemon reacts.
    Reaction,
    /// The router goes before everything, as softirqs do. The generator goes last, so other programs only slow the
    /// generator.
    Forwarding,
    /// The router before the generator, whose core it may use too. The subject places the queues; nothing else pins
    /// their threads.
    Placing,
}

/// A running testbed.
pub struct Testbed {
    /// Processes that measure what cores have left, if there are any.
    pub spinners: cpu::Spinners,
    // Fields drop in order: the generator and sink before their namespaces, routers before the box.
    /// The packet generator in `gen`.
    pub generator: Generator,
    /// The packet sink in `sink`.
    pub sink: Sink,
    /// Counts packets lost after redirects.
    pub redirects: Redirects,
    /// Namespaces of the virtual routers: index 0 is router 1.
    pub routers: Vec<Namespace>,
    /// Namespaces of the hosts, in the order of [`Topology::hosts`].
    pub hosts: Vec<Namespace>,
    /// The machine under test.
    pub box_namespace: Namespace,
    /// The topology that was asked for.
    pub topology: Topology,
    /// `mlr-PID`: start of the names of the namespaces, and the daemon's instance.
    pub name: String,
    /// Rules for subjects with flow tables at their start, in place of their default rules.
    pub rules: Option<Arc<Rules>>,
    /// The text of `[cores]` in Millrace's configuration. Queues stay on the testbed's cores unless it sets another
    /// policy.
    pub placing: String,
    /// Millrace enforces shares of full cores.
    pub shares: bool,
    /// Where Millrace serves its web page, in the box.
    pub web: Option<SocketAddr>,
    /// How many connections of Millrace may be fast (`connections` in `[firewall]`).
    pub connections: u32,
    /// See [`Testbed::forwarded_by`].
    subject: Mutex<(Vec<i32>, Vec<Running>)>,
    priority: Priority,
}

impl Testbed {
    /// Builds it. After a failure, removes what was built.
    pub fn new(topology: &Topology) -> Result<Self> {
        Self::build(topology, &mut |_| Ok(()))
    }

    /// Calls `built` with the number of interfaces of virtual routers so far. If `built` fails, building ends with its
    /// error.
    fn build(topology: &Topology, built: &mut dyn FnMut(usize) -> Result<()>) -> Result<Self> {
        topology.check(cpu::online()?)?;
        ensure!(sys::is_root(), "building a testbed needs root");
        let name = unique_run_name();
        let create = |place: &str| Namespace::create(format!("{name}-{place}"));
        let hosts = topology.hosts().into_iter().map(create).collect::<Result<Vec<_>>>()?;
        let box_namespace = create("box")?;
        let ends = host_ends(topology, &hosts);
        for (port, (host, device)) in ends.iter().enumerate() {
            connect(topology, port, &box_namespace, host, device)?;
        }
        let [own, others @ ..] = &topology.all_routers()?[..] else { unreachable!("the host is a router") };
        configure_router(topology, own, &box_namespace)?;
        let (mut routers, mut interfaces) = (Vec::new(), 0);
        for router in others {
            sys::check_interrupted()?;
            routers.push(virtual_router(topology, router, &name, &box_namespace)?);
            interfaces += router.interfaces.len();
            built(interfaces)?;
        }
        let sink = Sink::attach(&ends, routers.len() as u16 + 1)?;
        let generator = Generator::start_thread(&ends, &sink, &topology.cores)?;
        let testbed = Self {
            spinners: cpu::Spinners::default(),
            generator,
            sink,
            redirects: Redirects::watch()?,
            routers,
            hosts,
            box_namespace,
            topology: topology.clone(),
            name,
            rules: None,
            placing: "policy = \"off\"".into(),
            shares: false,
            web: None,
            connections: 65_536,
            subject: Mutex::default(),
            priority: Priority::Reaction,
        };
        testbed.thread_napi()?;
        Ok(testbed)
    }

    /// Builds one whose rates do not depend on other work of the machine. The calling thread measures, on the
    /// generator's core.
    pub fn for_rates(topology: &Topology) -> Result<Self> {
        Self::for_rates_told(topology, &mut |_| Ok(()))
    }

    /// The same for a large topology: calls `built` with the number of interfaces of virtual routers so far. If `built`
    /// fails, building ends with its error.
    pub fn for_rates_told(topology: &Topology, built: &mut dyn FnMut(usize) -> Result<()>) -> Result<Self> {
        let mut testbed = Self::build(topology, built)?;
        sys::set_affinity(0, &[topology.cores.generator])?;
        testbed.set_priority(Priority::Rates)?;
        Ok(testbed)
    }

    /// The namespace of a host.
    pub fn host(&self, name: &str) -> Result<&Namespace> {
        let hosts = self.topology.hosts();
        let place = hosts.iter().position(|host| *host == name);
        let place =
            place.with_context(|| format!("no host is called {name}; there are: {}", hosts.join(", ")))?;
        Ok(&self.hosts[place])
    }

    /// All its namespaces.
    pub fn namespaces(&self) -> impl Iterator<Item = &Namespace> {
        self.routers.iter().chain(&self.hosts).chain([&self.box_namespace])
    }

    /// The other ends of the ports' cables, by the ports' numbers: host and device.
    pub fn host_ends(&self) -> Vec<(&Namespace, String)> {
        host_ends(&self.topology, &self.hosts)
    }

    /// Next hops behind [`PORT_OUT`].
    pub fn next_hops(&self) -> Result<u8> {
        let next_hops = self.topology.ports[self.topology.port(PORT_OUT)?].next_hops;
        u8::try_from(next_hops).context("next hops")
    }

    /// Makes a virtual router beyond those of the topology, in the namespace NAME-rNUMBER: on all ports, with one interface
    /// on each.
    pub fn virtual_router(&self, number: u16) -> Result<Namespace> {
        let ports: Vec<usize> = (0..self.topology.ports.len()).collect();
        let router = self.topology.router(number, &ports, 1);
        virtual_router(&self.topology, &router, &self.name, &self.box_namespace)
    }

    /// Lets frames of up to 14 bytes more than this pass all cables. Call it before attaching programs and before
    /// making virtual routers.
    pub fn set_mtu(&self, mtu: u16) -> Result<()> {
        let set = |device: &str| format!("link set {device} mtu {mtu}\n");
        self.box_namespace
            .ip_batch(&self.topology.ports.iter().map(|port| set(&port.name)).collect::<String>())?;
        for (host, device) in self.host_ends() {
            host.ip_batch(&set(&device))?;
        }
        for (namespace, router) in self.routers.iter().zip(self.topology.all_routers()?.iter().skip(1)) {
            let lines: String = router.interfaces.iter().map(|interface| set(&interface.device)).collect();
            namespace.ip_batch(&lines)?;
        }
        Ok(())
    }

    /// Makes a namespace with these interfaces (which exist and are up) one of the testbed's routers: addresses, static
    /// neighbours, forwarding, and routes to what is behind the ports.
    pub fn configure_router(&self, router: &Router, namespace: &Namespace) -> Result<()> {
        configure_router(&self.topology, router, namespace)
    }

    /// From now on, a subject forwards with these threads (besides those of the ports) and these programs.
    pub(crate) fn forwarded_by(&self, threads: Vec<i32>, programs: Vec<Running>) {
        *self.subject.lock().unwrap_or_else(PoisonError::into_inner) = (threads, programs);
    }

    /// Fails if a program that the subject needs has ended.
    pub fn check_subject(&self) -> Result<()> {
        let subject = self.subject.lock().unwrap_or_else(PoisonError::into_inner);
        subject.1.iter().try_for_each(Running::check)
    }

    /// CPU time of the programs that the subject needs, so far.
    pub fn subject_cpu(&self) -> Result<Duration> {
        let subject = self.subject.lock().unwrap_or_else(PoisonError::into_inner);
        let cpu = |program: &Running| {
            sys::process_cpu(program.pid).with_context(|| format!("CPU time of {}", program.name))
        };
        subject.1.iter().map(cpu).sum()
    }

    /// Returns the threads that forward: those of all ports, queue by queue, and those of the subject. Pins them to the
    /// router's cores in turn. It must run again after a program was attached, which may have made new threads. Also
    /// returns the threads that run these cores' softirqs when the others do not.
    pub fn router_threads(&self) -> Result<cpu::Threads> {
        let cores = &self.topology.cores.router;
        let ports = self.topology.ports.iter().map(|port| (&self.box_namespace, port.name.clone()));
        let of_subject = self.subject.lock().unwrap_or_else(PoisonError::into_inner).0.clone();
        // A subject that polls shares the core with the ports, and would never get the core.
        let first = of_subject.is_empty() && self.generator.ports().len() <= 1;
        let mut threads = self.pin(ports, cores, first)?;
        for (&id, core) in of_subject.iter().zip(cores.iter().cycle()) {
            sys::set_group_nice(id, self.router_nice()).context("priority of a subject")?;
            sys::set_affinity(id, &[*core]).context("pinning a subject's thread")?;
            sys::set_nice(id, self.router_nice()).context("priority of a subject's thread")?;
        }
        threads.0.extend(of_subject);
        threads.0.extend(cpu::softirq_threads(cores)?);
        // These are on cores that flow rules name. The generator, which never sleeps, may be there.
        let level = self.napi_level(first).map(|level| level + 1);
        threads.0.extend(cpu::urge_cpu_map_threads(cpu::cpu_map_threads()?, level)?);
        Ok(threads)
    }

    /// Threads of the hosts' ends, pinned to the sink's cores in turn. None if the topology gives the sink no core.
    pub fn sink_threads(&self) -> Result<cpu::Threads> {
        match &self.topology.cores.sink[..] {
            [] => Ok(cpu::Threads(Vec::new())),
            cores => self.pin(self.host_ends().into_iter(), cores, true),
        }
    }

    fn pin<'a>(
        &self,
        devices: impl Iterator<Item = (&'a Namespace, String)>,
        cores: &[usize],
        first: bool,
    ) -> Result<cpu::Threads> {
        let level = self.napi_level(first);
        let mut ids = Vec::new();
        for (namespace, device) in devices {
            let found = namespace.enter(|| crate::netlink::napi_threads(sys::interface_index(&device)?))?;
            ensure!(!found.is_empty(), "{device} of {} has no NAPI threads", namespace.name());
            ids.extend(found);
        }
        for (&id, core) in ids.iter().zip(cores.iter().cycle()) {
            if self.priority != Priority::Placing {
                sys::set_affinity(id, &[*core])
                    .with_context(|| format!("pinning a NAPI thread to core {core}"))?;
            }
            sys::set_realtime(id, level).context("priority of a NAPI thread")?;
            sys::set_nice(id, self.router_nice()).context("priority of a NAPI thread")?;
        }
        Ok(cpu::Threads(ids))
    }

    fn napi_level(&self, first: bool) -> Option<i32> {
        let first = match self.priority {
            Priority::Rates => first,
            Priority::Reaction => false,
            Priority::Forwarding | Priority::Placing => true,
        };
        first.then_some(NAPI_LEVEL)
    }

    fn router_nice(&self) -> i32 {
        match self.priority {
            Priority::Reaction | Priority::Forwarding => 0,
            Priority::Rates | Priority::Placing => FIRST_NICE,
        }
    }

    /// Sets which threads go first on busy cores. The calling thread is the one that measures.
    pub fn set_priority(&mut self, priority: Priority) -> Result<()> {
        self.priority = priority;
        self.generator.set_order(match priority {
            Priority::Rates => Turn::First,
            Priority::Reaction | Priority::Forwarding => Turn::Last,
            Priority::Placing => Turn::FirstOfNormal,
        })?;
        self.sink_threads()?;
        self.router_threads().map(drop)
    }

    /// Loads prefixes into the host's table, spread over the next hops. Prefixes that exist are replaced.
    pub fn load_routes(&self, prefixes: &Prefixes) -> Result<()> {
        let (interface, next_hops) = (self.box_namespace.interface_index(PORT_OUT)?, self.next_hops()?);
        let spread = |i: usize| 1 + (i % usize::from(next_hops)) as u8;
        let routes4 = prefixes.v4.iter().enumerate().map(|(i, prefix)| Route {
            address: std::net::Ipv4Addr::from_bits(prefix.address()).into(),
            length: prefix.length(),
            gateway: IpAddr::V4(addresses::nexthop4(spread(i))),
            interface,
        });
        let routes6 = prefixes.v6.iter().enumerate().map(|(i, prefix)| Route {
            address: std::net::Ipv6Addr::from_bits(prefix.address()).into(),
            length: prefix.length(),
            gateway: IpAddr::V6(addresses::nexthop6(spread(i))),
            interface,
        });
        let mut netlink = self.box_namespace.enter(Netlink::route)?;
        netlink.change_routes(Change::Set, routes4).context("loading IPv4 routes")?;
        netlink.change_routes(Change::Set, routes6).context("loading IPv6 routes")
    }

    fn thread_napi(&self) -> Result<()> {
        for port in &self.topology.ports {
            thread_napi(&self.box_namespace, &port.name)?;
        }
        if !self.topology.cores.sink.is_empty() {
            for (host, device) in self.host_ends() {
                thread_napi(host, &device)?;
            }
        }
        self.sink_threads()?;
        self.router_threads().map(drop)
    }
}

fn thread_napi(namespace: &Namespace, device: &str) -> Result<()> {
    // The switch is in the namespace's own /sys, which `ip netns exec` mounts.
    let script = format!("echo 1 > /sys/class/net/{device}/threaded");
    let mut command = std::process::Command::new("ip");
    command.args(["netns", "exec", namespace.name(), "sh", "-c", &script]);
    command::run(&mut command)
        .with_context(|| format!("threaded NAPI on {device} of {}", namespace.name()))
        .map(drop)
}

fn host_ends<'a>(topology: &Topology, hosts: &'a [Namespace]) -> Vec<(&'a Namespace, String)> {
    let names = topology.hosts();
    let end = |(number, port): (usize, &PortSpec)| {
        let host = names.iter().zip(hosts).find(|(name, _)| **name == port.host);
        (host.expect("every port leads to a host").1, topology.host_device(number))
    };
    topology.ports.iter().enumerate().map(end).collect()
}

/// Makes a veth pair: the port in the box, `device` in the host. GRO gives both ends NAPI; without NAPI the peer drops
/// redirected frames. Transmit offloads are off at the host, so checksums are complete and tags are in the packet. An
/// end needs as many receive queues as the other has transmit queues; otherwise no XDP program can be attached.
fn connect(
    topology: &Topology,
    port: usize,
    box_namespace: &Namespace,
    host: &Namespace,
    device: &str,
) -> Result<()> {
    let PortSpec { name, queues, .. } = &topology.ports[port];
    let p = port as u8;
    let queues = format!("numtxqueues {queues} numrxqueues {queues}");
    box_namespace.ip_batch(&format!(
        "link add {name} address {} {queues} type veth peer name {device} address {} {queues} netns {}\n\
         link set {name} up\n",
        mac_text(addresses::router_mac(p, 0, 0)),
        mac_text(addresses::nexthop_mac_of(p, 1)),
        host.name()
    ))?;
    let mut lines = format!(
        "link set {device} up\naddr add {}/16 dev {device}\naddr add {}/64 dev {device} nodad\n",
        addresses::nexthop4_of(p, 0, 1),
        addresses::nexthop6_of(p, 0, 1)
    );
    if device == "eth0" {
        lines += &format!("route add default via {}\n", addresses::router4(p, 0, 0));
        lines += &format!("route add default via {}\n", addresses::router6(p, 0, 0));
    }
    host.ip_batch(&lines)?;
    let offloads = format!("-K {device} tx off tso off txvlan off tx-vlan-stag-hw-insert off gro on");
    command::run(host.command("ethtool").args(offloads.split(' ')))?;
    command::run(box_namespace.command("ethtool").args(["-K", name, "gro", "on"])).map(drop)
}

/// Makes a virtual router: a namespace of its own, with macvlan children of its ports.
fn virtual_router(
    topology: &Topology,
    router: &Router,
    testbed: &str,
    box_namespace: &Namespace,
) -> Result<Namespace> {
    let namespace = Namespace::create(format!("{testbed}-r{}", router.number))?;
    let (mut add, mut up) = (String::new(), String::new());
    for Interface { device, port, number } in &router.interfaces {
        add += &format!(
            "link add {device} link {} address {} netns {} type macvlan mode bridge\n",
            topology.ports[usize::from(*port)].name,
            mac_text(addresses::router_mac(*port, *number, router.number)),
            namespace.name()
        );
        up += &format!("link set {device} up\n");
    }
    box_namespace.ip_batch(&add)?;
    namespace.ip_batch(&up)?;
    configure_router(topology, router, &namespace)?;
    Ok(namespace)
}

/// See [`Testbed::configure_router`].
fn configure_router(topology: &Topology, router: &Router, namespace: &Namespace) -> Result<()> {
    namespace.sysctl(&[
        ("net/ipv4/ip_forward", "1"),
        ("net/ipv6/conf/all/forwarding", "1"),
        ("net/ipv4/conf/all/rp_filter", "0"),
        ("net/ipv4/conf/default/rp_filter", "0"),
        // Room for whole Internet tables. Kernels without this limit ignore the setting.
        ("net/ipv6/route/max_size", "2147483647"),
    ])?;
    let mut lines = String::new();
    for interface in &router.interfaces {
        namespace.sysctl(&[(&format!("net/ipv4/conf/{}/rp_filter", interface.device), "0")])?;
        configure_interface(topology, router, interface, &mut lines);
    }
    namespace.ip_batch(&lines)
}

/// Configures addresses, static neighbours, and the interface's part of the networks behind the port, through next hop
/// 1.
fn configure_interface(topology: &Topology, router: &Router, interface: &Interface, lines: &mut String) {
    let Interface { device, port: p, number: i } = interface;
    let port = &topology.ports[usize::from(*p)];
    *lines += &format!(
        "addr add {}/{} dev {device}\naddr add {}/64 dev {device} nodad\n",
        addresses::router4(*p, *i, router.number),
        addresses::length4(*i),
        addresses::router6(*p, *i, router.number)
    );
    for n in 1..=port.next_hops as u8 {
        let mac = mac_text(addresses::nexthop_mac_of(*p, n));
        let addresses: [IpAddr; 2] =
            [addresses::nexthop4_of(*p, *i, n).into(), addresses::nexthop6_of(*p, *i, n).into()];
        for address in addresses {
            *lines += &format!("neigh replace {address} lladdr {mac} nud permanent dev {device}\n");
        }
    }
    for network in &port.behind {
        let part = network.part((*i).into(), router.interfaces_on_port).expect("checked with the topology");
        let via: IpAddr = match part {
            Network::V4(_) => addresses::nexthop4_of(*p, *i, 1).into(),
            Network::V6(_) => addresses::nexthop6_of(*p, *i, 1).into(),
        };
        *lines += &format!("route add {part} via {via} dev {device}\n");
    }
}
