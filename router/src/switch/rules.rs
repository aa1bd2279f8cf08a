//! Rules and their maps, from the first rule on; batches of changes.

use super::{
    batches::Batches,
    change::{self, Change, Changing},
    charge::STANDS_ALONE,
    choosing,
    device::{self, Counted, Devices},
    file::Loading,
    machine,
    net::Network,
    now_ms,
    slow::Exits,
};
use crate::{
    base::clock::monotonic,
    config::{self, Config, DaemonPath},
    cores::handle::CoresHandle,
    plane::{FlowMaps, FlowSettings, MappedFlows, WithoutDaemon, online_cpus},
    switch::seam::{Gauge, SwitchPath, SwitchPort, rule_port},
};
use anyhow::{Context, Result};
use logic::{
    flow::{
        Action, Instructions, RulePort,
        flows::Flows,
        kernel::{CORES, FIRST_ROW, FlowCapacity, Notice, NoticeReason, Seed},
        table::{GROUPS, METERS, PathPort},
    },
    openflow::{
        agent::{Agent, Effect, FailMode, PathInfo, PortFlags, PortInfo, Settings, Version},
        extension::{Core, Cores, Features},
        message::Description,
    },
    paths::{PathId, rows::Otherwise},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::Read,
    sync::{Arc, atomic::Ordering::Relaxed},
};

/// Rules over the maps that packets see, and the agent that serves the controllers.
pub struct Rules {
    pub agent: Agent<Arc<MappedFlows>>,
    maps: Arc<FlowMaps>,
    /// The flags of ports that controllers have set, as packets see them.
    flags: BTreeMap<RulePort, PortFlags>,
    batches: Batches,
    exits: Exits,
    gauge: Arc<Gauge>,
    /// As configured.
    most_rules: u32,
    /// The names in `openflow.proxy_ports`.
    proxies: Vec<String>,
    phase: Phase,
    /// The last batch that was begun.
    sealed: u64,
    /// The last batch that is over: packets obey it, if they go by rules.
    over: u64,
    changing: Changing,
    /// The thread that chooses cores for flows runs.
    chooses: bool,
}

/// The event that the present batch waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// There is no batch.
    Idle,
    /// The first grace period.
    Sealed,
    /// The second grace period.
    Void,
    /// The right program is attached.
    Over,
}

/// The sizes of maps for so many rules. All memory is taken with the first rule: for 65,536 rules 42 MiB, and 8 MiB
/// for each CPU; for 1,010,000 rules 411 MiB, and 64 MiB for each CPU.
pub fn capacity(rules: usize) -> FlowCapacity {
    let power = |rows: usize, least: usize, most: usize| rows.clamp(least, most).next_power_of_two();
    // The row of a rule that is gone is free only after its batch. So there is room for as many new rules meanwhile.
    let rows = (rules + rules.min(1 << 16) + 1024 + FIRST_ROW).next_multiple_of(4);
    FlowCapacity {
        rules: rows,
        // A mask has its own buckets. Their number is doubled when a pair of them is full, at some 30 % of the
        // slots, and the old ones are free only after the batch. With this many, one in 10^5 switches is full too
        // early.
        buckets: power(2 * rules, 1 << 13, 1 << 21),
        rest: rows,
        patches: (rules / 16).max(1024),
        steps: (rules * 4).max(1 << 14),
        groups: GROUPS + 1,
        meters: METERS + 1,
        cache_sets: power(rules / 4, 1 << 13, 1 << 17),
        port_sets: 1024,
    }
}

/// A path as a port of rules.
pub fn path_port(path: &DaemonPath) -> PathPort {
    PathPort { name: path.name.clone(), drops: path.otherwise == Otherwise::Drop }
}

