//! The command line's end of the API: one request, one answer, in bounded time.

use super::api::ErrorBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Request, body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use std::{io, path::Path, time::Duration};
use tokio::{net::UnixStream, runtime, time::timeout};

/// Longest answer accepted, bytes: 4,096 interfaces and 256 routers take a few MiB.
const MAX_ANSWER_BYTES: usize = 64 << 20;

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
    #[error("not allowed to talk to the daemon (its socket is for root)")]
    Forbidden,
    /// Anything else.
    #[error("the daemon did not answer properly: {0}")]
    Broken(String),
}

/// Asks the daemon at `socket`.
pub fn call<T: DeserializeOwned>(
    socket: &Path,
    method: &str,
    path: &str,
    body: Option<serde_json::Value>,
    patience: Duration,
) -> Result<T, CallError> {
    let broken = |e: &dyn std::fmt::Display| CallError::Broken(e.to_string());
    let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(|e| broken(&e))?;
    runtime.block_on(async {
        match timeout(patience, exchange(socket, method, path, body)).await {
            Ok(answer) => answer,
            Err(_) => Err(CallError::Broken(format!("nothing within {} s", patience.as_secs()))),
        }
    })
}

async fn exchange<T: DeserializeOwned>(
    socket: &Path,
    method: &str,
    path: &str,
    body: Option<serde_json::Value>,
) -> Result<T, CallError> {
    let broken = |e: &dyn std::fmt::Display| CallError::Broken(e.to_string());
    let stream = UnixStream::connect(socket).await.map_err(|e| match e.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => CallError::NoDaemon,
        io::ErrorKind::PermissionDenied => CallError::Forbidden,
        _ => broken(&e),
    })?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|e| broken(&e))?;
    tokio::spawn(connection);
    let body = body.map_or(Bytes::new(), |b| b.to_string().into());
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("Host", "millrace")
        .body(Full::new(body))
        .map_err(|e| broken(&e))?;
    let answer = sender.send_request(request).await.map_err(|e| broken(&e))?;
    let status = answer.status();
    let bytes = Limited::new(answer.into_body(), MAX_ANSWER_BYTES)
        .collect()
        .await
        .map_err(|e| broken(&e))?
        .to_bytes();
    if status.is_success() {
        return serde_json::from_slice(&bytes).map_err(|e| broken(&e));
    }
    let text = serde_json::from_slice(&bytes)
        .map_or_else(|_| format!("HTTP status {status}"), |e: ErrorBody| e.error);
    Err(CallError::Refused { status: status.as_u16(), text })
}
