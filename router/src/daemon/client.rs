//! The command line's end of the API: one request and one answer, in bounded time.

use crate::{
    api::{ErrorBody, NO_SUCH_REQUEST},
    base::{foreign::parsed, instance::Instance},
};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Request, Response, StatusCode,
    body::{Bytes, Incoming},
    client::conn::http1,
};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use std::{
    cell::Cell,
    io,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{net::UnixStream, runtime, time::timeout};

/// The longest answer that is accepted, bytes. 4,096 interfaces and 256 routers take a few MiB.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// The longest line that is accepted in an answer of lines, bytes.
const MAX_LINE_BYTES: usize = 1 << 20;

/// All requests are below this path, except `/metrics`.
const ROOT: &str = "/v1";

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// Nobody listens on the socket.
    #[error("no daemon is running")]
    NoDaemon,
    /// The daemon answered with an error.
    #[error("{text}")]
    Refused { status: u16, text: String },
    /// The socket belongs to another user.
    #[error("not allowed to talk to the daemon: its socket is for root; run this as root")]
    Forbidden,
    /// The read-only socket belongs to a group without this user.
    #[error("not allowed to read from the daemon: {} is for root and its group; run this as root, or join the group", socket.display())]
    NoReader { socket: PathBuf },
    /// The daemon has no such request.
    #[error(
        "the running daemon does not know this request, because it has another version; restart the daemon"
    )]
    OtherVersion,
    /// A process listens, but does not answer.
    #[error("process {pid} does not answer (waited {} s); forwarding goes on without it, as long as the heartbeat allows", waited.as_secs())]
    Silent { pid: i32, waited: Duration },
    /// Anything else.
    #[error("the daemon did not answer properly: {0}")]
    Broken(String),
}

/// Asks by the control socket, or by the read-only socket if this user may not open the control socket.
pub fn reading<T>(instance: &Instance, ask: impl Fn(&Path) -> Result<T, CallError>) -> Result<T, CallError> {
    let read_only = instance.read_only_socket();
    match ask(&instance.socket()) {
        Err(CallError::Forbidden) if read_only.exists() => ask(&read_only).map_err(|error| match error {
            CallError::Forbidden => CallError::NoReader { socket: read_only.clone() },
            other => other,
        }),
        answer => answer,
    }
}

/// Sends a request to the daemon at `socket` and returns its answer. `path` is below `/v1`. All strings in the answer are
/// safe to show on a terminal.
pub fn call<T: DeserializeOwned>(
    socket: &Path,
    method: &str,
    path: &str,
    body: Option<serde_json::Value>,
    patience: Duration,
) -> Result<T, CallError> {
    let bytes = exchanged(socket, method, &format!("{ROOT}{path}"), body, patience)?;
    parsed(&bytes).map_err(|e| CallError::Broken(e.to_string()))
}

/// Requests a text from the daemon at `socket`. `path` is the whole path.
pub fn text(socket: &Path, path: &str, patience: Duration) -> Result<String, CallError> {
    let bytes = exchanged(socket, "GET", path, None, patience)?;
    String::from_utf8(bytes.into()).map_err(|e| CallError::Broken(e.to_string()))
}

fn exchanged(
    socket: &Path,
    method: &str,
    path: &str,
    body: Option<serde_json::Value>,
    patience: Duration,
) -> Result<Bytes, CallError> {
    let broken = |e: &dyn std::fmt::Display| CallError::Broken(e.to_string());
    let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(|e| broken(&e))?;
    runtime.block_on(async {
        let peer = Cell::new(0);
        match timeout(patience, exchange(socket, method, path, body, &peer)).await {
            Ok(answer) => answer,
            Err(_) => Err(CallError::Silent { pid: peer.get(), waited: patience }),
        }
    })
}

/// Requests lines of JSON from the daemon at `socket`, and hands each to `each` as it arrives. Strings are as from
/// [`call`]. It fails if no line arrives for `patience`, or if `each` fails.
pub fn lines<T: DeserializeOwned>(
    socket: &Path,
    path: &str,
    patience: Duration,
    mut each: impl FnMut(T) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let broken = |e: &dyn std::fmt::Display| CallError::Broken(e.to_string());
    let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(|e| broken(&e))?;
    let (peer, path) = (Cell::new(0), format!("{ROOT}{path}"));
    let silent = |_| CallError::Silent { pid: peer.get(), waited: patience };
    runtime.block_on(async {
        let asked = timeout(patience, send(socket, "GET", &path, None, &peer)).await;
        let mut body = answered(asked.map_err(silent)??).await?;
        let mut rest = Vec::new();
        while let Some(frame) = timeout(patience, body.frame()).await.map_err(silent)? {
            let frame = frame.map_err(|e| broken(&e))?;
            rest.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
            let whole = rest.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
            for line in rest[..whole].split(|b| *b == b'\n').filter(|line| !line.is_empty()) {
                each(parsed(line).map_err(|e| broken(&e))?)?;
            }
            rest.drain(..whole);
            if rest.len() > MAX_LINE_BYTES {
                return Err(broken(&"a line is too long").into());
            }
        }
        if rest.is_empty() { Ok(()) } else { Err(broken(&"the answer ended within a line").into()) }
    })
}