impl Rules {
    /// Makes the maps, with no rules.
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn new(config: &Config, ports: &[SwitchPort], batches: Batches, gauge: Arc<Gauge>) -> Result<Rules> {
        let mut random = [0; 40];
        File::open("/dev/urandom")
            .and_then(|mut file| file.read_exact(&mut random))
            .context("/dev/urandom")?;
        let (words, _) = random.as_chunks::<8>();
        let seed = Seed::new(std::array::from_fn(|i| u64::from_ne_bytes(words[i])));
        let capacity = capacity(config.flows.rules.0 as usize);
        let settings = settings(config, ports);
        let maps = Arc::new(FlowMaps::new(FlowSettings { capacity, seed })?);
        maps.set_without_daemon(without_daemon(&settings));
        let flows = Flows::new(maps.memory().clone(), seed, &settings.miss);
        Ok(Rules {
            agent: Agent::new(flows, settings),
            exits: Exits::new(maps.clone(), gauge.clone()),
            maps,
            flags: BTreeMap::new(),
            batches,
            gauge,
            most_rules: config.flows.rules.0,
            proxies: config.openflow.proxy_ports.clone(),
            phase: Phase::Idle,
            sealed: 0,
            over: 0,
            changing: Changing::default(),
            chooses: false,
        })
    }

    /// Follows another configuration.
    pub fn follow(&mut self, config: &Config, ports: &[SwitchPort]) {
        // The address of the first port may be another one now.
        let datapath_id = self.agent.settings().datapath_id;
        let settings = Settings { datapath_id, ..settings(config, ports) };
        self.maps.set_without_daemon(without_daemon(&settings));
        self.agent.follow(settings);
    }

    /// The maps that packets see.
    pub fn maps(&self) -> &Arc<FlowMaps> {
        &self.maps
    }

    /// Sets the ports of the box.
    pub fn set_ports(&mut self, devices: &Devices) {
        self.agent.set_proxy_ports(proxy_ports(&self.proxies, &devices.ports));
        let there = devices.ports.iter().filter(|port| port.ifindex.is_some());
        self.agent.set_ports(there.map(info).collect());
        self.show_machine(devices);
        self.exits.set_ports(&devices.ports);
        self.show_ports(&devices.ports);
    }

    /// Sets the paths of the user plane, as configured, and whether they have workers.
    pub fn set_paths(&mut self, configured: &[DaemonPath], now: &BTreeMap<PathId, SwitchPath>) {
        let info = |path: &DaemonPath| PathInfo {
            path: path_port(path),
            has_worker: now.get(&path.id).is_some_and(|now| now.has_worker),
        };
        self.agent.set_paths(configured.iter().map(|path| (path.id, info(path))).collect());
    }

    /// Gives the agent the present cores and workloads, for controllers that ask.
    pub fn show_machine(&mut self, devices: &Devices) {
        let report = devices.machine.as_ref().map(CoresHandle::cores);
        self.agent.set_cores(machine::cores(&devices.ports, report.as_ref()), now_ms());
        if let Some(report) = report {
            self.agent.set_workloads(machine::workloads(&report), now_ms());
        }
    }

    /// Sets the ports that rules send to, and the ports whose packets they take, as controllers have set them.
    fn show_ports(&mut self, ports: &[SwitchPort]) {
        let flags = |port: &SwitchPort| self.agent.port_flags(number(port));
        self.flags = ports.iter().map(|port| (number(port), flags(port))).collect();
        let targets = ports.iter().filter_map(|port| Some((port, flags(port), port.ifindex?)));
        let targets = targets.filter(|(port, flags, _)| port.transmits && !flags.no_fwd);
        let targets = targets.map(|(port, flags, ifindex)| (number(port), (ifindex, !flags.no_flood)));
        if let Err(error) = self.maps.memory().set_ports(targets.collect()) {
            tracing::warn!("cannot set the ports of flow rules: {error:#}");
        }
        self.maps.set_no_recv(ports.iter().filter(|port| flags(port).no_recv).map(|port| port.id));
    }

