//! Ports: attached, refused, trusted, redirected to.

use super::*;
use crate::api::status::Why;

#[test]
fn a_port_with_a_foreign_program_is_refused_at_the_start() {
    let linux = linux();
    *linux.0.refused.borrow_mut() = Some("eth2".into());
    let error = start_with(config(), linux.clone()).err().unwrap();
    assert_eq!(error.to_string(), "another program is there");
    assert!(linux.0.attached.borrow().is_empty());
}

#[test]
fn a_port_that_goes_and_comes_back_is_attached_again() {
    let mut case = start();
    case.round(Ok(vec![Event::PortGone(1)]), 0.1);
    let names = |case: &Case| case.linux.0.attached.borrow().last().unwrap().devices.clone();
    assert_eq!(names(&case), ["eth1"]);
    let status = case.status();
    assert_eq!((status.ports[1].mode.as_str(), status.ports[1].problems.len()), ("detached", 1));
    assert_eq!(case.slots(), [0]);
    case.round(Ok(vec![Event::Link(0, link(7, "eth2")), Event::Port(1, port(7))]), 0.1);
    assert_eq!(names(&case), ["eth1", "eth2"]);
    assert_eq!(case.linux.0.attached.borrow().last().unwrap().slots, [0], "nothing is redirected there yet");
    assert_eq!(case.slots(), [0, 1]);
    case.round(Ok(vec![]), 0.1);
    assert_eq!(case.linux.0.attached.borrow().len(), 3, "not attached again without a reason");
}

#[test]
fn a_port_that_is_refused_later_is_reported_and_the_others_go_on() {
    let mut case = start();
    *case.linux.0.refused.borrow_mut() = Some("eth2".into());
    case.round(Ok(vec![Event::PortGone(1)]), 0.1);
    case.round(Ok(vec![Event::Link(0, link(7, "eth2")), Event::Port(1, port(7))]), 0.1);
    case.round(Ok(vec![]), 0.1);
    let status = case.status();
    assert!(status.ports[1].problems[0].contains("another program is there"), "{:?}", status.ports[1]);
    assert_eq!(status.ports[0].mode, "native");
    assert_eq!(case.slots(), [0], "packets that are redirected to the refused port would be lost");
}

#[test]
fn nothing_is_redirected_to_a_port_that_refuses_larger_tables() {
    let mut case = start();
    assert_eq!(case.slots(), [0, 1]);
    *case.linux.0.refused.borrow_mut() = Some("eth2".into());
    case.round(Ok(many_neighbours(20_000)), 0.1);
    assert_eq!((case.status().generation, case.slots()), (2, vec![0]));
}

#[test]
fn nothing_is_redirected_to_a_port_that_cannot_transmit() {
    let linux = linux();
    linux.0.cannot_transmit.borrow_mut().insert(1);
    let mut case = start_with(config(), linux).unwrap();
    assert_eq!(
        (case.slots(), case.status().ports[1].problems.clone()),
        (vec![0], vec![Code::CannotTransmit.cause("takes no redirects").into()])
    );
    case.linux.0.cannot_transmit.borrow_mut().clear();
    (0..2).for_each(|_| case.round(Ok(vec![]), 1.1));
    assert_eq!(case.slots(), [0, 1]);
}

/// A generic port has no transmit function for redirects of native ports. Redirects of generic ports need none.
#[test]
fn only_generic_ports_redirect_to_a_generic_port() {
    let linux = linux();
    linux.0.generic.borrow_mut().extend(["eth1".into(), "eth2".into()]);
    linux.0.cannot_transmit.borrow_mut().extend([0, 1]);
    let mut case = start_with(config(), linux).unwrap();
    assert_eq!(case.slots(), [0, 1]);
    assert_eq!(case.status().ports[0].note.as_deref(), Some("generic mode"));
    // One port goes, and comes back in native mode.
    case.round(Ok(vec![Event::PortGone(0)]), 0.1);
    case.linux.0.generic.borrow_mut().remove("eth1");
    case.linux.0.cannot_transmit.borrow_mut().remove(&0);
    case.round(Ok(vec![Event::Port(0, port(7))]), 0.1);
    assert_eq!(
        case.linux.0.attached.borrow().last().unwrap().slots,
        [0; 0],
        "slots are cleared before a native port redirects"
    );
    assert_eq!(case.slots(), [0]);
    let status = case.status();
    assert_eq!((status.ports[0].note.clone(), status.ports[1].problems.len()), (None, 0));
    assert!(
        status.ports[1].note.as_ref().is_some_and(|note| note.contains("sent by the kernel")),
        "{status:?}"
    );
}

