//! Limits how long forwarding cores may take to wake up, and thereby how deep they sleep between packets.
//!
//! Each core has a limit in microseconds. Governors of cpuidle do not enter idle states that take longer to leave, and
//! with a limit of 0 the core polls (`power/pm_qos_resume_latency_us`:
//! `Documentation/ABI/testing/sysfs-devices-power`, `kernel/sched/idle.c`). The limit is lowered while a core forwards,
//! and restored afterwards, so that other cores save power as usual. The original is saved first ([`Knobs`]). The
//! limit of somebody else stays if it is as low, or if it is set later.

use super::{
    CoreId, Roots,
    knob::{Knob, Value, What},
    knobs::Knobs,
    number, numbered,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::PathBuf,
};

/// A core that has the limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The limit, microseconds.
    pub us: u32,
    /// The deepest idle state that it may then enter, if the machine reports it.
    pub deepest: Option<String>,
}

/// Lowers and restores limits.
#[derive(Debug)]
pub struct Resume {
    us: u32,
    cores: BTreeMap<CoreId, Core>,
    /// Limits change nothing on this machine.
    is_useless: bool,
}

/// The state of a forwarding core.
#[derive(Debug)]
enum Core {
    Held(Held),
    /// Somebody else's limit is as low.
    Low,
    /// The limit could not be set, for this reason, a sentence. The next look tries again.
    Refused(String),
    /// It is left alone while it forwards, for this reason, a sentence.
    LeftAlone(String),
}

impl Resume {
    pub fn new(us: u32) -> Resume {
        Resume { us, cores: BTreeMap::new(), is_useless: false }
    }

    /// Sets the limits of these cores, which forward, and restores all others. Returns the limits that could not be
    /// restored, as sentences.
    pub fn set(&mut self, knobs: &mut Knobs, forwarding: &BTreeSet<CoreId>) -> Vec<String> {
        let mut conditions = Vec::new();
        let resting: Vec<_> = self.cores.keys().filter(|core| !forwarding.contains(core)).copied().collect();
        for core in resting {
            self.cores.remove(&core);
            conditions.extend(knobs.put_back_one(&knob(core)));
        }
        let new: Vec<_> = forwarding.iter().filter(|core| !self.cores.contains_key(core)).copied().collect();
        self.is_useless = has_no_driver(&knobs.roots);
        for core in new.into_iter().filter(|_| !self.is_useless) {
            self.cores.insert(core, self.hold(knobs, core));
        }
        conditions
    }

    fn hold(&self, knobs: &mut Knobs, core: CoreId) -> Core {
        self.try_to_hold(knobs, core).unwrap_or_else(|error| {
            Core::Refused(format!("core {core} has no wake-up limit (cores.resume_latency): {error}"))
        })
    }

    fn try_to_hold(&self, knobs: &mut Knobs, core: CoreId) -> io::Result<Core> {
        if microseconds(&knobs.text(&knob(core))?).is_some_and(|was| was <= self.us) {
            return Ok(Core::Low);
        }
        knobs.set(&knob(core), &Value::Text(self.text()))?;
        Ok(Core::Held(Held { us: self.us, deepest: deepest(&knobs.roots, core, self.us) }))
    }

    /// The limit in the kernel's notation.
    fn text(&self) -> String {
        match self.us {
            0 => "n/a".into(),
            us => us.to_string(),
        }
    }

    /// Checks whether somebody else has changed a limit, and tries failed ones again. Returns the problems, as sentences.
    pub fn look(&mut self, knobs: &mut Knobs) -> Vec<String> {
        let mut conditions = Vec::new();
        for (core, before) in std::mem::take(&mut self.cores) {
            let now = match before {
                Core::Held(_) if knobs.text(&knob(core)).is_ok_and(|now| now == self.text()) => before,
                Core::Held(_) => Core::LeftAlone(format!(
                    "somebody else has set how long core {core} may take to wake up ({}); Millrace leaves the limit alone \
                     while the core forwards",
                    file(&knobs.roots, core).display()
                )),
                Core::Low | Core::Refused(_) => self.hold(knobs, core),
                Core::LeftAlone(_) => before,
            };
            if let Core::Refused(why) | Core::LeftAlone(why) = &now {
                conditions.push(why.clone());
            }
            self.cores.insert(core, now);
        }
        conditions
    }

