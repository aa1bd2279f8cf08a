//! The machine around the queues: its cores, and the programs that Millrace shares them with.

use super::{
    CoreId, Roots,
    affinity::Affinity,
    balancer::Balancer,
    cpusets::Cpusets,
    machine::Machine,
    queues::Control,
    serve,
    workloads::{self, Scanner, Workload, WorkloadKind},
};
use crate::config::CoresSettings;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    sync::Arc,
    time::Duration,
};

/// How often irqbalance is searched for.
const BALANCER: Duration = Duration::from_secs(60);

/// What was last found around the queues.
pub struct Surroundings<A> {
    /// The list of online cores when the machine was last read.
    online: String,
    pub machine: Arc<Machine>,
    scanner: Scanner<A>,
    /// The workloads of the configuration.
    declared: Vec<Workload>,
    pub workloads: Arc<Vec<Workload>>,
    pub cpusets: Cpusets,
    /// Cores that control groups keep for themselves, each with the path of the group.
    pub kept: Arc<BTreeMap<CoreId, String>>,
    /// When irqbalance was last searched for, and the result.
    balancer: (Option<Duration>, Option<Arc<Balancer>>),
}

impl<A: Affinity> Surroundings<A> {
    /// # Errors
    /// /sys cannot be read.
    pub fn new(roots: &Roots, affinity: A, wanted: &CoresSettings) -> io::Result<Surroundings<A>> {
        let served = wanted.serve.as_deref().and_then(|directory| serve::path(roots, directory));
        // Declared workloads get ids that no process has.
        let declared = (0..).zip(&wanted.workloads).map(|(nth, declared)| Workload {
            id: u32::MAX - nth,
            name: declared.name.clone(),
            kind: WorkloadKind::Declared,
            cores: declared.cores.0.clone(),
        });
        let mut new = Surroundings {
            online: online(roots)?,
            machine: Arc::new(Machine::observe(roots)?),
            cpusets: Cpusets::new(roots, served.as_deref()),
            kept: Arc::default(),
            scanner: Scanner::new(affinity, std::process::id(), served),
            declared: declared.collect(),
            workloads: Arc::default(),
            balancer: (None, None),
        };
        new.merge();
        Ok(new)
    }

    /// Reads the cores again if the set of online cores has changed.
    pub fn find_cores(&mut self, roots: &Roots) -> io::Result<()> {
        let online = online(roots)?;
        if online != self.online {
            self.machine = Arc::new(Machine::observe(roots)?);
            self.online = online;
        }
        Ok(())
    }

    pub fn find_workloads(&mut self, roots: &Roots, now: Duration) {
        let online = self.machine.online();
        let changed = self.scanner.look_at(roots, &online, self.cpusets.take_processes());
        if self.scanner.scan(roots, &online, now) || changed {
            self.merge();
        }
    }

    /// Finds the cores that control groups keep; `allowed`: as configured. If no other core may forward, none counts as
    /// kept. Returns this problem, as a sentence.
    pub fn find_kept(&mut self, now: Duration, allowed: Option<&BTreeSet<CoreId>>) -> Option<String> {
        let (mut kept, online) = (self.cpusets.look(now), self.machine.online());
        let has_other = allowed.unwrap_or(&online).iter().any(|core| !kept.contains_key(core));
        if !has_other {
            kept.clear();
        }
        if kept != *self.kept {
            self.kept = Arc::new(kept);
        }
        (!has_other).then(|| {
            "control groups keep all cores for themselves that may forward, so queues stay on these cores: leave Millrace \
             a core, or run it in one of these groups"
                .into()
        })
    }

    fn merge(&mut self) {
        self.workloads = Arc::new(workloads::merge(self.scanner.workloads(), &self.declared));
    }

    /// Searches for irqbalance, if it could move interrupts that Millrace places by these `controls`. Returns it, and the
    /// problem, as a sentence.
    pub fn find_balancer(
        &mut self,
        roots: &Roots,
        controls: impl Iterator<Item = Control>,
        now: Duration,
        thoroughly: bool,
    ) -> (Option<Arc<Balancer>>, Option<String>) {
        let irq = |control| match control {
            Control::Interrupt { irq } => Some(irq),
            _ => None,
        };
        let mut irqs = controls.filter_map(irq).peekable();
        if irqs.peek().is_none() {
            return (None, None);
        }
        let (looked, found) = &mut self.balancer;
        if thoroughly || looked.is_none_or(|looked| now.saturating_sub(looked) >= BALANCER) {
            (*looked, *found) = (Some(now), Balancer::find(roots).map(Arc::new));
        }
        let condition = found.as_ref().and_then(|found| found.condition(irqs));
        (found.clone(), condition)
    }
}

/// The list of online cores, as the kernel writes it.
fn online(roots: &Roots) -> io::Result<String> {
    fs::read_to_string(roots.sys("devices/system/cpu/online"))
}
