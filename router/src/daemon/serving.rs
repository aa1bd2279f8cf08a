//! Connections of clients, over the Unix socket or TCP: their largest number, and how long they may take.
//!
//! A connection carries one request. It waits before the [`Door`] until the head of the request has arrived. It is
//! inside until the client has taken the answer. The operator, root or the user who runs the daemon, has places that no
//! other user can take.
//!
//! The read-only socket has a door of its own, so its clients cannot block the control socket. Its requests are
//! answered one after another, with pauses, so they take at most half of the time of the threads that answer. The same holds for
//! the address of the web page, with a quarter.

use super::api::{MAX_BODY_BYTES, MAX_FLOWS_BYTES};
use crate::{
    api::ApiError,
    base::{
        door::{Door, Room, source_of},
        guard::locked,
        seldom::Seldom,
    },
};
use axum::{
    Router,
    body::Body,
    http::Request,
    response::{IntoResponse, Response},
};
use http_body_util::{BodyExt, Limited};
use hyper::{
    body::{Body as _, Incoming},
    server::conn::http1,
    service::{Service, service_fn},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use std::{
    convert::Infallible,
    hash::Hash,
    io,
    net::IpAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    sync::oneshot,
    time::{sleep, timeout},
};

/// What a listener allows its clients.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub room: Room,
    /// Makes the answer to a request that no handler sees.
    pub refusal: fn(ApiError) -> Response,
    /// The longest head and the longest body of a request, bytes.
    pub head: usize,
    pub body: usize,
    /// The time for the head of a request, and again for its body.
    pub patience: Duration,
    /// The longest time that a connection lasts, except the operator's.
    pub longest: Duration,
    /// Requests are answered one after another, and after each there is a pause of this many times its length. `None`: all are
    /// answered at once.
    pub pause: Option<u32>,
}

/// The limits of the control socket. Places inside for users other than the operator are half the queue of the control
/// thread ([`super::api::QUEUE`]).
pub const CONTROL: Limits = Limits {
    room: Room { waiting: 128, waiting_of_a_source: 64, inside: 8, inside_of_a_source: 32 },
    head: 400 << 10,
    body: MAX_FLOWS_BYTES,
    patience: Duration::from_secs(5),
    longest: Duration::from_secs(90),
    pause: None,
    refusal: ApiError::into_response,
};

/// The limits of the read-only socket.
pub const READ_ONLY: Limits = Limits {
    room: Room { inside_of_a_source: 4, ..CONTROL.room },
    body: MAX_BODY_BYTES,
    pause: Some(1),
    ..CONTROL
};

/// Where clients come from.
pub trait Peers {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// Clients of one source must not take the places of others.
    type Source: Hash + Eq + Clone + Send + 'static;
    /// The next client, its source, and whether it is the operator.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, Self::Source, bool)>> + Send;
}

/// Local users.
impl Peers for UnixListener {
    type Stream = UnixStream;
    type Source = u32;
    async fn accept(&self) -> io::Result<(UnixStream, u32, bool)> {
        let (stream, _) = UnixListener::accept(self).await?;
        let uid = stream.peer_cred()?.uid();
        Ok((stream, uid, uid == 0 || uid == rustix::process::geteuid().as_raw()))
    }
}

/// Hosts, none of which is the operator.
pub struct TcpPeers(pub TcpListener);

impl Peers for TcpPeers {
    type Stream = TcpStream;
    type Source = IpAddr;
    async fn accept(&self) -> io::Result<(TcpStream, IpAddr, bool)> {
        let (stream, peer) = self.0.accept().await?;
        Ok((stream, source_of(peer.ip()), false))
    }
}

