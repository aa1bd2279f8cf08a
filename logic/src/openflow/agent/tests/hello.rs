use super::*;

/// The switch's hello, if it supports these versions.
fn hello(versions: &[Version]) -> Vec<u8> {
    let mut b = bench(Settings { versions: versions.to_vec(), ..settings() });
    b.agent.connected(ConnectionId(1), "peer", false, 0);
    match &b.agent.take_effects()[..] {
        [Effect::Send { bytes, .. }, Effect::Read(ConnectionId(1))] => bytes.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn our_hello_names_the_supported_versions() {
    assert_eq!(hello(&[OpenFlow10]), [1, 0, 0, 8, 0, 0, 0, 0]);
    let bitmap = |bits| [4, 0, 0, 16, 0, 0, 0, 0, 0, 1, 0, 8, 0, 0, 0, bits];
    assert_eq!(hello(&[OpenFlow13]), bitmap(0x10));
    assert_eq!(hello(&[OpenFlow10, OpenFlow13]), bitmap(0x12));
}

#[test]
fn the_version_is_the_highest_of_both() {
    let (old, new, both) = (&[OpenFlow10][..], &[OpenFlow13][..], &[OpenFlow10, OpenFlow13][..]);
    let (v10, v13) = (Some(OpenFlow10), Some(OpenFlow13));
    // Our versions, the version in the peer's header, the bits of its bitmap, and the resulting version.
    for (ours, theirs, bitmap, expected) in [
        (both, 1, None, v10),
        (both, 4, None, v13),
        (both, 6, None, v13),
        (both, 2, None, None),
        (both, 0, None, None),
        (both, 6, Some(0x12), v13),
        (both, 6, Some(0x42), v10),
        (both, 4, Some(0x02), v10),
        (both, 6, Some(0x60), None),
        (old, 4, Some(0x12), v10),
        (old, 4, None, v10),
        (old, 0, None, None),
        (new, 1, None, None),
        (new, 4, Some(0x12), v13),
        (new, 5, None, v13),
        (new, 4, Some(0x02), None),
    ] {
        let mut b = bench(Settings { versions: ours.to_vec(), ..settings() });
        b.connect(1, false);
        let body = bitmap.map_or(String::new(), |bits: u8| format!("0001 0008 000000{bits:02x}"));
        let mut bytes = raw(OpenFlow13, 0, 9, &body);
        bytes[0] = theirs;
        b.bytes(1, &bytes);
        let did = b.done();
        if expected.is_some() {
            assert_eq!((did, b.report(1).version), (vec![], expected), "{ours:?} {theirs} {bitmap:?}");
            continue;
        }
        let spoken = ours.iter().map(|v| v.name()).collect::<Vec<_>>().join(" and ");
        let offers = match (theirs, bitmap) {
            (_, Some(0x60)) => "1.4, 1.5",
            (_, Some(_)) => "1.0",
            (0, None) => "of number 0 at most",
            (1, None) => "1.0 at most",
            _ => "1.1 at most",
        };
        let text = format!(
            "no version in common: it offers OpenFlow {offers}; this switch supports OpenFlow {spoken}"
        );
        let failed = ErrorMessage { kind: 0, code: 0, data: text.clone().into_bytes() };
        assert_eq!(did, [Said(1, 9, Message::Error(failed)), Closed(1, text)]);
        assert_eq!(b.agent.report(), []);
    }
}

#[test]
fn a_hello_comes_first() {
    for (bytes, says, why) in [
        (
            raw(OpenFlow10, 5, 3, ""),
            1,
            "the first message is not a hello; this switch supports OpenFlow 1.0 and 1.3",
        ),
        (
            raw(OpenFlow13, 0x77, 3, ""),
            1,
            "the first message is not a hello; this switch supports OpenFlow 1.0 and 1.3",
        ),
        (raw(OpenFlow13, 1, 3, "0000 0000"), 0, "it refused our hello"),
        (vec![4, 0, 0, 7, 0, 0, 0, 0], 0, "a message is shorter than its header"),
    ] {
        let mut b = bench(settings());
        b.connect(1, false);
        b.bytes(1, &bytes);
        let did = b.done();
        assert_eq!(did.len(), 1 + says, "{did:?}");
        assert_eq!(did.last(), Some(&Closed(1, why.into())));
        // The connection no longer exists.
        b.bytes(1, &raw(OpenFlow10, 0, 3, ""));
        b.agent.written(ConnectionId(1), 9, 0, &Counters);
        assert_eq!(b.done(), []);
    }
}

#[test]
fn a_broken_length_ends_the_connection() {
    let mut b = bench(settings());
    b.open(1, OpenFlow13);
    let broken = [4, 2, 0, 7, 0, 0, 0, 5];
    b.bytes(1, &[&raw(OpenFlow13, 2, 4, "abcd")[..], &broken].concat());
    let echo = Said(1, 4, Message::EchoReply(vec![0xab, 0xcd]));
    let why = "a message is shorter than its header".into();
    assert_eq!(b.done(), [echo, Said(1, 5, error(1, 6, &broken)), Closed(1, why)]);
}

#[test]
fn a_silent_peer_gets_an_echo_request_and_is_then_closed() {
    let mut b = bench(settings());
    b.open(1, OpenFlow10);
    b.open(2, OpenFlow13);
    b.connect(3, false);
    b.now_ms += ECHO_MS - 1;
    b.agent.tick(b.now_ms);
    assert_eq!(b.done(), []);
    b.bytes(2, &raw(OpenFlow13, 2, 1, ""));
    assert_eq!(b.done(), [Said(2, 1, Message::EchoReply(vec![]))]);
    b.now_ms += 1;
    b.reads = false;
    b.agent.tick(b.now_ms);
    let no_hello = Closed(3, "it does not say hello".into());
    assert_eq!(b.done(), [no_hello, Said(1, 0, Message::EchoRequest(vec![]))]);
    b.now_ms += ECHO_MS - 1;
    b.agent.tick(b.now_ms);
    assert_eq!(b.done(), [Said(2, 0, Message::EchoRequest(vec![]))]);
    b.bytes(2, &raw(OpenFlow13, 3, 0, ""));
    b.now_ms += 1;
    b.agent.tick(b.now_ms);
    assert_eq!(b.done(), [Closed(1, "it does not answer".into())]);
    b.now_ms += ECHO_MS - 2;
    b.agent.tick(b.now_ms);
    assert_eq!(b.done(), []);
}
