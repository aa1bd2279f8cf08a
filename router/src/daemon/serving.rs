//! Connections of clients, over the Unix socket or TCP: their largest number, and how long they may take.
//!
//! A connection carries one request. It waits before the [`Door`] until the head of the request has arrived. It is
//! inside until the client has taken the answer. The operator, root or the user who runs the daemon, has places that no
//! other user can take.

use super::api::MAX_FLOWS_BYTES;
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
    sync::Mutex,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    time::{sleep, timeout},
};

/// The time for the head of a request, and again for its body.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// What clients may take.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub room: Room,
    /// The time for the head of a request, and again for its body.
    pub patience: Duration,
    /// The time of a connection; `None`: an answer may take long, and its client is trusted to read it.
    pub whole: Option<Duration>,
    pub head_bytes: usize,
    pub body_bytes: usize,
}

impl Bounds {
    /// Those of the API. Places inside for users other than the operator are half the queue of the control thread
    /// ([`super::api::QUEUE`]).
    pub const API: Bounds = Bounds {
        room: Room { waiting: 128, waiting_of_a_source: 64, inside: 8, inside_of_a_source: 32 },
        patience: PATIENCE,
        whole: None,
        head_bytes: 400 << 10,
        body_bytes: MAX_FLOWS_BYTES,
    };
}

/// Where clients come from.
pub trait Peers {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// Whoever must not take the places of others.
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
pub async fn serve<P: Peers>(peers: P, routes: Router, bounds: Bounds) {
    let (door, mut seldom) = (Door::new(bounds.room), Seldom::default());
    loop {
        match peers.accept().await {
            Ok((stream, source, is_operator)) => {
                let (pass, gone) = door.knock(source);
                let pass = Mutex::new(pass);
                let routes = routes.clone();
                let service = service_fn(move |request| {
                    let has_room = locked(&pass).enter(is_operator);
                    answer(routes.clone(), request, has_room, bounds)
                });
                tokio::spawn(async move {
                    tokio::select! { () = converse(stream, service, bounds) => {}, _ = gone => {} }
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

async fn converse<T, S>(stream: T, service: S, bounds: Bounds)
where
    T: AsyncRead + AsyncWrite + Unpin,
    S: Service<Request<Incoming>, Response = Response, Error = Infallible>,
{
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(bounds.patience).keep_alive(false);
    http.max_buf_size(bounds.head_bytes);
    let connection = http.serve_connection(TokioIo::new(stream), service);
    // Both fail if the client leaves before its answer, or is too slow, which does no harm.
    match bounds.whole {
        Some(time) => _ = timeout(time, connection).await,
        None => _ = connection.await,
    }
}

async fn answer(
    routes: Router,
    request: Request<Incoming>,
    has_room: bool,
    Bounds { patience, body_bytes, .. }: Bounds,
) -> Result<Response, Infallible> {
    if !has_room {
        return Ok(ApiError::full().into_response());
    }
    let (head, body) = request.into_parts();
    if body.size_hint().lower() > body_bytes as u64 {
        let text = format!("the body is longer than {body_bytes} bytes");
        return Ok(ApiError { status: 413, text }.into_response());
    }
    let whole = match timeout(patience, Limited::new(body, body_bytes).collect()).await {
        Ok(Ok(whole)) => whole.to_bytes(),
        Ok(Err(error)) => {
            let status = if error.is::<http_body_util::LengthLimitError>() { 413 } else { 400 };
            return Ok(ApiError { status, text: error.to_string() }.into_response());
        }
        Err(_) => {
            let text = format!("the request was not complete after {patience:?}");
            return Ok(ApiError { status: 408, text }.into_response());
        }
    };
    TowerToHyperService::new(routes).call(Request::from_parts(head, Body::from(whole))).await
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

    fn start(patience: Duration) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let listener = StdListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        thread::spawn(move || {
            runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
                let routes =
                    Router::new().route("/status", get(|| async { Json("fine") }).post(|| async { "" }));
                let bounds = Bounds { patience, ..Bounds::API };
                serve(UnixListener::from_std(listener).unwrap(), routes, bounds).await;
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
        let (_directory, socket) = start(Duration::from_secs(600));
        let half = "GET /status HTTP/1.1\r\nHost: x\r\n";
        let mut flood: Vec<_> = (0..600).map(|_| connect(&socket, half)).collect();
        let fine: String = client::call(&socket, "GET", "/status", None, Duration::from_secs(60)).unwrap();
        assert_eq!(fine, "fine");
        let kept = flood.split_off(600 - Bounds::API.room.waiting_of_a_source + 1);
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
        let (_directory, socket) = start(Duration::from_millis(300));
        let mut head = connect(&socket, "GET /status HTTP/1.1\r\n");
        let mut body = connect(&socket, "POST /status HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx");
        let mut answer = String::new();
        let _ = head.read_to_string(&mut answer);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
        answer.clear();
        let _ = body.read_to_string(&mut answer);
        assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("not complete"), "{answer}");
    }
}
