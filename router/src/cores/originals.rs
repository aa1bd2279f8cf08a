//! What threads, interrupts and TX queues had before queues were moved, to be put back at the end.
//!
//! It is written to a file before the first move of each, so that whoever comes after `kill -9` can put it back.

use super::{CoreId, Roots, affinity::Scheduling, apply::xps, irqs, queues::Control, serve, threads};
use crate::priority::Urgency;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

/// One thing that was changed, and what it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Original {
    /// A NAPI thread of this name, and the cores that it had.
    Thread { pid: u32, name: String, cores: BTreeSet<CoreId> },
    /// An interrupt, and the list of its cores.
    Interrupt { irq: u32, cores: String },
    /// A TX queue of a device, and the mask of its cores.
    Transmit { device: String, queue: u16, cores: String },
    /// A NAPI thread of this name, and how urgent it was.
    Urgency { pid: u32, name: String, urgency: Urgency },
    /// A control group, and the list of its cores.
    Cpuset { directory: PathBuf, cores: String },
}

impl Original {
    /// Is it about the same thing?
    fn is_of(&self, other: &Original) -> bool {
        match (self, other) {
            (Original::Thread { pid: a, name: m, .. }, Original::Thread { pid: b, name: n, .. }) => {
                (a, m) == (b, n)
            }
            (Original::Urgency { pid: a, name: m, .. }, Original::Urgency { pid: b, name: n, .. }) => {
                (a, m) == (b, n)
            }
            (Original::Interrupt { irq: a, .. }, Original::Interrupt { irq: b, .. }) => a == b,
            (Original::Cpuset { directory: a, .. }, Original::Cpuset { directory: b, .. }) => a == b,
            (
                Original::Transmit { device: a, queue: m, .. },
                Original::Transmit { device: b, queue: n, .. },
            ) => (a, m) == (b, n),
            _ => false,
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
        let left = fs::read(&file).ok().and_then(|text| serde_json::from_slice(&text).ok());
        Originals { file, all: left.unwrap_or_default() }
    }

    /// Called before a queue of this device is moved: notes what is not noted yet.
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
    ) -> io::Result<()> {
        let mut found = Vec::new();
        match control {
            Control::Thread { pid } => {
                let Some(stat) = threads::stat(roots, pid)? else { return Ok(()) };
                let cores = affinity.allowed(pid)?.cores().collect();
                let urgency = affinity.urgency(pid)?;
                found.push(Original::Urgency { pid, name: stat.name.clone(), urgency });
                found.push(Original::Thread { pid, name: stat.name, cores });
            }
            Control::Interrupt { irq } => {
                let cores = fs::read_to_string(irqs::affinity(roots, irq))?.trim().into();
                found.push(Original::Interrupt { irq, cores });
            }
            Control::None { .. } => {}
        }
        // A device with one TX queue has none.
        if let Ok(mask) = fs::read_to_string(xps(roots, device, queue)) {
            let cores = mask.trim().into();
            found.push(Original::Transmit { device: device.into(), queue, cores });
        }
        self.add(found)
    }

    /// Called before the cores of a control group are changed: notes them, if they are not noted yet. Returns the list as it
    /// was first noted.
    ///
    /// # Errors
    /// It cannot be read, or not be written down: then it may not be changed.
    pub fn note_cpuset(&mut self, directory: &Path) -> io::Result<String> {
        let now = fs::read_to_string(serve::file(directory))?.trim().to_owned();
        self.add(vec![Original::Cpuset { directory: directory.into(), cores: now.clone() }])?;
        let noted = self.all.iter().find_map(|original| match original {
            Original::Cpuset { directory: noted, cores } if noted == directory => Some(cores.clone()),
            _ => None,
        });
        Ok(noted.unwrap_or(now))
    }

    /// Those that are not there yet.
    fn add(&mut self, mut found: Vec<Original>) -> io::Result<()> {
        found.retain(|new| !self.all.iter().any(|old| old.is_of(new)));
        if found.is_empty() {
            return Ok(());
        }
        let all: Vec<Original> = self.all.iter().cloned().chain(found).collect();
        let new = self.file.with_extension("cores.new");
        fs::write(&new, serde_json::to_vec(&all)?)?;
        fs::rename(&new, &self.file)?;
        self.all = all;
        Ok(())
    }

    /// Puts back what a daemon before this one has changed and this one has no business with: how urgent threads are without a
    /// `floor`, cores of control groups other than `serve`. It stays noted.
    pub fn put_back_unwanted(
        &self,
        roots: &Roots,
        affinity: &impl Scheduling,
        floor: bool,
        serve: Option<&Path>,
    ) -> Vec<String> {
        let unwanted = |original: &&Original| match original {
            Original::Urgency { .. } => !floor,
            Original::Cpuset { directory, .. } => serve != Some(directory),
            _ => false,
        };
        let unwanted: Vec<Original> = self.all.iter().filter(unwanted).cloned().collect();
        put_back(unwanted, roots, affinity)
    }

