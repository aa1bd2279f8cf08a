//! Which connections can bypass the rules.

use super::*;
use crate::{
    connections::{
        admission::{Admission, Consent, Refusal, STEPS_PER_S},
        note::ConnectionNote,
        tracked::{Special, TCP_ESTABLISHED, Tracked, Way},
    },
    firewall::{
        ruleset::Firewall,
        traffic::{HW_OFFLOAD, OFFLOAD},
    },
};

/// A connection behind a masquerade.
fn tracked(protocol: u8) -> Tracked {
    Tracked {
        tuples: [tuple("10.0.0.2:5000", "192.0.2.1:80"), tuple("192.0.2.1:80", "198.51.100.1:6000")],
        protocol,
        status: SEEN_REPLY | ASSURED | CONFIRMED | SRC_NAT,
        tcp_state: (protocol == TCP).then_some(TCP_ESTABLISHED),
        expires_s: 100,
        special: None,
    }
}

fn noted(protocol: u8, tuple: Tuple) -> ConnectionNote {
    ConnectionNote { router: 0, version: Version::V4, protocol, tuple, ingress: 1, egress: 2 }
}

/// With an empty chain of NAT.
fn admission(mut rules: Ruleset, consent: Consent) -> Admission {
    let mut chain = base(Hook::Postrouting, 100, true, Vec::new());
    chain.base.iter_mut().for_each(|base| base.nat = true);
    rules.tables.extend(table(vec![("n", chain)]).tables);
    Admission::new(Arc::new(Firewall { rules, ..Firewall::default() }), consent)
}

/// The decision after a packet that the client has sent.
fn decide(rules: &Ruleset, consent: Consent, tracked: &Tracked) -> Result<[Way; 2], Refusal> {
    let seen = noted(tracked.protocol, tracked.tuples[0]);
    let devices = [&device(2, "lan"), &device(3, "wan")];
    admission(rules.clone(), consent)
        .admit(&seen, tracked, devices, Duration::ZERO)
        .map(|admitted| admitted.ways.0)
}

/// Accepts established connections, and new ones from inside.
fn stateful() -> Ruleset {
    forward(vec![and(state(ESTABLISHED), accept()), and(name(6, "lan"), accept())])
}

#[test]
fn both_directions_are_translated_as_linux_does() {
    let there = Way {
        arrives: tuple("10.0.0.2:5000", "192.0.2.1:80"),
        leaves: tuple("198.51.100.1:6000", "192.0.2.1:80"),
    };
    let back = Way {
        arrives: tuple("192.0.2.1:80", "198.51.100.1:6000"),
        leaves: tuple("192.0.2.1:80", "10.0.0.2:5000"),
    };
    let udp = tracked(UDP);
    assert_eq!(decide(&stateful(), Consent::Udp, &udp), Ok([there, back]));
    let seen = noted(UDP, back.arrives);
    let devices = [&device(3, "wan"), &device(2, "lan")];
    let after_answers =
        |udp: &Tracked| admission(stateful(), Consent::Udp).admit(&seen, udp, devices, Duration::ZERO);
    assert_eq!(after_answers(&udp), Err(Refusal::OnlyAnswers));
    // Translation of the destination
    let udp = Tracked {
        tuples: [tuple("192.0.2.1:80", "198.51.100.1:6000"), tuple("10.0.0.2:5000", "192.0.2.1:80")],
        status: udp.status & !SRC_NAT | DST_NAT,
        ..udp
    };
    assert_eq!(decide(&stateful(), Consent::Udp, &udp), Ok([back, there]));
    let udp = Tracked { tuples: [udp.tuples[1], udp.tuples[0]], ..udp };
    assert_eq!(after_answers(&udp).unwrap().ways.0, [back, there]);
    // A packet of another connection
    let other = noted(UDP, tuple("10.0.0.3:5000", "192.0.2.1:80"));
    let refused = admission(stateful(), Consent::Udp).admit(&other, &udp, devices, Duration::ZERO);
    assert_eq!(refused, Err(Refusal::Unknown));
}

#[test]
fn linux_keeps_what_only_it_can_do() {
    let refused = |change: &dyn Fn(&mut Tracked)| {
        let mut connection = tracked(TCP);
        change(&mut connection);
        decide(&stateful(), Consent::All, &connection).err()
    };
    assert_eq!(refused(&|_| ()), None);
    assert_eq!(refused(&|c| c.status &= !ASSURED), Some(Refusal::TooNew));
    assert_eq!(refused(&|c| c.status &= !SEEN_REPLY), Some(Refusal::TooNew));
    assert_eq!(refused(&|c| c.status |= HW_OFFLOAD), Some(Refusal::InFlowTable));
    for state in (0..12).filter(|state| *state != TCP_ESTABLISHED) {
        assert_eq!(refused(&|c| c.tcp_state = Some(state)), Some(Refusal::NotEstablished));
    }
    assert_eq!(refused(&|c| c.tcp_state = None), Some(Refusal::NotEstablished));
    for special in [Special::Helper, Special::SequenceShift, Special::SynProxy, Special::Zone] {
        assert_eq!(refused(&|c| c.special = Some(special)), Some(Refusal::Special(special)));
    }
}