    /// Takes a packet from the kernel plane.
    pub fn notice(&mut self, notice: Notice, frame: &[u8]) {
        let now_ns = u64::try_from(monotonic().as_nanos()).unwrap_or(u64::MAX);
        let slow = notice.reason == NoticeReason::Slow;
        let cut = self.agent.packets_cut();
        self.agent.notice(notice, frame, now_ns);
        if slow {
            let lost = self.agent.packets_cut() > cut;
            let count = if lost { &self.gauge.slow_lost } else { &self.gauge.slow_done };
            count.fetch_add(1, Relaxed);
        }
    }

    /// Carries out the agent's effects.
    pub fn carry_out(&mut self, network: Option<&Network>, ports: &[SwitchPort]) {
        for effect in self.agent.take_effects() {
            match (effect, network) {
                (Effect::Send { connection, bytes }, Some(network)) => network.send(connection, bytes),
                (Effect::Read(connection), Some(network)) => network.read(connection),
                (Effect::Close { connection, why }, Some(network)) => network.close(connection, &why),
                (Effect::ConfigurePort { port, up }, _) => configure(ports, port, up),
                (effect, _) => self.exits.leave(&effect),
            }
        }
        if ports
            .iter()
            .any(|port| self.flags.get(&number(port)) != Some(&self.agent.port_flags(number(port))))
        {
            self.show_ports(ports);
        }
    }

    /// The number of rules.
    pub fn count(&mut self) -> u64 {
        self.agent.flows().tables().len() as u64
    }

    /// Changes rules as a client asks. The answer waits until packets obey, if the client wants that.
    pub fn change(&mut self, change: Change, ports: &[SwitchPort]) {
        let mut report = change::apply(&mut self.agent, &change.request, ports, self.most_rules, now_ms());
        let stands_alone = self.agent.has_rules() && self.agent.stands_alone();
        report.note = stands_alone.then(|| format!("packets do not go by rules: {STANDS_ALONE}"));
        if change.request.wait {
            self.changing.wait(self.sealed + 1, report, change.reply);
        } else {
            // It does no harm if the client is gone.
            let _ = change.reply.send(Ok(report));
        }
    }

    /// Adds the rules of a file, before any packet obeys rules.
    ///
    /// # Errors
    /// A line cannot be read or used.
    pub fn load(&mut self, file: &Loading, devices: &Devices) -> Result<()> {
        let (ports, most_rules, now_ms) = (&devices.ports, self.most_rules, now_ms());
        // Rules may send to ports whose devices come later.
        self.agent.set_ports(ports.iter().map(info).collect());
        let agent = &mut self.agent;
        let rules = file.rules(&change::names_of_agent(agent, ports))?;
        let unknown = rules.each(|rule, kept| change::load(agent, rule, kept, ports, most_rules, now_ms))?;
        if !unknown.is_empty() {
            let lines: Vec<_> = unknown.iter().take(10).map(u64::to_string).collect();
            tracing::warn!(
                "{}: {} rules name a number of no known port, so they match no packet, or drop it; lines {}",
                file.name(),
                unknown.len(),
                lines.join(", ")
            );
        }
        self.set_ports(devices);
        if !rules.missing.is_empty() {
            tracing::warn!(
                "{} was saved with ports or paths that are not configured now: {}; rules that name them match no packet, or drop it",
                file.name(),
                rules.missing.join(", ")
            );
        }
        Ok(())
    }

    /// Answers the changes that packets obey, if the right program is attached (`obeys`), or that failed.
    pub fn answer(&mut self, obeys: bool, failed: Option<&str>) {
        self.changing.answer(self.over, obeys, failed);
    }

    /// Starts to choose cores for flows, after the first rule that asks for it.
    pub fn choose(&mut self, devices: &Devices) {
        let (Some(machine), false) = (&devices.machine, self.chooses) else { return };
        if !self.maps.memory().chooses() {
            return;
        }
        self.chooses = true;
        if let Err(error) = choosing::start(self.maps.clone(), machine.clone()) {
            tracing::error!(
                "cannot choose cores for flows, so they stay on the cores where they come in: {error:#}"
            );
        }
    }

