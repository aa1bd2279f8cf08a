//! The tables, reports about them, and comparing them with Linux.

use super::*;
use crate::{
    api::{
        RouteQuery,
        status::Status,
        summary::{Summary, SummaryState},
    },
    daemon::{
        listening::{Listening, Pending},
        metrics::Observed,
        serving,
    },
};

#[test]
fn the_table_follows_events() {
    let mut case = start();
    let hop = &case.route("10.9.1.1").hops[0];
    assert_eq!((hop.action.as_str(), hop.interface.as_deref()), ("forward", Some("eth2")));
    assert_eq!((hop.next_hop.as_deref(), hop.mac.as_deref()), (Some("10.0.2.9"), Some("02:01:00:00:00:09")));
    assert_eq!(case.route("10.9.1.1").prefix.as_deref(), Some("10.9.0.0/16"));
    assert_eq!(case.route("10.8.1.1").hops[0].reason.as_deref(), Some(Reason::NoRoute.text()));
    let new = route("10.8.0.0/16", 1, Some("10.0.1.5"));
    case.round(Ok(vec![Event::Route4(0, Change::Add, new)]), 0.001);
    assert_eq!(case.route("10.8.1.1").hops[0].mac.as_deref(), Some("02:01:00:00:00:05"));
}

#[test]
fn neighbours_in_use_are_probed_when_stale() {
    let mut case = start();
    case.round(Ok(vec![]), 6.0);
    assert!(case.linux.0.probed.borrow().is_empty(), "not in use");
    // struct nexthop: `used` is the low half of word 6.
    let memory = case.linux.0.memory.borrow().clone().unwrap();
    memory.nexthops().iter().skip(6).step_by(words::NEXTHOP).for_each(|w| w.store(1, Relaxed));
    case.round(Ok(vec![]), 0.5);
    let gateway = "10.0.2.9".parse::<IpAddr>().unwrap();
    assert_eq!(*case.linux.0.probed.borrow(), [gateway], "only the stale one, within half a second");
    case.round(Ok(vec![]), 0.5);
    assert_eq!(case.linux.0.probed.borrow().len(), 1, "once for each use");
}

/// neigh_timer_handler(): an entry in use is probed as soon as its time is over.
#[test]
fn a_neighbour_in_use_is_probed_as_soon_as_it_goes_stale() {
    let mut case = start();
    let see = |stale| vec![Event::Neighbour(0, neighbour(2, "10.0.2.9", 9, stale))];
    let memory = case.linux.0.memory.borrow().clone().unwrap();
    let forward =
        || memory.nexthops().iter().skip(6).step_by(words::NEXTHOP).for_each(|w| w.store(1, Relaxed));
    case.round(Ok(see(false)), 1.0);
    forward();
    case.round(Ok(see(true)), 0.001);
    assert_eq!(case.linux.0.probed.borrow().len(), 1, "in the same round");
    case.round(Ok(see(false)), 0.001);
    forward();
    case.round(Ok(vec![]), 5.0);
    case.round(Ok(see(true)), 4.0);
    assert_eq!(case.linux.0.probed.borrow().len(), 2, "its use was read seconds ago");
    case.round(Ok(see(false)), 10.0);
    case.round(Ok(see(true)), 10.0);
    assert_eq!(case.linux.0.probed.borrow().len(), 2, "not used since");
}

#[test]
fn verify_finds_what_differs() {
    let mut case = start();
    let report = case.verify();
    assert_eq!((report.differences, report.routers[0].compared.ipv4), (0, 3), "{report:?}");
    // The observer has missed this route.
    case.linux.0.dump.borrow_mut().routes4.push(route("10.7.0.0/16", 1, Some("10.0.1.5")));
    let report = case.verify();
    assert!(report.differences >= 3, "both ends of the route, and inside: {report:?}");
    let first = &report.routers[0].differences[0];
    assert_eq!((first.prefix.as_str(), first.fast.as_str()), ("10.7.0.0/16 at 10.7.0.0", "no_route"));
    assert!(first.kernel.starts_with("10.0.1.5 (02:01:00:00:00:05)"), "{first:?}");
}

