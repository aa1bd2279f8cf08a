//! The settings of threads, interrupts, TX queues and everything else that are changed for cores. They are restored at
//! the end.
//!
//! Each original is written to a file before the first change, so that the next daemon can restore it after `kill -9`. An
//! original that could not be restored stays in the file, for the next attempt. One whose thread, interrupt or device is
//! gone is removed. So is one whose value somebody else has changed, because that value stays. Nothing is restored on
//! something else that has the same number by now.
//!
//! The file does not name the core of a queue, because the thread that places queues writes no files. If that core is
//! unknown, for example after `kill -9`, any single core counts as Millrace's.

use super::{
    CoreId, Roots,
    apply::{self, xps},
    irqs,
    knob::{Knob, System, Value, What, named, number_of},
    local::Table,
    queues::Control,
    threads, unless_gone,
};
use crate::{
    base::guard,
    config::{CoresSettings, Experimental, LocalDelivery},
};
use serde::{Deserialize, Serialize};
use std::{fs, io, path::PathBuf};

/// A setting that was changed or may be changed, with its original value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Original {
    #[serde(flatten)]
    knob: Knob,
    was: Value,
    /// The value that was set; `None`: unknown.
    set: Option<Value>,
    /// The core that the queue was moved to, if it is a setting of a queue; `None`: unknown.
    #[serde(skip)]
    on: Option<CoreId>,
}

impl Original {
    /// Whether Millrace may have set this value. If the set value is unknown, any value that Millrace could have set counts:
    /// a single core for a queue, any normal priority for a thread.
    fn is_ours(&self, now: &Value) -> bool {
        match (&self.knob.what, now) {
            (What::Urgency { .. }, Value::Urgency(now)) => now.policy == libc::SCHED_OTHER,
            (What::Thread { .. } | What::Interrupt { .. } | What::Transmit { .. }, now) => {
                self.knob.core(now).is_some_and(|now| self.on.is_none_or(|on| on == now))
            }
            _ => self.set.as_ref().is_none_or(|set| set == now),
        }
    }
}

/// Sets knobs and restores them. Holds all originals, in memory and in a file.
pub struct Knobs {
    pub roots: Roots,
    pub system: Box<dyn System>,
    file: PathBuf,
    all: Vec<Original>,
}

impl Knobs {
    /// Reads the file, with the originals that earlier daemons have left in it.
    pub fn open(file: PathBuf, roots: Roots, system: impl System) -> Knobs {
        let left: Option<Vec<serde_json::Value>> =
            guard::read_ours(&file).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let known = |entry: serde_json::Value| {
            let words = entry.to_string();
            let read = serde_json::from_value::<Original>(entry).inspect_err(|error| {
                tracing::warn!("{}: {words} is not restored: {error}", file.display());
            });
            let mut original = read.ok()?;
            if let What::Moderation { means, .. } = &mut original.knob.what
                && let Value::Setting(was) = original.was
            {
                *means = was.means();
            }
            Some(original)
        };
        let all = left.into_iter().flatten().filter_map(known).collect();
        Knobs { roots, system: Box::new(system), file, all }
    }

    /// Forgets which cores queues were moved to, because that is not known for certain.
    pub fn forget_places(&mut self) {
        self.all.iter_mut().for_each(|original| original.on = None);
    }

    /// Reads a knob; `None`: it is gone.
    pub fn read(&self, knob: &Knob) -> io::Result<Option<Value>> {
        knob.read(&self.roots, &*self.system)
    }

    /// Reads a knob that is a file with a text.
    pub fn text(&self, knob: &Knob) -> io::Result<String> {
        match self.read(knob)? {
            Some(Value::Text(text)) => Ok(text),
            _ => Err(io::Error::from_raw_os_error(libc::ENOENT)),
        }
    }

    fn find(&self, knob: &Knob) -> Option<&Original> {
        self.all.iter().find(|original| original.knob.is(knob))
    }

    /// The saved original of a knob.
    pub fn saved(&self, knob: &Knob) -> Option<&Value> {
        Some(&self.find(knob)?.was)
    }

    /// The original of a knob that has the value `now`: the saved one, or `now` if somebody else has set that.
    pub fn original(&self, knob: &Knob, now: Value) -> Value {
        let saved = self.find(knob).filter(|it| it.is_ours(&now) || now.is_as(&it.was));
        saved.map(|it| it.was.clone()).unwrap_or(now)
    }

