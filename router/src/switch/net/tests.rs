//! Tests with real sockets on loopback, and short times.

mod tls;

use super::{connection, listen::ROOM, *};
use crate::config::TlsFiles;
use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
    sync::mpsc::{Receiver, channel},
};

const PACE: Timing = Timing {
    first_retry: Duration::from_millis(100),
    last_retry: Duration::from_millis(800),
    settled: Duration::from_secs(1),
    connect: Duration::from_secs(2),
    hello: Duration::from_secs(60),
    keepalive: Duration::from_secs(1),
    gone: Duration::from_secs(3),
    linger: Duration::from_millis(500),
};
/// More than the buffers of two sockets on loopback.
const MUCH: usize = 64 << 20;
const PATIENCE: Duration = Duration::from_secs(20);
/// OpenFlow 1.3.
const HELLO: [u8; 8] = [4, 0, 0, 8, 0, 0, 0, 1];

/// A network and its events.
struct Observed {
    network: Network,
    events: Receiver<NetEvent>,
}

impl Observed {
    fn start(controllers: &[&str], tls: Option<TlsFiles>) -> Result<Self> {
        Self::start_at(controllers, tls, PACE)
    }

    fn start_at(controllers: &[&str], tls: Option<TlsFiles>, pace: Timing) -> Result<Self> {
        let controllers = controllers.iter().map(|target| target.parse().unwrap()).collect();
        let settings = OpenFlowSettings { controllers, tls, ..OpenFlowSettings::default() };
        let (to, events) = channel();
        let network = Network::start_at_pace(&settings, true, pace, move |event| drop(to.send(event)))?;
        Ok(Self { network, events })
    }

    fn listening() -> (Self, SocketAddr) {
        let observed = Self::start(&["ptcp:0:127.0.0.1"], None).unwrap();
        let address = observed.address();
        (observed, address)
    }

    fn address(&self) -> SocketAddr {
        self.network.report()[0].listening.unwrap()
    }

    fn next(&self) -> NetEvent {
        self.events.recv_timeout(PATIENCE).expect("an event")
    }

    fn connected(&self) -> ConnectionId {
        match self.next() {
            NetEvent::Connected { connection, .. } => connection,
            event => panic!("{event:?}"),
        }
    }

    fn received(&self, from: ConnectionId) -> Vec<u8> {
        self.network.read(from);
        match self.next() {
            NetEvent::Received { connection, bytes } if connection == from => bytes,
            event => panic!("{event:?}"),
        }
    }

    /// Waits for the end of a connection, and skips `Written` events.
    fn closed(&self, which: ConnectionId) -> String {
        loop {
            match self.next() {
                NetEvent::Closed { connection, why } if connection == which => return why,
                NetEvent::Written { .. } => {}
                event => panic!("{event:?}"),
            }
        }
    }

    fn nothing_for(&self, time: Duration) {
        assert_eq!(self.events.recv_timeout(time).ok(), None);
    }

