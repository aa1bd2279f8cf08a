//! Requests to a served page.

use super::*;
use crate::{
    capture::Captures,
    config::{Config, LoopbackAddress},
    daemon::{
        api::{Files, Query, Reloader, Request as Asked, Requests, Sources},
        metrics,
    },
    linux::observer::Waker,
    switch::{self, seam::SwitchMessage},
    user_plane::sas::RunningSas,
    web::FILES,
};
use std::{
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    sync::mpsc::Receiver,
    thread,
    time::Instant,
};

/// The handlers, with a control thread whose answers show the queries.
fn served() -> Served {
    let (to, requests) = Requests::queue(Waker::new().unwrap());
    let (switch, end) = switch::start(&Config::default(), Waker::new().unwrap()).unwrap();
    let files = Files::start().unwrap();
    let reloader = Reloader::new(to.clone(), files.clone(), Arc::new(|| Ok(Config::default())));
    let sas = RunningSas::default();
    let metrics = metrics::Source::new(to.clone(), switch.clone(), None, sas.clone());
    let captures = Captures::default();
    let sources = Sources { switch, cores: None, sas, files, reloader, metrics, captures };
    (end.tell)(SwitchMessage::Ports(Vec::new()));
    thread::spawn(move || {
        let _end = end;
        echo(requests);
    });
    Served { requests: to, sources }
}

fn echo(requests: Receiver<Asked>) {
    for request in requests {
        let answer = match &request.query {
            Query::Explain(_) => serde_json::to_value(crate::api::status::ExplainReport::default()).unwrap(),
            query => serde_json::json!(format!("{query:?}")),
        };
        let _ = request.reply.send(Ok(answer));
    }
}

fn start(explain: bool) -> (WebPage, SocketAddr) {
    // The port must be known before it is listened on, because hosts are compared with it.
    let free = listening::bind(TABLE, "127.0.0.1:0".parse().unwrap()).unwrap().local_addr().unwrap();
    let settings = WebSettings { listen: Some(LoopbackAddress(free)), explain };
    (WebPage::start(&settings, served(), &Pending::default()).unwrap(), free)
}

fn connect(to: SocketAddr, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let _ = stream.write_all(text.as_bytes());
    stream
}

fn rest(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

/// The status and the answer. `more`: further headers, as lines.
fn ask(to: SocketAddr, method: &str, path: &str, more: &str) -> (u16, String) {
    let length = if method == "POST" { "Content-Length: 0\r\n" } else { "" };
    let answer = rest(connect(to, &format!("{method} {path} HTTP/1.1\r\nHost: {to}\r\n{length}{more}\r\n")));
    (answer.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0), answer)
}

#[test]
fn the_page_and_requests_that_read_are_served_and_nothing_else() {
    let (_page, address) = start(false);
    for file in FILES {
        let (status, answer) = ask(address, "GET", file.path, "");
        assert_eq!(status, 200, "{}: {answer}", file.path);
        assert!(answer.contains(&format!("\r\ncontent-type: {}\r\n", file.content_type)), "{answer}");
        assert!(answer.ends_with(file.body), "{}", file.path);
        assert_eq!(ask(address, "POST", file.path, "").0, 405, "{}", file.path);
    }
    for endpoint in crate::daemon::api::endpoints::endpoints() {
        let (status, answer) = ask(address, &endpoint.method.to_uppercase(), endpoint.path, "");
        let is_served = endpoint.is_for_readers && endpoint.path != "/metrics";
        assert_eq!(status == 403, !is_served, "{} {}: {answer}", endpoint.method, endpoint.path);
        assert!(
            is_served || answer.contains("control socket") || answer.contains("`explain = true`"),
            "{answer}"
        );
    }
    assert!(ask(address, "GET", "/v1/status", "").1.ends_with("\"Status\""));
    for path in
        ["/status", "/index.html", "/v1", "/v1/status/", "/../v1/stop", "//v1/status", "/page/main.js"]
    {
        assert_eq!(ask(address, "GET", path, "").0, 404, "{path}");
    }
    for method in ["PUT", "DELETE", "PATCH", "OPTIONS"] {
        assert_eq!(ask(address, method, "/v1/status", "").0, 405, "{method}");
    }
}

