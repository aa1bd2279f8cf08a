//! Uses the classifiers of NICs: makes rules of the NIC and rows of the tables from samples (Q3, Q4).
//!
//! Each change of a NIC is written to a file before it is made, so that the next daemon can undo it after `kill -9`.
//! It recognises our rules by all their bytes. [`Spreading`] removes queues from the set over which a NIC spreads
//! packets. Rules only move packets to another queue. No rule is needed for forwarding, and a rule that is left over
//! does no harm.

use crate::{
    base::{guard, instance::Instance},
    linux::{
        classifier::{Capabilities, Classifier, Spec},
        spreading::Spreading,
    },
};
use anyhow::{Context, Result};
use logic::{
    memory::Memory,
    plan::PortId,
    steer::{Change, Rule, Sample, Steering},
    tables::{Steered, Tables},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

/// The most rules of a port, few enough to search through. At most 16 queues are for steered flows, and they have as
/// many rows for each address family.
const MOST_RULES: usize = 64;
/// One queue in so many is for steered flows only.
const QUEUES_PER_STEERED: u32 = 4;

/// The classifiers of the ports that have one.
pub struct Steerer {
    classifier: Box<dyn Classifier>,
    spreading: Spreading,
    steering: Steering,
    ports: BTreeMap<PortId, SteeredPort>,
    file: PathBuf,
}

/// A port, and the state of its classifier.
struct SteeredPort {
    device: String,
    ifindex: u32,
    found: ClassifierState,
}

enum ClassifierState {
    None,
    /// Why it is not used.
    Unusable(String),
    Used(Used),
}

struct Used {
    queues: Vec<u8>,
    /// The most rules that we may install.
    rules: usize,
    /// Our rules, and where the NIC has put them.
    installed: BTreeMap<Rule, u32>,
    /// The rules that were there before.
    foreign: BTreeSet<Spec>,
}

/// Our changes of a device, as the next daemon reads them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Left {
    rules: Vec<String>,
    /// The former indirection table, from older daemons, which changed it directly.
    #[serde(default, skip_serializing)]
    spread: Vec<u32>,
}

/// The last quarter of the queues. Other programs are more likely to use the first ones.
fn queues_for_steering(capabilities: &Capabilities) -> Vec<u8> {
    let all = capabilities.queues.min(logic::tables::MAX_QUEUES as u32);
    let steered = if all < 2 { 0 } else { (all / QUEUES_PER_STEERED).max(1) };
    (all - steered..all).map(|queue| queue as u8).collect()
}

fn unusable(error: anyhow::Error) -> ClassifierState {
    ClassifierState::Unusable(format!("{error:#}"))
}

/// Returns the state of a device's classifier; changes nothing.
fn look(classifier: &dyn Classifier, device: &str) -> Result<ClassifierState> {
    let Some(capabilities) = classifier.capabilities(device).context("reading its classifier")? else {
        return Ok(ClassifierState::None);
    };
    let queues = queues_for_steering(&capabilities);
    if queues.is_empty() {
        return Ok(ClassifierState::Unusable("it has one queue".into()));
    }
    let rules = classifier.rules(device).context("reading its rules")?;
    let foreign: BTreeSet<Spec> = rules.into_iter().map(|rule| rule.spec).collect();
    let room = if capabilities.locations == 0 { MOST_RULES } else { capabilities.locations as usize };
    let rules = MOST_RULES.min(room.saturating_sub(foreign.len()));
    Ok(ClassifierState::Used(Used { queues, rules, installed: BTreeMap::new(), foreign }))
}

impl Steerer {
    /// `spreading` is from [`take_over`], and rules are written to `file`. Changes nothing yet.
    pub fn new(classifier: Box<dyn Classifier>, spreading: Spreading, file: PathBuf) -> Steerer {
        Steerer { classifier, spreading, steering: Steering::default(), ports: BTreeMap::new(), file }
    }