#[test]
fn a_port_is_trusted_only_without_problems() {
    let mut case = start();
    let ready = |case: &Case| case.control.generation.plane.ports.borrow()[&1].ready;
    assert!(ready(&case));
    case.linux.0.problems.borrow_mut().insert(1, vec!["partial checksums".into()]);
    (0..2).for_each(|_| case.round(Ok(vec![]), 1.1));
    assert!(!ready(&case));
    assert_eq!(case.status().ports[1].problems, ["partial checksums"]);
    case.linux.0.problems.borrow_mut().clear();
    (0..2).for_each(|_| case.round(Ok(vec![]), 1.1));
    assert!(ready(&case));
}

#[test]
fn a_router_is_accelerated_only_by_a_port_that_is_trusted() {
    let linux = linux();
    let problem = |text: &str| vec![text.to_string()];
    *linux.0.problems.borrow_mut() = [(0, problem("hides tags")), (1, problem("LRO"))].into();
    let mut case = start_with(config(), linux).unwrap();
    assert_eq!(
        case.control.summary(),
        "0 of 1 routers accelerated, ports eth1 (native, NOT TRUSTED: hides tags), eth2 (native, NOT TRUSTED: LRO)"
    );
    let status = case.status();
    assert!(!status.ready && status.problem.is_some_and(|p| p.starts_with("no port is trusted")));
    assert!(!status.routers[0].accelerated.ipv4);
    let why = ["eth1", "eth2"].map(|name| Why {
        code: "port_not_trusted".into(),
        text: format!("port {name} is not trusted, see `millrace ports`"),
    });
    assert_eq!(status.routers[0].why_not.ipv4, why);
    case.linux.0.problems.borrow_mut().remove(&1);
    (0..2).for_each(|_| case.round(Ok(vec![]), 1.1));
    let status = case.status();
    let router = &status.routers[0];
    assert!(status.ready && router.why_not.ipv4.is_empty(), "one trusted port is enough: {status:?}");
    assert_eq!(router.left_to_kernel[0].why_not.ipv4, [why[0].clone()]);
    assert!(case.control.summary().starts_with("1 of 1 routers accelerated"));
    case.linux.0.problems.borrow_mut().insert(1, problem("LRO"));
    (0..2).for_each(|_| case.round(Ok(vec![]), 1.1));
    let (ended, ..) = run(case, vec![Query::Leave]);
    assert_eq!(ended, Ended::Left { forwarding: false });
}

#[test]
fn a_port_that_is_down_or_gone_says_so_at_once() {
    let mut case = start();
    case.round(Ok(vec![Event::Link(0, Link { up: false, ..link(2, "eth2") })]), 0.001);
    let port = |case: &mut Case| case.status().ports.remove(1);
    assert_eq!(port(&mut case).problems, ["the port is down (ip link set dev eth2 up)"]);
    assert!(case.status().ready, "the other is up");
    case.round(Ok(vec![Event::Link(0, link(2, "eth2"))]), 0.001);
    assert_eq!(port(&mut case).problems, [""; 0]);
    case.linux.0.problems.borrow_mut().insert(1, vec!["offloads".into()]);
    case.round(Ok(vec![Event::LinkGone(0, 2)]), 2.0);
    assert_eq!(
        (port(&mut case).problems, port(&mut case).mode),
        (vec![Code::DeviceMissing.cause("the device is gone").into()], "detached".into())
    );
    case.round(Ok(vec![Event::PortGone(1)]), 0.001);
    assert_eq!(port(&mut case).problems, ["the device is not there"]);
}