    /// Puts everything back that is still there, and removes the file; says what could not be put back.
    pub fn put_back(&mut self, roots: &Roots, affinity: &impl Scheduling) -> Vec<String> {
        let troubles = put_back(self.all.drain(..).collect(), roots, affinity);
        let _ = fs::remove_file(&self.file);
        troubles
    }

    /// Nothing was changed.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

/// What each was, if it is still there; says what could not be put back.
fn put_back(all: Vec<Original>, roots: &Roots, affinity: &impl Scheduling) -> Vec<String> {
    let mut troubles = Vec::new();
    for original in all {
        let (what, put) = match &original {
            Original::Thread { pid, name, cores } => {
                // Its number may be somebody else's by now.
                let same = threads::stat(roots, *pid).is_ok_and(|s| s.is_some_and(|s| s.name == *name));
                (format!("thread {name}"), if same { affinity.allow(*pid, cores) } else { Ok(()) })
            }
            Original::Urgency { pid, name, urgency } => {
                let same = threads::stat(roots, *pid).is_ok_and(|s| s.is_some_and(|s| s.name == *name));
                let put = if same { affinity.set_urgency(*pid, *urgency) } else { Ok(()) };
                (format!("thread {name}"), put)
            }
            Original::Cpuset { directory, cores } => {
                // Nothing is written by a line of its own.
                let put = fs::write(serve::file(directory), format!("{cores}\n"));
                (directory.display().to_string(), put)
            }
            Original::Interrupt { irq, cores } => {
                (format!("interrupt {irq}"), fs::write(irqs::affinity(roots, *irq), cores))
            }
            Original::Transmit { device, queue, cores } => {
                (format!("{device} TX queue {queue}"), fs::write(xps(roots, device, *queue), cores))
            }
        };
        match put {
            Err(error) if !super::is_gone(&error) => {
                troubles.push(format!("{what} keeps its cores: {error}"));
            }
            _ => {}
        }
    }
    troubles
}

#[cfg(test)]
mod tests {
    use super::{
        super::{affinity::Affinity, fake::Fake, tree::Tree},
        *,
    };

    #[test]
    fn what_was_is_put_back_by_the_next_daemon_too() {
        let (tree, fake) = (Tree::new(), Fake::default());
        let (roots, file) = (tree.roots(), tree.path("m.cores"));
        tree.device("eth0", 2, true);
        tree.write("sys/class/net/eth0/queues/tx-1/xps_cpus", "00000003\n");
        tree.irq(38, "eth0-TxRx-0", "0-7", "0");
        for (pid, name) in [(70, "napi/eth0-8"), (71, "napi/eth0-9")] {
            tree.thread(pid, pid, name, true, "0-3", 0);
            fake.allow(pid, &[0, 1, 2, 3].into()).unwrap();
        }
        let rt = Urgency { policy: libc::SCHED_RR, priority: 3, nice: 0 };
        fake.set_urgency(70, rt).unwrap();
        let mut originals = Originals::read(file.clone());
        assert!(originals.is_empty() && !file.exists());
        let thread = |pid| Control::Thread { pid };
        originals.note(&roots, &fake, "eth0", 0, thread(70)).unwrap();
        originals.note(&roots, &fake, "eth0", 1, thread(71)).unwrap();
        originals.note(&roots, &fake, "eth9", 0, Control::Interrupt { irq: 38 }).unwrap();
        fake.allow(70, &[1].into()).unwrap();
        fake.allow(71, &[2].into()).unwrap();
        [70, 71].into_iter().for_each(|pid| fake.set_urgency(pid, Urgency::usual(9)).unwrap());
        tree.write("proc/irq/38/smp_affinity_list", "5\n");
        tree.write("sys/class/net/eth0/queues/tx-1/xps_cpus", "00000004\n");
        // Killed; the next one moves a queue again, and another thread has taken the other's number.
        let mut originals = Originals::read(file.clone());
        originals.note(&roots, &fake, "eth0", 0, thread(70)).unwrap();
        tree.thread(71, 71, "somebody", false, "0-3", 0);
        assert_eq!(originals.put_back(&roots, &fake), Vec::<String>::new());
        assert_eq!((fake.cores(70), fake.cores(71)), (vec![0, 1, 2, 3], vec![2]));
        assert_eq!((fake.urgency(70).unwrap(), fake.urgency(71).unwrap().nice), (rt, 9));
        assert_eq!(tree.read("proc/irq/38/smp_affinity_list"), "0-7");
        assert_eq!(tree.read("sys/class/net/eth0/queues/tx-1/xps_cpus"), "00000003");
        assert!(!file.exists() && originals.is_empty());
    }

    #[test]
    fn a_damaged_file_is_none_and_one_that_cannot_be_written_is_an_error() {
        let (tree, fake) = (Tree::new(), Fake::default());
        tree.write("m.cores", "[{");
        assert!(Originals::read(tree.path("m.cores")).is_empty());
        tree.thread(70, 70, "napi/eth0-8", true, "0-3", 0);
        fake.allow(70, &[0].into()).unwrap();
        let mut originals = Originals::read(tree.path("nowhere/m.cores"));
        let noted = originals.note(&tree.roots(), &fake, "eth0", 0, Control::Thread { pid: 70 });
        assert_eq!(noted.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
