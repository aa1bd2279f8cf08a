//! The API: HTTP and JSON over the Unix socket, in a thread of its own.
//!
//! It owns nothing. A request becomes a [`Query`] for the control thread, which answers between two rounds of its
//! loop, or a request to another thread. Packets and the control loop never wait for a client: the queue is short,
//! and when it is full, clients get a 503.
//!
//! | request | answer ([`crate::api`]) |
//! |---|---|
//! | `GET /status`, `/ports`, `/routers`, `/interfaces` | `Status`, lists of reports |
//! | `GET /metrics` | text for Prometheus (docs/reference/metrics.md) |
//! | `GET /route?address=A[&router=R]` | `RouteReport` |
//! | `GET /verify` | `VerifyReport` |
//! | `POST /explain` with an `ExplainRequest` | `ExplainReport` |
//! | `POST /capture` with a [`CaptureRequest`] | a pcapng file, for as long as the client reads it |
//! | `DELETE /capture` | ends it; a `CaptureReport` |
//! | `GET /capture` | a `CaptureReport` |
//! | `GET /cores` | `CoresReport` ([`crate::api::cores`]) |
//! | `GET /events[?after=NUMBER]` | a list of `EventReport`s, decisions about cores |
//! | `GET /controllers` | a `ControllersReport` ([`crate::switch::controllers`]) |
//! | `POST /flows` with a `FlowsRequest` ([`crate::api::flows`]) | `FlowsChanged`, once packets obey |
//! | `GET /flows[?match=M]` | a line with a `FlowReport` for each rule that M selects |
//! | `GET /sas` | a `SasReport` ([`crate::api::sas`]) |
//! | `POST /sas` with a [`SasRequest`] | a `SasReport`, once the next batch of packets uses the change |
//! | `POST /reload` | `ReloadReport`, once the daemon follows its configuration file |
//! | `POST /stop` | `StopReport`, once everything is removed |
//!
//! Errors are `{"error": "text"}` with a fitting status.

use super::{metrics, serving};
use crate::{
    api::{
        ApiError, ConnectionsQuery, RouteQuery,
        capture::{CaptureReport, CaptureRequest},
        cores::{CoresReport, EventReport},
        flows::FlowsChanged,
        sas::{SasReport, SasRequest},
        status::{ExplainReport, ExplainRequest},
    },
    base::{hex, privileges},
    capture::Captures,
    config::Config,
    cores,
    linux::observer::Waker,
    switch::{self, controllers::ControllersReport},
    user_plane::sas::RunningSas,
};
use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{
        DefaultBodyLimit, FromRequestParts, Query as UrlQuery, State,
        rejection::{BytesRejection, QueryRejection},
    },
    http::{header::CONTENT_TYPE, request::Parts},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use hyper::body::Frame;
use serde::{Deserialize, de::DeserializeOwned};
use std::{
    convert::Infallible,
    io,
    os::unix::net::UnixListener,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc,
        mpsc::{self, Receiver, SyncSender, TrySendError, sync_channel},
    },
    task::{Context, Poll},
    thread,
    time::Duration,
};
use tokio::{runtime, sync::oneshot, task, time::timeout};

/// The longest request body: a frame with the longest IP packet, in hexadecimal, and some room. The program takes
/// only shorter frames, but longer ones must get an answer that says so.
pub const MAX_BODY_BYTES: usize = 160 * 1024;
/// The longest request body with flow rules: some 30,000 rules. Clients send more in several requests.
pub const MAX_FLOWS_BYTES: usize = 4 << 20;
/// The longest request body with SAs. All SAs that there may be fit.
pub const MAX_SAS_BYTES: usize = 1 << 20;
/// The number of requests that may wait for the control thread.
pub const QUEUE: usize = 16;
/// How long a client waits for the control thread. Comparing or removing a full table takes seconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// A request to the control thread.
#[derive(Clone, Debug, PartialEq)]
pub enum Query {
    Status,
    Ports,
    Routers,
    Interfaces,
    /// What the control thread adds to a page of metrics ([`metrics::Observed`]).
    Metrics,
    Firewall,
    Connections(ConnectionsQuery),
    Route(RouteQuery),
    Verify,
    Explain(ExplainRequest),
    Capture(CaptureRequest),
    Stop,
    /// Follow another configuration.
    Reload(Box<Config>),
    /// Sent after a signal, not by a client: ends the daemon and leaves forwarding as it is.
    Leave,
}