    /// A sentence if limits change nothing on this machine.
    pub fn useless(&self) -> Option<String> {
        self.is_useless.then(|| {
            "cores.resume_latency changes nothing: this machine has no cpuidle driver, so idle cores always halt".into()
        })
    }

    /// The cores that have the limit.
    pub fn held(&self) -> BTreeMap<CoreId, Held> {
        let held = |(core, state): (&CoreId, &Core)| match state {
            Core::Held(held) => Some((*core, held.clone())),
            Core::Low | Core::Refused(_) | Core::LeftAlone(_) => None,
        };
        self.cores.iter().filter_map(held).collect()
    }
}

fn knob(core: CoreId) -> Knob {
    Knob { device: String::new(), what: What::Resume { core } }
}

/// The file with the limit of a core. `n/a` means that it may take no time at all, 0 that it may take any time.
pub(super) fn file(roots: &Roots, core: CoreId) -> PathBuf {
    roots.sys(format!("devices/system/cpu/cpu{core}/power/pm_qos_resume_latency_us"))
}

/// Parses a limit in the kernel's notation; `None`: there is no limit.
fn microseconds(limit: &str) -> Option<u32> {
    match limit {
        "n/a" => Some(0),
        "0" => None,
        us => us.parse().ok(),
    }
}

/// Whether the machine has no cpuidle driver. An idle core then always halts, whatever its limit is.
fn has_no_driver(roots: &Roots) -> bool {
    let driver = fs::read_to_string(roots.sys("devices/system/cpu/cpuidle/current_driver"));
    driver.map_or(true, |driver| driver.trim() == "none")
}

/// The deepest idle state within the limit. States are numbered from the lightest one.
fn deepest(roots: &Roots, core: CoreId, us: u32) -> Option<String> {
    let states = roots.sys(format!("devices/system/cpu/cpu{core}/cpuidle"));
    let state = |index| states.join(format!("state{index}"));
    let is_quick = |index: &u32| number::<u32>(&state(*index).join("latency")).is_some_and(|exit| exit <= us);
    let last = numbered(&states, "state").into_iter().rfind(is_quick)?;
    Some(fs::read_to_string(state(last).join("name")).ok()?.trim().into())
}

#[cfg(test)]
mod tests {
    use super::{
        super::{fake::Fake, tree::Tree},
        *,
    };
    use crate::config::{CoresSettings, Experimental};

    /// Two cores with three idle states, and without limits.
    struct World {
        tree: Tree,
        resume: Resume,
        knobs: Knobs,
    }

    impl World {
        fn new(us: u32) -> World {
            let tree = Tree::new();
            tree.write("sys/devices/system/cpu/cpuidle/current_driver", "intel_idle\n");
            for core in 0..2 {
                tree.write(&at(core), "0\n");
                for (state, name, latency) in [(0, "POLL", "0"), (1, "C1", "2"), (2, "C6", "133")] {
                    let state = format!("sys/devices/system/cpu/cpu{core}/cpuidle/state{state}");
                    tree.write(&format!("{state}/name"), &format!("{name}\n"));
                    tree.write(&format!("{state}/latency"), &format!("{latency}\n"));
                }
            }
            let knobs = Knobs::open(tree.path("m.cores"), tree.roots(), Fake::default());
            World { tree, resume: Resume::new(us), knobs }
        }

        fn set(&mut self, cores: &[CoreId]) -> Vec<String> {
            let cores = cores.iter().copied().collect();
            self.resume.set(&mut self.knobs, &cores)
        }

        fn look(&mut self) -> Vec<String> {
            self.resume.look(&mut self.knobs)
        }

        fn limits(&self) -> [String; 2] {
            [0, 1].map(|core| self.tree.read(&at(core)).trim().to_owned())
        }

        fn limits_of_first(&self) -> String {
            self.tree.read(&at(0)).trim().into()
        }
    }

    fn at(core: CoreId) -> String {
        format!("sys/devices/system/cpu/cpu{core}/power/pm_qos_resume_latency_us")
    }

