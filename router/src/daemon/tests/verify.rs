//! Each namespace has a result of its own, which does not depend on the others.

use super::*;
use crate::api::status::{VerifyResult, VerifyRouter};
use std::io::ErrorKind;

const RED: NamespaceId = 1;
const BLUE: NamespaceId = 2;

/// A namespace with a macvlan on each port, and a route to 10.9.0.0/16 by the second one.
fn tenant(id: NamespaceId) -> Dump {
    let kind = LinkKind::Macvlan(MacvlanMode::Bridge);
    let macvlan = |ifindex: u32, name: &str| Link {
        kind: kind.clone(),
        below: Some((0, ifindex)),
        mac: Mac([2, 0, 0, id as u8, 0, ifindex as u8]),
        ..link(ifindex, name)
    };
    // Both neighbours can be next hops.
    let mut neighbours = dump().neighbours;
    neighbours.push(neighbour(2, "10.0.2.8", 8, false));
    neighbours.remove(1);
    Dump { links: vec![macvlan(1, "m1"), macvlan(2, "m2")], neighbours, ..dump() }
}

/// A host and two tenants, all of them routers.
fn three() -> Case {
    let mut case = start();
    for (id, name) in [(RED, "red"), (BLUE, "blue")] {
        let about = Namespace {
            name: name.into(),
            host: false,
            configured: false,
            owner: logic::observe::Owner::Machine,
        };
        let dump = tenant(id);
        case.linux.0.tenants.lock().unwrap().insert(id, Tenant { dump: dump.clone(), ..Tenant::default() });
        let events = vec![Event::Namespace(id, about), Event::Dump(id, Box::new(dump))];
        case.round(Ok(events), 0.1);
    }
    case
}

/// Adds a route to Linux that the observer misses.
fn plant(case: &Case, namespace: NamespaceId) {
    let missed = route("10.7.0.0/16", 2, Some("10.0.2.9"));
    case.linux.0.tenants.lock().unwrap().get_mut(&namespace).unwrap().dump.routes4.push(missed);
}

fn results(report: &VerifyReport) -> [VerifyResult; 3] {
    let [host, red, blue] = ["host", "red", "blue"].map(|name| of(report, name).result);
    [host, red, blue]
}

fn of<'a>(report: &'a VerifyReport, name: &str) -> &'a VerifyRouter {
    report.routers.iter().find(|router| router.router == name).unwrap()
}

#[test]
fn calm_namespaces_are_verified() {
    let mut case = three();
    let report = case.verify();
    assert_eq!(results(&report), [VerifyResult::Verified; 3], "{report:?}");
    assert!(report.routers.iter().all(|router| router.asked > 1000), "{report:?}");
    assert_eq!((report.differences, report.unverified), (0, 0));
}

/// Reports of red always wait in its socket.
#[test]
fn a_namespace_that_never_gets_current_does_not_affect_others() {
    let mut case = three();
    case.linux.0.standings.borrow_mut().insert(RED, Standing::Behind);
    plant(&case, RED);
    plant(&case, BLUE);
    let report = case.verify();
    assert_eq!(results(&report), [VerifyResult::Verified, VerifyResult::Changing, VerifyResult::Differs]);
    assert_eq!((of(&report, "red").found, report.unverified), (0, 1), "{report:?}");
    assert!(of(&report, "red").changing >= 3, "both ends of the route, and inside: {report:?}");
    assert_eq!(of(&report, "red").why.as_deref(), Some("it changed all the time"));
    assert!(report.differences >= 3 && report.differences == of(&report, "blue").found, "{report:?}");
}

#[test]
fn a_namespace_whose_looks_took_too_long_is_not_called_changing() {
    let mut case = three();
    plant(&case, RED);
    let answer = case.begin_verify();
    let report = case.verified_while(answer, |case| {
        // All later looks together have 15 s.
        case.round(Ok(Vec::new()), 20.0);
    });
    assert_eq!(results(&report), [VerifyResult::Verified, VerifyResult::Unread, VerifyResult::Verified]);
    assert_eq!(of(&report, "red").why.as_deref(), Some("there was not enough time to look again"));
}