#[test]
fn verify_and_status_count_the_same_prefixes() {
    let mut case = start();
    let loopback = route("127.0.0.0/8", 1, None);
    case.linux.0.dump.borrow_mut().routes4.push(loopback.clone());
    case.round(Ok(vec![Event::Route4(0, Change::Add, loopback)]), 0.1);
    assert_eq!(case.verify().routers[0].compared, case.status().routers[0].routes);
}

#[test]
fn verify_reads_the_memory_itself() {
    let mut case = start();
    let memory = case.linux.0.memory.borrow().clone().unwrap();
    // Change the MAC addresses of resolved next hops.
    memory.nexthops().iter().step_by(words::NEXTHOP).filter(|w| w.load(Relaxed) != 0).for_each(|w| {
        w.fetch_xor(0xff, Relaxed);
    });
    let report = case.verify();
    assert!(report.differences > 0);
}

#[test]
fn the_loop_goes_on_while_a_comparison_runs_and_there_is_one_at_a_time() {
    let mut case = start();
    let (let_go, hold) = sync_channel(0);
    *case.linux.0.hold.borrow_mut() = Some(hold);
    let answer = case.begin_verify();
    let new = route("10.8.0.0/16", 1, Some("10.0.1.5"));
    case.round(Ok(vec![Event::Route4(0, Change::Add, new)]), 5.0);
    assert_eq!(case.linux.0.deadline.get().as_secs(), 1008, "confirmed meanwhile");
    assert_eq!(case.route("10.8.1.1").hops[0].action, "forward", "changed meanwhile");
    let error = case.begin_verify().try_recv().unwrap().unwrap_err();
    assert!(error.status == 503 && error.text.contains("already running"), "{error:?}");
    // Linux has it too, by the time it is read again.
    case.linux.0.dump.borrow_mut().routes4.push(route("10.8.0.0/16", 1, Some("10.0.1.5")));
    let_go.send(()).unwrap();
    assert_eq!(case.verified(answer).differences, 0);
}

#[test]
fn changes_under_way_are_no_differences() {
    let mut case = start();
    let new = |prefix| route(prefix, 1, Some("10.0.1.5"));
    case.linux.0.dump.borrow_mut().routes4.extend([new("10.7.0.0/16"), new("10.6.0.0/16")]);
    let answer = case.begin_verify();
    std::thread::sleep(Duration::from_millis(100));
    // One of them comes late, the other never.
    case.round(Ok(vec![]), 0.01);
    case.round(Ok(vec![Event::Route4(0, Change::Add, new("10.7.0.0/16"))]), 0.01);
    let report = case.verified(answer);
    assert!(report.differences >= 3, "{report:?}");
    assert!(report.routers[0].differences.iter().all(|d| d.prefix.contains(" at 10.6.")), "{report:?}");
}

#[test]
fn errors_of_queries_name_what_exists_or_what_is_needed() {
    let mut case = start();
    let explain = |packet: Option<&str>, frame: Option<&str>, port: Option<&str>, router: Option<&str>| {
        let text = |s: Option<&str>| s.map(String::from);
        let (packet, frame, port, router) = (text(packet), text(frame), text(port), text(router));
        Query::Explain(crate::api::status::ExplainRequest { packet, frame, port, router })
    };
    let packet = Some("udp 10.0.1.5 -> 10.9.0.1");
    let table = [
        (
            Query::Route(RouteQuery { address: [1, 1, 1, 1].into(), router: Some("red".into()) }),
            404,
            "there are: host",
        ),
        (explain(None, None, None, None), 400, "either a packet or a frame"),
        (explain(Some("x"), None, None, None), 400, "unknown protocol"),
        (explain(packet, None, Some("eth9"), None), 404, "there are: eth1, eth2"),
        (explain(packet, None, None, Some("red")), 404, "there are: host"),
        (explain(None, Some("00"), None, None), 400, "needs the port"),
        (explain(None, Some("zz"), Some("eth1"), None), 400, "not hexadecimal"),
        (explain(None, Some("00"), Some("eth1"), None), 400, "14 to 9100 bytes, not 1"),
    ];
    for (query, status, part) in table {
        let error = case.control.answer(&query).unwrap_err();
        assert!(error.status == status && error.text.contains(part), "{query:?}: {error:?}");
    }
    let report: crate::api::status::ExplainReport = case.ask(explain(packet, None, None, None));
    assert_eq!(
        (report.port.as_str(), report.verdict.as_str()),
        ("eth1", "pass"),
        "the route back to the source leads to this port"
    );
    assert_eq!(report.before.unwrap().destination_mac, "02:00:00:00:00:01");
}