/// A query, and where its answer goes.
#[derive(Debug)]
pub struct Request {
    pub query: Query,
    pub reply: oneshot::Sender<Answer>,
}

/// The queue of the control thread, and the waker that ends its wait for events.
#[derive(Clone, Debug)]
pub struct Requests {
    to: SyncSender<Request>,
    waker: Waker,
}

impl Requests {
    /// A queue of [`QUEUE`] requests for the thread that `waker` wakes.
    pub fn queue(waker: Waker) -> (Requests, Receiver<Request>) {
        let (to, requests) = sync_channel(QUEUE);
        (Requests { to, waker }, requests)
    }

    /// Queues a query. The returned receiver gets the answer.
    ///
    /// # Errors
    /// The queue is full, or the control thread has ended.
    pub fn send(&self, query: Query) -> Result<oneshot::Receiver<Answer>, ApiError> {
        let (reply, answer) = oneshot::channel();
        self.to.try_send(Request { query, reply }).map_err(|e| match e {
            TrySendError::Full(_) => ApiError::full(),
            TrySendError::Disconnected(_) => ApiError::ending(),
        })?;
        self.waker.wake();
        Ok(answer)
    }
}

/// The answer as JSON, or an error.
pub type Answer = Result<serde_json::Value, ApiError>;

/// Reads the configuration again.
pub type ReadConfig = Arc<dyn Fn() -> anyhow::Result<Config> + Send + Sync>;

/// Makes the daemon follow its configuration file. Clones run their reloads one after another.
#[derive(Clone)]
pub struct Reloader {
    requests: Requests,
    files: Files,
    read: ReadConfig,
    /// Held during a reload. The next one reads the file after it.
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Reloader {
    pub fn new(requests: Requests, files: Files, read: ReadConfig) -> Reloader {
        Reloader { requests, files, read, turn: Arc::default() }
    }

    /// Reads the file, and makes the daemon follow it.
    ///
    /// # Errors
    /// The file is wrong, or cannot be followed: nothing has changed.
    pub async fn reload(&self) -> Result<Json<serde_json::Value>, ApiError> {
        let _turn = self.turn.lock().await;
        let read = self.read.clone();
        let config = self.files.with(move || read().map_err(|error| format!("{error:#}"))).await?;
        let config = config.map_err(|why| ApiError::bad(format!("nothing was changed: {why}")))?;
        ask(self.requests.clone(), Query::Reload(Box::new(config))).await
    }
}

/// The threads that answer requests besides the control thread.
pub struct Sources {
    pub switch: switch::Handle,
    pub cores: Option<cores::handle::CoresHandle>,
    pub sas: RunningSas,
    pub files: Files,
    pub reloader: Reloader,
    pub metrics: metrics::Source,
    pub captures: Captures,
}

/// Serves the socket in a new thread until the process ends. SIGINT and SIGTERM arrive as [`Query::Leave`].
pub fn serve(listener: UnixListener, requests: Requests, sources: Sources) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name("api".into()).spawn(move || {
        privileges::serve_with_nothing("api");
        runtime.block_on(async {
            match tokio::net::UnixListener::from_std(listener) {
                Ok(listener) => {
                    let routes = routes(requests, sources);
                    serving::serve(listener, routes, serving::Bounds::API).await;
                }
                Err(e) => tracing::error!("there is no API: {e}; forwarding goes on"),
            }
        });
    })?;
    Ok(())
}

