//! Another configuration while the daemon runs.

use super::*;
use crate::{api::status::ReloadReport, config::Rate};

/// Threads beside the loop that accept everything, or say why not. They remember the ports that they got.
#[derive(Default)]
struct Threads {
    refuses: Option<String>,
    ports: Vec<Vec<PortId>>,
}

impl super::super::seam::Beside for Threads {
    fn reload(&mut self, _: &Changes, _: &Config, ports: &NumberedPorts) -> Result<()> {
        if let Some(why) = &self.refuses {
            bail!("{why}");
        }
        self.ports.push(ports.keys().copied().collect());
        Ok(())
    }
}

impl Case {
    fn reload(&mut self, config: Config) -> Result<ReloadReport, String> {
        self.control.reload(config, &mut Threads::default()).unwrap().map_err(|error| error.text)
    }

    fn policing(&self) -> Vec<u32> {
        self.linux.0.loaded.borrow().clone()
    }
}

fn policed(exception_pps: u32) -> Config {
    let mut config = config();
    config.policing.exception_pps = Rate(exception_pps);
    config
}

fn changed(keys: &[&str]) -> Result<ReloadReport, String> {
    Ok(ReloadReport { changed: keys.iter().map(|key| key.to_string()).collect() })
}

#[test]
fn policing_comes_with_a_generation_that_is_filled_before_it_is_attached() {
    let mut case = start();
    assert_eq!(case.reload(policed(7)), changed(&["policing.exception_pps"]));
    assert_eq!(case.policing(), [100_000, 7]);
    let attached = case.linux.0.attached.borrow();
    let last = attached.last().unwrap();
    assert!(last.filled && last.deadline > case.linux.0.now.get() && last.devices == ["eth1", "eth2"]);
    drop(attached);
    assert_eq!(case.status().generation, 2);
    // Counters go on.
    assert_eq!(case.linux.0.published.borrow().iter().copied().collect::<Vec<_>>(), [2]);
    assert_eq!(case.reload(policed(7)), changed(&[]));
    assert_eq!(case.status().generation, 2, "nothing has changed");
}

#[test]
fn a_failed_reload_changes_nothing() {
    let mut case = start();
    let attached = case.linux.0.attached.borrow().len();
    case.linux.0.unloadable.set(true);
    let said = case.reload(policed(7)).unwrap_err();
    assert_eq!(said, "nothing was changed: out of memory");
    case.linux.0.unloadable.set(false);
    let mut refusing = Threads { refuses: Some("no such file".into()), ..Threads::default() };
    let said = case.control.reload(policed(7), &mut refusing).unwrap().unwrap_err().text;
    assert_eq!(said, "nothing was changed: no such file");
    let restart = Config { generic: true, ..policed(7) };
    let said = case.reload(restart).unwrap_err();
    assert!(said.contains("cannot change generic; restart the daemon"), "{said}");
    let said = case.reload(Config { ports: Vec::new(), ..policed(7) }).unwrap_err();
    assert!(said.starts_with("nothing was changed: no port is given"), "{said}");
    assert_eq!((case.control.config.clone(), case.status().generation), (config(), 1));
    assert_eq!(case.linux.0.attached.borrow().len(), attached);
}

#[test]
fn a_reload_sets_weights() {
    let mut case = start();
    let mut weighty = config();
    weighty.shares.weights.insert("host".into(), Weight(7));
    assert_eq!(case.reload(weighty), changed(&["shares.weights"]));
    assert_eq!(case.status().routers[0].weight, 7);
}

#[test]
fn a_removed_port_is_detached_and_begins_at_zero_when_it_comes_back() {
    let mut case = start();
    let key = (Charge::Port(1), Reason::NoRoute);
    case.linux.0.counters.borrow_mut().charges.insert(key, 5);
    let named = |names: &[&str]| {
        let ports = names.iter().map(|name| name.parse().unwrap()).collect();
        Config { ports, ..config() }
    };
    assert_eq!(case.reload(named(&["eth1"])), changed(&["ports"]));
    // The observer reports its end.
    case.round(Ok(vec![Event::PortGone(1)]), 0.1);
    assert_eq!(case.linux.0.attached.borrow().last().unwrap().devices, ["eth1"]);
    assert_eq!(case.slots(), [0]);
    let ports = |case: &mut Case| {
        let ports = case.status().ports;
        ports.iter().map(|p| (p.id, p.port.clone(), p.unclassified.len())).collect::<Vec<_>>()
    };
    assert_eq!(ports(&mut case), [(0, "eth1".into(), 0)]);
    // Number 1 has been used, so eth3 gets 2.
    assert_eq!(case.reload(named(&["eth3", "eth1"])), changed(&["ports"]));
    case.round(Ok(vec![Event::Link(0, link(9, "eth3")), Event::Port(2, port(9))]), 0.1);
    assert_eq!(case.linux.0.attached.borrow().last().unwrap().devices, ["eth1", "eth3"]);
    assert_eq!(ports(&mut case), [(0, "eth1".into(), 0), (2, "eth3".into(), 0)]);
    assert_eq!(case.reload(named(&["eth1", "eth2", "eth3"])), changed(&["ports"]));
    case.round(Ok(vec![Event::Link(0, link(8, "eth2")), Event::Port(1, port(8))]), 0.1);
    assert_eq!(ports(&mut case)[1], (1, "eth2".into(), 0));
}

/// While a port that is gone is still attached, a new one gets another number.
#[test]
fn a_number_in_use_is_not_given_away() {
    let mut case = start();
    let mut threads = Threads::default();
    let ports = vec!["eth1".parse().unwrap(), "eth3".parse().unwrap()];
    case.control.reload(Config { ports, ..config() }, &mut threads).unwrap().unwrap();
    assert_eq!(threads.ports, [[0, 2]]);
    case.round(Ok(vec![Event::PortGone(1), Event::Link(0, link(9, "eth3")), Event::Port(2, port(9))]), 0.1);
    assert_eq!(case.slots(), [0, 2]);
    assert_eq!(case.status().ports.len(), 2);
}
