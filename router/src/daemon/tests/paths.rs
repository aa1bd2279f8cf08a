//! Paths of the configuration, and what the loop sets in the program and for workers.

use super::*;
use crate::{api::workers::PathStand, switch::seam::SwitchPath};
use logic::paths::{class::Class, rows::Otherwise};

const PATHS: &str = r#"
ports = ["eth1", "eth2"]
[workers]
cores = "0"
[[path]]
name = "late"
router = "red"
class = { protocol = "udp" }
chain = ["count", "discard"]
otherwise = "drop"
[[path]]
name = "here"
class = { port = "eth1", protocol = "esp" }
chain = ["count", "discard"]
[[path]]
name = "never"
class = { port = "eth9" }
chain = ["count", "discard"]
"#;

fn with_paths() -> Case {
    let config = Config::parse(std::path::Path::new("m.toml"), PATHS).unwrap();
    start_with(config, linux()).unwrap()
}

fn set_classes(case: &Case) -> Vec<SetClasses> {
    case.linux.0.classes.borrow().clone()
}

#[test]
fn a_path_gets_packets_as_soon_as_its_port_and_router_exist() {
    let mut case = with_paths();
    let here = PathClass {
        path: 1,
        class: Class { port: Some(0), protocol: Some(50), ..Class::default() },
        otherwise: Otherwise::Up,
    };
    let first = set_classes(&case);
    assert_eq!(first.last().unwrap().0, std::slice::from_ref(&here));
    assert_eq!(case.linux.0.attached.borrow()[0].paths, Some(true), "from the first packet on");
    let reports = case.status().paths;
    let why: Vec<_> = reports.iter().map(|p| p.why_not.as_deref().unwrap_or("active")).collect();
    assert_eq!(
        why,
        [
            "its router red is not there (see `millrace routers`)",
            "active",
            "its port eth9 is not a port of Millrace (`ports`, --port)",
        ]
    );
    assert_eq!((reports[0].packets, reports[0].up[0].packets, reports[0].lost[0].packets), (5, 7, 2));
    assert_eq!(reports[0].dropped[0].reason, "path_unsure");
    // Without a change, nothing is set.
    case.round(Ok(vec![]), 1.0);
    assert_eq!(set_classes(&case), first);
    // The port goes: no path is left, and the program with paths goes, too.
    case.round(Ok(vec![Event::PortGone(0)]), 1.0);
    assert_eq!(set_classes(&case).last().unwrap().0, []);
    assert_eq!(case.linux.0.swapped.borrow().last(), Some(&Some(false)));
    case.round(Ok(vec![Event::Port(0, port(10))]), 1.0);
    assert_eq!(set_classes(&case).last().unwrap().0, [here]);
    assert_eq!(case.linux.0.swapped.borrow().last(), Some(&Some(true)));
}

#[test]
fn the_switch_thread_learns_at_once_which_paths_have_workers_and_gets_counters_once_a_second() {
    let mut case = with_paths();
    let running = |case: &mut Case, seconds| {
        case.round(Ok(vec![]), seconds);
        let messages = std::mem::take(&mut *case.linux.0.messages.lock().unwrap()).into_iter();
        let paths = messages
            .filter_map(|message| if let SwitchMessage::Paths(paths) = message { Some(paths) } else { None });
        let workers = |paths: BTreeMap<PathId, SwitchPath>| {
            assert!(paths.values().all(|path| (path.counts.packets, path.counts.ring_full) == (5, 2)));
            Vec::from_iter(paths.values().map(|path| path.has_worker))
        };
        Vec::from_iter(paths.map(workers))
    };
    assert_eq!(running(&mut case, 0.1), [[false; 3]]);
    assert_eq!(running(&mut case, 0.1), [[false; 3]; 0]);
    let stand = |id, stopped: Option<&str>| PathStand {
        id,
        stopped: stopped.map(Into::into),
        ..PathStand::default()
    };
    *case.linux.0.run_by_workers.borrow_mut() = vec![stand(1, None), stand(2, Some("it panicked"))];
    assert_eq!(running(&mut case, 0.1), [[false, true, false]]);
    assert_eq!(running(&mut case, 0.1), [[false; 3]; 0]);
    assert_eq!(running(&mut case, 1.0), [[false, true, false]]);
    case.linux.0.run_by_workers.borrow_mut().clear();
    assert_eq!(running(&mut case, 0.1), [[false; 3]]);
}

/// A rule may give packets to a path without a class. The program with paths is attached with the rules, and stays as
/// long as there are rules.
#[test]
fn rules_bring_the_program_with_paths() {
    let mut case = with_paths();
    case.round(Ok(vec![Event::PortGone(0)]), 1.0);
    let swapped = || case.linux.0.swapped.borrow().last().copied();
    assert_eq!(swapped(), Some(Some(false)), "no path has a class");
    case.orders.send(Some(7)).unwrap();
    let before = case.linux.0.attached.borrow().len();
    case.round(Ok(vec![]), 1.0);
    let attached = case.linux.0.attached.borrow()[before..].iter().map(|a| a.paths).collect::<Vec<_>>();
    assert!(!attached.is_empty() && attached.iter().all(|paths| *paths == Some(true)), "{attached:?}");
    case.orders.send(None).unwrap();
    case.round(Ok(vec![]), 1.0);
    assert_eq!(case.linux.0.attached.borrow().last().unwrap().paths, Some(false));
}

