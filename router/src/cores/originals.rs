//! The original settings of threads, interrupts, TX queues and everything else that is changed for cores, to be restored
//! at the end.
//!
//! Each original is written to a file before the first change, so that the next daemon can restore it after `kill -9`. An
//! original that could not be restored stays in the file, for the next attempt. One whose thread, interrupt or device is
//! gone is removed. Nothing is restored on something else that has the same number by now.

use super::{
    CoreId, Roots,
    affinity::{self, Scheduling},
    apply::xps,
    irqs,
    local::Table,
    moderation::Setting,
    number,
    queues::Control,
    resume, serve, threads,
};
use crate::{
    base::{guard, priority::Urgency},
    config::{CoresSettings, Experimental, LocalDelivery},
    linux::ethtool::{Coalescing, Ethtool},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

/// Reads and sets the interrupt moderation of devices.
pub trait Coalesce {
    /// Reads the moderation of a device; `Ok(None)`: the driver does not report it.
    fn coalescing(&self, device: &str) -> io::Result<Option<Coalescing>>;
    /// Sets the moderation of a device.
    fn coalesce(&self, device: &str, coalescing: Coalescing) -> io::Result<()>;
}

/// Devices are those of the calling thread's network namespace.
impl Coalesce for affinity::Kernel {
    fn coalescing(&self, device: &str) -> io::Result<Option<Coalescing>> {
        Ethtool::open()?.coalescing(device)
    }

    fn coalesce(&self, device: &str, coalescing: Coalescing) -> io::Result<()> {
        Ethtool::open()?.coalesce(device, coalescing)
    }
}

/// All settings that are changed by system calls, not by files.
pub trait System: Scheduling + Coalesce {}

impl<S: Scheduling + Coalesce> System for S {}

/// One setting that was changed, and its original value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Original {
    /// The port that it was changed for; empty: it belongs to no port.
    device: String,
    what: What,
    was: Was,
}

/// The changed setting, with data that tell its owner from a later one of the same number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum What {
    /// The allowed cores of a NAPI thread of this name.
    Thread { pid: u32, name: String },
    /// The allowed cores of an interrupt with handlers of these names.
    Interrupt { irq: u32, actions: Vec<String> },
    /// The cores of a TX queue of the device, which has this number.
    Transmit { ifindex: Option<u32>, queue: u16 },
    /// The scheduling of a NAPI thread of this name.
    Urgency { pid: u32, name: String },
    /// The cores of a control group.
    Cpuset { directory: PathBuf },
    /// A table of local delivery that was given this number of entries. The table of an RX queue belongs to the device of
    /// this number.
    Table { table: Table, ifindex: Option<u32>, entries: u32 },
    /// The interrupt moderation of the device of this number, and the value that was set. `None`: it was about to be set,
    /// so any present value counts as ours.
    Moderation { ifindex: u32, set: Option<Setting> },
    /// The wake-up limit of a core, which was set to this value.
    Resume { core: CoreId, set: String },
}

/// The original value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Was {
    Cores(BTreeSet<CoreId>),
    /// The text of the file.
    Text(String),
    Urgency(Urgency),
    Entries(u32),
    Setting(Setting),
}

impl Original {
    /// The problem, as a sentence, if it could not be restored.
    fn kept(&self) -> String {
        let device = &self.device;
        match &self.what {
            What::Thread { name, .. } => format!("thread {name} keeps its cores"),
            What::Urgency { name, .. } => format!("thread {name} keeps its priority"),
            What::Cpuset { directory } => format!("{} keeps its cores", directory.display()),
            What::Interrupt { irq, .. } => format!("interrupt {irq} of {device} keeps its cores"),
            What::Transmit { queue, .. } => format!("TX queue {queue} of {device} keeps its cores"),
            What::Table { table, entries, .. } => format!("{table} stays {entries}"),
            What::Moderation { .. } => format!("the interrupt moderation of {device} is not restored"),
            What::Resume { core, set } => format!("core {core} keeps its wake-up limit of {set} us"),
        }
    }

