//! Control groups that keep cores for themselves, or that get few cores.

use super::{Bed, PATIENCE, places, whys};
use crate::common::in_new_namespace;
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command},
    thread,
    time::{Duration, Instant},
};

/// A control group that is removed when this is dropped.
struct Group {
    directory: PathBuf,
    /// The file that enabled cpusets for this test; `None`: they were enabled before.
    enabled: Option<PathBuf>,
}

impl Group {
    /// A group with all cores; `None`: this machine has no cpusets at their usual place.
    fn new(bed: &Bed) -> Option<Group> {
        let (v1, v2) = (Path::new("/sys/fs/cgroup/cpuset"), Path::new("/sys/fs/cgroup"));
        let name = format!("millrace-test-{}", bed.name);
        if v1.join("cpuset.cpus").exists() {
            let group = Group { directory: v1.join(name), enabled: None };
            fs::create_dir(&group.directory).unwrap();
            for file in ["cpuset.mems", "cpuset.cpus"] {
                group.write(file, &fs::read_to_string(v1.join(file)).unwrap());
            }
            return Some(group);
        }
        let has = |file: &str| {
            let words = fs::read_to_string(v2.join(file)).unwrap_or_default();
            words.split_whitespace().any(|word| word == "cpuset")
        };
        if !has("cgroup.controllers") {
            return None;
        }
        let control = v2.join("cgroup.subtree_control");
        let group = Group {
            directory: v2.join(name),
            enabled: (!has("cgroup.subtree_control")).then(|| control.clone()),
        };
        fs::write(control, "+cpuset").unwrap();
        fs::create_dir(&group.directory).unwrap();
        Some(group)
    }

    fn write(&self, file: &str, text: &str) {
        let file = self.directory.join(file);
        fs::write(&file, text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }

    /// Gives it this core, as Kubernetes' static CPU manager does for a container.
    fn get(&self, core: u64) {
        self.write("cpuset.cpus", &core.to_string());
    }

    /// Gives it this core, which nobody else may use.
    fn keep(&self, core: u64) {
        self.get(core);
        match self.directory.join("cpuset.cpus.partition").exists() {
            true => self.write("cpuset.cpus.partition", "root"),
            false => self.write("cpuset.cpu_exclusive", "1"),
        }
    }

    fn path(&self) -> String {
        format!("/{}", self.directory.file_name().unwrap().to_str().unwrap())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The group is busy until its processes are gone completely.
        let start = Instant::now();
        while fs::remove_dir(&self.directory).is_err() && start.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(1));
        }
        if let Some(control) = &self.enabled {
            let _ = fs::write(control, "-cpuset");
        }
    }
}

/// A process, which ends when this is dropped.
struct Container(Child);

impl Drop for Container {
    fn drop(&mut self) {
        let _ = (self.0.kill(), self.0.wait());
    }
}

/// A daemon that has packed all queues on one core, and this core.
fn packed(name: &str) -> (Bed, u64) {
    let mut bed = Bed::new(name);
    bed.start("");
    let packed = bed.wait_for("all on one core", |report| {
        let places = places(report);
        places.len() == 4 && places.iter().all(|place| *place == places[0])
    });
    let core = places(&packed)[0].unwrap();
    (bed, core)
}

/// Waits until no queue may run on this core.
fn wait_until_left(bed: &Bed, core: u64) {
    let begun = Instant::now();
    while bed.allowed().iter().any(|cores| cores.contains(&(core as u16))) {
        assert!(begun.elapsed() < PATIENCE, "queues stay on core {core}: {:?}", bed.allowed());
        thread::sleep(Duration::from_millis(1));
    }
    eprintln!("the queues have left after {} ms", begun.elapsed().as_millis());
}

fn assert_events(bed: &Bed, expected: &[String]) {
    let events = whys(&bed.json(&["events"]).unwrap());
    for why in expected {
        assert!(events.iter().any(|event| event.ends_with(why)), "no event says: {why}: {events:?}");
    }
}

/// Queues leave at once even without traffic. They do not wait until they are next polled.
#[test]
#[ignore = "needs root"]
fn queues_leave_a_core_that_a_control_group_keeps_for_itself() {
    in_new_namespace(|| {
        let (bed, core) = packed("k");
        let Some(group) = Group::new(&bed) else {
            eprintln!("this machine has no cpusets, so nothing was tested");
            return;
        };
        group.keep(core);
        wait_until_left(&bed, core);
        let of_core = |report: &Value| {
            let core = report["cores"].as_array().unwrap().iter().find(|it| it["core"] == core).unwrap();
            (core["may_forward"].clone(), core["kept_by"].clone())
        };
        let path = group.path();
        bed.wait_for("the report", |report| of_core(report) == (false.into(), path.as_str().into()));
        assert!(
            bed.millrace(&["cores"]).contains(&format!("control group {path} keeps this core for itself"))
        );
        drop(group);
        bed.wait_for("the core to be allowed again", |report| of_core(report) == (true.into(), Value::Null));
        assert_events(
            &bed,
            &[
                format!("control group {path} keeps core {core} for itself"),
                format!("core {core} may not forward"),
                format!("control group {path} gave core {core} back"),
            ],
        );
    });
}

/// The group holds one process, as a container does. Nothing else shows that it is a container.
#[test]
#[ignore = "needs root"]
fn queues_leave_a_core_that_a_container_gets() {
    in_new_namespace(|| {
        let (bed, core) = packed("c");
        let Some(group) = Group::new(&bed) else {
            eprintln!("this machine has no cpusets, so nothing was tested");
            return;
        };
        let container = Container(Command::new("sleep").arg("100").spawn().unwrap());
        group.write("cgroup.procs", &container.0.id().to_string());
        group.get(core);
        wait_until_left(&bed, core);
        let path = group.path();
        bed.wait_for("the workload", |report| {
            report["workloads"]
                .as_array()
                .unwrap()
                .iter()
                .any(|it| it["name"] == *path && it["kind"] == "container")
        });
    });
}