#[test]
fn a_failure_to_set_classes_is_a_condition() {
    let mut case = with_paths();
    *case.linux.0.unclassed.borrow_mut() = Some("no grace".into());
    case.round(Ok(vec![Event::PortGone(0)]), 1.0);
    let conditions = case.conditions();
    assert!(conditions.iter().any(|t| t == "cannot change the classes of paths: no grace"), "{conditions:?}");
    *case.linux.0.unclassed.borrow_mut() = None;
    case.round(Ok(vec![]), 1.0);
    assert_eq!(set_classes(&case).last().unwrap().0, [], "tried again");
    assert_eq!(case.conditions(), [""; 0]);
}

/// A failure to set classes does not matter any more when the old classes are right again.
#[test]
fn the_condition_ends_when_the_old_classes_are_right_again() {
    let mut case = with_paths();
    *case.linux.0.unclassed.borrow_mut() = Some("no grace".into());
    case.round(Ok(vec![Event::PortGone(0)]), 1.0);
    assert!(!case.conditions().is_empty());
    case.round(Ok(vec![Event::Port(0, port(10))]), 1.0);
    assert_eq!(case.conditions(), [""; 0]);
}

#[test]
fn a_daemon_that_cannot_set_classes_does_not_start() {
    let linux = linux();
    *linux.0.unclassed.borrow_mut() = Some("no grace".into());
    let config = Config::parse(std::path::Path::new("m.toml"), PATHS).unwrap();
    let error = start_with(config, linux.clone()).err().unwrap();
    assert!(error.to_string().contains("no grace"), "{error:#}");
    assert_eq!(linux.0.attached.borrow().len(), 0, "an earlier program goes on");
}

#[test]
fn without_paths_there_is_no_program_with_paths() {
    let case = start();
    assert_eq!(case.linux.0.attached.borrow()[0].paths, None);
    assert_eq!(set_classes(&case), []);
}

#[test]
fn workers_get_their_paths_ports_and_tables() {
    let mut case = with_paths();
    let wanted = || case.linux.0.wanted.borrow().clone();
    let device = |name: &str, ifindex| Device { name: name.into(), ifindex };
    let first = wanted().pop().unwrap();
    assert_eq!(first.ports, [(0, device("eth1", 1)), (1, device("eth2", 2))].into());
    let here = &first.paths[&1];
    assert_eq!((first.paths.len(), here.name.as_str(), &here.ports), (1, "here", &[0].into()));
    let same = |one: &Shared, other: &Shared| Arc::ptr_eq(one, other);
    let read = case.linux.0.tables_of_workers.borrow().clone().unwrap();
    assert!(same(&read, case.linux.0.memory.borrow().as_ref().unwrap()), "of the generation in charge");
    let before = wanted().len();
    case.round(Ok(vec![]), 1.0);
    assert_eq!(case.linux.0.wanted.borrow().len(), before, "nothing is new");
    // Its port goes, and comes back as another device.
    case.round(Ok(vec![Event::PortGone(0)]), 1.0);
    let gone = case.linux.0.wanted.borrow().last().cloned().unwrap();
    assert_eq!((gone.ports, gone.paths), ([(1, device("eth2", 2))].into(), [].into()));
    case.round(Ok(vec![Event::Port(0, port(11))]), 1.0);
    let back = case.linux.0.wanted.borrow().last().cloned().unwrap();
    assert_eq!(back.ports[&0], device("eth1", 11));
    assert_eq!(back.paths, first.paths);
}

#[test]
fn workers_get_no_ports_in_generic_mode() {
    let linux = linux();
    linux.0.generic.borrow_mut().insert("eth1".into());
    let config = Config::parse(std::path::Path::new("m.toml"), PATHS).unwrap();
    let case = start_with(config, linux).unwrap();
    let wanted = case.linux.0.wanted.borrow().last().cloned().unwrap();
    assert_eq!(wanted.ports.keys().copied().collect::<Vec<_>>(), [1]);
}

#[test]
fn failures_of_workers_and_packets_that_go_past_a_path_are_conditions() {
    let mut case = with_paths();
    *case.linux.0.stands.borrow_mut() = vec!["core 9 is not online".into()];
    assert_eq!(case.conditions(), ["core 9 is not online"]);
    case.linux.0.stands.borrow_mut().clear();
    *case.linux.0.refused.borrow_mut() = Some("eth2".into());
    case.round(Ok(vec![Event::PortGone(1)]), 1.0);
    case.round(Ok(vec![Event::Port(1, port(21)), Event::Link(0, link(21, "eth2"))]), 1.0);
    let conditions = case.conditions();
    let past = "path late: packets from port eth2 go to the kernel and are not dropped: not attached: another program is there";
    assert_eq!(conditions, [past], "only of paths that drop, and get packets of that port");
}
