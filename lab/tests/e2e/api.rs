//! The API of a running daemon: its document, who may use which socket, and idle clients.

use crate::{
    bed::{Bed, ping},
    daemon::{Daemon, PATIENCE, eventually, eventually_true},
    firewall::nft,
    reload::File,
};
use router::{
    base::instance::Instance,
    daemon::client::{self, CallError},
};
use rustix::{
    process::{Gid, Resource, Rlimit, Uid, getrlimit, setrlimit},
    thread::{set_thread_gid, set_thread_groups, set_thread_uid},
};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    fs,
    io::{ErrorKind, Read as _},
    os::unix::{fs::MetadataExt, net::UnixStream},
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// The group of the read-only socket, by number: it needs no entry in the machine's database.
const READERS: u32 = 54_321;
const MEMBER: u32 = 54_322;
const OTHER_MEMBER: u32 = 54_323;
const PORTS: &str = "ports = [\"p1\", \"p2\"]\n";

fn instance(bed: &Bed) -> Instance {
    Instance::new(Some(bed.name.parse().unwrap()))
}

fn with_readers(bed: &Bed) -> (File, Daemon) {
    let file = File::new(&bed.name, &format!("{PORTS}[api]\nreaders = \"{READERS}\"\n"));
    let mut daemon = file.start(bed);
    daemon.until_accelerated(2);
    (file, daemon)
}

/// Does something in a thread with only the rights of a user and a group.
fn as_user<T: Send>(user: u32, group: u32, act: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            set_thread_groups(&[]).unwrap();
            set_thread_gid(Gid::from_raw(group)).unwrap();
            set_thread_uid(Uid::from_raw(user)).unwrap();
            act()
        });
        thread.join().unwrap()
    })
}

fn get(socket: &Path, path: &str) -> Result<Value, CallError> {
    client::call(socket, "GET", path, None, PATIENCE)
}

fn post(socket: &Path, path: &str, body: Value) -> Result<Value, CallError> {
    client::call(socket, "POST", path, Some(body), PATIENCE)
}

/// Allows no field that the schema does not have.
fn be_strict(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            if map.contains_key("properties") {
                map.entry("additionalProperties").or_insert(json!(false));
            }
            map.values_mut().for_each(be_strict);
        }
        Value::Array(list) => list.iter_mut().for_each(be_strict),
        _ => {}
    }
}

/// The document, and the requests whose answers were compared with it.
struct Checked {
    document: Value,
    done: BTreeSet<String>,
}

impl Checked {
    /// Asserts that an answer to a request is as the document says.
    fn check(&mut self, method: &str, path: &str, answer: &Value) {
        let content = &self.document["paths"][path][method]["responses"]["200"]["content"];
        let (_, content) =
            content.as_object().unwrap_or_else(|| panic!("{method} {path}")).iter().next().unwrap();
        let mut schema = content["schema"].clone();
        // References lead from the root of the document to its components.
        schema["components"] = self.document["components"].clone();
        be_strict(&mut schema["components"]);
        let validator = jsonschema::draft202012::new(&schema).unwrap();
        let faults: Vec<_> = validator
            .iter_errors(answer)
            .map(|fault| format!("{}: {fault}", fault.instance_path()))
            .collect();
        assert!(faults.is_empty(), "{method} {path}: {faults:#?}\n{answer:#}");
        self.done.insert(format!("{method} {path}"));
    }
}