#[test]
fn a_router_with_an_interface_on_the_kernel_path_is_not_accelerated_as_a_whole() {
    let mut case = start();
    assert!(case.status().routers[0].accelerated.ipv4);
    case.round(Ok(vec![shaped(2, "eth2")]), 0.1);
    let router = &case.status().routers[0];
    assert!(!router.accelerated.ipv4 && !router.accelerated.ipv6, "{router:?}");
    assert!(router.why_not.is_empty(), "{router:?}");
    let left = &router.left_to_kernel[..];
    assert_eq!((left.len(), left[0].interface.as_str()), (1, "eth2"));
    assert_eq!(left[0].why_not.ipv4, ["a tbf qdisc"]);
}

#[test]
fn a_route_report_also_says_why_the_router_is_left_to_the_kernel() {
    let mut case = start();
    let plain = case.route("10.9.1.1");
    assert!(plain.why_not.is_empty() && plain.left_to_kernel.is_empty());
    case.round(Ok(vec![a_rule()]), 0.1);
    let route = case.route("10.9.1.1");
    assert_eq!(
        (route.why_not, route.hops[0].action.as_str()),
        (vec![Code::PolicyRule.cause("a rule").into()], "forward")
    );
    let verified = case.verify();
    assert_eq!(verified.routers[0].why_not.ipv4, ["a rule"]);
    case.round(Ok(vec![Event::Settings(0, NamespaceSettings::default()), shaped(1, "eth1")]), 0.1);
    let route = case.route("10.9.1.1");
    assert!(route.why_not.is_empty());
    assert_eq!(route.left_to_kernel[0].interface, "eth1");
    case.round(Ok(vec![shaped(2, "eth2")]), 0.1);
    assert_eq!(
        case.route("10.9.1.1").why_not,
        ["none of its interfaces is accelerated, see `millrace interfaces`"]
    );
}

#[test]
fn a_route_by_a_port_that_cannot_transmit_leads_to_the_kernel() {
    let linux = linux();
    linux.0.cannot_transmit.borrow_mut().insert(1);
    let mut case = start_with(config(), linux).unwrap();
    let hop = case.route("10.9.1.1").hops.remove(0);
    assert_eq!((hop.action.as_str(), hop.reason.as_deref()), ("pass", Some(Reason::TxNotReady.text())));
}

#[test]
fn interface_reports_repeat_the_reasons_of_their_router() {
    let mut case = start();
    case.round(Ok(vec![a_rule()]), 0.1);
    for interface in case.interfaces() {
        assert_eq!(interface.why_not.ipv4, ["router host: a rule"]);
        assert!(!interface.accelerated.ipv4 && interface.why_not.ipv6.is_empty());
    }
    case.linux.0.problems.borrow_mut().insert(1, vec!["LRO".into()]);
    (0..2).for_each(|_| case.round(Ok(vec![Event::Settings(0, NamespaceSettings::default())]), 1.1));
    let interfaces = case.interfaces();
    assert!(interfaces[0].accelerated.ipv4 && !interfaces[1].accelerated.ipv4);
    assert_eq!(interfaces[1].why_not.ipv4, ["port eth2 is not trusted, see `millrace ports`"]);
}

#[test]
fn a_page_of_metrics_has_the_status_and_the_first_interfaces() {
    let mut case = start();
    let Observed { status, interfaces, interfaces_left_out } = case.ask(Query::Metrics);
    let whole = case.status();
    assert_eq!((whole.summary.state, whole.summary.not_fast.len()), (SummaryState::Fast, 0));
    // Metrics need no sentences.
    let same = Status { summary: Summary::default(), ..whole };
    assert_eq!((&status, &interfaces), (&same, &case.interfaces()));
    assert!(interfaces.len() >= 2 && interfaces_left_out == 0 && !status.ports.is_empty());
}

