//! What threads, interrupts and TX queues had before queues were moved, and whatever else was changed for cores, to be put back at the end.
//!
//! It is written to a file before the first move of each, so that whoever comes after `kill -9` can put it back. What could not be
//! put back stays in the file, for the next attempt; what is gone does not, and nothing is put back to something else that has the
//! same number by now.

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

/// How devices hold interrupts back.
pub trait Coalesce {
    /// `Ok(None)`: the driver does not tell.
    fn coalescing(&self, device: &str) -> io::Result<Option<Coalescing>>;
    fn coalesce(&self, device: &str, coalescing: Coalescing) -> io::Result<()>;
}

/// Of the calling thread's namespace.
impl Coalesce for affinity::Kernel {
    fn coalescing(&self, device: &str) -> io::Result<Option<Coalescing>> {
        Ethtool::open()?.coalescing(device)
    }

    fn coalesce(&self, device: &str, coalescing: Coalescing) -> io::Result<()> {
        Ethtool::open()?.coalesce(device, coalescing)
    }
}

/// What is changed by system calls, not by files.
pub trait System: Scheduling + Coalesce {}

impl<S: Scheduling + Coalesce> System for S {}

/// One thing that was changed, and what it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Original {
    /// The port that it was changed for; empty: for none.
    device: String,
    what: What,
    was: Was,
}

/// What was changed, told from others with the same number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum What {
    /// A NAPI thread of this name.
    Thread { pid: u32, name: String },
    /// An interrupt with handlers of these names.
    Interrupt { irq: u32, actions: Vec<String> },
    /// A TX queue of the device, which has this number.
    Transmit { ifindex: Option<u32>, queue: u16 },
    /// How urgent a NAPI thread of this name is.
    Urgency { pid: u32, name: String },
    /// The cores of a control group.
    Cpuset { directory: PathBuf },
    /// A table of local delivery that was given so many entries; that of an RX queue is of the device which has this number.
    Table { table: Table, ifindex: Option<u32>, entries: u32 },
    /// Wake-ups of the device which has this number; `None`: whatever it is now, as that was about to be set.
    Moderation { ifindex: u32, set: Option<Setting> },
    /// How long a core may take to wake up, which was given this limit.
    Resume { core: CoreId, set: String },
}

/// What it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Was {
    Cores(BTreeSet<CoreId>),
    /// As the file has it.
    Text(String),
    Urgency(Urgency),
    Entries(u32),
    Setting(Setting),
}

impl Original {
    /// That it could not be put back, in words.
    fn kept(&self) -> String {
        let device = &self.device;
        match &self.what {
            What::Thread { name, .. } => format!("thread {name} keeps its cores"),
            What::Urgency { name, .. } => format!("thread {name} is as urgent as it was made"),
            What::Cpuset { directory } => format!("{} keeps its cores", directory.display()),
            What::Interrupt { irq, .. } => format!("interrupt {irq} of {device} keeps its cores"),
            What::Transmit { queue, .. } => format!("TX queue {queue} of {device} keeps its cores"),
            What::Table { table, entries, .. } => format!("{table} stays {entries}"),
            What::Moderation { .. } => format!("wake-ups of {device} are not as they were"),
            What::Resume { core, set } => format!("core {core} may take {set} us to wake up, and no longer"),
        }
    }

    /// Is it still there, and the same?
    fn is_there(&self, roots: &Roots, system: &impl System) -> bool {
        match &self.what {
            What::Thread { pid, name } | What::Urgency { pid, name } => {
                threads::stat(roots, *pid).is_ok_and(|stat| stat.is_some_and(|stat| stat.name == *name))
            }
            What::Interrupt { irq, actions } => {
                // Handlers are named anew when a device has been renamed and comes up.
                let is_devices = || irqs::of_device(roots, &self.device).values().any(|of| of == irq);
                irqs::affinity(roots, *irq).exists()
                    && (irqs::actions(roots, *irq) == *actions || is_devices())
            }
            What::Transmit { ifindex, queue } => {
                xps(roots, &self.device, *queue).exists() && number_of(roots, &self.device) == *ifindex
            }
            What::Cpuset { directory } => serve::file(directory).exists(),
            // With other entries it is somebody's.
            What::Table { table, ifindex, entries } => {
                table.entries(roots).is_ok_and(|now| now == *entries)
                    && (*table == Table::Sockets || number_of(roots, &self.device) == *ifindex)
            }
            // With another setting it is somebody's; one that does not tell may have ours.
            What::Moderation { ifindex, set } => named(roots, *ifindex).is_some_and(|device| {
                set.is_none_or(|set| set.is_set(roots, system, &device).unwrap_or(true))
            }),
            What::Resume { core, set } => resume::limit(roots, *core).is_ok_and(|now| now == *set),
        }
    }

