//! The web page of a live daemon, by plain HTTP: what it serves, whom it refuses, and how a reload moves it.

use crate::{
    bed::{Bed, ping, run},
    daemon::{Daemon, Leftovers, eventually_true},
};
use lab::namespace::Namespace;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    time::Duration,
};

const ADDRESS: &str = "127.0.0.1:9112";

/// The status and the body of the answer to a request from this namespace, or why there is none.
fn send(namespace: &Namespace, address: &str, head: &str, body: &str) -> Result<(u16, String), String> {
    let error = |error: std::io::Error| error.to_string();
    let mut stream = namespace.enter(|| Ok(TcpStream::connect(address))).unwrap().map_err(error)?;
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let length = body.len();
    write!(stream, "{head}\r\nContent-Length: {length}\r\n\r\n{body}").map_err(error)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(error)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("no head")?;
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).ok_or("no status")?;
    Ok((status, body.into()))
}

fn get(namespace: &Namespace, address: &str, path: &str) -> Result<(u16, String), String> {
    send(namespace, address, &format!("GET {path} HTTP/1.1\r\nHost: {address}"), "")
}

fn json(namespace: &Namespace, path: &str) -> Value {
    let (status, body) = get(namespace, ADDRESS, path).unwrap();
    assert_eq!(status, 200, "{path}: {body}");
    serde_json::from_str(&body).unwrap()
}

fn explain(namespace: &Namespace) -> (u16, Value) {
    let head = format!("POST /v1/explain HTTP/1.1\r\nHost: {ADDRESS}\r\nOrigin: http://{ADDRESS}");
    let (status, body) =
        send(namespace, ADDRESS, &head, "{\"packet\": \"udp 10.8.1.2 -> 10.8.2.2\"}").unwrap();
    (status, serde_json::from_str(&body).unwrap())
}

#[test]
#[ignore = "needs root"]
fn a_browser_of_the_box_reads_and_changes_nothing() {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    let file = tempfile::NamedTempFile::new().unwrap();
    let configure = |explain: bool| {
        let web = format!("[web]\nlisten = \"{ADDRESS}\"\nexplain = {explain}\n");
        fs::write(file.path(), format!("ports = [\"p1\", \"p2\"]\n{web}")).unwrap();
    };
    configure(false);
    let mut daemon = Daemon::start(&bed.the_box, &bed.name, &["--config", file.path().to_str().unwrap()]);
    daemon.until_accelerated(2);
    let the_box = &bed.the_box;
    let (status, page) = get(the_box, ADDRESS, "/").unwrap();
    assert!(status == 200 && page.starts_with("<!doctype html>"), "{status} {page}");

    // Numbers are those of the commands, and their clock goes on. The first packets resolve neighbours.
    ping(&bed.client, "10.8.2.2", 2);
    let before = json(the_box, "/v1/status");
    ping(&bed.client, "10.8.2.2", 50);
    let after = json(the_box, "/v1/status");
    let forwarded = |status: &Value| status["packets"]["forwarded"].as_u64().unwrap();
    assert!(forwarded(&after) >= forwarded(&before) + 100, "{} {}", forwarded(&before), forwarded(&after));
    let at = |status: &Value| status["at_s"].as_f64().unwrap();
    assert!(at(&after) > at(&before));
    assert_eq!(
        json(the_box, "/v1/interfaces").as_array().map(Vec::len),
        daemon.ask(&["interfaces"]).as_array().map(Vec::len)
    );
    for path in ["/v1/cores", "/v1/events", "/v1/events?after=1"] {
        json(the_box, path);
    }

    // Nobody can change or see more by it.
    for head in [
        "POST /v1/stop",
        "POST /v1/reload",
        "POST /v1/flows",
        "DELETE /v1/capture",
        "GET /v1/sas",
        "GET /v1/flows",
    ] {
        let (status, body) =
            send(the_box, ADDRESS, &format!("{head} HTTP/1.1\r\nHost: {ADDRESS}"), "").unwrap();
        assert_eq!(status, 403, "{head}: {body}");
    }
    for (host, more) in [
        ("evil.example:9112", ""),
        (ADDRESS, "\r\nOrigin: http://evil.example"),
        (ADDRESS, "\r\nSec-Fetch-Site: cross-site"),
    ] {
        let head = format!("GET /v1/status HTTP/1.1\r\nHost: {host}{more}");
        assert_eq!(send(the_box, ADDRESS, &head, "").unwrap().0, 403, "{head}");
    }
    // Packets of others never reach the address.
    for address in ["10.7.1.1:9112", "10.8.1.1:9112"] {
        get(&bed.client, address, "/").unwrap_err();
    }

    // A reload allows explanations, and takes them back, at the same address.
    assert_eq!(explain(the_box).0, 403);
    configure(true);
    assert_eq!(daemon.ask(&["reload"])["changed"], json!(["web.explain"]));
    let (status, answer) = explain(the_box);
    assert_eq!(
        (status, &answer["verdict"], &answer["egress"]),
        (200, &json!("forward"), &json!("p2")),
        "{answer}"
    );
    configure(false);
    daemon.ask(&["reload"]);
    assert_eq!(explain(the_box).0, 403);
    daemon.stop();
    get(the_box, ADDRESS, "/").unwrap_err();
}

