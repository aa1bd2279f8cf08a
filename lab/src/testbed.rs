//! The topology everything is measured on, made of network namespaces and gone with its owner:
//!
//! ```text
//!  gen: eth0 ──veth── eth1 :box: eth2 ──veth── eth0 :sink
//!                      └─ in ─ r1 ─ out ─┘   (macvlan children of eth1 and eth2 in namespaces of their own)
//! ```
//!
//! `box` is the machine under test: its own routing table is the host router, r1.. are virtual routers. Both ports have
//! threaded NAPI pinned to the router's core; the sink's end is not threaded, so the sink runs in the router's thread and
//! takes no core of its own (TRAPS.md). Neighbours are static: what is measured is forwarding.

use std::net::IpAddr;

use anyhow::{Context, Result, ensure};

use crate::{
    addresses::{self, MAX_NEXTHOP, mac_text},
    command, cpu,
    generator::Generator,
    namespace::{Namespace, unique_run_name},
    netlink::{Change, Netlink, Route},
    prefixes::Prefixes,
    sink::Sink,
    sys,
};

/// The port towards the generator.
pub const PORT_IN: &str = "eth1";
/// The port towards the sink.
pub const PORT_OUT: &str = "eth2";
/// Most virtual routers a testbed can have.
pub const MAX_ROUTERS: u16 = 256;

/// Routes every router has: the benchmarking ranges of RFC 2544 and RFC 5180.
const BENCHMARK4: &str = "198.18.0.0/15";
const BENCHMARK6: &str = "2001:2::/48";

/// 87 times the weight of a normal thread (or session of threads).
const FIRST_NICE: i32 = -20;

/// Who goes first on busy cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Generator and router, before all other work of the machine: rates then tell about the router and not about a
    /// neighbour's compiler.
    Rates,
    /// Everybody before the generator (which never sleeps): how fast a daemon reacts is measured.
    Reaction,
}

/// Which core does what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores {
    /// The generator, and everything else of the lab.
    pub generator: usize,
    /// The router under test, with the sink in its thread.
    pub router: usize,
}

/// What to build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Virtual routers, 0..=256.
    pub routers: u16,
    /// Next hops on the sink's side, 1..=250.
    pub nexthops: u8,
    /// Which core does what.
    pub cores: Cores,
}

impl Default for Spec {
    fn default() -> Self {
        Self { routers: 0, nexthops: 8, cores: Cores { generator: 0, router: 1 } }
    }
}

/// A running testbed.
pub struct Testbed {
    /// What the router's core has left is measured by this, if it is there.
    pub spinner: Option<cpu::Spinner>,
    // Fields drop in order: the generator and sink before their namespaces, routers before the box.
    /// The packet generator in `gen`.
    pub generator: Generator,
    /// The packet sink in `sink`.
    pub sink: Sink,
    /// Namespaces of the virtual routers: index 0 is router 1.
    pub routers: Vec<Namespace>,
    /// The namespace of the generator.
    pub gen_namespace: Namespace,
    /// The namespace of the sink.
    pub sink_namespace: Namespace,
    /// The machine under test.
    pub box_namespace: Namespace,
    /// As it was asked for.
    pub spec: Spec,
    /// `mlr-PID`: first part of the names of the namespaces, and the daemon's instance.
    pub name: String,
    router_nice: i32,
}

impl Testbed {
    /// Builds it; half-built ones are taken down again on failure.
    pub fn new(spec: Spec) -> Result<Self> {
        check(&spec)?;
        let name = unique_run_name();
        let gen_namespace = Namespace::create(format!("{name}-gen"))?;
        let sink_namespace = Namespace::create(format!("{name}-sink"))?;
        let box_namespace = Namespace::create(format!("{name}-box"))?;
        connect(
            &box_namespace,
            PORT_IN,
            addresses::ingress_mac(0),
            &gen_namespace,
            addresses::GENERATOR_MAC,
        )?;
        connect(
            &box_namespace,
            PORT_OUT,
            addresses::egress_mac(0),
            &sink_namespace,
            addresses::nexthop_mac(1),
        )?;
        gen_namespace.ip_batch(&format!(
            "addr add {}/16 dev eth0\naddr add {}/64 dev eth0 nodad\nroute add default via {}\n",
            addresses::GENERATOR4,
            addresses::GENERATOR6,
            addresses::ingress4(0)
        ))?;
        sink_namespace
            .ip_batch("addr add 10.2.255.1/16 dev eth0\naddr add fd00:2::ff:1/64 dev eth0 nodad\n")?;
        configure_router(&box_namespace, 0, PORT_IN, PORT_OUT, spec.nexthops)?;
        let mut routers = Vec::new();
        for r in 1..=spec.routers {
            sys::check_interrupted()?;
            routers.push(virtual_router(&name, &box_namespace, r, spec.nexthops)?);
        }
        let sink = Sink::attach(&sink_namespace, "eth0")?;
        let generator = Generator::start_thread(&gen_namespace, "eth0", &sink, spec.cores)?;
        let testbed = Self {
            spinner: None,
            generator,
            sink,
            routers,
            gen_namespace,
            sink_namespace,
            box_namespace,
            spec,
            name,
            router_nice: 0,
        };
        testbed.thread_napi()?;
        Ok(testbed)
    }