    fn put_back(&self, roots: &Roots, system: &impl System) -> io::Result<()> {
        match (&self.what, &self.was) {
            (What::Urgency { pid, .. }, Was::Urgency(urgency)) => system.set_urgency(*pid, *urgency),
            // Nothing is written by a line of its own.
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

/// All of them, in memory and in a file.
#[derive(Debug)]
pub struct Originals {
    file: PathBuf,
    all: Vec<Original>,
}

impl Originals {
    /// With what a daemon before this one left in the file.
    pub fn read(file: PathBuf) -> Originals {
        let left: Option<Vec<serde_json::Value>> =
            guard::read_ours(&file).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let known = |entry: serde_json::Value| {
            let words = entry.to_string();
            serde_json::from_value(entry)
                .inspect_err(|error| {
                    tracing::warn!("{}: {words} is not put back: {error}", file.display());
                })
                .ok()
        };
        let all = left.into_iter().flatten().filter_map(known).collect();
        Originals { file, all }
    }

    /// Called before a queue of this device is moved: notes what is not noted yet; with a `floor` also how urgent its thread is.
    ///
    /// # Errors
    /// It cannot be read, or not be written down: then nothing may be moved.
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
        // A device with one TX queue has none.
        if let Ok(mask) = fs::read_to_string(xps(roots, device, queue)) {
            let what = What::Transmit { ifindex: number_of(roots, device), queue };
            found.push((what, Was::Text(mask.trim().into())));
        }
        let original = |(what, was)| Original { device: device.into(), what, was };
        self.add(found.into_iter().map(original).collect())
    }

    /// Called before the cores of a control group are changed: notes them, if they are not noted yet. Returns the list as it
    /// was first noted.
    ///
    /// # Errors
    /// It cannot be read, or not be written down: then it may not be changed.
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

    /// Called before tables without entries are given some, so many each: notes those that are not noted yet.
    ///
    /// # Errors
    /// They cannot be written down: then they may not be given any.
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

    /// Called before wake-ups of a device are held back, and after, with what it has then. Replaces what was noted of it.
    ///
    /// # Errors
    /// It cannot be written down: then they may not be.
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

    /// What a device was given to hold wake-ups back, `None` if it was about to be, and what it had before.
    pub fn moderation(&self, device: u32) -> Option<(Option<Setting>, Setting)> {
        self.all.iter().find_map(|original| match (&original.what, &original.was) {
            (What::Moderation { ifindex, set }, Was::Setting(was)) if *ifindex == device => {
                Some((*set, *was))
            }
            _ => None,
        })
    }

    /// A device has what it had.
    pub fn forget_moderation(&mut self, ifindex: u32) -> io::Result<()> {
        self.write(self.without_moderation(ifindex).collect())
    }

    /// Wake-ups of a device are as before; says what could not be put back.
    pub fn put_back_moderation(&mut self, roots: &Roots, system: &impl System, of: u32) -> Vec<String> {
        let is_it =
            |original: &Original| matches!(original.what, What::Moderation { ifindex, .. } if ifindex == of);
        self.put_back_those(roots, system, is_it)
    }

    fn without_moderation(&self, device: u32) -> impl Iterator<Item = Original> {
        let is_it = move |original: &&Original| matches!(original.what, What::Moderation { ifindex, .. } if ifindex == device);
        self.all.iter().filter(move |original| !is_it(original)).cloned()
    }

    /// Called before a core may take no longer than `set` to wake up, and now may take `was`.
    ///
    /// # Errors
    /// It cannot be written down: then it may not be changed.
    pub fn note_resume(&mut self, core: CoreId, set: String, was: String) -> io::Result<()> {
        let what = What::Resume { core, set };
        self.add(vec![Original { device: String::new(), what, was: Was::Text(was) }])
    }

    /// A core may take as long to wake up as before; says what could not be put back.
    pub fn put_back_resume(&mut self, roots: &Roots, system: &impl System, of: CoreId) -> Vec<String> {
        let is_it = |original: &Original| matches!(original.what, What::Resume { core, .. } if core == of);
        self.put_back_those(roots, system, is_it)
    }

    /// Those that are not there yet.
    fn add(&mut self, mut found: Vec<Original>) -> io::Result<()> {
        let is_noted =
            |new: &Original| self.all.iter().any(|old| (&old.device, &old.what) == (&new.device, &new.what));
        found.retain(|new| !is_noted(new));
        if found.is_empty() {
            return Ok(());
        }
        self.write(self.all.iter().cloned().chain(found).collect())
    }

    /// Forgets what is gone.
    ///
    /// # Errors
    /// The file cannot be written: nothing is forgotten.
    pub fn forget_gone(&mut self, roots: &Roots, system: &impl System) -> io::Result<()> {
        self.write(self.all.iter().filter(|original| original.is_there(roots, system)).cloned().collect())
    }

    /// Puts everything back that is still there; says what could not be put back.
    pub fn put_back(&mut self, roots: &Roots, system: &impl System) -> Vec<String> {
        self.put_back_those(roots, system, |_| true)
    }

    /// Puts back what a daemon before this one has changed and this one has no business with: of devices that are not its
    /// ports, how urgent threads are without a floor, cores of control groups other than its own, tables of local delivery where that
    /// stays, wake-ups that are not to be held back, and how long cores may take to wake up, which follows what they forward from now
    /// on; says what could not be put back.
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
        // Putting back takes several steps: whoever ends in the middle leaves neither ours nor what was.
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
            // The file has more: what is there no more, or not as it was set.
            self.all = kept;
        }
        troubles
    }