    #[test]
    fn limits_follow_the_cores_that_forward() {
        for (us, text, deepest) in [(0, "n/a", "POLL"), (20, "20", "C1"), (500, "500", "C6")] {
            let mut world = World::new(us);
            assert_eq!((world.set(&[1]), world.look()), (vec![], vec![]));
            assert_eq!(world.limits(), ["0", text]);
            let held = Held { us, deepest: Some(deepest.into()) };
            assert_eq!(world.resume.held(), [(1, held)].into());
            assert_eq!((world.set(&[0]), world.limits()), (vec![], [text, "0"].map(String::from)));
            assert_eq!((world.set(&[]), world.limits()), (vec![], ["0", "0"].map(String::from)));
            assert!(world.knobs.is_empty() && !world.tree.path("m.cores").exists());
        }
    }

    #[test]
    fn the_next_daemon_restores_limits() {
        let mut world = World::new(0);
        world.tree.write(&at(0), "100\n");
        world.set(&[0, 1]);
        assert_eq!(world.limits(), ["n/a", "n/a"]);
        // The daemon is killed, and somebody sets a limit.
        world.tree.write(&at(1), "7\n");
        let mut knobs = Knobs::open(world.tree.path("m.cores"), world.tree.roots(), Fake::default());
        assert_eq!(
            knobs.put_back_unwanted(&[], &CoresSettings::default(), Experimental::default()),
            Vec::<String>::new()
        );
        assert_eq!(world.limits(), ["100", "7"]);
        assert!(knobs.is_empty());
    }

    #[test]
    fn somebodys_own_limit_stays() {
        let mut world = World::new(20);
        world.tree.write(&at(0), "n/a\n");
        world.tree.write(&at(1), "20\n");
        assert_eq!((world.set(&[0, 1]), world.look()), (vec![], vec![]));
        assert_eq!(world.limits(), ["n/a", "20"]);
        assert!(world.knobs.is_empty() && world.resume.held().is_empty());
        // Now there is no such limit any more.
        world.tree.write(&at(0), "0\n");
        assert_eq!((world.look(), world.limits()), (vec![], ["20", "20"].map(String::from)));
        world.tree.write(&at(0), "5\n");
        assert!(world.look()[0].starts_with("somebody else has set how long core 0 may take"));
        assert!(world.resume.held().is_empty());
        world.set(&[]);
        assert_eq!((world.limits(), world.look()), (["5", "20"].map(String::from), vec![]));
        assert!(world.knobs.is_empty());
    }

    #[test]
    fn failures_are_reported_and_tried_again() {
        let mut world = World::new(20);
        world.tree.remove("sys/devices/system/cpu/cpu1/power");
        world.set(&[0, 1]);
        assert_eq!(world.look().len(), 1);
        assert!(world.look()[0].starts_with("core 1 has no wake-up limit (cores.resume_latency): "));
        assert_eq!(world.limits_of_first(), "20");
        world.set(&[]);
        world.tree.write("sys/devices/system/cpu/cpuidle/current_driver", "none\n");
        world.set(&[0]);
        assert!(world.resume.useless().unwrap().starts_with("cores.resume_latency changes nothing"));
        assert_eq!((world.look(), world.limits_of_first()), (vec![], "0".into()));
        world.tree.write("sys/devices/system/cpu/cpuidle/current_driver", "intel_idle\n");
        world.set(&[0]);
        assert_eq!((world.resume.useless(), world.limits_of_first()), (None, "20".into()));
        // A limit is not changed if the original cannot be saved.
        let mut world = World::new(20);
        world.knobs = Knobs::open(world.tree.path("nowhere/m.cores"), world.tree.roots(), Fake::default());
        world.set(&[0]);
        assert_eq!((world.look().len(), world.limits_of_first()), (1, "0".into()));
        // It is changed as soon as the original can be saved.
        fs::create_dir(world.tree.path("nowhere")).unwrap();
        assert_eq!((world.look(), world.limits_of_first()), (vec![], "20".into()));
        // If one limit is restored while the file cannot be written, the originals of others are not forgotten.
        world.set(&[0, 1]);
        world.tree.remove("nowhere");
        assert_eq!(world.set(&[1]).len(), 1);
        assert_eq!(world.limits(), ["0", "20"]);
        fs::create_dir(world.tree.path("nowhere")).unwrap();
        assert_eq!((world.set(&[]), world.limits()), (vec![], ["0", "0"].map(String::from)));
    }
}
