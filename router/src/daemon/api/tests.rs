//! Requests and errors of a served socket.

use super::*;
use crate::daemon::client;
use serde_json::{Value, json};
use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
};

fn start() -> (tempfile::TempDir, PathBuf, Receiver<Request>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let (to, requests) = Requests::queue(Waker::new().unwrap());
    let waker = Waker::new().unwrap();
    let (switch, end) = switch::start(&Default::default(), waker).unwrap();
    let files = Files::start().unwrap();
    let reloader = Reloader::new(to.clone(), files.clone(), Arc::new(|| Ok(Config::default())));
    let (sas, captures) = (RunningSas::default(), Captures::default());
    let metrics = metrics::Source::new(to.clone(), switch.clone(), None, sas.clone());
    let sources = Sources { switch, cores: None, sas, files, reloader, metrics, captures };
    (end.tell)(crate::switch::seam::SwitchMessage::Ports(Vec::new()));
    let control = UnixListener::bind(&path).unwrap();
    let read_only = Some(UnixListener::bind(path.with_extension("read-only")).unwrap());
    serve(Sockets { control, read_only }, Served { requests: to, sources }).unwrap();
    (directory, path, requests)
}

/// A control thread whose answers show the queries.
fn echo(requests: Receiver<Request>) {
    thread::spawn(move || {
        for request in requests {
            let answer = match &request.query {
                Query::Verify => Err(ApiError::failed("no")),
                Query::Explain(request) => {
                    let notes = vec![format!("{request:?}")];
                    Ok(json!(ExplainReport { notes, ..ExplainReport::default() }))
                }
                query => Ok(json!(format!("{query:?}"))),
            };
            let _ = request.reply.send(answer);
        }
    });
}

fn raw(socket: &Path, request: &str) -> (u16, Value) {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    // The server may answer and close before it has read all of an oversized request.
    let _ = stream.write_all(request.as_bytes());
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    let status = answer.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
    let body = answer.split("\r\n\r\n").nth(1).unwrap_or_default();
    (status, serde_json::from_str(body).unwrap_or(Value::Null))
}

#[test]
fn requests_become_queries() {
    let (_directory, socket, requests) = start();
    echo(requests);
    let table = [
        ("GET", "/v1/status", "", 200, "Status"),
        ("GET", "/v1/ports", "", 200, "Ports"),
        ("GET", "/v1/routers", "", 200, "Routers"),
        ("GET", "/v1/interfaces", "", 200, "Interfaces"),
        ("GET", "/v1/firewall", "", 200, "Firewall"),
        (
            "GET",
            "/v1/connections?router=r&address=10.0.0.1&state=fast",
            "",
            200,
            "Connections(ConnectionsQuery { router: Some(\"r\"), address: Some(10.0.0.1), state: Some(Fast) })",
        ),
        ("GET", "/v1/connections?state=slow", "", 400, "unknown variant `slow`"),
        (
            "GET",
            "/v1/route?address=10.0.0.1",
            "",
            200,
            "Route(RouteQuery { address: 10.0.0.1, router: None })",
        ),
        (
            "GET",
            "/v1/route?address=::1&router=r",
            "",
            200,
            "Route(RouteQuery { address: ::1, router: Some(\"r\") })",
        ),
        ("POST", "/v1/stop", "", 200, "Stop"),
        ("POST", "/v1/reload", "", 200, "Reload(Config { ports: []"),
        ("POST", "/v1/explain", "{\"packet\":\"x\"}", 200, "packet: Some(\"x\")"),
        ("GET", "/v1/verify", "", 500, "no"),
        ("GET", "/v1/stop", "", 405, "wrong method"),
        ("GET", "/v1/nonsense", "", 404, "no such request"),
        ("GET", "/v1/route", "", 400, "missing field `address`"),
        ("GET", "/v1/route?address=x", "", 400, "invalid IP address"),
        ("GET", "/v1/route?address=1.1.1.1&via=2", "", 400, "unknown field `via`"),
        ("POST", "/v1/explain", "{", 400, "not an explain request: EOF"),
        ("POST", "/v1/explain", "{\"packets\":1}", 400, "unknown field `packets`"),
        ("POST", "/v1/explain", "\u{0}", 400, "not an explain request"),
        ("GET", "/v1/flows?match=nonsense", "", 400, "not a field"),
        ("GET", "/v1/flows?wants=1", "", 400, "unknown field `wants`"),
        ("POST", "/v1/flows", "{", 400, "not a request for flows"),
        ("PUT", "/v1/flows", "", 405, ""),
        ("POST", "/v1/sas", "{\"set\":\"[[sa]]\",\"file\":\"/x\"}", 400, "/x:1: missing field"),
        ("POST", "/v1/sas", "{\"set\":\"[[sa]]\"}", 400, "file: the absolute path"),
        (
            "POST",
            "/v1/sas",
            "{\"remove\":[{\"sa\":\"a\",\"spi\":256}]}",
            400,
            "there is no SA a with SPI 256",
        ),
        ("POST", "/v1/sas", " []", 400, "it must be a JSON object"),
        ("POST", "/v1/sas", "{\"keys\":1}", 400, "unknown field `keys`"),
    ];
    for (method, path, body, status, part) in table {
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        let (got, answer) = raw(&socket, &request);
        assert_eq!(got, status, "{method} {path}: {answer}");
        let text = if path == "/v1/explain" && status == 200 { &answer["notes"][0] } else { &answer };
        let text = if status == 200 { text } else { &answer["error"] };
        assert!(text.as_str().is_some_and(|t| t.contains(part)), "{method} {path}: {answer}");
    }
}