    /// Nothing was changed.
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

/// What the device with this number is called now; `None`: it is not in this network namespace.
fn named(roots: &Roots, ifindex: u32) -> Option<String> {
    let devices = fs::read_dir(roots.sys("class/net")).ok()?.flatten();
    let mut names = devices.filter_map(|device| device.file_name().into_string().ok());
    names.find(|name| number_of(roots, name) == Some(ifindex))
}

/// The number of a device, where the machine tells.
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

    /// eth0 with two queues and an interrupt 38, and threads 70 and 71, all noted and then moved.
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
    fn what_was_is_put_back_by_the_next_daemon_too() {
        let (tree, fake) = (Tree::new(), Fake::default());
        let roots = tree.roots();
        moved(&tree, &fake);
        // Killed; the next one moves a queue again, and another thread has taken the other's number.
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
    fn another_device_with_the_same_number_keeps_what_it_has() {
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
    fn what_cannot_be_put_back_stays_in_the_file() {
        let (tree, fake) = (Tree::new(), Fake::default());
        let mut originals = moved(&tree, &fake);
        fake.get().refuses = libc::EPERM;
        let troubles = originals.put_back(&tree.roots(), &fake);
        assert_eq!(troubles.len(), 2, "{troubles:?}");
        assert!(troubles[0].starts_with("thread napi/eth0-8 keeps its cores: "), "{troubles:?}");
        // Tried again, by whoever comes next.
        fake.get().refuses = 0;
        let mut originals = Originals::read(tree.path("m.cores"));
        assert_eq!(originals.put_back(&tree.roots(), &fake), Vec::<String>::new());
        assert_eq!((fake.cores(70), fake.cores(71)), (vec![0, 1, 2, 3], vec![0, 1, 2, 3]));
        assert!(!tree.path("m.cores").exists());
    }

    #[test]
    fn what_is_gone_leaves_the_file_and_ports_of_before_are_put_back() {
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
        assert_eq!(lines(&tree), 7, "two more, two less");
        assert_eq!(
            originals.put_back_unwanted(&roots, &fake, &["eth0".into()], &wanted, Experimental::default()),
            Vec::<String>::new()
        );
        assert_eq!((lines(&tree), tree.read("proc/irq/38/smp_affinity_list")), (6, "0-7".into()));
        assert_eq!(fake.cores(70), [1], "still a port");
    }

    #[test]
    fn a_damaged_file_is_none_and_one_that_cannot_be_written_is_an_error() {
        let (tree, fake) = (Tree::new(), Fake::default());
        tree.write("m.cores", "[{");
        assert!(Originals::read(tree.path("m.cores")).is_empty());
        // One that another version wrote costs no other.
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
