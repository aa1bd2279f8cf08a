//! Connections of the API's clients: their largest number, and how long they may be idle.
//!
//! A connection carries one request. It waits before the [`Door`] until the head of the request has arrived. It is
//! inside until the client has taken the answer. The operator, root or the user who runs the daemon, has places that no
//! other user can take.

use super::api::MAX_FLOWS_BYTES;
use crate::{
    api::ApiError,
    base::{
        door::{Door, Room},
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
    body::Incoming,
    server::conn::http1,
    service::{Service, service_fn},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use std::{
    convert::Infallible,
    sync::Mutex,
    time::{Duration, Instant},
};
use tokio::{
    net::{UnixListener, UnixStream},
    time::{sleep, timeout},
};

/// Places inside for users other than the operator are half the queue of the control thread ([`super::api::QUEUE`]).
pub const ROOM: Room = Room { waiting: 128, waiting_of_a_source: 64, inside: 8, inside_of_a_source: 32 };
/// The time for the head of a request, and again for its body.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Serves connections forever.
pub async fn serve(listener: UnixListener, routes: Router, patience: Duration) {
    let (door, mut seldom) = (Door::new(ROOM), Seldom::default());
    loop {
        let accepted = match listener.accept().await {
            Ok((stream, _)) => stream.peer_cred().map(|peer| (stream, peer.uid())),
            Err(error) => Err(error),
        };
        match accepted {
            Ok((stream, uid)) => {
                let (pass, gone) = door.knock(uid);
                let is_operator = uid == 0 || uid == rustix::process::geteuid().as_raw();
                let pass = Mutex::new(pass);
                let routes = routes.clone();
                let service = service_fn(move |request| {
                    let has_room = locked(&pass).enter(is_operator);
                    answer(routes.clone(), request, has_room, patience)
                });
                tokio::spawn(async move {
                    tokio::select! { () = converse(stream, service, patience) => {}, _ = gone => {} }
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

async fn converse<S>(stream: UnixStream, service: S, patience: Duration)
where
    S: Service<Request<Incoming>, Response = Response, Error = Infallible>,
{
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(patience).keep_alive(false);
    // This fails if the client leaves before its answer, which does no harm.
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(
    routes: Router,
    request: Request<Incoming>,
    has_room: bool,
    patience: Duration,
) -> Result<Response, Infallible> {
    if !has_room {
        return Ok(ApiError::full().into_response());
    }
    let (head, body) = request.into_parts();
    let whole = match timeout(patience, Limited::new(body, MAX_FLOWS_BYTES).collect()).await {
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
                serve(UnixListener::from_std(listener).unwrap(), routes, patience).await;
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
        let kept = flood.split_off(600 - ROOM.waiting_of_a_source + 1);
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