#[test]
fn oversized_and_broken_requests_are_refused() {
    let (_directory, socket, requests) = start();
    echo(requests);
    let body = "x".repeat(MAX_BODY_BYTES + 1);
    let length = body.len();
    let (status, answer) = raw(
        &socket,
        &format!(
            "POST /v1/explain HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        ),
    );
    assert_eq!(status, 413, "{answer}");
    assert!(answer["error"].is_string());
    assert_eq!(raw(&socket, "\u{1}\u{2} nonsense\r\n\r\n").0, 400);
    assert_eq!(
        raw(&socket, &format!("GET /{} HTTP/1.1\r\nConnection: close\r\n\r\n", "x".repeat(1 << 17))).0,
        414
    );
    let answer: Value = client::call(&socket, "GET", "/status", None, Duration::from_secs(5)).unwrap();
    assert_eq!(answer, json!("Status"), "it still answers");
}

#[test]
fn clients_get_a_503_while_the_control_thread_does_not_answer() {
    let (_directory, socket, requests) = start();
    let mut waiting = Vec::new();
    for _ in 0..QUEUE {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        waiting.push(stream);
    }
    // Each of the sixteen gets its place in the queue before the seventeenth request.
    thread::sleep(Duration::from_millis(300));
    let (status, answer) = raw(&socket, "GET /v1/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert_eq!((status, &answer["error"]), (503, &json!("too many requests are waiting; try again")));
    drop(requests);
    let (status, _) = raw(&socket, "GET /v1/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert_eq!(status, 503, "the daemon is ending");
}

/// Each request on both sockets: the read-only one serves those that the table marks, and no other.
#[test]
fn the_read_only_socket_serves_only_requests_that_read() {
    let (_directory, control, requests) = start();
    echo(requests);
    let read_only = control.with_extension("read-only");
    let mut served = Vec::new();
    for endpoint in endpoints() {
        let method = endpoint.method.to_uppercase();
        let request = format!("{method} {} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", endpoint.path);
        let (status, answer) = raw(&read_only, &request);
        assert_eq!(status == 403, !endpoint.is_for_readers, "{request}{answer}");
        assert_ne!(raw(&control, &request).0, 403, "{request}");
        if status == 403 {
            assert!(answer["error"].as_str().unwrap().contains("use the control socket"), "{answer}");
        } else {
            served.push(format!("{method} {}", endpoint.path));
        }
    }
    // Whoever adds one decides that it changes nothing, costs little, and shows nothing that is for root.
    let expected = [
        "GET /v1/status",
        "GET /v1/ports",
        "GET /v1/routers",
        "GET /v1/interfaces",
        "GET /v1/route",
        "GET /v1/cores",
        "GET /v1/events",
        "GET /v1/controllers",
        "GET /v1/capture",
        "GET /v1/openapi.json",
        "GET /metrics",
    ];
    assert_eq!(served, expected);
    for method in ["POST", "PUT", "DELETE", "PATCH"] {
        let request = format!("{method} /v1/status HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(raw(&read_only, &request).0, 405, "{method}");
    }
    let long = "x".repeat(serving::READ_ONLY.body + 1);
    let request =
        format!("GET /v1/status HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{long}", long.len());
    assert_eq!(raw(&read_only, &request).0, 413);
}

#[test]
fn paths_without_a_version_and_of_other_versions_are_no_requests() {
    let (_directory, socket, requests) = start();
    echo(requests);
    for path in ["/status", "/v2/status", "/v1/metrics", "/v1", "/v1/status/"] {
        let (status, answer) = raw(&socket, &format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"));
        assert_eq!((status, &answer["error"]), (404, &json!("no such request")), "{path}");
    }
    let error = client::call::<Value>(&socket, "GET", "/status-of-tomorrow", None, Duration::from_secs(5));
    assert!(error.unwrap_err().to_string().contains("has another version; restart the daemon"));
}

#[test]
fn no_line_number_ends_the_switch() {
    let (_directory, socket, _requests) = start();
    let body =
        json!({ "command": "add", "flows": "nonsense", "wait": false, "first_line": u64::MAX }).to_string();
    let request =
        format!("POST /v1/flows HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let (status, answer) = raw(&socket, &request);
    assert_eq!((status, &answer["failed"]["line"]), (200, &json!(u64::MAX)), "{answer}");
    assert_eq!(raw(&socket, "GET /v1/flows HTTP/1.1\r\nHost: x\r\n\r\n").0, 200);
}