fn routes(requests: Requests, sources: Sources) -> Router {
    let Sources { switch, cores, sas: of_paths, files, reloader, captures, metrics } = sources;
    let capturing = get(capture_report).delete(end_capture);
    let capturing = capturing.post(capture).with_state((requests.clone(), captures));
    let explain = post(explain).with_state((requests.clone(), switch.clone()));
    let sas = get(list_sas).post(change_sas).layer(DefaultBodyLimit::max(MAX_SAS_BYTES));
    let flows = get(list_flows).post(change_flows).layer(DefaultBodyLimit::max(MAX_FLOWS_BYTES));
    let reload = post(|State(reloader): State<Reloader>| async move { reloader.reload().await });
    let fixed = |query: Query| get(move |State(to): State<Requests>| ask(to, query.clone()));
    Router::new()
        .route("/status", fixed(Query::Status))
        .route("/metrics", get(metrics::Source::answer_to).with_state(metrics))
        .route("/ports", fixed(Query::Ports))
        .route("/routers", fixed(Query::Routers))
        .route("/interfaces", fixed(Query::Interfaces))
        .route("/firewall", fixed(Query::Firewall))
        .route("/verify", fixed(Query::Verify))
        .route("/connections", get(|State(to), Url(query)| ask(to, Query::Connections(query))))
        .route("/route", get(|State(to), Url(route)| ask(to, Query::Route(route))))
        .route("/explain", explain)
        .route("/capture", capturing)
        .route("/cores", get(cores_report).with_state((cores.clone(), switch.clone())))
        .route("/events", get(events).with_state(cores))
        .route("/controllers", get(controllers).with_state(switch.clone()))
        .route("/flows", flows.with_state(switch))
        .route("/sas", sas.with_state((of_paths, files)))
        .route("/reload", reload.with_state(reloader))
        .route("/stop", post(|State(to): State<Requests>| ask(to, Query::Stop)))
        .fallback(|| async { ApiError::unknown("no such request") })
        .method_not_allowed_fallback(|| async { ApiError { status: 405, text: "wrong method".into() } })
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(requests)
}

async fn explain(
    State((to, switch)): State<(Requests, switch::Handle)>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<ExplainReport>, ApiError> {
    let report = explained(&to, request(body, "an explain request")?).await?;
    if report.is_before_rules() {
        return Ok(Json(report));
    }
    let frame = hex::decode(&report.frame).unwrap_or_default();
    let Some(rules) = switch.explain(report.port.clone(), frame).await? else { return Ok(Json(report)) };
    let normal = rules.outputs.iter().find(|output| output.to == "NORMAL");
    let routed = match normal.map(|output| output.frame.clone()) {
        Some(frame) => {
            let port = Some(report.port.clone());
            Some(
                explained(&to, ExplainRequest { frame: Some(frame), port, ..ExplainRequest::default() })
                    .await?,
            )
        }
        None => None,
    };
    Ok(Json(report.by_rules(rules, routed)))
}

/// Captures packets until the client has gone. The body is a pcapng file.
async fn capture(
    State((to, captures)): State<(Requests, Captures)>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let request: CaptureRequest = request(body, "a request for a capture")?;
    let claim = captures.claim().ok_or_else(|| ApiError::busy("another capture runs; end it first"))?;
    let since = claim.begin();
    let (snaplen, count) = (request.snaplen, request.count);
    let Json(names) = ask(to, Query::Capture(request)).await?;
    let names = serde_json::from_value(names).map_err(|e| ApiError::failed(format!("no names: {e}")))?;
    let pieces = claim.read(names, since, snaplen, count);
    let pieces = pieces.map_err(|e| ApiError::failed(format!("captured packets cannot be read: {e}")))?;
    Ok(([(CONTENT_TYPE, "application/x-pcapng")], Body::new(Pieces(pieces))).into_response())
}

async fn capture_report(State((_, captures)): State<(Requests, Captures)>) -> Json<CaptureReport> {
    Json(captures.report())
}

async fn end_capture(State((_, captures)): State<(Requests, Captures)>) -> Json<CaptureReport> {
    captures.end();
    Json(captures.report())
}

/// A file that is being written.
struct Pieces(tokio::sync::mpsc::Receiver<Vec<u8>>);

impl hyper::body::Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;
    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| Ok(Frame::data(piece.into()))))
    }
}

/// The way of a packet without flow rules.
async fn explained(to: &Requests, request: ExplainRequest) -> Result<ExplainReport, ApiError> {
    let Json(answer) = ask(to.clone(), Query::Explain(request)).await?;
    serde_json::from_value(answer).map_err(|e| ApiError::failed(format!("no explanation: {e}")))
}

/// The query of `GET /flows`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FlowsQuery {
    #[serde(default, rename = "match")]
    matching: String,
}