    /// Sets a knob and returns its new value, which a driver may have rounded. Saves the original first and the new value
    /// afterwards. If the new value equals the original, the saved original is removed.
    ///
    /// # Errors
    /// The knob is gone or refuses the value, or the file cannot be written. If the original cannot be saved, nothing is set.
    pub fn set(&mut self, knob: &Knob, value: &Value) -> io::Result<Value> {
        let now = self.read(knob)?.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))?;
        let is_set = now == *value;
        let was = self.original(knob, now);
        // Until the new value is known, any value counts as ours.
        self.save(knob, &was, None)
            .map_err(|error| io::Error::other(format!("the original value cannot be saved: {error}")))?;
        let written = if is_set { Ok(()) } else { knob.write(&self.roots, &*self.system, value) };
        // Drivers may report success and do nothing, or report an error after they have changed something.
        let now = self.read(knob)?.unwrap_or_else(|| was.clone());
        if now == was {
            self.write(self.others(knob).collect())?;
        } else {
            self.save(knob, &was, Some(now.clone()))?;
        }
        written.map(|()| now)
    }

    /// Saves the original value of a knob, and the value that was set. Replaces what was saved for it before.
    pub(super) fn save(&mut self, knob: &Knob, was: &Value, set: Option<Value>) -> io::Result<()> {
        let new = Original { knob: knob.clone(), was: was.clone(), set, on: None };
        self.write(self.others(knob).chain([new]).collect())
    }

    fn others(&self, knob: &Knob) -> impl Iterator<Item = Original> {
        self.all.iter().filter(|original| !original.knob.is(knob)).cloned()
    }

    /// Saves the originals of a queue, as far as they are not saved yet; with a `floor` also the scheduling of its thread.
    /// To be called before the queue is moved.
    ///
    /// # Errors
    /// They cannot be read or saved; then the queue must not be moved.
    pub fn save_queue(&mut self, device: &str, queue: u16, control: Control, floor: bool) -> io::Result<()> {
        let mut all = self.all.clone();
        for what in self.of_queue(device, queue, control, floor)? {
            let knob = Knob { device: device.into(), what };
            if self.saved(&knob).is_none()
                && let Some(was) = self.read(&knob)?
            {
                all.push(Original { knob, was, set: None, on: None });
            }
        }
        self.write(all)
    }

    /// What is changed when a queue moves.
    fn of_queue(&self, device: &str, queue: u16, control: Control, floor: bool) -> io::Result<Vec<What>> {
        let roots = &self.roots;
        let mut all = match control {
            Control::Thread { pid } => {
                let Some(stat) = threads::stat(roots, pid)? else { return Ok(Vec::new()) };
                let urgency = floor.then(|| What::Urgency { pid, name: stat.name.clone() });
                urgency.into_iter().chain([What::Thread { pid, name: stat.name }]).collect()
            }
            Control::Interrupt { irq } => vec![What::Interrupt { irq, actions: irqs::actions(roots, irq) }],
            Control::None { .. } => Vec::new(),
        };
        // A device with one TX queue has no such setting: the file cannot be read.
        if fs::read_to_string(xps(roots, device, queue)).is_ok() {
            all.push(What::Transmit { ifindex: number_of(roots, device), queue });
        }
        Ok(all)
    }

    /// Records that a queue was moved to a core, and lets only this core use the TX queue of the same number.
    pub fn moved(&mut self, device: &str, queue: u16, control: Control, core: CoreId) {
        let sends = apply::transmit_from(&self.roots, device, queue, core);
        for Original { knob, on, .. } in &mut self.all {
            let is_its = match knob.what {
                What::Thread { pid, .. } => control == Control::Thread { pid },
                What::Interrupt { irq, .. } => control == Control::Interrupt { irq },
                What::Transmit { queue: it, .. } => sends && it == queue && knob.device == device,
                _ => false,
            };
            if is_its {
                *on = Some(core);
            }
        }
    }

    /// Forgets the originals of threads, interrupts and devices that are gone.
    ///
    /// # Errors
    /// The file cannot be written; then nothing is forgotten.
    pub fn forget_gone(&mut self) -> io::Result<()> {
        let is_there = |it: &&Original| !matches!(self.read(&it.knob), Ok(None));
        self.write(self.all.iter().filter(is_there).cloned().collect())
    }

    /// Restores everything that still has a value of Millrace. Returns the failures, as sentences.
    pub fn put_back(&mut self) -> Vec<String> {
        self.put_back_those(|_, _| true)
    }

    /// Restores one knob. Returns the failure, as a sentence.
    pub fn put_back_one(&mut self, knob: &Knob) -> Vec<String> {
        self.put_back_those(|_, it| it.is(knob))
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
        ports: &[String],
        wanted: &CoresSettings,
        experimental: Experimental,
    ) -> Vec<String> {
        self.put_back_those(|roots, Knob { device, what }| match what {
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

    fn put_back_those(&mut self, chosen: impl Fn(&Roots, &Knob) -> bool) -> Vec<String> {
        let all = self.all.iter().cloned();
        let (mut ours, mut kept): (Vec<_>, Vec<_>) = all.partition(|it| chosen(&self.roots, &it.knob));
        ours.retain(|original| match self.read(&original.knob) {
            Ok(now) => now.is_some_and(|now| original.is_ours(&now)),
            Err(_) => true,
        });
        // Some settings take several steps. A daemon that ends in between leaves neither its own value nor the original.
        ours.iter_mut().for_each(|original| original.set = None);
        let begun = self.write(kept.iter().chain(&ours).cloned().collect());
        let mut conditions = Vec::new();
        for original in ours {
            let Original { knob, was, .. } = &original;
            let is_done = |now: Option<Value>| now.is_none_or(|now| now == *was);
            if let Err(error) = knob.write(&self.roots, &*self.system, was)
                && !self.read(knob).is_ok_and(is_done)
            {
                conditions.push(format!("{}: {error}", knob.kept()));
                kept.push(original);
            }
        }
        if let Err(error) = begun.and(self.write(kept.clone())) {
            conditions.push(format!("{} cannot be written: {error}", self.file.display()));
            // The file still lists originals that were restored, or whose thread, interrupt or device is gone.
            self.all = kept;
        }
        conditions
    }

    /// Whether nothing is saved.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    fn write(&mut self, all: Vec<Original>) -> io::Result<()> {
        if all.is_empty() {
            unless_gone(fs::remove_file(&self.file))?;
        } else if all != self.all {
            guard::replace(&self.file, &serde_json::to_vec(&all)?)?;
        }
        self.all = all;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            affinity::{Affinity, Scheduling},
            fake::Fake,
            tree::Tree,
        },
        *,
    };
    use crate::base::priority::Urgency;

    const ROUND_ROBIN: Urgency = Urgency { policy: libc::SCHED_RR, priority: 3, nice: 0 };

    fn thread(pid: u32) -> Control {
        Control::Thread { pid }
    }

    fn open(tree: &Tree, fake: &Fake) -> Knobs {
        Knobs::open(tree.path("m.cores"), tree.roots(), fake.clone())
    }

    /// Saves and then moves the two queues of eth0, with threads 70 and 71, and interrupt 38.
    fn moved(tree: &Tree, fake: &Fake) -> Knobs {
        tree.device("eth0", 2, true);
        tree.write("sys/class/net/eth0/queues/tx-1/xps_cpus", "00000003\n");
        tree.irq(38, "eth0-TxRx-0", "0-7", "0");
        for (pid, name) in [(70, "napi/eth0-8"), (71, "napi/eth0-9")] {
            tree.thread(pid, pid, name, true, "0-3", 0);
            fake.allow(pid, &[0, 1, 2, 3].into()).unwrap();
        }
        fake.set_urgency(70, ROUND_ROBIN).unwrap();
        let mut knobs = open(tree, fake);
        assert!(knobs.is_empty() && !tree.path("m.cores").exists());
        knobs.save_queue("eth0", 0, thread(70), true).unwrap();
        knobs.save_queue("eth0", 1, thread(71), true).unwrap();
        knobs.save_queue("eth9", 0, Control::Interrupt { irq: 38 }, true).unwrap();
        fake.allow(70, &[1].into()).unwrap();
        fake.allow(71, &[2].into()).unwrap();
        [70, 71].into_iter().for_each(|pid| fake.set_urgency(pid, Urgency::usual(9)).unwrap());
        tree.write("proc/irq/38/smp_affinity_list", "5\n");
        tree.write("sys/class/net/eth0/queues/tx-1/xps_cpus", "00000004\n");
        knobs
    }

    #[test]
    fn the_next_daemon_restores_originals_too() {
        let (tree, fake) = (Tree::new(), Fake::default());
        moved(&tree, &fake);
        // The daemon is killed. The next one moves a queue again. The other thread ended, and a process has its number now.
        let mut knobs = open(&tree, &fake);
        knobs.save_queue("eth0", 0, thread(70), true).unwrap();
        tree.thread(71, 71, "somebody", false, "0-3", 0);
        assert_eq!(knobs.put_back(), Vec::<String>::new());
        assert_eq!((fake.cores(70), fake.cores(71)), (vec![0, 1, 2, 3], vec![2]));
        assert_eq!((fake.urgency(70).unwrap(), fake.urgency(71).unwrap().nice), (ROUND_ROBIN, 9));
        assert_eq!(tree.read("proc/irq/38/smp_affinity_list"), "0-7");
        assert_eq!(tree.read("sys/class/net/eth0/queues/tx-1/xps_cpus"), "00000003");
        assert!(!tree.path("m.cores").exists() && knobs.is_empty());
    }

    #[test]
    fn nothing_is_restored_on_another_device_with_the_same_number_or_name() {
        let (tree, fake) = (Tree::new(), Fake::default());
        let mut knobs = moved(&tree, &fake);
        tree.remove("proc/irq/38");
        tree.irq(38, "nvme0q1", "5", "5");
        tree.write("sys/class/net/eth0/ifindex", "12\n");
        assert_eq!(knobs.put_back(), Vec::<String>::new());
        assert_eq!(tree.read("proc/irq/38/smp_affinity_list"), "5\n");
        assert_eq!(tree.read("sys/class/net/eth0/queues/tx-1/xps_cpus"), "00000004\n");
    }

    #[test]
    fn a_setting_that_somebody_else_has_changed_stays() {
        let (tree, fake) = (Tree::new(), Fake::default());
        let mut knobs = moved(&tree, &fake);
        fake.allow(70, &[0, 3].into()).unwrap();
        fake.set_urgency(70, Urgency { priority: 9, ..ROUND_ROBIN }).unwrap();
        tree.write("proc/irq/38/smp_affinity_list", "0-3\n");
        tree.write("sys/class/net/eth0/queues/tx-1/xps_cpus", "00000006\n");
        assert_eq!(knobs.put_back(), Vec::<String>::new());
        assert_eq!((fake.cores(70), fake.urgency(70).unwrap().priority), (vec![0, 3], 9));
        assert_eq!(tree.read("proc/irq/38/smp_affinity_list"), "0-3\n");
        assert_eq!(tree.read("sys/class/net/eth0/queues/tx-1/xps_cpus"), "00000006\n");
        // Settings that nobody else has changed are restored.
        assert_eq!((fake.cores(71), fake.urgency(71).unwrap()), (vec![0, 1, 2, 3], Urgency::usual(0)));
        assert!(!tree.path("m.cores").exists());
    }

    /// If it is known where a queue was moved to, another core is somebody else's. After a kill it is unknown.
    #[test]
    fn a_queue_on_another_core_than_it_was_moved_to_stays() {
        for (is_killed, cores, xps) in [(false, vec![3], "00000008\n"), (true, vec![0, 1, 2, 3], "00000003")]
        {
            let (tree, fake) = (Tree::new(), Fake::default());
            let mut knobs = moved(&tree, &fake);
            knobs.moved("eth0", 1, thread(71), 2);
            assert_eq!(tree.read("sys/class/net/eth0/queues/tx-1/xps_cpus"), "00000004");
            fake.allow(71, &[3].into()).unwrap();
            tree.write("sys/class/net/eth0/queues/tx-1/xps_cpus", "00000008\n");
            if is_killed {
                knobs = open(&tree, &fake);
            }
            assert_eq!(knobs.put_back(), Vec::<String>::new());
            assert_eq!((fake.cores(70), fake.cores(71)), (vec![0, 1, 2, 3], cores));
            assert_eq!(tree.read("sys/class/net/eth0/queues/tx-1/xps_cpus"), xps);
        }
    }

    #[test]
    fn an_original_that_cannot_be_restored_stays_in_the_file() {
        let (tree, fake) = (Tree::new(), Fake::default());
        let mut knobs = moved(&tree, &fake);
        fake.get().refuses = libc::EPERM;
        let conditions = knobs.put_back();
        assert_eq!(conditions.len(), 2, "{conditions:?}");
        assert!(conditions[0].starts_with("thread napi/eth0-8 keeps its cores: "), "{conditions:?}");
        // The next daemon tries again.
        fake.get().refuses = 0;
        let mut knobs = open(&tree, &fake);
        assert_eq!(knobs.put_back(), Vec::<String>::new());
        assert_eq!((fake.cores(70), fake.cores(71)), (vec![0, 1, 2, 3], vec![0, 1, 2, 3]));
        assert!(!tree.path("m.cores").exists());
    }

    #[test]
    fn originals_of_gone_threads_are_forgotten_and_former_ports_are_restored() {
        let (tree, fake) = (Tree::new(), Fake::default());
        let lines = |tree: &Tree| tree.read("m.cores").matches("device").count();
        let mut knobs = moved(&tree, &fake);
        let wanted = CoresSettings { floor: Some(crate::config::Floor(40)), ..CoresSettings::default() };
        assert_eq!(lines(&tree), 7);
        tree.remove("proc/71");
        tree.thread(72, 72, "napi/eth0-10", true, "0-3", 0);
        fake.allow(72, &[0, 1].into()).unwrap();
        knobs.save_queue("eth0", 1, thread(72), true).unwrap();
        knobs.forget_gone().unwrap();
        assert_eq!(lines(&tree), 7, "two are added and two removed");
        assert_eq!(
            knobs.put_back_unwanted(&["eth0".into()], &wanted, Experimental::default()),
            Vec::<String>::new()
        );
        assert_eq!((lines(&tree), tree.read("proc/irq/38/smp_affinity_list")), (6, "0-7".into()));
        assert_eq!(fake.cores(70), [1], "restored although eth0 is still a port");
    }

    /// Older versions wrote what they had set to another place, so any value counts as Millrace's.
    #[test]
    fn originals_of_an_older_version_are_restored() {
        let (tree, fake) = (Tree::new(), Fake::default());
        let resume = r#"{"device":"","what":{"Resume":{"core":1,"set":"n/a"}},"was":{"Text":"0"}}"#;
        let table = r#"{"device":"","what":{"Table":{"table":"Sockets","ifindex":null,"entries":65536}},"was":{"Entries":0}}"#;
        let was = r#"{"Setting":{"Napi":{"timeout_ns":0,"defers":0}}}"#;
        let timer =
            format!(r#"{{"device":"eth0","what":{{"Moderation":{{"ifindex":8,"set":null}}}},"was":{was}}}"#);
        tree.write("m.cores", &format!("[{resume},{table},{timer}]"));
        let files = [
            ("sys/devices/system/cpu/cpu1/power/pm_qos_resume_latency_us", "n/a"),
            ("proc/sys/net/core/rps_sock_flow_entries", "65536"),
            ("sys/class/net/eth0/ifindex", "8"),
            ("sys/class/net/eth0/gro_flush_timeout", "50000"),
            ("sys/class/net/eth0/napi_defer_hard_irqs", "1"),
        ];
        files.iter().for_each(|(file, text)| tree.write(file, text));
        assert_eq!(open(&tree, &fake).put_back(), Vec::<String>::new());
        assert_eq!(files.map(|(file, _)| tree.read(file)), ["0", "0", "8", "0", "0"]);
        assert!(!tree.path("m.cores").exists());
    }

    #[test]
    fn a_damaged_file_counts_as_empty_and_one_that_cannot_be_written_is_an_error() {
        let (tree, fake) = (Tree::new(), Fake::default());
        tree.write("m.cores", "[{");
        assert!(open(&tree, &fake).is_empty());
        // An unknown entry of another version does not affect the others.
        let known = r#"{"device":"eth0","what":{"Thread":{"pid":70,"name":"a"}},"was":{"Cores":[0]}}"#;
        tree.write("m.cores", &format!(r#"[{{"device":"eth0","what":"Future"}},{known}]"#));
        assert_eq!(open(&tree, &fake).all.len(), 1);
        tree.thread(70, 70, "napi/eth0-8", true, "0-3", 0);
        fake.allow(70, &[0].into()).unwrap();
        let mut knobs = Knobs::open(tree.path("nowhere/m.cores"), tree.roots(), fake);
        let noted = knobs.save_queue("eth0", 0, thread(70), true);
        assert_eq!(noted.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