    /// Does any of these devices have a classifier?
    pub fn finds_any<'a>(&self, devices: impl IntoIterator<Item = &'a str>) -> bool {
        let mut devices = devices.into_iter();
        devices.any(|device| self.classifier.capabilities(device).is_ok_and(|found| found.is_some()))
    }

    /// From now on, uses the classifiers of exactly these devices. Call it whenever the devices may have changed.
    pub fn follow<'a>(&mut self, devices: impl IntoIterator<Item = (PortId, &'a str, u32)>) {
        let devices: BTreeMap<PortId, (&str, u32)> =
            devices.into_iter().map(|(id, device, ifindex)| (id, (device, ifindex))).collect();
        let stays = |id: &PortId, port: &SteeredPort| {
            devices
                .get(id)
                .is_some_and(|(device, ifindex)| *device == port.device && *ifindex == port.ifindex)
        };
        let gone: Vec<_> = self.ports.iter().filter(|(id, p)| !stays(id, p)).map(|(id, _)| *id).collect();
        for id in gone {
            self.steering.port_gone(id);
            // The rules of a device that was replaced are gone. A device that is only given up still has them.
            let Some(SteeredPort { device, ifindex, found: ClassifierState::Used(used) }) =
                self.ports.remove(&id)
            else {
                continue;
            };
            if !devices.contains_key(&id) {
                let specs = used.installed.keys().map(Spec::of).collect();
                delete_all(&*self.classifier, &device, &specs);
                self.release(&device, ifindex);
            }
        }
        for (id, (device, ifindex)) in devices {
            if self.ports.contains_key(&id) {
                continue;
            }
            let found = look(&*self.classifier, device);
            self.ports.insert(
                id,
                SteeredPort { device: device.into(), ifindex, found: found.unwrap_or_else(unusable) },
            );
            if let Err(error) = self.begin(id) {
                tracing::warn!("flows are not steered on port {device}: {error:#}");
                self.ports.entry(id).and_modify(|port| port.found = unusable(error));
            }
        }
    }

    /// Reserves queues of a port for steered flows, if its classifier is usable.
    fn begin(&mut self, id: PortId) -> Result<()> {
        self.write_down(&[])?;
        let Some(SteeredPort { ifindex, found, .. }) = self.ports.get(&id) else { return Ok(()) };
        let ClassifierState::Used(used) = found else {
            // A daemon before this one may have used it.
            return self.spreading.release(*ifindex);
        };
        let reserved = self.spreading.reserve(*ifindex, &used.queues);
        reserved.context("removing queues from its indirection table")?;
        self.steering.set_port(id, used.queues.clone(), used.rules);
        Ok(())
    }

    /// The time of the next work; `None`: there is none.
    pub fn due(&self) -> Option<Duration> {
        self.steering.due_ms().map(Duration::from_millis)
    }

    /// Takes samples in and, at the end of a window, changes rules and rows.
    pub fn round<M: Memory>(&mut self, now: Duration, samples: Vec<Sample>, tables: &mut Tables<M>) {
        self.steering.note(samples);
        let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let changes = self.steering.decide(now_ms, |flow| {
            // The queue does not change where the flow leads.
            tables.row_next_hop(&Rule { flow: *flow, queue: 0 }.steered())
        });
        if changes.is_empty() {
            return;
        }
        if let Err(error) = self.carry_out(&changes) {
            tracing::warn!("cannot steer flows: {error:#}");
        }
        tables.set_steered(&self.steered());
    }

    /// The rows that the tables should have.
    pub fn steered(&self) -> BTreeSet<Steered> {
        self.steering.steered()
    }

    fn carry_out(&mut self, changes: &[Change]) -> Result<()> {
        let new: Vec<Rule> = changes
            .iter()
            .filter_map(|change| match change {
                Change::Insert(rule) => Some(*rule),
                Change::Delete(_) => None,
            })
            .collect();
        self.write_down(&new)?;
        for change in changes {
            match change {
                Change::Delete(rule) => self.delete(rule),
                Change::Insert(rule) => self.insert(rule),
            }
        }
        self.write_down(&[])
    }

    fn insert(&mut self, rule: &Rule) {
        let spec = Spec::of(rule);
        let Some(SteeredPort { device, found: ClassifierState::Used(used), .. }) =
            self.ports.get_mut(&rule.flow.port)
        else {
            return;
        };
        let inserted = match used.foreign.contains(&spec) {
            true => Err(io::ErrorKind::AlreadyExists.into()),
            false => self.classifier.insert(device, &spec),
        };
        match inserted {
            Ok(location) => _ = used.installed.insert(*rule, location),
            Err(error) => {
                tracing::debug!("{device} refuses a rule: {error}");
                self.steering.refused(rule);
            }
        }
    }

    fn delete(&mut self, rule: &Rule) {
        let Some(SteeredPort { device, found: ClassifierState::Used(used), .. }) =
            self.ports.get_mut(&rule.flow.port)
        else {
            return;
        };
        if let Some(location) = used.installed.remove(rule)
            && let Err(error) = self.classifier.delete(device, location)
        {
            tracing::debug!("{device}: cannot delete rule {location}: {error}");
        }
    }

    /// Writes our rules, and the new ones that follow, to the file for the next daemon.
    fn write_down(&self, new: &[Rule]) -> Result<()> {
        let mut left: BTreeMap<&str, Left> = BTreeMap::new();
        for (id, port) in &self.ports {
            let ClassifierState::Used(used) = &port.found else { continue };
            let coming = new.iter().filter(|rule| rule.flow.port == *id);
            let rules = used.installed.keys().chain(coming);
            let rules = rules.map(Spec::of).filter(|spec| !used.foreign.contains(spec));
            let rules = rules.map(Spec::to_text).collect();
            left.insert(&port.device, Left { rules, spread: Vec::new() });
        }
        if left.is_empty() && !self.file.exists() {
            return Ok(());
        }
        let written = serde_json::to_string(&left).map_err(io::Error::other);
        written
            .and_then(|text| guard::replace(&self.file, text.as_bytes()))
            .with_context(|| format!("writing {}", self.file.display()))
    }

    /// Undoes everything; returns what it did.
    pub fn end(&mut self) -> Vec<String> {
        let done = clean(&*self.classifier, &self.file);
        for (id, port) in &self.ports {
            self.steering.port_gone(*id);
            if matches!(port.found, ClassifierState::Used(_)) {
                self.release(&port.device, port.ifindex);
            }
        }
        self.ports.clear();
        done
    }

    fn release(&self, device: &str, ifindex: u32) {
        if let Err(error) = self.spreading.release(ifindex) {
            tracing::warn!("cannot give back the queues for steered flows of {device}: {error:#}");
        }
    }

    /// The state of a port's classifier, for reports.
    pub fn describe(&self, id: PortId) -> String {
        match self.ports.get(&id).map(|port| &port.found) {
            None | Some(ClassifierState::None) => "none".into(),
            Some(ClassifierState::Unusable(why)) => format!("not used: {why}"),
            Some(ClassifierState::Used(used)) => {
                let queues: Vec<_> = used.queues.iter().map(u8::to_string).collect();
                format!("{} flows to queues {}", used.installed.len(), queues.join(" "))
            }
        }
    }
}

