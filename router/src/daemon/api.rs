//! The API: HTTP and JSON over Unix sockets, in a thread of its own.
//!
//! It owns nothing. A request becomes a [`Query`] for the control thread, which answers between two rounds of its
//! loop, or a request to another thread. Packets and the control loop never wait for a client: the queue is short,
//! and when it is full, clients get a 503.
//!
//! | file | holds |
//! |---|---|
//! | `api.rs` | the server, its handlers, and the queue of the control thread |
//! | `endpoints.rs` | the table of all requests |
//! | `document.rs` | the OpenAPI document |
//! | `page.rs` | the test that docs/reference/api.md matches both |
//!
//! Errors are `{"error": "text"}` with a fitting status.

pub mod document;
pub mod endpoints;
#[cfg(test)]
mod page;

use super::{metrics, serving};
use crate::{
    api::{
        ApiError, ConnectionsQuery, EventsQuery, FlowsQuery, RouteQuery,
        capture::{CaptureReport, CaptureRequest},
        cores::{CoresReport, EventReport},
        flows::FlowsChanged,
        routes::{NeighboursQuery, RoutesQuery},
        sas::{SasReport, SasRequest},
        status::{ExplainReport, ExplainRequest},
    },
    base::{hex, privileges},
    capture::{Bounds, Captures},
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
};
use endpoints::{Endpoint, endpoints};
use hyper::body::Frame;
use serde::de::DeserializeOwned;
use std::{
    convert::Infallible,
    fmt, io,
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
    Routes(RoutesQuery),
    Neighbours(NeighboursQuery),
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
#[derive(Clone)]
pub struct Sources {
    pub switch: switch::Handle,
    pub cores: Option<cores::handle::CoresHandle>,
    pub sas: RunningSas,
    pub files: Files,
    pub reloader: Reloader,
    pub metrics: metrics::Source,
    pub captures: Captures,
}

/// The sockets of the API.
pub struct Sockets {
    pub control: UnixListener,
    /// `None`: not configured.
    pub read_only: Option<UnixListener>,
}

/// Serves the sockets in a new thread until the process ends. SIGINT and SIGTERM arrive as [`Query::Leave`].
pub fn serve(sockets: Sockets, served: Served) -> io::Result<()> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name("api".into()).spawn(move || {
        privileges::serve_with_nothing("api");
        let serve = async |listener, is_read_only: bool, limits, name| {
            let listening = |listener: UnixListener| {
                listener.set_nonblocking(true)?;
                tokio::net::UnixListener::from_std(listener)
            };
            let is_served = |endpoint: &Endpoint| !is_read_only || endpoint.is_for_readers;
            let routes = routes(served.clone(), is_served, ApiError::not_for_readers);
            match listening(listener) {
                Ok(listener) => serving::serve(listener, routes, limits).await,
                Err(e) => tracing::error!("the {name} socket is not served: {e}; forwarding goes on"),
            }
        };
        runtime.block_on(async {
            let control = serve(sockets.control, false, serving::CONTROL, "control");
            match sockets.read_only {
                Some(read_only) => {
                    tokio::join!(control, serve(read_only, true, serving::READ_ONLY, "read-only"));
                }
                None => control.await,
            }
        });
    })?;
    Ok(())
}

/// What the handlers use.
#[derive(Clone)]
pub struct Served {
    pub requests: Requests,
    pub sources: Sources,
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Served").finish_non_exhaustive()
    }
}

/// All requests. Those that are not served get this refusal.
pub fn routes(served: Served, is_served: impl Fn(&Endpoint) -> bool, refusal: fn() -> ApiError) -> Router {
    let mut routes = Router::new();
    for endpoint in endpoints() {
        let handler = if is_served(&endpoint) { endpoint.handler } else { endpoint.refusal(refusal) };
        routes = routes.route(endpoint.path, handler);
    }
    routes
        .fallback(|| async { ApiError::no_such_request() })
        .method_not_allowed_fallback(|| async { ApiError { status: 405, text: "wrong method".into() } })
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(served)
}

