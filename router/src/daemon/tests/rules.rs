//! Flow rules put in charge and taken out, and messages to the switch thread.

use super::*;
use crate::switch::seam::SwitchPort;

fn rules_of(case: &Case) -> Vec<Option<u32>> {
    case.linux.0.attached.borrow().iter().map(|a| a.rules).collect()
}

fn messages(case: &Case) -> Vec<SwitchMessage> {
    std::mem::take(&mut case.linux.0.messages.lock().unwrap())
}

#[test]
fn rules_are_put_in_charge_survive_growth_and_are_taken_out() {
    let mut case = start();
    case.round(Ok(vec![]), 0.1);
    messages(&case);
    case.orders.send(Some(7)).unwrap();
    case.round(Ok(vec![]), 0.1);
    assert_eq!(rules_of(&case), [None, Some(7)]);
    assert_eq!(messages(&case), [SwitchMessage::InCharge(Ok(true))]);
    assert!(case.status().flows.in_charge);

    case.round(Ok(many_neighbours(20_000)), 0.1);
    case.round(Ok(vec![]), 0.1);
    assert!(case.status().generation > 1);
    assert!(rules_of(&case)[2..].iter().all(|rules| *rules == Some(7)), "{:?}", rules_of(&case));

    case.orders.send(None).unwrap();
    case.round(Ok(vec![]), 0.1);
    assert_eq!(rules_of(&case).last(), Some(&None));
    assert!(messages(&case).ends_with(&[SwitchMessage::InCharge(Ok(false))]));
    assert!(!case.status().flows.in_charge);
}

/// Starts with a file of rules, which the switch thread has read.
fn start_from_file(linux: &Linux, loaded: Result<Option<u32>, String>) -> Result<Case> {
    let directory = tempfile::tempdir()?;
    let instance = Instance::under(directory.path(), None);
    let (orders, mut switch) = switch(linux);
    let (answer, of_file) = channel();
    switch.loaded = Some(of_file);
    answer.send(loaded)?;
    let (own, conditions) = (linux.clone(), Conditions::default());
    let control = Control::start(config(), instance, own.clone(), own, switch, None, conditions)?;
    Ok(Case { linux: linux.clone(), control, orders, _directory: directory })
}

#[test]
fn rules_of_a_file_are_in_charge_from_the_first_packet_on() {
    let mut case = start_from_file(&linux(), Ok(Some(7))).unwrap();
    assert_eq!(rules_of(&case), [Some(7)]);
    let messages = messages(&case);
    let SwitchMessage::Ports(first) = &messages[0] else { panic!("{messages:?}") };
    assert_eq!(first.iter().map(|port| port.ifindex).collect::<Vec<_>>(), [Some(1), Some(2)]);
    assert_eq!(messages[1], SwitchMessage::InCharge(Ok(true)));
    assert!(case.status().flows.in_charge);

    // A file without rules, or a fail mode in which they do not apply.
    let case = start_from_file(&linux(), Ok(None)).unwrap();
    assert_eq!(rules_of(&case), [None]);
}

#[test]
fn a_file_of_rules_that_cannot_be_used_keeps_the_daemon_from_attaching() {
    let linux = linux();
    let refused = start_from_file(&linux, Err("flows:3: no".into())).err().map(|error| error.to_string());
    assert_eq!(refused.as_deref(), Some("flows:3: no"));
    assert!(linux.0.attached.borrow().is_empty() && linux.0.running.borrow().is_empty());
}

#[test]
fn a_failure_to_load_rules_is_reported_and_changes_nothing() {
    let mut case = start();
    *case.linux.0.unruly.borrow_mut() = Some("no memory".into());
    case.round(Ok(vec![]), 0.1);
    messages(&case);
    case.orders.send(Some(7)).unwrap();
    case.round(Ok(vec![]), 0.1);
    assert_eq!(messages(&case), [SwitchMessage::InCharge(Err("no memory".into()))]);
    assert_eq!((rules_of(&case), case.status().flows.in_charge), (vec![None], false));
}

#[test]
fn each_change_of_a_port_is_reported_to_the_switch_thread() {
    let mut case = start();
    case.round(Ok(vec![]), 0.1);
    let port = |id: PortId, up| SwitchPort {
        id,
        name: format!("eth{}", id + 1),
        ifindex: Some(u32::from(id) + 1),
        up,
        carrier: link(u32::from(id) + 1, "").carrier,
        mac: link(u32::from(id) + 1, "").mac,
        transmits: true,
        generic: false,
    };
    assert_eq!(messages(&case), [SwitchMessage::Ports(vec![port(0, true), port(1, true)])]);
    case.round(Ok(vec![]), 0.1);
    assert_eq!(messages(&case), []);
    case.round(Ok(vec![Event::Link(0, Link { up: false, ..link(2, "eth2") })]), 0.1);
    assert_eq!(messages(&case), [SwitchMessage::Ports(vec![port(0, true), port(1, false)])]);
    case.round(Ok(vec![Event::PortGone(0)]), 0.1);
    let gone = SwitchPort {
        ifindex: None,
        up: false,
        carrier: false,
        mac: Default::default(),
        transmits: false,
        ..port(0, false)
    };
    assert_eq!(messages(&case), [SwitchMessage::Ports(vec![gone, port(1, false)])]);
}