    /// One whose rates do not depend on what else the machine does; the calling thread measures, on the generator's core.
    pub fn for_rates(spec: Spec) -> Result<Self> {
        let mut testbed = Self::new(spec)?;
        sys::set_affinity(0, &[spec.cores.generator])?;
        testbed.set_priority(Priority::Rates)?;
        Ok(testbed)
    }

    /// Threads of both ports, pinned to the router's core (again: attaching a program may have made new ones).
    pub fn router_threads(&self) -> Result<cpu::Threads> {
        let ids = self.box_namespace.enter(|| {
            let mut ids = Vec::new();
            for port in [PORT_IN, PORT_OUT] {
                ids.extend(crate::netlink::napi_threads(sys::interface_index(port)?)?);
            }
            Ok(ids)
        })?;
        ensure!(!ids.is_empty(), "the ports have no NAPI threads");
        for &id in &ids {
            sys::set_affinity(id, &[self.spec.cores.router]).context("pinning a NAPI thread")?;
            sys::set_nice(id, self.router_nice).context("priority of a NAPI thread")?;
        }
        Ok(cpu::Threads(ids))
    }

    /// Who goes first on busy cores from now on. The calling thread is the one that measures.
    pub fn set_priority(&mut self, priority: Priority) -> Result<()> {
        let rates = priority == Priority::Rates;
        self.router_nice = if rates { FIRST_NICE } else { 0 };
        self.generator.go_first(rates)?;
        self.router_threads().map(drop)
    }

    /// Loads prefixes into the host's table, spread over the next hops. Prefixes that exist are replaced.
    pub fn load_routes(&self, prefixes: &Prefixes) -> Result<()> {
        let interface = self.box_namespace.interface_index(PORT_OUT)?;
        let routes4 = prefixes.v4.iter().enumerate().map(|(i, prefix)| Route {
            address: std::net::Ipv4Addr::from_bits(prefix.address()).into(),
            length: prefix.length(),
            gateway: IpAddr::V4(addresses::nexthop4(self.spread(i))),
            interface,
        });
        let routes6 = prefixes.v6.iter().enumerate().map(|(i, prefix)| Route {
            address: std::net::Ipv6Addr::from_bits(prefix.address()).into(),
            length: prefix.length(),
            gateway: IpAddr::V6(addresses::nexthop6(self.spread(i))),
            interface,
        });
        let mut netlink = self.box_namespace.enter(Netlink::route)?;
        netlink.change_routes(Change::Set, routes4).context("loading IPv4 routes")?;
        netlink.change_routes(Change::Set, routes6).context("loading IPv6 routes")
    }

    fn spread(&self, i: usize) -> u8 {
        1 + (i % usize::from(self.spec.nexthops)) as u8
    }

    fn thread_napi(&self) -> Result<()> {
        for port in [PORT_IN, PORT_OUT] {
            // `ip netns exec` mounts the namespace's own /sys, where the switch is.
            let script = format!("echo 1 > /sys/class/net/{port}/threaded");
            let mut command = std::process::Command::new("ip");
            command.args(["netns", "exec", self.box_namespace.name(), "sh", "-c", &script]);
            command::run(&mut command).with_context(|| format!("threaded NAPI on {port}"))?;
        }
        self.router_threads().map(drop)
    }
}

