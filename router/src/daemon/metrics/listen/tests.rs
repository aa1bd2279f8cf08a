use super::*;
use crate::{
    config::{Config, ListenAddress},
    daemon::{
        api::{Query, Requests},
        metrics::Observed,
    },
    linux::observer::Waker,
    switch::{self, seam::SwitchMessage},
    user_plane::sas::RunningSas,
};
use std::{
    io::{ErrorKind, Read, Write},
    net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Instant,
};

const LOOPBACK: &str = "127.0.0.1:0";
/// More than all buffers of a connection hold.
const HUGE: usize = 64 << 20;

/// Pages of a control thread that only counts how often it was asked.
fn source() -> (Source, Arc<AtomicU64>) {
    let (to, requests) = Requests::queue(Waker::new().unwrap());
    let (switch, end) = switch::start(&Config::default(), Waker::new().unwrap()).unwrap();
    (end.tell)(SwitchMessage::Ports(Vec::new()));
    let asked = Arc::<AtomicU64>::default();
    let counter = asked.clone();
    thread::spawn(move || {
        // The switch thread lives as long as its other end.
        let _end = end;
        for request in requests {
            assert_eq!(request.query, Query::Metrics);
            counter.fetch_add(1, Relaxed);
            let _ = request.reply.send(Ok(serde_json::to_value(Observed::default()).unwrap()));
        }
    });
    (Source::new(to, switch, None, RunningSas::default()), asked)
}

fn start(routes: Router, limits: Limits) -> (Listening, SocketAddr) {
    let listener = listening::bind(TABLE, LOOPBACK.parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    (Listening::on(TABLE, listener, routes, limits).unwrap(), address)
}

/// Connects from another address of this machine, and sends some text.
fn connect_from(from: IpAddr, to: SocketAddr, text: &[u8]) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddr::new(from, 0)).unwrap();
    connect(&socket, &to).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // The server may refuse it before it has read all.
    let _ = stream.write_all(text);
    stream
}

fn connect(to: SocketAddr, text: &[u8]) -> TcpStream {
    connect_from(Ipv4Addr::LOCALHOST.into(), to, text)
}

fn rest(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0)
}

