//! Heavy flows and the classifiers of the ports.

use super::*;
use crate::{config::Experimental, linux::classifier::Spec};
use logic::steer::{Flow, Rule};

fn heavy() -> Flow {
    let [source, destination] = [[10, 0, 1, 5], [10, 9, 0, 1]].map(IpAddr::from);
    Flow { port: 0, interface: 1, source, destination, protocol: 6, ports: [1000, 443] }
}

fn steering(nic: &Nic) -> Case {
    let linux = linux();
    *linux.0.nic.borrow_mut() = Some(nic.clone());
    start_with(
        Config { experimental: Experimental { steering: true, ..Experimental::default() }, ..config() },
        linux,
    )
    .unwrap()
}

impl Case {
    /// Runs rounds of a second each, with one flow in the traffic.
    fn traffic(&mut self, seconds: usize) {
        for _ in 0..seconds {
            let interface = self.control.world.mirror.interfaces().find(|i| i.name == "eth1");
            let interface = interface.and_then(|i| i.interface).unwrap();
            let flow = Flow { interface, ..heavy() };
            self.linux.0.samples.borrow_mut().push(Sample { flow, bytes: 1500 });
            self.round(Ok(Vec::new()), 1.0);
        }
    }

    fn rows(&self) -> usize {
        let memory = self.linux.0.memory.borrow().clone().unwrap();
        memory.queues().chunks(words::QUEUE_ROW).filter(|row| row[0].load(Relaxed) != 0).count()
    }

    fn classifiers(&mut self) -> Vec<Option<String>> {
        let ports: Vec<crate::api::status::PortReport> = self.ask(Query::Ports);
        ports.into_iter().map(|port| port.classifier).collect()
    }
}

fn rules(nic: &Nic) -> Vec<Spec> {
    Ntuple(nic.clone()).rules("eth1").unwrap().into_iter().map(|rule| rule.spec).collect()
}

#[test]
fn the_rule_and_row_of_a_heavy_flow_follow_its_route_and_survive_growth() {
    let nic = Nic::new(8, 64, false);
    let mut case = steering(&nic);
    case.traffic(4);
    assert_eq!(rules(&nic), [Spec::of(&Rule { flow: heavy(), queue: 6 })]);
    assert_eq!(case.rows(), 1);
    assert_eq!(case.classifiers(), [Some("1 flows to queues 6 7".into()), Some("none".into())]);
    let gone = Event::Route4(0, Change::Delete, route("10.9.0.0/16", 2, Some("10.0.2.9")));
    case.round(Ok(vec![gone]), 0.01);
    assert_eq!(case.rows(), 0, "the row goes with the route");
    let back = Event::Route4(0, Change::Add, route("10.9.0.0/16", 2, Some("10.0.2.9")));
    case.round(Ok(vec![back]), 0.01);
    assert_eq!(case.rows(), 1);
    let generation = case.status().generation;
    case.round(Ok(many_neighbours(40_000)), 0.01);
    assert!(case.status().generation > generation);
    assert_eq!(case.rows(), 1, "in the larger tables");
}

#[test]
fn stopping_gives_everything_back() {
    for query in [Query::Stop, Query::Leave] {
        let nic = Nic::new(8, 64, false);
        let mut case = steering(&nic);
        case.traffic(4);
        assert_eq!(rules(&nic).len(), 1);
        run(case, vec![query]);
        assert_eq!(rules(&nic), []);
        assert_eq!(Ntuple(nic).indirection("eth1").unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
    }
}

#[test]
fn the_next_daemon_restores_the_nic_after_a_kill() {
    let nic = Nic::new(8, 64, false);
    let mut case = steering(&nic);
    case.traffic(4);
    assert_eq!(rules(&nic).len(), 1);
    let next = linux();
    *next.0.nic.borrow_mut() = Some(nic.clone());
    // It is not configured to steer.
    let mut case = case.killed_and_restarted(next);
    assert_eq!(rules(&nic), []);
    assert_eq!(Ntuple(nic.clone()).indirection("eth1").unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
    case.traffic(4);
    assert_eq!((rules(&nic).len(), case.classifiers()), (0, vec![None, None]));
}

#[test]
fn without_a_classifier_the_program_is_loaded_without_rows() {
    let nic = Nic::new(8, 64, false);
    nic.fail(Some(libc::EOPNOTSUPP));
    let mut case = steering(&nic);
    let memory = case.linux.0.memory.borrow().clone().unwrap();
    assert!(memory.queues().is_empty());
    assert_eq!(case.classifiers(), [Some("none".into()), Some("none".into())]);
}