    /// Whether its thread, interrupt, device or file still exists, is the same, and has the value that was set, as far as
    /// that is checked.
    fn is_there(&self, roots: &Roots, system: &impl System) -> bool {
        match &self.what {
            What::Thread { pid, name } | What::Urgency { pid, name } => {
                threads::stat(roots, *pid).is_ok_and(|stat| stat.is_some_and(|stat| stat.name == *name))
            }
            What::Interrupt { irq, actions } => {
                // After a device was renamed, its handlers get new names when it comes up.
                let is_devices = || irqs::of_device(roots, &self.device).values().any(|of| of == irq);
                irqs::affinity(roots, *irq).exists()
                    && (irqs::actions(roots, *irq) == *actions || is_devices())
            }
            What::Transmit { ifindex, queue } => {
                xps(roots, &self.device, *queue).exists() && number_of(roots, &self.device) == *ifindex
            }
            What::Cpuset { directory } => serve::file(directory).exists(),
            // If the number of entries is another, somebody else has set it.
            What::Table { table, ifindex, entries } => {
                table.entries(roots).is_ok_and(|now| now == *entries)
                    && (*table == Table::Sockets || number_of(roots, &self.device) == *ifindex)
            }
            // If the value is another, somebody else has set it. A device that does not report it may have ours.
            What::Moderation { ifindex, set } => named(roots, *ifindex).is_some_and(|device| {
                set.is_none_or(|set| set.is_set(roots, system, &device).unwrap_or(true))
            }),
            What::Resume { core, set } => resume::limit(roots, *core).is_ok_and(|now| now == *set),
        }
    }