async fn explain(
    State(Served { requests: to, sources }): State<Served>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<ExplainReport>, ApiError> {
    let report = explained(&to, request(body, "an explain request")?).await?;
    if report.is_before_rules() {
        return Ok(Json(report));
    }
    let frame = hex::decode(&report.frame).unwrap_or_default();
    let Some(rules) = sources.switch.explain(report.port.clone(), frame).await? else {
        return Ok(Json(report));
    };
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

/// The way of a packet without flow rules.
async fn explained(to: &Requests, request: ExplainRequest) -> Result<ExplainReport, ApiError> {
    let Json(answer) = ask(to.clone(), Query::Explain(request)).await?;
    serde_json::from_value(answer).map_err(|e| ApiError::failed(format!("no explanation: {e}")))
}

/// Captures packets until the client disconnects. The body is a pcapng file.
async fn capture(
    State(Served { requests: to, sources }): State<Served>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let request: CaptureRequest = request(body, "a request for a capture")?;
    let claim =
        sources.captures.claim().ok_or_else(|| ApiError::busy("another capture is running; end it first"))?;
    let CaptureRequest { snaplen, count, size, .. } = request;
    let bounds = Bounds { snaplen, packets: count, bytes: size };
    let Json(started) = ask(to, Query::Capture(request)).await?;
    let started = serde_json::from_value(started).map_err(|e| ApiError::failed(format!("no names: {e}")))?;
    let pieces = claim.read(started, bounds);
    let pieces = pieces.map_err(|e| ApiError::failed(format!("captured packets cannot be read: {e}")))?;
    Ok(([(CONTENT_TYPE, document::PCAPNG)], Body::new(Pieces(pieces))).into_response())
}

async fn capture_report(State(served): State<Served>) -> Json<CaptureReport> {
    Json(served.sources.captures.report())
}

async fn end_capture(State(served): State<Served>) -> Json<CaptureReport> {
    served.sources.captures.end();
    Json(served.sources.captures.report())
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

async fn list_flows(State(served): State<Served>, Url(query): Url<FlowsQuery>) -> Result<Response, ApiError> {
    let lines = served.sources.switch.list(query.matching).await?;
    Ok(([(CONTENT_TYPE, document::LINES)], Body::new(lines)).into_response())
}

async fn controllers(State(served): State<Served>) -> Result<Json<ControllersReport>, ApiError> {
    served.sources.switch.controllers().await.map(Json)
}

async fn cores_report(State(served): State<Served>) -> Result<Json<CoresReport>, ApiError> {
    let mut report = served.sources.cores.ok_or_else(ApiError::ending)?.cores();
    served.sources.switch.add_handed(&mut report);
    Ok(Json(report))
}

async fn events(
    State(served): State<Served>,
    Url(query): Url<EventsQuery>,
) -> Result<Json<Vec<EventReport>>, ApiError> {
    served.sources.cores.map(|cores| Json(cores.events(query.after))).ok_or_else(ApiError::ending)
}

async fn change_flows(
    State(served): State<Served>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<FlowsChanged>, ApiError> {
    let request = request(body, "a request for flows")?;
    match timeout(PATIENCE, served.sources.switch.change(request)).await {
        Ok(answer) => answer.map(Json),
        Err(_) => Err(ApiError::busy(
            "the rules are changed, but it is not known in time whether packets obey; see `millrace status`",
        )),
    }
}

async fn list_sas(State(served): State<Served>) -> Result<Json<SasReport>, ApiError> {
    let listed = task::spawn_blocking(move || Json(served.sources.sas.report())).await;
    listed.map_err(|e| ApiError::failed(format!("listing SAs: {e}")))
}

/// Changes SAs, in the thread that may use files, because keys and sequence numbers are in files.
async fn change_sas(
    State(served): State<Served>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<SasReport>, ApiError> {
    let SasRequest { set, file, remove } = request(body, "a request for SAs")?;
    if !set.is_empty() && !file.is_absolute() {
        return Err(ApiError::bad("file: the absolute path of the file that has these tables is needed"));
    }
    let Sources { sas, files, .. } = served.sources;
    files
        .with(move || {
            sas.change(&file, &set, &remove).map_err(ApiError::bad)?;
            Ok(Json(sas.report()))
        })
        .await?
}

async fn reload(State(served): State<Served>) -> Result<Json<serde_json::Value>, ApiError> {
    served.sources.reloader.reload().await
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
    // Serde would take a list of the fields, too.
    if body.trim_ascii_start().first() == Some(&b'[') {
        return Err(ApiError::bad(format!("not {what}: it must be a JSON object")));
    }
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
mod tests;