#[test]
#[ignore = "needs root"]
fn a_reload_moves_the_page_to_another_address() {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    run(&bed.the_box, "ip link set lo up");
    let file = tempfile::NamedTempFile::new().unwrap();
    let listen = |address: Option<&str>| {
        let table = address.map_or(String::new(), |address| format!("[web]\nlisten = \"{address}\"\n"));
        fs::write(file.path(), format!("ports = [\"p1\", \"p2\"]\n{table}")).unwrap();
    };
    listen(None);
    let daemon = Daemon::start(&bed.the_box, &bed.name, &["--config", file.path().to_str().unwrap()]);
    let answers = |address: &str| get(&bed.the_box, address, "/").is_ok_and(|(status, _)| status == 200);
    let is_closed = |address: &str| {
        eventually_true(address, || {
            get(&bed.the_box, address, "/").is_err_and(|error| error.contains("refused"))
        });
    };
    let second = "[::1]:9113";
    is_closed(ADDRESS);
    for (address, others) in [(Some(ADDRESS), second), (Some(second), ADDRESS), (None, second)] {
        listen(address);
        assert_eq!(daemon.ask(&["reload"])["changed"], json!(["web.listen"]));
        assert!(address.is_none_or(answers), "{address:?}");
        is_closed(others);
    }
    listen(Some(ADDRESS));
    daemon.ask(&["reload"]);
    // An address that the daemon cannot listen on, or that others could reach, changes nothing.
    let _taken = bed.the_box.enter(|| Ok(TcpListener::bind(second)?)).unwrap();
    for (address, why) in [
        (second, "web.listen: cannot listen on [::1]:9113: Address already in use"),
        ("0.0.0.0:9112", "ssh -L 9112:localhost:9112 HOST"),
    ] {
        listen(Some(address));
        let refused = daemon.millrace(&["reload"]);
        let error = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && error.contains("nothing was changed"), "{error}");
        assert!(error.contains(why), "{error}");
        assert!(answers(ADDRESS));
    }
    daemon.stop();
    is_closed(ADDRESS);
}

#[test]
#[ignore = "needs root"]
fn a_taken_port_does_not_keep_the_daemon_from_starting() {
    const METRICS: &str = "127.0.0.1:9111";
    const OPENFLOW: &str = "127.0.0.1:6653";
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    run(&bed.the_box, "ip link set lo up");
    let bind = |address: &str| bed.the_box.enter(|| Ok(TcpListener::bind(address)?)).unwrap();
    let taken = [ADDRESS, METRICS, OPENFLOW].map(bind);
    let file = tempfile::NamedTempFile::new().unwrap();
    let tables = format!(
        "[web]\nlisten = \"{ADDRESS}\"\n[metrics]\nlisten = \"{METRICS}\"\n[openflow]\ncontrollers = [\"ptcp:6653:127.0.0.1\"]\n"
    );
    fs::write(file.path(), format!("ports = [\"p1\", \"p2\"]\n{tables}")).unwrap();
    let mut daemon = Daemon::start(&bed.the_box, &bed.name, &["--config", file.path().to_str().unwrap()]);
    daemon.until_accelerated(2);
    let sentences = |daemon: &Daemon| {
        let all = daemon.ask(&["status"])["conditions"].as_array().cloned().unwrap();
        let texts = all.iter().map(|condition| condition["sentence"].as_str().unwrap().to_owned());
        texts.filter(|text| text.contains(": cannot listen on ")).collect::<Vec<_>>()
    };
    let before = sentences(&daemon);
    let begins = [
        ("metrics.listen", METRICS),
        ("openflow.controllers", "ptcp:6653:127.0.0.1"),
        ("web.listen", ADDRESS),
    ]
    .map(|(key, address)| format!("{key}: cannot listen on {address}: Address already in use"));
    assert_eq!(before.len(), 3, "{before:?}");
    assert!(before.iter().all(|text| text.contains("stop the program that has the port")), "{before:?}");
    assert_eq!(daemon.ask(&["controllers"])["controllers"][0]["listening"], serde_json::Value::Null);
    assert!(before.iter().zip(&begins).all(|(text, begin)| text.starts_with(begin)), "{before:?}");
    drop(taken);
    for (address, path) in [(ADDRESS, "/"), (METRICS, "/metrics")] {
        eventually_true(address, || get(&bed.the_box, address, path).is_ok_and(|(status, _)| status == 200));
    }
    eventually_true("no address to be missing", || sentences(&daemon).is_empty());
    let stream = bed.the_box.enter(|| Ok(TcpStream::connect(OPENFLOW)?)).unwrap();
    assert_eq!((&stream).read(&mut [0; 8]).unwrap(), 8, "the header of a HELLO");
    daemon.stop();
}

#[test]
#[ignore = "needs root"]
fn a_thousand_idle_connections_keep_nobody_out() {
    const IDLE: usize = 1000;
    let files = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: files.maximum, maximum: files.maximum }).unwrap();
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), format!("ports = [\"p1\", \"p2\"]\n[web]\nlisten = \"{ADDRESS}\"\n")).unwrap();
    let mut daemon = Daemon::start(&bed.the_box, &bed.name, &["--config", file.path().to_str().unwrap()]);
    daemon.until_accelerated(2);
    let connect = || Ok(TcpStream::connect(ADDRESS)?);
    let _idle: Vec<_> = (0..IDLE).map(|_| bed.the_box.enter(connect).unwrap()).collect();
    for _ in 0..20 {
        assert_eq!(json(&bed.the_box, "/v1/status")["ready"], true);
    }
    let descriptors = fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count();
    assert!(descriptors < IDLE, "{descriptors} open files");
    // The control socket answers, and packets are forwarded.
    let before = daemon.forwarded();
    eventually_true("packets are forwarded", || {
        ping(&bed.client, "10.7.2.2", 1);
        daemon.forwarded() > before
    });
    daemon.stop();
}