    /// Begins a batch of the changes so far, if none is under way. `obeys`: the right program is attached to all ports.
    pub fn settle(&mut self, obeys: bool, devices: &Devices) {
        if self.phase == Phase::Over && obeys {
            self.agent.finish(now_ms(), &Counted { devices, memory: self.maps.memory() });
            self.phase = Phase::Idle;
        }
        if self.phase != Phase::Idle {
            return;
        }
        self.sealed += 1;
        if self.agent.seal() {
            self.phase = Phase::Sealed;
            self.batches.begin();
        } else {
            self.over = self.sealed;
        }
    }

    /// Goes on after a grace period. If waiting for it failed, tries again; no changes are answered meanwhile.
    pub fn passed(&mut self, done: Result<()>) {
        if let Err(error) = done {
            tracing::warn!("waiting for running programs failed, so changes of flow rules wait: {error:#}");
            std::thread::sleep(std::time::Duration::from_millis(100));
            self.batches.begin();
            return;
        }
        match self.phase {
            Phase::Sealed => {
                self.agent.void();
                self.phase = Phase::Void;
                self.batches.begin();
            }
            Phase::Void => {
                self.over = self.sealed;
                self.phase = Phase::Over;
            }
            Phase::Idle | Phase::Over => {}
        }
    }
}

/// The agent's settings, from the configuration and the machine.
fn settings(config: &Config, ports: &[SwitchPort]) -> Settings {
    let openflow = &config.openflow;
    let both = || vec![Version::OpenFlow10, Version::OpenFlow13];
    // A port that is not there has no address yet.
    let first_mac = ports.iter().map(|port| port.mac.0).find(|mac| *mac != [0; 6]).unwrap_or_default();
    let kernel = rustix::system::uname();
    Settings {
        versions: openflow.version.map_or_else(both, |version| match version {
            config::OpenFlowVersion::V10 => vec![Version::OpenFlow10],
            config::OpenFlowVersion::V13 => vec![Version::OpenFlow13],
        }),
        datapath_id: openflow.datapath_id(first_mac),
        description: Description {
            manufacturer: b"Millrace".to_vec(),
            hardware: kernel.release().to_bytes().to_vec(),
            software: concat!("millrace ", env!("CARGO_PKG_VERSION")).into(),
            serial: b"None".to_vec(),
            datapath: kernel.nodename().to_bytes().to_vec(),
        },
        max_rules: config.flows.rules.0,
        miss: match config.flows.miss {
            config::Miss::Normal => Instructions::apply([Action::output(RulePort::NORMAL)]),
            config::Miss::Controller => Instructions::apply([Action::output(RulePort::CONTROLLER)]),
            config::Miss::Drop => Instructions::default(),
        },
        fail: match openflow.fail {
            config::FailMode::Standalone => FailMode::Standalone,
            config::FailMode::Secure => FailMode::Secure,
        },
        controllers: openflow.controllers.iter().any(|target| !target.listens),
        echo_interval_ms: u64::try_from(openflow.echo_interval.0.as_millis()).unwrap_or(u64::MAX),
        packet_in_pps: openflow.packet_in_pps.0,
        proxy_ports: proxy_ports(&openflow.proxy_ports, ports),
    }
}

/// Without controllers that we dial, rules are as local as routes, and what they drop stays dropped.
fn without_daemon(settings: &Settings) -> WithoutDaemon {
    match (settings.controllers, settings.fail) {
        (false, _) => WithoutDaemon::Drop,
        (true, FailMode::Secure) => WithoutDaemon::GoOn,
        (true, FailMode::Standalone) => WithoutDaemon::End,
    }
}

/// The ports by which flow-mods may come through another switch.
fn proxy_ports(names: &[String], ports: &[SwitchPort]) -> BTreeSet<RulePort> {
    let named = |name: &String| ports.iter().find(|port| port.name == *name).map(number);
    names.iter().filter_map(named).collect()
}