/// A daemon with some of everything: traffic, firewall rules, flow rules, a path, a listener for controllers.
#[test]
#[ignore = "needs root"]
fn every_answer_is_as_the_document_says() {
    let bed = Bed::new();
    nft(&bed, "table ip t { chain f { type filter hook forward priority 0; udp dport 9 drop; }; }");
    let file = File::new(
        &bed.name,
        &format!(
            "{PORTS}[openflow]\ncontrollers = [\"ptcp:0:127.0.0.1\"]\n[workers]\ncores = \"0\"\n[[path]]\nname = \"dns\"\n\
             class = {{ protocol = \"udp\", destination_port = 53 }}\nchain = [\"check\", \"route\", \"ttl\", \"rewrite\"]\n"
        ),
    );
    let daemon = file.start(&bed);
    let socket = instance(&bed).socket();
    ping(&bed.client, "10.8.2.2", 5);
    ping(&bed.client, "fd07:2::2", 5);
    let document = get(&socket, "/openapi.json").unwrap();
    let mut checked = Checked { document, done: BTreeSet::new() };
    let rules = json!({ "command": "add", "flows": "priority=7,udp,tp_dst=99,idle_timeout=600,actions=NORMAL\nnonsense", "wait": true });
    for (path, body) in [
        ("/flows", rules),
        ("/explain", json!({ "packet": "udp 10.8.1.2:1 -> 10.8.2.2:2" })),
        ("/explain", json!({ "packet": "udp 10.8.1.2:1 -> 10.8.2.2:99", "port": "p1" })),
        ("/sas", json!({})),
        ("/reload", json!({})),
    ] {
        checked.check("post", &format!("/v1{path}"), &post(&socket, path, body).unwrap());
    }
    for (path, query) in [
        ("/status", ""),
        ("/ports", ""),
        ("/routers", ""),
        ("/interfaces", ""),
        ("/firewall", ""),
        ("/connections", "?state=linux&router=host&address=10.8.1.2"),
        ("/route", "?address=10.8.2.2"),
        ("/route", "?address=203.0.113.1&router=host"),
        ("/routes", "?prefix=0.0.0.0/0&longer=true"),
        ("/neighbours", ""),
        ("/verify", ""),
        ("/cores", ""),
        ("/events", "?after=0"),
        ("/controllers", ""),
        ("/sas", ""),
        ("/openapi.json", ""),
    ] {
        let answer = get(&socket, &format!("{path}{query}")).unwrap_or_else(|e| panic!("{path}{query}: {e}"));
        checked.check("get", &format!("/v1{path}"), &answer);
    }
    let mut rules = 0;
    client::lines(&socket, "/flows", PATIENCE, |rule: Value| {
        rules += 1;
        checked.check("get", "/v1/flows", &rule);
        Ok(())
    })
    .unwrap();
    assert_eq!(rules, 1);
    let nothing = json!({ "count": 0, "ports": ["p1"] });
    client::file(&socket, "/capture", nothing, PATIENCE, std::future::pending(), |_| Ok(true)).unwrap();
    checked.done.insert("post /v1/capture".into());
    for method in ["get", "delete"] {
        let report = client::call(&socket, &method.to_uppercase(), "/capture", None, PATIENCE).unwrap();
        checked.check(method, "/v1/capture", &report);
    }
    let metrics = client::text(&socket, "/metrics", PATIENCE).unwrap();
    checked.check("get", "/metrics", &json!(metrics));
    checked.check("post", "/v1/stop", &post(&socket, "/stop", json!({})).unwrap());
    let paths = checked.document["paths"].as_object().unwrap().iter();
    let all = paths.flat_map(|(path, of)| of.as_object().unwrap().keys().map(move |m| format!("{m} {path}")));
    assert_eq!(checked.done, all.collect(), "a request was not made");
    daemon.ended();
}