fn check(spec: &Spec) -> Result<()> {
    ensure!(sys::is_root(), "building a testbed needs root");
    ensure!(spec.routers <= MAX_ROUTERS, "{} virtual routers: at most {MAX_ROUTERS}", spec.routers);
    ensure!((1..=MAX_NEXTHOP).contains(&spec.nexthops), "{} next hops: 1 to {MAX_NEXTHOP}", spec.nexthops);
    let cores = cpu::online()?;
    let Cores { generator, router } = spec.cores;
    ensure!(
        generator != router && generator.max(router) < cores,
        "generator and router need a core each (asked for {generator} and {router}; this machine has {cores})"
    );
    Ok(())
}

/// A veth pair: `port` in the box, eth0 in the other namespace. GRO gives both ends NAPI, without which frames redirected
/// to their peer are dropped; transmit offloads are off at the test host, so checksums are whole and tags in the packet (TRAPS.md).
fn connect(
    box_namespace: &Namespace,
    port: &str,
    mac: addresses::Mac,
    host: &Namespace,
    host_mac: addresses::Mac,
) -> Result<()> {
    box_namespace.ip_batch(&format!(
        "link add {port} address {} numtxqueues 1 numrxqueues 1 type veth \
         peer name eth0 address {} numtxqueues 1 numrxqueues 1 netns {}\nlink set {port} up\n",
        mac_text(mac),
        mac_text(host_mac),
        host.name()
    ))?;
    host.ip_batch("link set eth0 up\n")?;
    let offloads = "-K eth0 tx off tso off txvlan off tx-vlan-stag-hw-insert off gro on";
    command::run(host.command("ethtool").args(offloads.split(' ')))?;
    command::run(box_namespace.command("ethtool").args(["-K", port, "gro", "on"])).map(drop)
}

fn virtual_router(name: &str, box_namespace: &Namespace, r: u16, nexthops: u8) -> Result<Namespace> {
    let namespace = Namespace::create(format!("{name}-r{r}"))?;
    box_namespace.ip_batch(&format!(
        "link add in link {PORT_IN} address {} netns {ns} type macvlan mode bridge\n\
         link add out link {PORT_OUT} address {} netns {ns} type macvlan mode bridge\n",
        mac_text(addresses::ingress_mac(r)),
        mac_text(addresses::egress_mac(r)),
        ns = namespace.name()
    ))?;
    namespace.ip_batch("link set in up\nlink set out up\n")?;
    configure_router(&namespace, r, "in", "out", nexthops)?;
    Ok(namespace)
}

/// Addresses, static neighbours, forwarding, and the benchmarking prefixes through next hop 1.
fn configure_router(namespace: &Namespace, r: u16, ingress: &str, egress: &str, nexthops: u8) -> Result<()> {
    namespace.sysctl(&[
        ("net/ipv4/ip_forward", "1"),
        ("net/ipv6/conf/all/forwarding", "1"),
        ("net/ipv4/conf/all/rp_filter", "0"),
        ("net/ipv4/conf/default/rp_filter", "0"),
        (&format!("net/ipv4/conf/{ingress}/rp_filter"), "0"),
        (&format!("net/ipv4/conf/{egress}/rp_filter"), "0"),
        // Whole Internet tables; ignored by kernels without the limit.
        ("net/ipv6/route/max_size", "2147483647"),
    ])?;
    let mut lines = format!(
        "addr add {}/16 dev {ingress}\naddr add {}/64 dev {ingress} nodad\n\
         addr add {}/16 dev {egress}\naddr add {}/64 dev {egress} nodad\n",
        addresses::ingress4(r),
        addresses::ingress6(r),
        addresses::egress4(r),
        addresses::egress6(r)
    );
    let mut neighbour = |address: IpAddr, mac, device: &str| {
        let mac = mac_text(mac);
        lines += &format!("neigh replace {address} lladdr {mac} nud permanent dev {device}\n");
    };
    neighbour(addresses::GENERATOR4.into(), addresses::GENERATOR_MAC, ingress);
    neighbour(addresses::GENERATOR6.into(), addresses::GENERATOR_MAC, ingress);
    for n in 1..=nexthops {
        neighbour(addresses::nexthop4(n).into(), addresses::nexthop_mac(n), egress);
        neighbour(addresses::nexthop6(n).into(), addresses::nexthop_mac(n), egress);
    }
    lines += &format!(
        "route add {BENCHMARK4} via {} dev {egress}\nroute add {BENCHMARK6} via {} dev {egress}\n",
        addresses::nexthop4(1),
        addresses::nexthop6(1)
    );
    namespace.ip_batch(&lines)
}