#[test]
fn explain_names_the_route() {
    let mut case = start();
    let routes = [
        ("10.9.0.1", "route 10.9.0.0/16 via 10.0.2.9 on eth2"),
        ("10.0.2.7", "route 10.0.2.0/24 connected on eth2"),
        ("10.8.0.1", "no route to 10.8.0.1"),
    ];
    for (destination, route) in routes {
        let report = case.explain(&format!("udp 10.0.1.5 -> {destination}"));
        let plain: Vec<_> = report.steps.iter().filter(|s| !s.detail).map(|s| s.text.as_str()).collect();
        assert_eq!(plain[3..5], [route, "source accepted"]);
        let arrives = "assumed to arrive on port eth1, for interface eth1, where the route back to 10.0.1.5 leads; \
                       --port changes this";
        assert_eq!(report.notes, [arrives, "source or destination port not given: assumed to be 9"]);
        assert_eq!(report.steps.iter().filter(|s| s.detail).count(), 3);
    }
}

#[test]
fn explain_says_what_it_assumes() {
    let mut case = start();
    let report = case.explain("udp 8.8.8.8:1 -> 10.9.0.1");
    assert!(
        report.notes[0].starts_with("no route leads back to 8.8.8.8: assumed to arrive on port eth1"),
        "{report:?}"
    );
    let report = case.explain("udp 10.0.1.5 -> 10.9.0.1 vlan=77");
    let strange = "no interface has VLAN 77: assumed to arrive on port eth1, for the MAC of eth1";
    assert_eq!(report.notes, [strange, "source or destination port not given: assumed to be 9"]);
    for packet in ["udp 10.0.1.5:1 -> 10.9.0.1:2", "icmp 10.0.1.5 -> 10.9.0.1"] {
        let request = crate::api::status::ExplainRequest {
            packet: Some(packet.into()),
            port: Some("eth1".into()),
            ..Default::default()
        };
        let report: ExplainReport = case.ask(Query::Explain(request));
        assert_eq!(report.notes, [""; 0], "nothing was guessed: {packet}");
    }
    assert_eq!(report.before.unwrap().vlan.as_deref(), Some("77"));
    let frame = Some("02000000000902000000000208004500".into());
    let request =
        crate::api::status::ExplainRequest { frame, port: Some("eth2".into()), ..Default::default() };
    let report: ExplainReport = case.ask(Query::Explain(request));
    assert!(report.notes[0].contains("interface eth2: this box sent the frame"), "{report:?}");
}

#[test]
fn an_address_that_cannot_be_listened_on_is_a_condition() {
    let mut case = start_with(config(), linux()).unwrap();
    let pending = Pending::default();
    let address = "192.0.2.77:9111".parse().unwrap();
    let listening =
        Listening::start_or_wait(&pending, "metrics", address, axum::Router::new(), serving::CONTROL)
            .unwrap();
    case.control = case.control.with_pending(pending);
    let status = case.status();
    let [condition] = &status.conditions[..] else { panic!("{:?}", status.conditions) };
    assert_eq!((condition.kind.as_str(), condition.is_note), ("configuration", false));
    let begin = "metrics.listen: cannot listen on 192.0.2.77:9111: ";
    assert!(condition.sentence.starts_with(begin), "{condition:?}");
    drop(listening);
    assert_eq!(case.conditions(), [""; 0]);
}

#[test]
fn weights_of_unknown_routers_are_a_condition() {
    let mut config = config();
    config.shares.weights = [("host".into(), Weight(3)), ("hsot".into(), Weight(2))].into();
    let mut case = start_with(config, linux()).unwrap();
    let conditions = case.conditions();
    assert_eq!(conditions, ["shares.weights: there is no router hsot (see `millrace routers`)"]);
    let routers: Vec<crate::api::status::RouterReport> = case.ask(Query::Routers);
    let weights: Vec<u16> = routers.iter().map(|router| router.weight).collect();
    assert_eq!(weights, [3]);
}