#[test]
fn only_the_page_and_a_pointer_to_it_are_served() {
    let (_listening, address) = start(routes(source().0), LIMITS);
    let headers = "x: y\r\n".repeat(200);
    for (request, expected) in [
        ("GET /metrics HTTP/1.1\r\nHost: evil.example\r\nOrigin: http://evil.example", 200),
        ("GET /metrics?x=y HTTP/1.1\r\nHost: x", 200),
        ("GET /metrics HTTP/1.0", 200),
        ("HEAD /metrics HTTP/1.1\r\nHost: x", 200),
        ("GET / HTTP/1.1\r\nHost: x", 200),
        ("POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0", 405),
        ("OPTIONS /metrics HTTP/1.1\r\nHost: x", 405),
        ("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0", 405),
        ("GET /status HTTP/1.1\r\nHost: x", 404),
        ("GET /metrics/ HTTP/1.1\r\nHost: x", 404),
        ("GET //status HTTP/1.1\r\nHost: x", 404),
        ("GET /metrics/../status HTTP/1.1\r\nHost: x", 404),
        ("GET /%73tatus HTTP/1.1\r\nHost: x", 404),
        ("POST /stop HTTP/1.1\r\nHost: x\r\nContent-Length: 0", 404),
        ("POST /reload HTTP/1.1\r\nHost: x\r\nContent-Length: 0", 404),
        ("POST /flows HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999", 413),
        ("CONNECT example.org:80 HTTP/1.1\r\nHost: x", 404),
        ("\u{1}\u{2} nonsense", 400),
        (&format!("GET /{} HTTP/1.1\r\nHost: x", "x".repeat(64 << 10)), 431),
        (&format!("GET /metrics HTTP/1.1\r\nHost: x\r\nx: {}", "y".repeat(64 << 10)), 431),
        (&format!("GET /metrics HTTP/1.1\r\nHost: x\r\n{headers}x: y"), 431),
    ] {
        let answer = rest(connect(address, format!("{request}\r\n\r\n").as_bytes()));
        let begin = &request[..request.len().min(80)];
        assert_eq!(status(&answer), expected, "{begin}: {answer}");
        let is_page = answer.contains("\r\ncontent-type: application/openmetrics-text; version=1.0.0")
            && (answer.ends_with("\n# EOF\n") || request.starts_with("HEAD"));
        assert_eq!(is_page, expected == 200 && request.contains(" /metrics"), "{begin}: {answer}");
        assert!(
            !is_page || request.starts_with("HEAD") || answer.contains("\nmillrace_ready{} 0.0\n"),
            "{answer}"
        );
    }
    assert!(rest(connect(address, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")).ends_with(POINTER));
}

#[test]
fn many_scrapes_ask_the_control_thread_five_times_a_second() {
    let (source, asked) = source();
    let (_listening, address) = start(routes(source), LIMITS);
    let begun = Instant::now();
    for _ in 0..200 {
        let answer = rest(connect(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"));
        assert_eq!(status(&answer), 200, "{answer}");
    }
    let most = begun.elapsed().as_millis() as u64 / 200 + 1;
    let asked = asked.load(Relaxed);
    assert!((1..=most).contains(&asked), "asked {asked} times, at most {most} expected");
}

/// A client that leaves would leave its question behind, and the queue of the control thread would fill.
#[test]
fn scrapers_that_leave_ask_the_control_thread_no_more_often() {
    let (source, asked) = source();
    let (_listening, address) = start(routes(source), LIMITS);
    let begun = Instant::now();
    for _ in 0..200 {
        drop(connect(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"));
    }
    // The last of them may still have their places.
    while status(&rest(connect(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"))) != 200 {
        assert!(begun.elapsed() < Duration::from_secs(60));
    }
    let most = begun.elapsed().as_millis() as u64 / 200 + 1;
    let asked = asked.load(Relaxed);
    assert!((1..=most).contains(&asked), "asked {asked} times, at most {most} expected");
}

#[test]
fn a_scraper_that_never_reads_and_a_slow_one_lose_their_places() {
    let limits = Limits {
        room: Room { waiting: 4, waiting_of_a_source: 4, inside: 1, inside_of_a_source: 1 },
        patience: Duration::from_millis(300),
        longest: Duration::from_millis(900),
        ..LIMITS
    };
    let routes = Router::new().route("/", get(|| async { vec![b'x'; HUGE] }));
    let (_listening, address) = start(routes, limits);
    let request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    let deaf = connect(address, request);
    // Its answer has begun, so it is inside, and nobody else is let in.
    deaf.peek(&mut [0]).unwrap();
    // An answer that is read in whole proves that the deaf one has lost its place.
    let (begun, mut refused) = (Instant::now(), 0);
    let answer = loop {
        let answer = rest(connect(address, request));
        if status(&answer) == 200 {
            break answer;
        }
        assert_eq!(status(&answer), 503, "{answer}");
        refused += 1;
        assert!(begun.elapsed() < Duration::from_secs(60), "the deaf one keeps its place");
        thread::sleep(Duration::from_millis(20));
    };
    assert!(refused > 0, "the deaf one was not inside");
    assert!(answer.len() > HUGE);
    assert!(rest(deaf).len() < HUGE, "its answer was cut");
    // A head that never ends is cut, too.
    let slow = connect(address, b"GET / HTTP/1.1\r\nHo");
    let answer = rest(slow);
    assert!(answer.is_empty() || status(&answer) == 408, "{answer}");
}

#[test]
fn a_flood_keeps_no_other_host_out() {
    let (_listening, address) =
        start(routes(source().0), Limits { patience: Duration::from_secs(600), ..LIMITS });
    let flooder = Ipv4Addr::new(127, 0, 0, 9).into();
    let flood: Vec<_> = (0..300).map(|_| connect_from(flooder, address, b"GET /metrics HT")).collect();
    let answer = rest(connect(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"));
    assert_eq!(status(&answer), 200, "{answer}");
    let is_open = |stream: &TcpStream| {
        stream.set_nonblocking(true).unwrap();
        stream.peek(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    };
    let open = flood.iter().filter(|stream| is_open(stream)).count();
    assert_eq!(open, LIMITS.room.waiting_of_a_source);
}

#[test]
fn an_address_is_closed_with_its_listener_and_an_error_names_the_key() {
    let (source, _) = source();
    let settings = |listen: SocketAddr| MetricsSettings { listen: Some(ListenAddress(listen)) };
    assert!(super::start(&MetricsSettings::default(), &source).unwrap().is_none());
    let (listening, address) = start(routes(source.clone()), LIMITS);
    let error = format!("{:#}", super::start(&settings(address), &source).unwrap_err());
    let expected = format!("metrics.listen: cannot listen on {address}: Address already in use");
    assert!(error.starts_with(&expected), "{error}");
    // The port is free for a daemon that would replace the one that runs.
    check(&settings(address)).unwrap();
    let elsewhere = "192.0.2.1:9111".parse().unwrap();
    let error = format!("{:#}", check(&settings(elsewhere)).unwrap_err());
    assert!(error.starts_with("metrics.listen: cannot listen on 192.0.2.1:9111: Cannot assign"), "{error}");
    let open = connect(address, b"GET /metr");
    drop(listening);
    assert_eq!(rest(open), "", "connections end with it");
    let begun = Instant::now();
    while let Ok(stream) = TcpStream::connect(address) {
        let _ = stream.shutdown(Shutdown::Both);
        assert!(begun.elapsed() < Duration::from_secs(60), "the address stays open");
        thread::sleep(Duration::from_millis(10));
    }
    let again = super::start(&settings(address), &source).unwrap();
    assert_eq!(status(&rest(connect(address, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"))), 200);
    drop(again);
}