    /// Waits until the first target's report is as wanted.
    fn report_until(&self, wanted: impl Fn(&ControllerReport) -> bool) -> ControllerReport {
        let begun = Instant::now();
        loop {
            let report = self.network.report().remove(0);
            if wanted(&report) {
                return report;
            }
            assert!(begun.elapsed() < PATIENCE, "{report:?}");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

fn dial(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Dials from 127.0.0.`host`.
fn dial_from(host: u8, address: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let dialling = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&dialling, &SocketAddr::from(([127, 0, 0, host], 0))).unwrap();
    connect(&dialling, &address).unwrap();
    let stream = TcpStream::from(dialling);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn read_exactly(stream: &mut TcpStream, bytes: usize) -> Vec<u8> {
    let mut read = vec![0; bytes];
    stream.read_exact(&mut read).unwrap();
    read
}

/// Bytes that show if some are lost, doubled or reordered.
fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect()
}

#[test]
fn an_accepted_connection_reports_each_event_from_first_to_last() {
    let (observed, address) = Observed::listening();
    let mut peer = dial(address);
    let connection = ConnectionId(0);
    let name = format!("tcp:{}", peer.local_addr().unwrap());
    assert_eq!(observed.next(), NetEvent::Connected { connection, peer: name.clone(), dialled: false });
    peer.write_all(b"hello").unwrap();
    observed.nothing_for(Duration::from_millis(100));
    assert_eq!(observed.received(connection), b"hello");
    observed.network.send(connection, b"and welcome".to_vec());
    assert_eq!(observed.next(), NetEvent::Written { connection, bytes: 11 });
    assert_eq!(read_exactly(&mut peer, 11), b"and welcome");
    let report = observed.network.report().remove(0);
    assert_eq!((report.target.as_str(), report.listening), ("ptcp:0:127.0.0.1", Some(address)));
    assert_eq!((report.connections.len(), &report.connections[0].peer), (1, &name));
    peer.shutdown(Shutdown::Write).unwrap();
    observed.network.read(connection);
    assert_eq!(observed.next(), NetEvent::Closed { connection, why: "closed by the peer".into() });
    let report = observed.network.report().remove(0);
    assert_eq!((report.connections, report.last_end.as_deref()), (Vec::new(), Some("closed by the peer")));
    // An order to a connection that is gone does nothing.
    observed.network.send(connection, vec![0]);
    observed.nothing_for(Duration::from_millis(50));
    let mut last = dial(address);
    assert_eq!(observed.connected(), ConnectionId(1));
    drop(observed);
    assert_eq!(last.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_controller_is_dialled_by_its_name() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = format!("tcp:localhost:{}", listener.local_addr().unwrap().port());
    let observed = Observed::start(&["ptcp:0:127.0.0.1", &target], None).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    let connection = ConnectionId(0);
    assert_eq!(observed.next(), NetEvent::Connected { connection, peer: target.clone(), dialled: true });
    peer.write_all(b"hello").unwrap();
    assert_eq!(observed.received(connection), b"hello");
    observed.network.send(connection, b"welcome".to_vec());
    assert_eq!(read_exactly(&mut peer, 7), b"welcome");
    assert!(peer.local_addr().is_ok() && observed.network.report()[1].attempts == 1);
}

fn settings(controllers: &[&str]) -> OpenFlowSettings {
    let controllers = controllers.iter().map(|target| target.parse().unwrap()).collect();
    OpenFlowSettings { controllers, ..OpenFlowSettings::default() }
}

#[test]
fn other_settings_end_only_the_connections_of_targets_that_are_gone() {
    let (kept, gone) = (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let [kept_at, gone_at] =
        [&kept, &gone].map(|listener| format!("tcp:127.0.0.1:{}", listener.local_addr().unwrap().port()));
    let mut observed = Observed::start(&[&gone_at, "ptcp:0:127.0.0.1", &kept_at], None).unwrap();
    let mut names = BTreeMap::new();
    for _ in 0..2 {
        match observed.next() {
            NetEvent::Connected { connection, peer, dialled: true } => drop(names.insert(peer, connection)),
            event => panic!("{event:?}"),
        }
    }
    let (mut kept_peer, _) = kept.accept().unwrap();
    let (mut gone_peer, _) = gone.accept().unwrap();
    let listened_at = observed.network.report()[1].listening.unwrap();
    let mut guest = dial(listened_at);
    let guest_is = observed.connected();
    // The kept target moves to the first place, and a listener comes.
    observed.network.follow(&settings(&[&kept_at, "ptcp:0:127.0.0.2"])).unwrap();
    let mut ended: Vec<_> = (0..2).map(|_| observed.next()).collect();
    ended
        .sort_by_key(|event| matches!(event, NetEvent::Closed { connection, .. } if *connection == guest_is));
    let closed = |connection| NetEvent::Closed { connection, why: NOT_CONFIGURED.into() };
    assert_eq!(ended, [closed(names[&gone_at]), closed(guest_is)]);
    assert_eq!((gone_peer.read(&mut [0]).unwrap(), guest.read(&mut [0]).unwrap()), (0, 0));
    assert!(TcpStream::connect(listened_at).is_err(), "nobody listens there any more");
    observed.network.send(names[&kept_at], b"still".to_vec());
    assert_eq!(observed.next(), NetEvent::Written { connection: names[&kept_at], bytes: 5 });
    assert_eq!(read_exactly(&mut kept_peer, 5), b"still");
    let report = observed.network.report();
    let targets: Vec<_> =
        report.iter().map(|r| (r.target.as_str(), r.connections.len(), r.attempts)).collect();
    assert_eq!(targets, [(kept_at.as_str(), 1, 1), ("ptcp:0:127.0.0.2", 0, 0)]);
    dial(report[1].listening.unwrap());
    observed.connected();
    // A target that is gone is not dialled again. One that comes back is a new one.
    gone.set_nonblocking(true).unwrap();
    thread::sleep(2 * PACE.first_retry);
    assert_eq!(gone.accept().map(drop).unwrap_err().kind(), ErrorKind::WouldBlock);
    observed.network.follow(&settings(&[&kept_at, &gone_at])).unwrap();
    gone.set_nonblocking(false).unwrap();
    gone.accept().unwrap();
}

#[test]
fn settings_that_cannot_be_used_change_nothing() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken_at = format!("ptcp:{}:127.0.0.1", taken.local_addr().unwrap().port());
    let (mut observed, address) = Observed::listening();
    let mut peer = dial(address);
    let connection = observed.connected();
    let error = observed.network.follow(&settings(&["ptcp:0:127.0.0.2", &taken_at])).unwrap_err();
    assert!(error.to_string().contains(&format!("cannot listen on {taken_at}")), "{error:#}");
    let tls = TlsFiles { key: "/none".into(), certificate: "/none".into(), ca: "/none".into() };
    let with_tls = OpenFlowSettings { tls: Some(tls), ..settings(&["ptcp:0:127.0.0.1"]) };
    assert!(observed.network.follow(&with_tls).is_err());
    observed.network.send(connection, b"still".to_vec());
    assert_eq!(read_exactly(&mut peer, 5), b"still");
    let report = observed.network.report();
    assert_eq!((report.len(), report[0].listening), (1, Some(address)));
}

#[test]
fn a_peer_that_floods_is_read_at_the_users_pace() {
    let (observed, address) = Observed::listening();
    let mut peer = dial(address);
    let connection = observed.connected();
    let flood = thread::spawn(move || {
        peer.set_nonblocking(true).unwrap();
        let (bytes, mut sent) = (pattern(MUCH), 0);
        let mut stuck_at = None;
        while sent < MUCH {
            match peer.write(&bytes[sent..]) {
                Ok(more) => sent += more,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    stuck_at.get_or_insert(sent);
                    thread::sleep(Duration::from_millis(1));
                }
                Err(error) => panic!("{error}"),
            }
        }
        stuck_at
    });
    observed.nothing_for(Duration::from_millis(300));
    let mut read = observed.received(connection);
    observed.nothing_for(Duration::from_millis(100));
    while read.len() < MUCH {
        let chunk = observed.received(connection);
        assert!(chunk.len() <= CHUNK_BYTES);
        read.extend(chunk);
    }
    assert!(read == pattern(MUCH));
    assert!(flood.join().unwrap().is_some_and(|sent| sent < MUCH));
}

#[test]
fn a_peer_that_does_not_read_holds_up_only_itself() {
    // Computed first: a peer that takes nothing for three seconds would be given up.
    let much = pattern(MUCH);
    let (observed, address) = Observed::listening();
    let mut slow = dial(address);
    let connection = observed.connected();
    observed.network.send(connection, much[..MUCH / 2].to_vec());
    observed.network.send(connection, much[MUCH / 2..].to_vec());
    let mut written = 0;
    while let Ok(NetEvent::Written { bytes, .. }) = observed.events.recv_timeout(Duration::from_millis(300)) {
        written += bytes;
    }
    assert!((1..MUCH).contains(&written), "{written}");
    // `Written` events of the slow peer may still come.
    let mut next_besides = || loop {
        match observed.next() {
            NetEvent::Written { connection: of, bytes } if of == connection => written += bytes,
            event => return event,
        }
    };
    let mut other = dial(address);
    let NetEvent::Connected { connection: second, .. } = next_besides() else { panic!("not connected") };
    observed.network.send(second, b"here".to_vec());
    assert_eq!(read_exactly(&mut other, 4), b"here");
    assert_eq!(next_besides(), NetEvent::Written { connection: second, bytes: 4 });
    assert!(read_exactly(&mut slow, MUCH) == much);
    observed.network.close(second, "done");
    drop(other);
    assert_eq!(next_besides(), NetEvent::Closed { connection: second, why: "done".into() });
    while written < MUCH {
        match observed.next() {
            NetEvent::Written { bytes, .. } => written += bytes,
            event => panic!("{event:?}"),
        }
    }
    assert_eq!(written, MUCH);
}

#[test]
fn a_peer_that_takes_nothing_is_given_up() {
    let (observed, address) = Observed::listening();
    let _peer = dial(address);
    let connection = observed.connected();
    let begun = Instant::now();
    observed.network.send(connection, pattern(MUCH));
    let why = observed.closed(connection);
    assert!(why.starts_with("writing: Connection timed out"), "{why}");
    assert!(begun.elapsed() >= PACE.gone, "{:?}", begun.elapsed());
}

/// The waits are 100, 200, 400, 800 and 800 ms, give or take a quarter, whichever side closed. After a connection of a
/// second the wait is 100 ms.
#[test]
fn dialling_backs_off_and_begins_again_after_a_good_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let observed = Observed::start(&[&format!("tcp:{}", listener.local_addr().unwrap())], None).unwrap();
    let mut closed_at = Instant::now();
    for (i, wait_ms) in [0, 100, 200, 400, 800, 800, 100].into_iter().enumerate() {
        let (peer, _) = listener.accept().unwrap();
        let waited_ms = closed_at.elapsed().as_millis() as u64;
        // A busy machine makes it later, never earlier. The last wait must be shorter than one that has not begun again.
        let most_ms = if i == 6 { 599 } else { u64::MAX };
        let allowed = wait_ms * 3 / 4..=most_ms;
        assert!(allowed.contains(&waited_ms), "{i}: {waited_ms} ms, wanted {allowed:?}");
        let connection = observed.connected();
        if i == 5 {
            thread::sleep(PACE.settled);
        }
        closed_at = Instant::now();
        if i % 2 == 0 {
            observed.network.close(connection, "nonsense");
            drop(peer);
            assert_eq!(observed.closed(connection), "nonsense");
        } else {
            drop(peer);
            observed.network.read(connection);
            assert_eq!(observed.closed(connection), "closed by the peer");
        }
    }
    assert_eq!(observed.network.report()[0].attempts, 7);
}

#[test]
fn a_refused_attempt_is_reported_and_repeated() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let observed = Observed::start(&[&format!("tcp:{address}")], None).unwrap();
    let report = observed.report_until(|report| report.attempts == 3);
    assert_eq!(report.last_end.as_deref(), Some("connecting: Connection refused (os error 111)"));
    let listener = TcpListener::bind(address).unwrap();
    let _peer = listener.accept().unwrap();
    observed.connected();
}

#[test]
fn a_source_has_so_many_connections_and_a_place_is_free_at_once() {
    let (observed, address) = Observed::listening();
    let greeted = |from| {
        let mut peer = dial_from(from, address);
        peer.write_all(&HELLO).unwrap();
        let connection = observed.connected();
        observed.network.read(connection);
        (peer, connection)
    };
    let heard =
        |of| assert_eq!(observed.next(), NetEvent::Received { connection: of, bytes: HELLO.to_vec() });
    let mut inside = Vec::new();
    for _ in 0..ROOM.inside_of_a_source {
        let (peer, connection) = greeted(1);
        heard(connection);
        inside.push((peer, connection));
    }
    for refused in 1..=3 {
        let (mut peer, connection) = greeted(1);
        assert_eq!(observed.closed(connection), connection::NO_ROOM);
        assert_eq!(peer.read(&mut [0]).unwrap_or(0), 0);
        observed.report_until(|report| report.refused == refused);
    }
    let (_other, connection) = greeted(2);
    heard(connection);
    // Its peer reads nothing, so it lingers, but its place is free at once.
    observed.network.send(inside[3].1, pattern(MUCH));
    observed.network.close(inside[3].1, "enough");
    loop {
        let (mut peer, connection) = greeted_besides(&observed, address);
        observed.network.read(connection);
        match next_but_written(&observed) {
            NetEvent::Received { connection: of, .. } if of == connection => break,
            NetEvent::Closed { connection: of, why } if of == connection => {
                assert_eq!(why, connection::NO_ROOM)
            }
            event => panic!("{event:?}"),
        }
        let _ = peer.read(&mut [0]);
    }
}

/// Opens one more connection from the first source, while another connection is written to.
fn greeted_besides(observed: &Observed, address: SocketAddr) -> (TcpStream, ConnectionId) {
    let mut peer = dial_from(1, address);
    peer.write_all(&HELLO).unwrap();
    match next_but_written(observed) {
        NetEvent::Connected { connection, .. } => (peer, connection),
        event => panic!("{event:?}"),
    }
}

fn next_but_written(observed: &Observed) -> NetEvent {
    loop {
        match observed.next() {
            NetEvent::Written { .. } => {}
            NetEvent::Closed { why, .. } if why == "enough" => {}
            event => return event,
        }
    }
}

#[test]
fn peers_that_have_not_greeted_make_room_for_newer_ones() {
    let (observed, address) = Observed::listening();
    let idle: Vec<_> = (0..ROOM.waiting_of_a_source)
        .map(|_| {
            let peer = dial(address);
            (peer, observed.connected())
        })
        .collect();
    let _late = dial(address);
    let mut of_late = None;
    let mut closed = None;
    while of_late.is_none() || closed.is_none() {
        match observed.next() {
            NetEvent::Connected { connection, .. } => of_late = Some(connection),
            NetEvent::Closed { connection, why } => closed = Some((connection, why)),
            event => panic!("{event:?}"),
        }
    }
    assert_eq!(closed, Some((idle[0].1, connection::SENT_AWAY.into())));
    observed.nothing_for(Duration::from_millis(50));
}

#[test]
fn a_peer_that_says_no_hello_is_closed_in_time() {
    let pace = Timing { hello: Duration::from_millis(300), ..PACE };
    let observed = Observed::start_at(&["ptcp:0:127.0.0.1"], None, pace).unwrap();
    let mut peers = [dial(observed.address()), dial(observed.address())];
    let [silent, greeting] = [observed.connected(), observed.connected()];
    // Nobody asks to read yet, so the time does not run.
    observed.nothing_for(pace.hello * 2);
    peers[1].write_all(&HELLO).unwrap();
    assert_eq!(observed.received(greeting), HELLO);
    observed.network.read(greeting);
    observed.network.read(silent);
    assert_eq!(observed.closed(silent), "no OpenFlow HELLO in 300ms");
    observed.nothing_for(pace.hello * 2);
}

#[test]
fn what_was_sent_before_closing_arrives() {
    let (observed, address) = Observed::listening();
    let mut peer = dial(address);
    let connection = observed.connected();
    // These bytes stay unread, so closing at once would make the kernel send a reset.
    peer.write_all(&pattern(100_000)).unwrap();
    observed.network.send(connection, pattern(1 << 20));
    observed.network.close(connection, "bad version");
    let mut all = Vec::new();
    peer.read_to_end(&mut all).unwrap();
    assert!(all == pattern(1 << 20));
    drop(peer);
    assert_eq!(observed.closed(connection), "bad version");
}

#[test]
fn closing_does_not_wait_for_a_peer_that_does_not_read() {
    let (observed, address) = Observed::listening();
    let _peer = dial(address);
    let connection = observed.connected();
    observed.network.send(connection, pattern(MUCH));
    observed.network.close(connection, "too slow");
    assert_eq!(observed.closed(connection), "too slow");
}

/// A reload forgets a target that waits for its address, or leaves it waiting. Then the address is free, and is listened on.
#[test]
fn an_address_that_is_in_use_at_the_start_is_listened_on_later() {
    let taken = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [first, second] =
        [0, 1].map(|which| format!("ptcp:{}:127.0.0.1", taken[which].local_addr().unwrap().port()));
    let mut observed = Observed::start(&[&first, &second], None).unwrap();
    let begins = |target| format!("openflow.controllers: cannot listen on {target}: Address already in use");
    let deaf = observed.network.deaf();
    assert!(deaf.len() == 2 && deaf[0].starts_with(&begins(&first)), "{deaf:?}");
    assert_eq!(observed.network.report()[0].listening, None);

    observed.network.follow(&settings(&[&second])).unwrap();
    let deaf = observed.network.deaf();
    assert!(deaf.len() == 1 && deaf[0].starts_with(&begins(&second)), "{deaf:?}");
    drop(taken);
    let end = Instant::now() + PATIENCE;
    while !observed.network.deaf().is_empty() {
        assert!(Instant::now() < end, "{:?}", observed.network.deaf());
        thread::sleep(Duration::from_millis(20));
    }
    let _peer = dial(observed.address());
    observed.connected();
    // The same socket, with TLS from now on.
    let ca = tls::Authority::new("ours");
    let files = Some(ca.member("switch", &ca));
    let with_tls = OpenFlowSettings { tls: files, ..settings(&[&second.replace("ptcp", "pssl")]) };
    observed.network.follow(&with_tls).unwrap();
    dial(observed.address());
    let port: u16 = first.split(':').nth(1).unwrap().parse().unwrap();
    assert!(TcpListener::bind(("127.0.0.1", port)).is_ok(), "nobody listens on the forgotten one");
}

/// Packets vanish, as with a pulled cable. The kernel's probes notice it.
#[test]
#[ignore = "needs root"]
fn a_peer_that_vanishes_is_noticed() {
    let in_namespace = || {
        // SAFETY: moves only this thread, which ends here, into a new network namespace.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "{}", std::io::Error::last_os_error());
        let run = |line: &str| {
            let mut words = line.split(' ');
            let done = std::process::Command::new(words.next().unwrap()).args(words).status().unwrap();
            assert!(done.success(), "{line}");
        };
        run("ip link set lo up");
        let (observed, address) = Observed::listening();
        let _peer = dial(address);
        let connection = observed.connected();
        observed.network.read(connection);
        observed.nothing_for(PACE.gone + Duration::from_secs(1));
        run("nft add table inet hole");
        run("nft add chain inet hole in { type filter hook input priority 0 ; policy drop ; }");
        let why = observed.closed(connection);
        assert!(why.starts_with("reading: Connection timed out"), "{why}");
    };
    thread::spawn(in_namespace).join().unwrap();
}