/// Serves connections forever.
pub async fn serve<P: Peers>(peers: P, routes: Router, limits: Limits) {
    let (door, mut seldom) = (Door::new(limits.room), Seldom::default());
    let turns = limits.pause.map(|pause| Turns { pause, turn: Arc::default() });
    loop {
        match peers.accept().await {
            Ok((stream, source, is_operator)) => {
                let (pass, gone) = door.knock(source);
                let pass = Mutex::new(pass);
                let (routes, turns) = (routes.clone(), turns.clone());
                let service = service_fn(move |request| {
                    let has_room = locked(&pass).enter(is_operator);
                    answer(routes.clone(), turns.clone(), request, has_room, limits)
                });
                tokio::spawn(async move {
                    tokio::select! {
                        () = converse(stream, service, limits) => {},
                        _ = gone => {},
                        () = sleep(limits.longest), if !is_operator => {},
                    }
                });
            }
            Err(error) => {
                if let Some(more) = seldom.may("accepting", "", Instant::now()) {
                    tracing::warn!("cannot accept a client of the API: {error}{more}");
                }
                // There are probably too many open files: an immediate retry would only keep the CPU busy.
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn converse<T, S>(stream: T, service: S, limits: Limits)
where
    T: AsyncRead + AsyncWrite + Unpin,
    S: Service<Request<Incoming>, Response = Response, Error = Infallible>,
{
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.patience).keep_alive(false);
    http.max_buf_size(limits.head);
    // This fails if the client leaves before its answer, which does no harm.
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}

/// Answers one request at a time.
#[derive(Clone)]
struct Turns {
    /// [`Limits::pause`].
    pause: u32,
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Turns {
    /// Calls the handler when it is its turn. A client that leaves before its turn loses it. Once the handler has begun, it
    /// completes and the pause follows, even if the client leaves.
    async fn call(self, routes: Router, request: Request<Body>) -> Result<Response, Infallible> {
        let Turns { pause, turn } = self;
        let turn = turn.lock_owned().await;
        let (to, answer) = oneshot::channel();
        tokio::spawn(async move {
            let began = Instant::now();
            // This fails if the client has left.
            let _ = to.send(TowerToHyperService::new(routes).call(request).await);
            sleep(began.elapsed() * pause).await;
            drop(turn);
        });
        answer.await.unwrap_or_else(|_| Ok(ApiError::failed("the request failed").into_response()))
    }
}

async fn answer(
    routes: Router,
    turns: Option<Turns>,
    request: Request<Incoming>,
    has_room: bool,
    limits: Limits,
) -> Result<Response, Infallible> {
    if !has_room {
        return Ok((limits.refusal)(ApiError::full()));
    }
    let request = match whole(request, limits).await {
        Ok(request) => request,
        Err(error) => return Ok((limits.refusal)(error)),
    };
    match turns {
        Some(turns) => turns.call(routes, request).await,
        None => TowerToHyperService::new(routes).call(request).await,
    }
}

/// The request with its whole body.
async fn whole(request: Request<Incoming>, limits: Limits) -> Result<Request<Body>, ApiError> {
    let patience = limits.patience;
    let (head, body) = request.into_parts();
    if body.size_hint().lower() > limits.body as u64 {
        let text = format!("the body is longer than {} bytes", limits.body);
        return Err(ApiError { status: 413, text });
    }
    match timeout(patience, Limited::new(body, limits.body).collect()).await {
        Ok(Ok(whole)) => Ok(Request::from_parts(head, Body::from(whole.to_bytes()))),
        Ok(Err(error)) => {
            let status = if error.is::<http_body_util::LengthLimitError>() { 413 } else { 400 };
            Err(ApiError { status, text: error.to_string() })
        }
        Err(_) => {
            let text = format!("the request was not complete after {patience:?}");
            Err(ApiError { status: 408, text })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::client;
    use axum::{Json, routing::get};
    use std::{
        io::{Read, Write},
        os::unix::net::{UnixListener as StdListener, UnixStream as StdStream},
        path::{Path, PathBuf},
        thread,
    };
    use tokio::runtime;

    fn start(limits: Limits) -> (tempfile::TempDir, PathBuf) {
        let routes = Router::new().route("/v1/status", get(|| async { Json("fine") }).post(|| async { "" }));
        start_with(routes, limits)
    }

    fn start_with(routes: Router, limits: Limits) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let listener = StdListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        thread::spawn(move || {
            runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
                serve(UnixListener::from_std(listener).unwrap(), routes, limits).await;
            });
        });
        (directory, path)
    }

    fn connect(socket: &Path, request: &str) -> StdStream {
        let mut stream = StdStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }

    #[test]
    fn a_flood_of_half_open_requests_keeps_no_operator_out() {
        let (_directory, socket) = start(Limits { patience: Duration::from_secs(600), ..CONTROL });
        let half = "GET /v1/status HTTP/1.1\r\nHost: x\r\n";
        let mut flood: Vec<_> = (0..600).map(|_| connect(&socket, half)).collect();
        let fine: String = client::call(&socket, "GET", "/status", None, Duration::from_secs(60)).unwrap();
        assert_eq!(fine, "fine");
        let kept = flood.split_off(600 - CONTROL.room.waiting_of_a_source + 1);
        for mut stream in flood {
            assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0, "it was closed");
        }
        for mut stream in kept {
            stream.write_all(b"\r\n").unwrap();
            let mut answer = String::new();
            let _ = stream.read_to_string(&mut answer);
            assert!(answer.ends_with("\"fine\""), "{answer}");
        }
    }

    #[test]
    fn a_head_and_a_body_have_a_deadline() {
        let (_directory, socket) = start(Limits { patience: Duration::from_millis(300), ..CONTROL });
        let mut head = connect(&socket, "GET /v1/status HTTP/1.1\r\n");
        let mut body = connect(&socket, "POST /v1/status HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx");
        let mut answer = String::new();
        let _ = head.read_to_string(&mut answer);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
        answer.clear();
        let _ = body.read_to_string(&mut answer);
        assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("not complete"), "{answer}");
    }

    /// Each begins when the one before it has ended, and after a pause of the same length.
    #[test]
    fn requests_of_the_read_only_socket_take_at_most_half_of_the_time() {
        assert_pauses(1);
    }

    #[test]
    fn requests_of_the_web_page_take_at_most_a_quarter_of_the_time() {
        assert_pauses(3);
    }

    fn assert_pauses(pause: u32) {
        const WORK: Duration = Duration::from_millis(100);
        let begun = Arc::new(Mutex::new(Vec::new()));
        let at_work = begun.clone();
        let work = move || {
            let at_work = at_work.clone();
            async move {
                locked(&at_work).push(Instant::now());
                sleep(WORK).await;
                Json("fine")
            }
        };
        let routes = Router::new().route("/v1/status", get(work));
        let (_directory, socket) = start_with(routes, Limits { pause: Some(pause), ..READ_ONLY });
        let request = "GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n";
        let clients: Vec<_> =
            (0..READ_ONLY.room.inside_of_a_source).map(|_| connect(&socket, request)).collect();
        // A client that has left does not shorten the pause.
        let mut clients = clients.into_iter();
        drop(clients.next());
        for mut client in clients {
            let mut answer = String::new();
            let _ = client.read_to_string(&mut answer);
            assert!(answer.ends_with("\"fine\""), "{answer}");
        }
        let begun = locked(&begun);
        assert!(begun.len() >= 3, "{}", begun.len());
        assert!(begun.windows(2).all(|two| two[1] - two[0] >= (1 + pause) * WORK), "{begun:?}");
    }
}