async fn list_flows(
    State(switch): State<switch::Handle>,
    Url(query): Url<FlowsQuery>,
) -> Result<Response, ApiError> {
    let lines = switch.list(query.matching).await?;
    Ok(([(CONTENT_TYPE, "application/x-ndjson")], Body::new(lines)).into_response())
}

async fn controllers(State(switch): State<switch::Handle>) -> Result<Json<ControllersReport>, ApiError> {
    switch.controllers().await.map(Json)
}

async fn cores_report(
    State((cores, switch)): State<(Option<cores::handle::CoresHandle>, switch::Handle)>,
) -> Result<Json<CoresReport>, ApiError> {
    let mut report = cores.ok_or_else(ApiError::ending)?.cores();
    switch.add_handed(&mut report);
    Ok(Json(report))
}

/// The query of `GET /events`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EventsQuery {
    #[serde(default)]
    after: u64,
}

async fn events(
    State(cores): State<Option<cores::handle::CoresHandle>>,
    Url(query): Url<EventsQuery>,
) -> Result<Json<Vec<EventReport>>, ApiError> {
    cores.map(|cores| Json(cores.events(query.after))).ok_or_else(ApiError::ending)
}

async fn change_flows(
    State(switch): State<switch::Handle>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<FlowsChanged>, ApiError> {
    let request = request(body, "a request for flows")?;
    match timeout(PATIENCE, switch.change(request)).await {
        Ok(answer) => answer.map(Json),
        Err(_) => Err(ApiError::busy(
            "the rules are changed, but it is not known in time whether packets obey; see `millrace status`",
        )),
    }
}

async fn list_sas(State((sas, _)): State<(RunningSas, Files)>) -> Result<Json<SasReport>, ApiError> {
    let listed = task::spawn_blocking(move || Json(sas.report())).await;
    listed.map_err(|e| ApiError::failed(format!("listing SAs: {e}")))
}

/// Changes SAs, in the thread that may use files, because keys and sequence numbers are in files.
async fn change_sas(
    State((sas, files)): State<(RunningSas, Files)>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<SasReport>, ApiError> {
    let SasRequest { set, file, remove } = request(body, "a request for SAs")?;
    if !set.is_empty() && !file.is_absolute() {
        return Err(ApiError::bad("file: the absolute path of the file that has these tables is needed"));
    }
    files
        .with(move || {
            sas.change(&file, &set, &remove).map_err(ApiError::bad)?;
            Ok(Json(sas.report()))
        })
        .await?
}

/// A thread that uses files on behalf of the API's thread, which has no access to them.
#[derive(Clone)]
pub struct Files(mpsc::Sender<Box<dyn FnOnce() + Send>>);

impl Files {
    pub fn start() -> io::Result<Files> {
        let (to, jobs) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        thread::Builder::new().name("api-files".into()).spawn(move || {
            if let Err(error) = privileges::give_up_all() {
                tracing::error!("the thread api-files keeps its rights: {error:#}");
            }
            for job in jobs {
                // If it panics, its client gets an error.
                let _ = catch_unwind(AssertUnwindSafe(job));
            }
        })?;
        Ok(Files(to))
    }

    async fn with<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Result<T, ApiError> {
        let (done_to, done) = oneshot::channel();
        let job = move || drop(done_to.send(job()));
        self.0.send(Box::new(job)).map_err(|_| ApiError::ending())?;
        done.await.map_err(|_| ApiError::failed("a file could not be written"))
    }
}

/// Reads a body. `what` says in errors what it should be.
fn request<T: DeserializeOwned>(body: Result<Bytes, BytesRejection>, what: &str) -> Result<T, ApiError> {
    let body = body.map_err(|e| ApiError { status: e.status().as_u16(), text: e.body_text() })?;
    serde_json::from_slice(&body).map_err(|e| ApiError::bad(format!("not {what}: {e}")))
}

/// Sends a query to the control thread and waits for the answer.
pub(super) async fn ask(to: Requests, query: Query) -> Result<Json<serde_json::Value>, ApiError> {
    match timeout(PATIENCE, to.send(query)?).await {
        Ok(Ok(answer)) => answer.map(Json),
        Ok(Err(_)) => Err(ApiError::ending()),
        Err(_) => Err(ApiError::busy("no answer in time; the control thread is busy")),
    }
}

/// The query of the URL. Errors are answered as JSON.
struct Url<T>(T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Url<T> {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match UrlQuery::from_request_parts(parts, state).await {
            Ok(UrlQuery(value)) => Ok(Url(value)),
            Err(e) => Err(ApiError::bad(QueryRejection::body_text(&e))),
        }
    }
}

#[cfg(test)]
mod tests {
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
        let sources = Sources { switch, cores: None, sas, files, reloader, captures, metrics };
        (end.tell)(crate::switch::seam::SwitchMessage::Ports(Vec::new()));
        serve(UnixListener::bind(&path).unwrap(), to, sources).unwrap();
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
            ("GET", "/status", "", 200, "Status"),
            ("GET", "/ports", "", 200, "Ports"),
            ("GET", "/routers", "", 200, "Routers"),
            ("GET", "/interfaces", "", 200, "Interfaces"),
            ("GET", "/firewall", "", 200, "Firewall"),
            (
                "GET",
                "/connections?router=r&address=10.0.0.1&state=fast",
                "",
                200,
                "Connections(ConnectionsQuery { router: Some(\"r\"), address: Some(10.0.0.1), state: Some(Fast) })",
            ),
            ("GET", "/connections?state=slow", "", 400, "unknown variant `slow`"),
            (
                "GET",
                "/route?address=10.0.0.1",
                "",
                200,
                "Route(RouteQuery { address: 10.0.0.1, router: None })",
            ),
            (
                "GET",
                "/route?address=::1&router=r",
                "",
                200,
                "Route(RouteQuery { address: ::1, router: Some(\"r\") })",
            ),
            ("POST", "/stop", "", 200, "Stop"),
            ("POST", "/reload", "", 200, "Reload(Config { ports: []"),
            ("POST", "/explain", "{\"packet\":\"x\"}", 200, "packet: Some(\"x\")"),
            ("GET", "/verify", "", 500, "no"),
            ("GET", "/stop", "", 405, "wrong method"),
            ("GET", "/nonsense", "", 404, "no such request"),
            ("GET", "/route", "", 400, "missing field `address`"),
            ("GET", "/route?address=x", "", 400, "invalid IP address"),
            ("GET", "/route?address=1.1.1.1&via=2", "", 400, "unknown field `via`"),
            ("POST", "/explain", "{", 400, "not an explain request: EOF"),
            ("POST", "/explain", "{\"packets\":1}", 400, "unknown field `packets`"),
            ("POST", "/explain", "\u{0}", 400, "not an explain request"),
            ("GET", "/flows?match=nonsense", "", 400, "not a field"),
            ("GET", "/flows?wants=1", "", 400, "unknown field `wants`"),
            ("POST", "/flows", "{", 400, "not a request for flows"),
            ("PUT", "/flows", "", 405, ""),
            ("POST", "/sas", "{\"set\":\"[[sa]]\",\"file\":\"/x\"}", 400, "/x:1: missing field"),
            ("POST", "/sas", "{\"set\":\"[[sa]]\"}", 400, "file: the absolute path"),
            (
                "POST",
                "/sas",
                "{\"remove\":[{\"sa\":\"a\",\"spi\":256}]}",
                400,
                "there is no SA a with SPI 256",
            ),
            ("POST", "/sas", "{\"keys\":1}", 400, "unknown field `keys`"),
        ];
        for (method, path, body, status, part) in table {
            let length = body.len();
            let request = format!(
                "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
            );
            let (got, answer) = raw(&socket, &request);
            assert_eq!(got, status, "{method} {path}: {answer}");
            let text = if path == "/explain" && status == 200 { &answer["notes"][0] } else { &answer };
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
                "POST /explain HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
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
            stream.write_all(b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            waiting.push(stream);
        }
        // Each of the sixteen gets its place in the queue before the seventeenth request.
        thread::sleep(Duration::from_millis(300));
        let (status, answer) = raw(&socket, "GET /status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        assert_eq!((status, &answer["error"]), (503, &json!("too many requests are waiting; try again")));
        drop(requests);
        let (status, _) = raw(&socket, "GET /status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        assert_eq!(status, 503, "the daemon is ending");
    }
}