/// Deletes the rules that an earlier daemon left in NICs, and restores their indirection tables, except for devices
/// whose tables placing takes over (`placed`). Call it before anything else uses the classifiers.
pub fn take_over(
    classifier: Box<dyn Classifier>,
    instance: &Instance,
    placed: impl Fn(&str) -> bool,
) -> Spreading {
    for line in clean(&*classifier, &instance.steering_file()) {
        tracing::info!("{line}");
    }
    Spreading::open(classifier, instance.spreading_file(), placed)
}

/// Deletes these rules of a device, wherever the NIC has put them. Returns how many it deleted.
fn delete_all(classifier: &dyn Classifier, device: &str, ours: &BTreeSet<Spec>) -> usize {
    let found = if ours.is_empty() { Vec::new() } else { classifier.rules(device).unwrap_or_default() };
    let found = found.into_iter().filter(|rule| ours.contains(&rule.spec));
    found.filter(|rule| classifier.delete(device, rule.location).is_ok()).count()
}

/// Deletes the rules of `file` that a device still has byte for byte. Returns what it did.
pub fn clean(classifier: &dyn Classifier, file: &Path) -> Vec<String> {
    let Ok(text) = guard::read_ours(file) else { return Vec::new() };
    let left: BTreeMap<String, Left> = serde_json::from_slice(&text).unwrap_or_default();
    let mut done = Vec::new();
    for (device, left) in left {
        let ours = left.rules.iter().filter_map(|text| Spec::from_text(text)).collect();
        let deleted = delete_all(classifier, &device, &ours);
        if deleted > 0 {
            done.push(format!("port {device}: {deleted} rules of its classifier deleted"));
        }
        if !left.spread.is_empty() && classifier.set_indirection(&device, &left.spread).is_ok() {
            done.push(format!("port {device}: packets are spread over all queues again"));
        }
    }
    let _ = fs::remove_file(file);
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::classifier::{Ntuple, fake::Nic};
    use logic::{memory::HeapMemory, steer::Flow, steer::WINDOW_MS};

    const TABLES: logic::memory::Capacity = logic::memory::Capacity {
        fib_blocks: 100,
        fib_tails: 100,
        nexthops: 100,
        neighbour_buckets: 4,
        interface_buckets: 4,
        routers: 3,
    };

    struct Case {
        nic: Nic,
        steerer: Steerer,
        tables: Tables<HeapMemory>,
        now: Duration,
        directory: tempfile::TempDir,
    }

    /// The steerer of a daemon that does not place queues.
    fn steerer(nic: &Nic, directory: &tempfile::TempDir) -> Steerer {
        let classifier = || Box::new(Ntuple(nic.clone()));
        let instance = Instance::under(directory.path(), None);
        let spreading = take_over(classifier(), &instance, |_| false);
        Steerer::new(classifier(), spreading, instance.steering_file())
    }

    fn flow(last: u8) -> Flow {
        let [source, destination] = [[10, 0, 1, 5], [10, 0, 2, last]].map(Into::into);
        Flow { port: 0, interface: 1, source, destination, protocol: 17, ports: [1000, 2000] }
    }

    impl Case {
        fn new(nic: Nic) -> Case {
            use logic::plan::{Hop, Interface, MultipathHash, Op, ReversePath, Target};
            let directory = tempfile::tempdir().unwrap();
            let rows = logic::tables::queue_rows(2);
            let mut tables = Tables::new(HeapMemory::with_queue_rows(TABLES, rows));
            let interface = |port: u8| Interface {
                router: 0,
                port,
                vlan: logic::net::Vlan::NONE,
                mac: logic::net::Mac([2, 0, 0, 0, 0, port]),
                ipv4: true,
                ipv6: true,
                transmit: true,
                reverse_path: ReversePath::Off,
                redirects: true,
                accept_local: false,
                priority_tags: false,
                look_at_sources: false,
                group: 0,
            };
            let hop = Hop { interface: 2, gateway: Some([10, 0, 9, 1].into()), mtu: 1500 };
            for op in [
                Op::Router { router: 0, multipath: MultipathHash::default() },
                Op::Interface(1, interface(0)),
                Op::Interface(2, interface(1)),
                Op::Route4(0, "10.0.2.0/24".parse().unwrap(), Some(Target::Hop(hop))),
            ] {
                tables.apply(&op).unwrap();
            }
            let mut steerer = steerer(&nic, &directory);
            steerer.follow([(0, "eth1", 3)]);
            let mut case = Case { nic, steerer, tables, now: Duration::ZERO, directory };
            case.window(&[]);
            case
        }

        fn window(&mut self, flows: &[Flow]) {
            let samples = flows.iter().map(|flow| Sample { flow: *flow, bytes: 1000 }).collect();
            self.steerer.round(self.now, samples, &mut self.tables);
            self.now += Duration::from_millis(WINDOW_MS);
        }

        fn rules(&self) -> usize {
            Ntuple(self.nic.clone()).rules("eth1").unwrap().len()
        }

        fn spread(&self) -> Vec<u32> {
            Ntuple(self.nic.clone()).indirection("eth1").unwrap()
        }
    }

    #[test]
    fn a_heavy_flow_gets_a_rule_and_a_row_and_loses_both() {
        let mut case = Case::new(Nic::new(4, 64, false));
        assert_eq!(case.spread(), [0, 1, 2, 0, 0, 1, 2, 1], "queue 3 is for steered flows");
        case.window(&[flow(1)]);
        case.window(&[flow(1)]);
        assert_eq!(case.rules(), 1);
        let row = Steered { port: 0, queue: 3, interface: 1, destination: [10, 0, 2, 1].into() };
        assert_eq!(case.tables.steered().collect::<Vec<_>>(), [&row]);
        assert_eq!(case.steerer.describe(0), "1 flows to queues 3");
        (0..5).for_each(|_| case.window(&[]));
        assert_eq!((case.rules(), case.tables.steered().count()), (0, 0));
    }

    #[test]
    fn everything_is_given_back_at_the_end_and_after_a_kill() {
        let foreign = Spec::of(&Rule { flow: flow(77), queue: 1 });
        for killed in [false, true] {
            let mut case = Case::new(Nic::new(4, 64, killed));
            Ntuple(case.nic.clone()).insert("eth1", &foreign).unwrap();
            case.window(&[flow(1), flow(2)]);
            case.window(&[flow(1), flow(2)]);
            assert!(case.rules() > 1);
            if killed {
                drop(steerer(&case.nic, &case.directory));
            } else {
                let done = case.steerer.end();
                assert!(done[0].contains("rules of its classifier deleted"), "{done:?}");
            }
            let left = Ntuple(case.nic.clone()).rules("eth1").unwrap();
            assert_eq!(left.into_iter().map(|r| r.spec).collect::<Vec<_>>(), [foreign], "others stay");
            assert_eq!(case.spread(), [0, 1, 2, 3, 0, 1, 2, 3]);
            assert_eq!(fs::read_dir(case.directory.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn a_table_that_an_older_daemon_wrote_down_with_its_rules_is_restored() {
        let (nic, directory) = (Nic::new(4, 64, false), tempfile::tempdir().unwrap());
        Ntuple(nic.clone()).set_indirection("eth1", &[0, 1, 2, 0, 0, 1, 2, 1]).unwrap();
        let left = r#"{"eth1": {"rules": [], "spread": [0, 1, 2, 3, 0, 1, 2, 3]}}"#;
        fs::write(Instance::under(directory.path(), None).steering_file(), left).unwrap();
        drop(steerer(&nic, &directory));
        assert_eq!(Ntuple(nic).indirection("eth1").unwrap(), [0, 1, 2, 3, 0, 1, 2, 3]);
    }

    #[test]
    fn a_rule_that_is_refused_leaves_no_row() {
        let mut case = Case::new(Nic::new(4, 64, false));
        case.window(&[flow(1)]);
        case.nic.fail(Some(libc::ENOSPC));
        case.window(&[flow(1)]);
        case.nic.fail(None);
        assert_eq!((case.rules(), case.tables.steered().count()), (0, 0));
        case.window(&[flow(1)]);
        assert_eq!(case.rules(), 0, "it is not tried again at once");
    }

    #[test]
    fn without_a_classifier_nothing_is_done_or_changed() {
        let nic = Nic::new(4, 64, false);
        nic.fail(Some(libc::EOPNOTSUPP));
        let mut case = Case::new(nic);
        assert!(!case.steerer.finds_any(["eth1"]));
        case.window(&[flow(1)]);
        case.window(&[flow(1)]);
        assert_eq!((case.steerer.describe(0), case.steerer.due()), ("none".into(), None));
        assert_eq!(fs::read_dir(case.directory.path()).unwrap().count(), 0);
        let mut one = Case::new(Nic::new(1, 64, false));
        one.window(&[flow(1)]);
        assert_eq!(one.steerer.describe(0), "not used: it has one queue");
    }

    #[test]
    fn a_device_that_was_replaced_starts_again_without_rules() {
        let mut case = Case::new(Nic::new(4, 64, false));
        case.window(&[flow(1)]);
        case.window(&[flow(1)]);
        case.nic.forget_all();
        case.steerer.follow([(0, "eth1", 9)]);
        assert_eq!(case.steerer.steered().len(), 0);
        case.window(&[flow(1)]);
        case.window(&[flow(1)]);
        case.window(&[flow(1)]);
        assert_eq!(case.rules(), 1);
        case.steerer.follow([]);
        assert_eq!((case.steerer.due(), case.rules()), (None, 0), "given up, not gone");
        assert_eq!(case.spread(), [0, 1, 2, 3, 0, 1, 2, 3]);
    }

    #[test]
    fn queues_are_chosen_from_the_end() {
        let queues = |queues| queues_for_steering(&Capabilities { queues, locations: 9, chooses: false });
        assert_eq!((queues(1), queues(2), queues(3), queues(8)), (vec![], vec![1], vec![2], vec![6, 7]));
        assert_eq!((queues(200).len(), queues(200).last()), (16, Some(&63)));
    }
}