    fn put_back(&self, roots: &Roots, system: &impl System) -> io::Result<()> {
        match (&self.what, &self.was) {
            (What::Urgency { pid, .. }, Was::Urgency(urgency)) => system.set_urgency(*pid, *urgency),
            // Writing no bytes at all would have no effect, so an empty list needs its newline.
            (What::Cpuset { directory }, Was::Text(cores)) => {
                fs::write(serve::file(directory), format!("{cores}\n"))
            }
            (What::Thread { pid, .. }, Was::Cores(cores)) => system.allow(*pid, cores),
            (What::Interrupt { irq, .. }, Was::Text(cores)) => fs::write(irqs::affinity(roots, *irq), cores),
            (What::Transmit { queue, .. }, Was::Text(cores)) => {
                fs::write(xps(roots, &self.device, *queue), cores)
            }
            (What::Table { table, .. }, Was::Entries(entries)) => table.resize(roots, *entries),
            (What::Moderation { ifindex, .. }, Was::Setting(was)) => {
                was.write(roots, system, &named(roots, *ifindex).ok_or(io::ErrorKind::NotFound)?)
            }
            (What::Resume { core, .. }, Was::Text(was)) => fs::write(resume::file(roots, *core), was),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// All originals, in memory and in a file.
#[derive(Debug)]
pub struct Originals {
    file: PathBuf,
    all: Vec<Original>,
}

impl Originals {
    /// Reads the file, with the originals that earlier daemons have left in it.
    pub fn read(file: PathBuf) -> Originals {
        let left: Option<Vec<serde_json::Value>> =
            guard::read_ours(&file).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let known = |entry: serde_json::Value| {
            let words = entry.to_string();
            serde_json::from_value(entry)
                .inspect_err(|error| {
                    tracing::warn!("{}: {words} is not restored: {error}", file.display());
                })
                .ok()
        };
        let all = left.into_iter().flatten().filter_map(known).collect();
        Originals { file, all }
    }

    /// Saves the originals of a queue, as far as they are not saved yet; with a `floor` also the scheduling of its thread.
    /// To be called before the queue is moved.
    ///
    /// # Errors
    /// They cannot be read or saved; then the queue must not be moved.
    pub fn note(
        &mut self,
        roots: &Roots,
        affinity: &impl Scheduling,
        device: &str,
        queue: u16,
        control: Control,
        floor: bool,
    ) -> io::Result<()> {
        let mut found = Vec::new();
        match control {
            Control::Thread { pid } => {
                let Some(stat) = threads::stat(roots, pid)? else { return Ok(()) };
                let cores = affinity.allowed(pid)?.cores().collect();
                if floor {
                    let what = What::Urgency { pid, name: stat.name.clone() };
                    found.push((what, Was::Urgency(affinity.urgency(pid)?)));
                }
                found.push((What::Thread { pid, name: stat.name }, Was::Cores(cores)));
            }
            Control::Interrupt { irq } => {
                let cores = fs::read_to_string(irqs::affinity(roots, irq))?.trim().into();
                found.push((What::Interrupt { irq, actions: irqs::actions(roots, irq) }, Was::Text(cores)));
            }
            Control::None { .. } => {}
        }
        // A device with one TX queue has no such file.
        if let Ok(mask) = fs::read_to_string(xps(roots, device, queue)) {
            let what = What::Transmit { ifindex: number_of(roots, device), queue };
            found.push((what, Was::Text(mask.trim().into())));
        }
        let original = |(what, was)| Original { device: device.into(), what, was };
        self.add(found.into_iter().map(original).collect())
    }

    /// Saves the cores of a control group, if they are not saved yet. Returns the original list. To be called before the
    /// cores are changed.
    ///
    /// # Errors
    /// The list cannot be read or saved; then it must not be changed.
    pub fn note_cpuset(&mut self, directory: &Path) -> io::Result<String> {
        let now = fs::read_to_string(serve::file(directory))?.trim().to_owned();
        let what = What::Cpuset { directory: directory.into() };
        let found = Original { device: String::new(), what: what.clone(), was: Was::Text(now.clone()) };
        self.add(vec![found])?;
        Ok(match self.all.iter().find(|original| original.what == what).map(|original| &original.was) {
            Some(Was::Text(noted)) => noted.clone(),
            _ => now,
        })
    }

    /// Saves that these tables have no entries, if that is not saved yet. To be called before they are given these numbers
    /// of entries.
    ///
    /// # Errors
    /// They cannot be saved; then they must not be changed.
    pub fn note_tables<'a>(
        &mut self,
        roots: &Roots,
        tables: impl Iterator<Item = (&'a Table, u32)>,
    ) -> io::Result<()> {
        let original = |(table, entries): (&Table, u32)| {
            let device = match table {
                Table::Sockets => String::new(),
                Table::Flows { device, .. } => device.clone(),
            };
            let ifindex = number_of(roots, &device);
            Original {
                device,
                what: What::Table { table: table.clone(), ifindex, entries },
                was: Was::Entries(0),
            }
        };
        self.add(tables.map(original).collect())
    }

    /// Saves the interrupt moderation of a device, and replaces what was saved for it before. To be called before the
    /// moderation is set, with `set` = `None`, and again afterwards, with the value that the device has then.
    ///
    /// # Errors
    /// It cannot be saved; then it must not be set.
    pub fn note_moderation(
        &mut self,
        device: &str,
        ifindex: u32,
        set: Option<Setting>,
        was: Setting,
    ) -> io::Result<()> {
        let what = What::Moderation { ifindex, set };
        let new = Original { device: device.into(), what, was: Was::Setting(was) };
        self.write(self.without_moderation(ifindex).chain([new]).collect())
    }

    /// The saved interrupt moderation of a device: the value that was set (`None`: it was about to be set), and the
    /// original.
    pub fn moderation(&self, device: u32) -> Option<(Option<Setting>, Setting)> {
        self.all.iter().find_map(|original| match (&original.what, &original.was) {
            (What::Moderation { ifindex, set }, Was::Setting(was)) if *ifindex == device => {
                Some((*set, *was))
            }
            _ => None,
        })
    }

    /// Forgets the original of a device that has its original moderation.
    pub fn forget_moderation(&mut self, ifindex: u32) -> io::Result<()> {
        self.write(self.without_moderation(ifindex).collect())
    }

    /// Restores the interrupt moderation of a device. Returns the failure, as a sentence.
    pub fn put_back_moderation(&mut self, roots: &Roots, system: &impl System, of: u32) -> Vec<String> {
        let is_it =
            |original: &Original| matches!(original.what, What::Moderation { ifindex, .. } if ifindex == of);
        self.put_back_those(roots, system, is_it)
    }

    fn without_moderation(&self, device: u32) -> impl Iterator<Item = Original> {
        let is_it = move |original: &&Original| matches!(original.what, What::Moderation { ifindex, .. } if ifindex == device);
        self.all.iter().filter(move |original| !is_it(original)).cloned()
    }

    /// Saves the wake-up limit `was` of a core. To be called before it is set to `set`.
    ///
    /// # Errors
    /// It cannot be saved; then it must not be changed.
    pub fn note_resume(&mut self, core: CoreId, set: String, was: String) -> io::Result<()> {
        let what = What::Resume { core, set };
        self.add(vec![Original { device: String::new(), what, was: Was::Text(was) }])
    }

    /// Restores the wake-up limit of a core. Returns the failure, as a sentence.
    pub fn put_back_resume(&mut self, roots: &Roots, system: &impl System, of: CoreId) -> Vec<String> {
        let is_it = |original: &Original| matches!(original.what, What::Resume { core, .. } if core == of);
        self.put_back_those(roots, system, is_it)
    }

    /// Adds those that are not saved yet.
    fn add(&mut self, mut found: Vec<Original>) -> io::Result<()> {
        let is_noted =
            |new: &Original| self.all.iter().any(|old| (&old.device, &old.what) == (&new.device, &new.what));
        found.retain(|new| !is_noted(new));
        if found.is_empty() {
            return Ok(());
        }
        self.write(self.all.iter().cloned().chain(found).collect())
    }

    /// Forgets the originals of threads, interrupts and devices that are gone, and of values that somebody else has changed.
    ///
    /// # Errors
    /// The file cannot be written; then nothing is forgotten.
    pub fn forget_gone(&mut self, roots: &Roots, system: &impl System) -> io::Result<()> {
        self.write(self.all.iter().filter(|original| original.is_there(roots, system)).cloned().collect())
    }

    /// Restores everything that still exists. Returns the failures, as sentences.
    pub fn put_back(&mut self, roots: &Roots, system: &impl System) -> Vec<String> {
        self.put_back_those(roots, system, |_| true)
    }

    /// Restores what an earlier daemon has changed and this one does not use. Returns the failures, as sentences. It restores:
    /// * all settings of devices that are not ports
    /// * the scheduling of threads, if there is no `floor`
    /// * the cores of control groups, except the one that `serve` names
    /// * tables of local delivery, if that does not follow
    /// * interrupt moderation, if it is not configured
    /// * all wake-up limits, because they depend on what cores forward from now on
    pub fn put_back_unwanted(
        &mut self,
        roots: &Roots,
        system: &impl System,
        ports: &[String],
        wanted: &CoresSettings,
        experimental: Experimental,
    ) -> Vec<String> {
        self.put_back_those(roots, system, |Original { device, what, .. }| match what {
            What::Cpuset { directory } => wanted.serve.as_deref() != Some(directory),
            What::Urgency { .. } if wanted.floor.is_none() => true,
            What::Table { .. } if experimental.local == LocalDelivery::Stay => true,
            What::Table { table: Table::Sockets, .. } => false,
            What::Resume { .. } => true,
            What::Moderation { .. } if experimental.moderation.is_none() => true,
            What::Moderation { ifindex, .. } => {
                !named(roots, *ifindex).is_some_and(|device| ports.contains(&device))
            }
            _ => !ports.contains(device),
        })
    }

    fn put_back_those(
        &mut self,
        roots: &Roots,
        system: &impl System,
        chosen: impl Fn(&Original) -> bool,
    ) -> Vec<String> {
        let mut troubles = Vec::new();
        // Restoring moderation takes several steps. A daemon that ends in between leaves neither its own value nor the
        // original, so any value must count as ours.
        let begun = |original: &Original| match &original.what {
            What::Moderation { ifindex, .. } if chosen(original) && original.is_there(roots, system) => {
                Original { what: What::Moderation { ifindex: *ifindex, set: None }, ..original.clone() }
            }
            _ => original.clone(),
        };
        if let Err(error) = self.write(self.all.iter().map(begun).collect()) {
            troubles.push(format!("{} cannot be written: {error}", self.file.display()));
        }
        let (gone, mut kept) = (|original: &Original| !original.is_there(roots, system), Vec::new());
        for original in self.all.clone() {
            if !chosen(&original) {
                kept.push(original);
            } else if !gone(&original)
                && let Err(error) = original.put_back(roots, system)
                && !gone(&original)
            {
                troubles.push(format!("{}: {error}", original.kept()));
                kept.push(original);
            }
        }
        if let Err(error) = self.write(kept.clone()) {
            troubles.push(format!("{} cannot be written: {error}", self.file.display()));
            // The file still lists originals that were restored, or whose thread, interrupt or device is gone.
            self.all = kept;
        }
        troubles
    }

    /// Whether nothing is saved.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    fn write(&mut self, all: Vec<Original>) -> io::Result<()> {
        if all.is_empty() {
            super::unless_gone(fs::remove_file(&self.file))?;
        } else if all != self.all {
            guard::replace(&self.file, &serde_json::to_vec(&all)?)?;
        }
        self.all = all;
        Ok(())
    }
}

/// The present name of the device with this number; `None`: it is not in this network namespace.
fn named(roots: &Roots, ifindex: u32) -> Option<String> {
    let devices = fs::read_dir(roots.sys("class/net")).ok()?.flatten();
    let mut names = devices.filter_map(|device| device.file_name().into_string().ok());
    names.find(|name| number_of(roots, name) == Some(ifindex))
}

/// The number of a device, if the machine reports it.
fn number_of(roots: &Roots, device: &str) -> Option<u32> {
    number(&roots.device(device).join("ifindex"))
}

#[cfg(test)]
mod tests {
    use super::{
        super::{affinity::Affinity, fake::Fake, tree::Tree},
        *,
    };

    const ROUND_ROBIN: Urgency = Urgency { policy: libc::SCHED_RR, priority: 3, nice: 0 };

    fn thread(pid: u32) -> Control {
        Control::Thread { pid }
    }

    /// Saves and then moves the two queues of eth0, with threads 70 and 71, and interrupt 38.
    fn moved(tree: &Tree, fake: &Fake) -> Originals {
        let roots = tree.roots();
        tree.device("eth0", 2, true);
        tree.write("sys/class/net/eth0/queues/tx-1/xps_cpus", "00000003\n");
        tree.irq(38, "eth0-TxRx-0", "0-7", "0");
        for (pid, name) in [(70, "napi/eth0-8"), (71, "napi/eth0-9")] {
            tree.thread(pid, pid, name, true, "0-3", 0);
            fake.allow(pid, &[0, 1, 2, 3].into()).unwrap();
        }
        fake.set_urgency(70, ROUND_ROBIN).unwrap();
        let mut originals = Originals::read(tree.path("m.cores"));
        assert!(originals.is_empty() && !tree.path("m.cores").exists());
        originals.note(&roots, fake, "eth0", 0, thread(70), true).unwrap();
        originals.note(&roots, fake, "eth0", 1, thread(71), true).unwrap();
        originals.note(&roots, fake, "eth9", 0, Control::Interrupt { irq: 38 }, true).unwrap();
        fake.allow(70, &[1].into()).unwrap();
        fake.allow(71, &[2].into()).unwrap();
        [70, 71].into_iter().for_each(|pid| fake.set_urgency(pid, Urgency::usual(9)).unwrap());
        tree.write("proc/irq/38/smp_affinity_list", "5\n");
        tree.write("sys/class/net/eth0/queues/tx-1/xps_cpus", "00000004\n");
        originals
    }

    #[test]
    fn the_next_daemon_restores_originals_too() {
        let (tree, fake) = (Tree::new(), Fake::default());
        let roots = tree.roots();
        moved(&tree, &fake);
        // The daemon is killed. The next one moves a queue again. The other thread ended, and a process has its number now.
        let mut originals = Originals::read(tree.path("m.cores"));
        originals.note(&roots, &fake, "eth0", 0, thread(70), true).unwrap();
        tree.thread(71, 71, "somebody", false, "0-3", 0);
        assert_eq!(originals.put_back(&roots, &fake), Vec::<String>::new());
        assert_eq!((fake.cores(70), fake.cores(71)), (vec![0, 1, 2, 3], vec![2]));
        assert_eq!((fake.urgency(70).unwrap(), fake.urgency(71).unwrap().nice), (ROUND_ROBIN, 9));
        assert_eq!(tree.read("proc/irq/38/smp_affinity_list"), "0-7");
        assert_eq!(tree.read("sys/class/net/eth0/queues/tx-1/xps_cpus"), "00000003");
        assert!(!tree.path("m.cores").exists() && originals.is_empty());
    }

    #[test]
    fn nothing_is_restored_on_another_device_with_the_same_number_or_name() {
        let (tree, fake) = (Tree::new(), Fake::default());
        let mut originals = moved(&tree, &fake);
        tree.remove("proc/irq/38");
        tree.irq(38, "nvme0q1", "5", "5");
        tree.write("sys/class/net/eth0/ifindex", "12\n");
        assert_eq!(originals.put_back(&tree.roots(), &fake), Vec::<String>::new());
        assert_eq!(tree.read("proc/irq/38/smp_affinity_list"), "5\n");
        assert_eq!(tree.read("sys/class/net/eth0/queues/tx-1/xps_cpus"), "00000004\n");
    }

    #[test]
    fn an_original_that_cannot_be_restored_stays_in_the_file() {
        let (tree, fake) = (Tree::new(), Fake::default());
        let mut originals = moved(&tree, &fake);
        fake.get().refuses = libc::EPERM;
        let troubles = originals.put_back(&tree.roots(), &fake);
        assert_eq!(troubles.len(), 2, "{troubles:?}");
        assert!(troubles[0].starts_with("thread napi/eth0-8 keeps its cores: "), "{troubles:?}");
        // The next daemon tries again.
        fake.get().refuses = 0;
        let mut originals = Originals::read(tree.path("m.cores"));
        assert_eq!(originals.put_back(&tree.roots(), &fake), Vec::<String>::new());
        assert_eq!((fake.cores(70), fake.cores(71)), (vec![0, 1, 2, 3], vec![0, 1, 2, 3]));
        assert!(!tree.path("m.cores").exists());
    }

    #[test]
    fn originals_of_gone_threads_are_forgotten_and_former_ports_are_restored() {
        let (tree, fake) = (Tree::new(), Fake::default());
        let (roots, lines) = (tree.roots(), |tree: &Tree| tree.read("m.cores").matches("device").count());
        let mut originals = moved(&tree, &fake);
        let wanted = CoresSettings { floor: Some(crate::config::Floor(40)), ..CoresSettings::default() };
        assert_eq!(lines(&tree), 7);
        tree.remove("proc/71");
        tree.thread(72, 72, "napi/eth0-10", true, "0-3", 0);
        fake.allow(72, &[0, 1].into()).unwrap();
        originals.note(&roots, &fake, "eth0", 1, thread(72), true).unwrap();
        originals.forget_gone(&roots, &fake).unwrap();
        assert_eq!(lines(&tree), 7, "two are added and two removed");
        assert_eq!(
            originals.put_back_unwanted(&roots, &fake, &["eth0".into()], &wanted, Experimental::default()),
            Vec::<String>::new()
        );
        assert_eq!((lines(&tree), tree.read("proc/irq/38/smp_affinity_list")), (6, "0-7".into()));
        assert_eq!(fake.cores(70), [1], "restored although eth0 is still a port");
    }

    #[test]
    fn a_damaged_file_counts_as_empty_and_one_that_cannot_be_written_is_an_error() {
        let (tree, fake) = (Tree::new(), Fake::default());
        tree.write("m.cores", "[{");
        assert!(Originals::read(tree.path("m.cores")).is_empty());
        // An unknown entry of another version does not affect the others.
        let known = r#"{"device":"eth0","what":{"Thread":{"pid":70,"name":"a"}},"was":{"Cores":[0]}}"#;
        tree.write("m.cores", &format!(r#"[{{"device":"eth0","what":"Future"}},{known}]"#));
        assert_eq!(Originals::read(tree.path("m.cores")).all.len(), 1);
        tree.thread(70, 70, "napi/eth0-8", true, "0-3", 0);
        fake.allow(70, &[0].into()).unwrap();
        let mut originals = Originals::read(tree.path("nowhere/m.cores"));
        let noted = originals.note(&tree.roots(), &fake, "eth0", 0, thread(70), true);
        assert_eq!(noted.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