#[test]
#[ignore = "needs root"]
fn members_of_the_group_read_and_change_nothing() {
    let bed = Bed::new();
    let (file, daemon) = with_readers(&bed);
    let instance = instance(&bed);
    let (control, read_only) = (instance.socket(), instance.read_only_socket());
    let mode =
        |path: &Path| fs::metadata(path).map(|data| (data.mode() & 0o7777, data.uid(), data.gid())).unwrap();
    assert_eq!(mode(&control), (0o600, 0, 0));
    assert_eq!(mode(&read_only), (0o660, 0, READERS));

    let read = |path: &str| client::reading(&instance, |socket| get(socket, path));
    as_user(MEMBER, READERS, || {
        assert_eq!(read("/status").unwrap()["ready"], true);
        assert!(client::text(&read_only, "/metrics", PATIENCE).unwrap().ends_with("# EOF\n"));
        for path in ["/connections", "/flows", "/sas", "/verify"] {
            let error = read(path).unwrap_err().to_string();
            assert!(error.contains("the read-only socket does not serve this request"), "{path}: {error}");
        }
        for path in ["/stop", "/reload", "/flows", "/sas", "/explain"] {
            let error = post(&read_only, path, json!({})).unwrap_err();
            assert!(matches!(error, CallError::Refused { status: 403, .. }), "{path}: {error}");
        }
        assert!(matches!(post(&control, "/stop", json!({})), Err(CallError::Forbidden)));
    });
    as_user(MEMBER, MEMBER, || {
        let error = read("/status").unwrap_err().to_string();
        assert!(error.contains("join the group"), "{error}");
    });
    assert_eq!(read("/status").unwrap()["ready"], true, "root uses the control socket");

    // A daemon without readers removes the socket of the last one.
    daemon.kill();
    assert!(read_only.exists());
    file.write(PORTS);
    let daemon = file.start(&bed);
    assert!(!read_only.exists());
    as_user(MEMBER, READERS, || assert!(matches!(read("/status"), Err(CallError::Forbidden))));

    file.write(&format!("{PORTS}[api]\nreaders = \"{READERS}\"\n"));
    let output = daemon.millrace(&["reload"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("a running daemon cannot change api.readers"), "{text}");
    daemon.stop();
    assert!(!control.exists());

    let daemon = file.start(&bed);
    assert!(read_only.exists());
    daemon.stop();
    assert!(!read_only.exists());
}

/// Connections that the other side has not closed.
fn open(streams: &mut [UnixStream]) -> usize {
    let is_open = |stream: &mut &mut UnixStream| {
        stream.set_nonblocking(true).unwrap();
        stream.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    };
    streams.iter_mut().filter_map(|mut stream| is_open(&mut stream).then_some(())).count()
}

const IDLE: usize = 1000;

/// Connects a thousand times, and waits until the daemon has closed all but as many as one user may have.
fn idle(socket: &Path) -> Vec<UnixStream> {
    /// The limits of docs/reference/api.md.
    const MOST: usize = 64;
    const PATIENCE_OF_DAEMON: Duration = Duration::from_secs(5);
    eventually("a daemon that closes the older connections", || {
        let begun = Instant::now();
        let mut idle: Vec<_> = (0..IDLE).map(|_| UnixStream::connect(socket).unwrap()).collect();
        while open(&mut idle) > MOST && begun.elapsed() < PATIENCE_OF_DAEMON {
            thread::sleep(Duration::from_millis(10));
        }
        // Later, the daemon closes all of them, because they are idle. That would show nothing.
        if begun.elapsed() < PATIENCE_OF_DAEMON { Ok(idle) } else { Err("too many are open".into()) }
    })
}

#[test]
#[ignore = "needs root"]
fn a_thousand_idle_connections_keep_nobody_out() {
    let files = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: files.maximum, maximum: files.maximum }).unwrap();
    let bed = Bed::new();
    let (_file, daemon) = with_readers(&bed);
    let instance = instance(&bed);
    let _idle = [idle(&instance.socket()), as_user(MEMBER, READERS, || idle(&instance.read_only_socket()))];
    assert_eq!(daemon.ask(&["status"])["ready"], true, "the operator");
    for user in [MEMBER, OTHER_MEMBER] {
        as_user(user, READERS, || {
            let status = client::reading(&instance, |socket| get(socket, "/status")).unwrap();
            assert_eq!(status["ready"], true, "user {user}");
        });
    }
    let descriptors = fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count();
    assert!(descriptors < IDLE, "{descriptors} open files");
    // The daemon forwards as before.
    let before = daemon.forwarded();
    eventually_true("packets are forwarded", || {
        ping(&bed.client, "10.7.2.2", 1);
        daemon.forwarded() > before
    });
    daemon.stop();
}
