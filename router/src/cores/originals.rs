//! What threads, interrupts and TX queues had before queues were moved, to be put back at the end.
//!
//! It is written to a file before the first move of each, so that whoever comes after `kill -9` can put it back.

use super::{CoreId, Roots, affinity::Affinity, apply::xps, irqs, queues::Control, threads};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, fs, io, path::PathBuf};

/// One thing that was changed, and what it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Original {
    /// A NAPI thread of this name, and the cores that it had.
    Thread { pid: u32, name: String, cores: BTreeSet<CoreId> },
    /// An interrupt, and the list of its cores.
    Interrupt { irq: u32, cores: String },
    /// A TX queue of a device, and the mask of its cores.
    Transmit { device: String, queue: u16, cores: String },
}

impl Original {
    /// Is it about the same thing?
    fn is_of(&self, other: &Original) -> bool {
        match (self, other) {
            (Original::Thread { pid: a, name: m, .. }, Original::Thread { pid: b, name: n, .. }) => {
                (a, m) == (b, n)
            }
            (Original::Interrupt { irq: a, .. }, Original::Interrupt { irq: b, .. }) => a == b,
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
        affinity: &impl Affinity,
        device: &str,
        queue: u16,
        control: Control,
    ) -> io::Result<()> {
        let mut found = Vec::new();
        match control {
            Control::Thread { pid } => {
                let Some(stat) = threads::stat(roots, pid)? else { return Ok(()) };
                let cores = affinity.allowed(pid)?.cores().collect();
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

    /// Puts everything back that is still there, and removes the file; says what could not be put back.
    pub fn put_back(&mut self, roots: &Roots, affinity: &impl Affinity) -> Vec<String> {
        let mut troubles = Vec::new();
        for original in self.all.drain(..) {
            let (what, put) = match &original {
                Original::Thread { pid, name, cores } => {
                    // Its number may be somebody else's by now.
                    let same = threads::stat(roots, *pid).is_ok_and(|s| s.is_some_and(|s| s.name == *name));
                    (format!("thread {name}"), if same { affinity.allow(*pid, cores) } else { Ok(()) })
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
        let _ = fs::remove_file(&self.file);
        troubles
    }

    /// Nothing was changed.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::{super::affinity::CoreMask, super::tree::Tree, *};
    use std::{cell::RefCell, collections::BTreeMap};

    #[derive(Default)]
    struct Fake(RefCell<BTreeMap<u32, BTreeSet<CoreId>>>);

    impl Affinity for Fake {
        fn allowed(&self, thread: u32) -> io::Result<CoreMask> {
            Ok(self.0.borrow().get(&thread).into_iter().flatten().collect())
        }
        fn allow(&self, thread: u32, cores: &BTreeSet<CoreId>) -> io::Result<()> {
            self.0.borrow_mut().insert(thread, cores.clone());
            Ok(())
        }
    }

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
        let mut originals = Originals::read(file.clone());
        assert!(originals.is_empty() && !file.exists());
        let thread = |pid| Control::Thread { pid };
        originals.note(&roots, &fake, "eth0", 0, thread(70)).unwrap();
        originals.note(&roots, &fake, "eth0", 1, thread(71)).unwrap();
        originals.note(&roots, &fake, "eth9", 0, Control::Interrupt { irq: 38 }).unwrap();
        fake.allow(70, &[1].into()).unwrap();
        fake.allow(71, &[2].into()).unwrap();
        tree.write("proc/irq/38/smp_affinity_list", "5\n");
        tree.write("sys/class/net/eth0/queues/tx-1/xps_cpus", "00000004\n");
        // Killed; the next one moves a queue again, and another thread has taken the other's number.
        let mut originals = Originals::read(file.clone());
        originals.note(&roots, &fake, "eth0", 0, thread(70)).unwrap();
        tree.thread(71, 71, "somebody", false, "0-3", 0);
        assert_eq!(originals.put_back(&roots, &fake), Vec::<String>::new());
        let cores = fake.0.borrow();
        assert_eq!((&cores[&70], &cores[&71]), (&[0, 1, 2, 3].into(), &[2].into()));
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
        let mut originals = Originals::read(tree.path("nowhere/m.cores"));
        let noted = originals.note(&tree.roots(), &fake, "eth0", 0, Control::Thread { pid: 70 });
        assert_eq!(noted.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