/// This machine's cores, without their loads and workloads.
pub(super) fn cores(ports: &[SwitchPort]) -> Cores {
    let online =
        online_cpus().inspect_err(|error| tracing::warn!("cannot read which cores are online: {error}"));
    let numbers = online.unwrap_or_default().into_iter().filter_map(|cpu| u16::try_from(cpu).ok());
    let core = |number| Core { number, load: None, workloads: 0 };
    let native_xdp = ports.iter().all(|port| !port.generic);
    // Packets of a port in generic mode are not handed over (`Plane::set_port`).
    let features = Features { native_xdp, core_redirect: native_xdp, ..Features::default() };
    Cores { features, cores: numbers.filter(|&number| number < CORES).map(core).collect() }
}

fn info(port: &SwitchPort) -> PortInfo {
    PortInfo {
        port: number(port),
        name: port.name.clone(),
        mac: port.mac,
        link_up: port.carrier,
        admin_up: port.up,
        transmits: port.transmits,
        speed_mbps: None,
    }
}

/// Sets a port up or down, as a controller asks.
fn configure(ports: &[SwitchPort], port: RulePort, up: bool) {
    let Some(port) = numbered(ports, port) else { return };
    let word = if up { "up" } else { "down" };
    match device::set_up(&port.name, up) {
        Ok(()) => tracing::info!("a controller has set port {} {word}", port.name),
        Err(error) => tracing::warn!("a controller cannot set port {} {word}: {error:#}", port.name),
    }
}

/// A port's number in rules.
pub(super) fn number(port: &SwitchPort) -> RulePort {
    rule_port(port.id)
}

/// The port with this number.
pub(super) fn numbered(ports: &[SwitchPort], wanted: RulePort) -> Option<&SwitchPort> {
    ports.iter().find(|port| number(port) == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use logic::flow::kernel::{CACHE_WAYS, words};

    /// Memory that all CPUs share, and memory of each CPU, in MiB.
    fn mib(c: &FlowCapacity) -> (usize, usize) {
        let shared = [
            (c.buckets, words::BUCKET),
            (c.rules, words::RULE),
            (c.rest, words::REST),
            (c.patches, words::PATCH),
            (c.steps, words::STEP),
            (c.groups, words::GROUP),
            (c.meters, words::METER),
        ];
        let own = [(c.cache_sets * CACHE_WAYS, words::CACHED + words::REST), (c.rules, words::COUNT)];
        let sum = |rows: &[(usize, usize)]| rows.iter().map(|(rows, words)| rows * words * 8).sum::<usize>();
        (sum(&shared) >> 20, sum(&own) >> 20)
    }

    #[test]
    fn memory_is_as_the_comment_on_capacity_says() {
        assert_eq!(mib(&capacity(65_536)), (42, 8));
        assert_eq!(mib(&capacity(1_010_000)), (411, 64));
        let least = capacity(1);
        assert!(least.rules > 1000 && least.buckets.is_power_of_two() && least.cache_sets.is_power_of_two());
    }

    #[test]
    fn all_rules_that_are_configured_find_room_in_one_batch() {
        use logic::flow::{Dialect, FlowCommand, field::Field, kernel::HeapFlows, text::parse_flow};
        for most in [1000, 65_536] {
            let memory = HeapFlows::new(capacity(most), 1);
            let mut flows = Flows::new(memory, Seed::default(), &Instructions::default());
            flows.set_ports([(RulePort(1), true)]);
            let mut flow =
                parse_flow("udp,nw_dst=198.0.0.0,tp_src=0,actions=output:1", FlowCommand::Add).unwrap();
            for i in 0..most as u128 {
                flow.matching.set(Field::Ipv4Dst, (198 << 24) + i, u32::MAX.into());
                flow.matching.set(Field::UdpSrc, i & 0x7fff, u16::MAX.into());
                flows.apply(&flow, Dialect::OpenFlow13, 0).unwrap_or_else(|e| panic!("{i} of {most}: {e}"));
            }
        }
    }
}