/// Linux is queried while red changes, and its reports are taken in before the next query.
#[test]
fn a_storm_is_no_difference_even_if_linux_and_the_table_disagree_alike_each_time() {
    let mut case = three();
    plant(&case, BLUE);
    let missed = route("10.6.0.0/16", 2, Some("10.0.2.9"));
    case.linux.0.tenants.lock().unwrap().get_mut(&RED).unwrap().dump.routes4.push(missed.clone());
    let answer = case.begin_verify();
    let report = case.verified_while(answer, |case| {
        // The route comes and goes. It exists whenever Linux is queried.
        let comes = Event::Route4(RED, Change::Add, missed.clone());
        let goes = Event::Route4(RED, Change::Delete, missed.clone());
        case.round(Ok(vec![comes, goes]), 0.01);
    });
    assert_eq!(results(&report), [VerifyResult::Verified, VerifyResult::Changing, VerifyResult::Differs]);
    assert_eq!(of(&report, "red").found, 0, "{report:?}");
}

#[test]
fn a_storm_of_one_prefix_hides_no_difference_of_another() {
    let mut case = three();
    let other = route("10.6.0.0/16", 2, Some("10.0.2.9"));
    plant(&case, BLUE);
    let answer = case.begin_verify();
    let report = case.verified_while(answer, |case| {
        let changes = [Change::Add, Change::Delete].map(|change| Event::Route4(BLUE, change, other.clone()));
        case.round(Ok(changes.into()), 0.01);
    });
    assert!(of(&report, "blue").found >= 3, "{report:?}");
    assert!(of(&report, "blue").differences.iter().all(|d| d.prefix.contains(" at 10.7.")), "{report:?}");
}

#[test]
fn a_namespace_over_its_limits_is_named_and_no_other_suffers() {
    for late in [false, true] {
        let mut case = three();
        plant(&case, BLUE);
        let over = Standing::OverLimits("it has more than 9 routes".into());
        plant(&case, RED);
        let answer = if late {
            let (let_go, hold) = sync_channel(0);
            *case.linux.0.hold.borrow_mut() = Some(hold);
            let answer = case.begin_verify();
            case.linux.0.standings.borrow_mut().insert(RED, over);
            let_go.send(()).unwrap();
            answer
        } else {
            case.linux.0.standings.borrow_mut().insert(RED, over);
            case.begin_verify()
        };
        let report = case.verified(answer);
        let expected = [VerifyResult::Verified, VerifyResult::OverLimits, VerifyResult::Differs];
        assert_eq!(results(&report), expected, "{report:?}");
        assert_eq!(of(&report, "red").why.as_deref(), Some("it has more than 9 routes"));
        assert_eq!((of(&report, "red").found, report.unverified), (0, 1));
    }
}

#[test]
fn a_namespace_that_cannot_be_read_is_named_and_no_other_suffers() {
    let kinds = [
        (ErrorKind::QuotaExceeded, VerifyResult::OverLimits),
        (ErrorKind::Interrupted, VerifyResult::Changing),
        (ErrorKind::TimedOut, VerifyResult::Unread),
        (ErrorKind::PermissionDenied, VerifyResult::Unread),
    ];
    for (kind, result) in kinds {
        let mut case = three();
        plant(&case, BLUE);
        case.linux.0.tenants.lock().unwrap().get_mut(&RED).unwrap().broken = Some(kind);
        let report = case.verify();
        assert_eq!(results(&report), [VerifyResult::Verified, result, VerifyResult::Differs], "{kind:?}");
        assert!(of(&report, "red").why.is_some(), "{report:?}");
    }
}

#[test]
fn a_router_that_ends_meanwhile_has_no_difference() {
    let mut case = three();
    plant(&case, RED);
    let (let_go, hold) = sync_channel(0);
    *case.linux.0.hold.borrow_mut() = Some(hold);
    let answer = case.begin_verify();
    let_go.send(()).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    case.round(Ok(vec![Event::NamespaceGone(RED)]), 0.01);
    let report = case.verified(answer);
    assert_eq!(results(&report), [VerifyResult::Verified, VerifyResult::Changing, VerifyResult::Verified]);
    assert_eq!(of(&report, "red").found, 0);
}

#[test]
fn a_router_whose_table_is_not_used_is_reported_as_not_used() {
    let mut case = three();
    case.round(Ok(vec![a_rule()]), 0.1);
    case.linux.0.dump.borrow_mut().routes4.pop();
    let hazards = vec![Code::PolicyRule.cause("a rule")];
    let both = NamespaceSettings { hazards4: hazards.clone(), hazards6: hazards, ..Default::default() };
    case.round(Ok(vec![Event::Settings(RED, both)]), 0.1);
    case.linux.0.tenants.lock().unwrap().get_mut(&RED).unwrap().broken = Some(ErrorKind::TimedOut);
    let report = case.verify();
    assert_eq!(results(&report), [VerifyResult::Verified, VerifyResult::NotUsed, VerifyResult::Verified]);
    assert_eq!(report.unverified, 0);
}