/// Requests a file from the daemon at `socket`, and hands each piece to `each` as it arrives, until the file ends or `each` returns
/// false. When `end` is ready, the daemon is asked to complete the file. The pieces are bytes of outsiders. `path` is below `/v1`.
///
/// # Errors
/// There is no answer within `patience`, or `each` fails.
pub fn file(
    socket: &Path,
    path: &str,
    body: serde_json::Value,
    patience: Duration,
    end: impl Future<Output = ()>,
    mut each: impl FnMut(&[u8]) -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let broken = |e: &dyn std::fmt::Display| CallError::Broken(e.to_string());
    let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(|e| broken(&e))?;
    let (peer, path) = (Cell::new(0), format!("{ROOT}{path}"));
    runtime.block_on(async {
        let asked = timeout(patience, send(socket, "POST", &path, Some(body), &peer)).await;
        let silent = |_| CallError::Silent { pid: peer.get(), waited: patience };
        let mut pieces = answered(asked.map_err(silent)??).await?;
        let mut end = std::pin::pin!(end);
        let mut is_asked = false;
        loop {
            let piece = tokio::select! {
                piece = pieces.frame() => piece,
                () = &mut end, if !is_asked => {
                    is_asked = true;
                    let asked = timeout(patience, exchange(socket, "DELETE", &path, None, &peer)).await;
                    asked.map_err(silent)??;
                    continue;
                }
            };
            let Some(piece) = piece else { return Ok(()) };
            let piece = piece.map_err(|_| broken(&"the daemon has ended it"))?;
            if !each(piece.data_ref().map_or(&[][..], |data| data))? {
                return Ok(());
            }
        }
    })
}

async fn exchange(
    socket: &Path,
    method: &str,
    path: &str,
    body: Option<serde_json::Value>,
    peer: &Cell<i32>,
) -> Result<Bytes, CallError> {
    let answer = send(socket, method, path, body, peer).await?;
    let whole = Limited::new(answered(answer).await?, MAX_ANSWER_BYTES).collect().await;
    whole.map(|whole| whole.to_bytes()).map_err(|e| CallError::Broken(e.to_string()))
}

/// Sends a request. Returns the answer when its head has arrived.
async fn send(
    socket: &Path,
    method: &str,
    path: &str,
    body: Option<serde_json::Value>,
    peer: &Cell<i32>,
) -> Result<Response<Incoming>, CallError> {
    let broken = |e: &dyn std::fmt::Display| CallError::Broken(e.to_string());
    let stream = UnixStream::connect(socket).await.map_err(|e| match e.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => CallError::NoDaemon,
        io::ErrorKind::PermissionDenied => CallError::Forbidden,
        _ => broken(&e),
    })?;
    peer.set(stream.peer_cred().ok().and_then(|peer| peer.pid()).unwrap_or(0));
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|e| broken(&e))?;
    tokio::spawn(connection);
    let body = body.map_or(Bytes::new(), |b| b.to_string().into());
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("Host", "millrace")
        .body(Full::new(body))
        .map_err(|e| broken(&e))?;
    sender.send_request(request).await.map_err(|e| broken(&e))
}

/// The body of an answer, or the error that it reports.
async fn answered(answer: Response<Incoming>) -> Result<Incoming, CallError> {
    let status = answer.status();
    if status.is_success() {
        return Ok(answer.into_body());
    }
    let bytes = Limited::new(answer.into_body(), MAX_ANSWER_BYTES)
        .collect()
        .await
        .map_err(|e| CallError::Broken(e.to_string()))?
        .to_bytes();
    let text = parsed(&bytes).map_or_else(|_| format!("HTTP status {status}"), |e: ErrorBody| e.error);
    if status == StatusCode::NOT_FOUND && text == NO_SUCH_REQUEST {
        return Err(CallError::OtherVersion);
    }
    Err(CallError::Refused { status: status.as_u16(), text })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_process_that_does_not_answer_is_named_in_time() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("s");
        let _deaf = UnixListener::bind(&socket).unwrap();
        let patience = Duration::from_secs(1);
        let error = call::<()>(&socket, "GET", "/status", None, patience).unwrap_err().to_string();
        assert!(error.starts_with(&format!("process {} does not answer", std::process::id())), "{error}");
    }
}