#[test]
fn other_pages_of_the_browser_are_refused() {
    let (_page, address) = start(true);
    let own = format!("Origin: http://{address}\r\nSec-Fetch-Site: same-origin\r\n");
    for path in ["/", "/main.js", "/v1/status", "/v1/nothing"] {
        assert_ne!(ask(address, "GET", path, &own).0, 403, "{path}");
        for foreign in [
            "Origin: http://evil.example\r\n",
            "Origin: null\r\n",
            "Origin: http://localhost:1\r\n",
            "Sec-Fetch-Site: cross-site\r\n",
            "Sec-Fetch-Site: same-site\r\n",
        ] {
            let (status, answer) = ask(address, "GET", path, foreign);
            assert!(status == 403 && answer.contains("another web page"), "{path} {foreign}{answer}");
            assert_eq!(ask(address, "POST", "/v1/explain", foreign).0, 403, "{foreign}");
        }
    }
    let port = address.port();
    for host in [
        "evil.example",
        &format!("evil.example:{port}"),
        "127.0.0.1",
        &format!("192.0.2.1:{port}"),
        "[::1]:1",
    ] {
        let answer = rest(connect(address, &format!("GET /v1/status HTTP/1.1\r\nHost: {host}\r\n\r\n")));
        assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("[web] listen"), "{host}: {answer}");
    }
    for host in [format!("localhost:{port}"), format!("[::1]:{port}")] {
        let answer = rest(connect(address, &format!("GET /v1/status HTTP/1.1\r\nHost: {host}\r\n\r\n")));
        assert!(answer.starts_with("HTTP/1.1 200 "), "{host}: {answer}");
    }
    let nameless = rest(connect(address, "GET /v1/status HTTP/1.0\r\n\r\n"));
    assert!(nameless.starts_with("HTTP/1.0 403 "), "{nameless}");
}

#[test]
fn every_answer_has_the_headers_that_keep_other_pages_out() {
    /// No handler sees this request.
    const LONG: &str = "Content-Length: 9999999\r\n";
    let (_page, address) = start(false);
    assert_eq!(ask(address, "GET", "/", LONG).0, 413);
    for (path, more) in [
        ("/", ""),
        ("/v1/status", ""),
        ("/v1/stop", ""),
        ("/nothing", ""),
        ("/", "Origin: null\r\n"),
        ("/", LONG),
    ] {
        let (_, answer) = ask(address, "GET", path, more);
        for header in [
            "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src \
             'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
            "x-content-type-options: nosniff",
            "x-frame-options: DENY",
            "referrer-policy: no-referrer",
            "cross-origin-resource-policy: same-origin",
            "cross-origin-opener-policy: same-origin",
            "cache-control: no-store",
        ] {
            assert!(answer.contains(&format!("\r\n{header}\r\n")), "{path}: {header}\n{answer}");
        }
        assert!(!answer.contains("access-control-"), "{answer}");
    }
}

#[test]
fn packets_are_explained_only_where_the_configuration_allows_it() {
    let (mut page, address) = start(false);
    let post = |body: &str| {
        let head = format!("POST /v1/explain HTTP/1.1\r\nHost: {address}\r\nContent-Length: {}", body.len());
        rest(connect(address, &format!("{head}\r\n\r\n{body}")))
    };
    let body = "{\"packet\": \"udp 10.0.0.1 -> 10.0.0.2\"}";
    assert!(post(body).contains("set `explain = true` in `[web]`"), "{}", post(body));
    let settings = WebSettings { listen: Some(LoopbackAddress(address)), explain: true };
    page.follow(&settings, None);
    let answer = post(body);
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("\"verdict\""), "{answer}");
    page.follow(&WebSettings { explain: false, ..settings }, None);
    assert!(post(body).starts_with("HTTP/1.1 403 "), "a reload takes it back");
}

/// Several pages of a slow daemon ask for several reports each. None is refused, because turns bound the work.
#[test]
fn many_requests_at_once_are_answered_in_turn() {
    let (_page, address) = start(false);
    let request = format!("GET /v1/status HTTP/1.1\r\nHost: {address}\r\n\r\n");
    let clients: Vec<_> = (0..48).map(|_| connect(address, &request)).collect();
    for client in clients {
        let answer = rest(client);
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
}

/// Clients are not told apart, so the flood comes from the place of the reader, too.
#[test]
fn a_flood_of_idle_connections_keeps_nobody_out() {
    /// The limit of docs/security.md.
    const MOST: usize = 64;
    let (_page, address) = start(false);
    let idle: Vec<_> = (0..300).map(|_| connect(address, "GET / HTTP/1.1\r\nHo")).collect();
    for _ in 0..20 {
        assert_eq!(ask(address, "GET", "/v1/status", "").0, 200);
    }
    let is_open = |stream: &TcpStream| {
        stream.set_nonblocking(true).unwrap();
        stream.peek(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    };
    assert!(idle.iter().filter(|stream| is_open(stream)).count() <= MOST);
}

#[test]
fn an_address_is_closed_with_its_page_and_an_error_names_the_key() {
    let settings = |address| WebSettings { listen: Some(LoopbackAddress(address)), explain: false };
    let (mut page, address) = start(false);
    let error = format!("{:#}", page.listen(&settings(address)).unwrap_err());
    assert!(
        error.starts_with(&format!("web.listen: cannot listen on {address}: Address already in use")),
        "{error}"
    );
    check(&settings(address)).unwrap();
    page.follow(&WebSettings::default(), Some(None));
    let begun = Instant::now();
    while TcpStream::connect(address).is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the address stays open");
        thread::sleep(Duration::from_millis(10));
    }
}