#[test]
fn tcp_needs_consent() {
    assert_eq!(decide(&stateful(), Consent::Udp, &tracked(TCP)), Err(Refusal::NoConsent));
    assert!(decide(&stateful(), Consent::All, &tracked(TCP)).is_ok());
    let add = || vec![Expression::AddFlow("ft".into())];
    let with_table = forward(vec![add(), and(state(ESTABLISHED), accept())]);
    assert!(decide(&with_table, Consent::Udp, &tracked(TCP)).is_ok());
    // Of one direction only
    let one_way = forward(vec![and(name(6, "lan"), add()), and(state(ESTABLISHED), accept())]);
    assert_eq!(decide(&one_way, Consent::Udp, &tracked(TCP)), Err(Refusal::NoConsent));
}

#[test]
fn linux_keeps_udp_that_is_in_its_flow_table() {
    let add = forward(vec![vec![Expression::AddFlow("ft".into())], accept()]);
    let in_table = |protocol| Tracked { status: tracked(protocol).status | OFFLOAD, ..tracked(protocol) };
    assert_eq!(decide(&add, Consent::All, &in_table(UDP)), Err(Refusal::InFlowTable));
    assert!(decide(&add, Consent::Udp, &in_table(TCP)).is_ok());
    let new = Tracked { status: in_table(UDP).status & !ASSURED, ..in_table(UDP) };
    assert_eq!(decide(&add, Consent::All, &new), Err(Refusal::InFlowTable));
}

#[test]
fn rules_must_accept_both_directions() {
    let refused = |list| match decide(&forward(list), Consent::All, &tracked(TCP)) {
        Err(Refusal::Ruled(obstacle)) => obstacle.handle,
        other => panic!("{other:?}"),
    };
    // The replies reach the policy.
    assert_eq!(refused(vec![and(name(6, "lan"), accept())]), None);
    assert_eq!(refused(vec![and(name(6, "wan"), drop()), accept()]), Some(1));
    let log = vec![Other("log".into())];
    assert_eq!(refused(vec![and(state(ESTABLISHED), and(log, accept()))]), Some(1));
    // With its addresses, one connection is accepted where others are not.
    let blocklist = |bytes: &[u8]| forward(vec![and(source(bytes), drop()), accept()]);
    assert!(decide(&blocklist(&[10, 0, 0, 3]), Consent::All, &tracked(TCP)).is_ok());
    assert!(decide(&blocklist(&[10, 0, 0, 2]), Consent::All, &tracked(TCP)).is_err());
    assert!(decide(&blocklist(&[192, 0, 2, 1]), Consent::All, &tracked(TCP)).is_err());
}

/// The rule concerns only the first packet, and yet it matters for the whole connection.
#[test]
fn rules_about_reports_and_timeouts_of_connections_keep_them_with_linux() {
    for name in ["ct event set", "ct timeout set", "ct zone set", "-j CT"] {
        let first = and(super::name(6, "lan"), vec![Other(name.into())]);
        let mut ruleset = stateful();
        let other = forward(vec![and(state(NEW), first)]);
        ruleset.tables.extend(other.tables);
        match decide(&ruleset, Consent::All, &tracked(UDP)) {
            Err(Refusal::Ruled(obstacle)) => {
                assert_eq!((obstacle.handle, obstacle.why), (Some(1), Why::Does(name.into())));
            }
            other => panic!("{name}: {other:?}"),
        }
    }
    let marks = and(state(NEW), vec![Other("ct mark set".into())]);
    let ruleset = forward(vec![marks, and(state(ESTABLISHED), accept())]);
    assert!(decide(&ruleset, Consent::All, &tracked(UDP)).is_ok());
}

#[test]
fn proofs_take_a_bounded_time() {
    let long = forward((0..200).map(|n| and(source(&[10, 0, 1, n]), drop())).chain([accept()]).collect());
    let mut admission = admission(long, Consent::All);
    let devices = [&device(2, "lan"), &device(3, "wan")];
    let mut all = (0..=u16::MAX).map(|port| {
        let mut udp = tracked(UDP);
        udp.tuples.iter_mut().for_each(|tuple| tuple.source_port = port);
        let seen = noted(UDP, udp.tuples[0]);
        admission.admit(&seen, &udp, devices, Duration::ZERO)
    });
    let admitted = all.by_ref().take_while(Result::is_ok).count();
    assert!((100..STEPS_PER_S as usize / 400).contains(&admitted), "{admitted}");
    assert!(all.take(10).all(|result| result == Err(Refusal::Busy)));
    admission.renew(STEPS_PER_S);
    let udp = tracked(UDP);
    let seen = noted(UDP, udp.tuples[0]);
    assert!(admission.admit(&seen, &udp, devices, Duration::ZERO).is_ok());
}
