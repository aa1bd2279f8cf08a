//! `[metrics] listen`: the page over TCP, for scrapers on other machines.
//!
//! A thread of its own, without any capability, serves two pages and nothing else of the API. Everyone who can reach the address
//! may read them. [`serving`] limits the number of connections and the time of each.

use super::Source;
use crate::{
    api::ApiError,
    base::{door::Room, privileges},
    config::{ListenAddress, MetricsSettings},
    daemon::serving::{self, Limits, TcpPeers},
};
use anyhow::{Context, Result};
use axum::{Router, routing::get};
use std::{
    io,
    net::{SocketAddr, TcpListener},
    thread,
    time::Duration,
};
use tokio::{runtime, sync::oneshot};

/// A scraper asks for a page every few seconds, so few connections are enough.
const LIMITS: Limits = Limits {
    room: Room { waiting: 64, waiting_of_a_source: 16, inside: 32, inside_of_a_source: 8 },
    head: 16 << 10,
    body: 1 << 10,
    longest: Duration::from_secs(15),
    ..serving::CONTROL
};

const POINTER: &str = "This is Millrace. Its metrics are at /metrics.\n";

/// The page over TCP. Dropping it closes the address and all of its connections.
#[derive(Debug)]
pub struct Listening {
    _ends: oneshot::Sender<()>,
}

impl Listening {
    /// Listens in a new thread; `None`: no address is configured.
    ///
    /// # Errors
    /// The daemon cannot listen on the address. The error names the key.
    pub fn start(settings: &MetricsSettings, source: &Source) -> Result<Option<Listening>> {
        settings.listen.map(|address| Self::start_at(address, source.clone())).transpose()
    }

    fn start_at(address: ListenAddress, source: Source) -> Result<Listening> {
        Ok(Self::on(bind(address.0)?, routes(source), LIMITS)?)
    }

    /// Serves these pages in a new thread.
    fn on(listener: TcpListener, routes: Router, limits: Limits) -> io::Result<Listening> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let (_ends, end) = oneshot::channel::<()>();
        thread::Builder::new().name("metrics".into()).spawn(move || {
            privileges::serve_with_nothing("metrics");
            runtime.block_on(async {
                match tokio::net::TcpListener::from_std(listener) {
                    Ok(listener) => tokio::select! {
                        () = serving::serve(TcpPeers(listener), routes, limits) => {}
                        _ = end => {}
                    },
                    Err(error) => tracing::error!("metrics.listen: {error}; forwarding goes on"),
                }
            });
        })?;
        Ok(Listening { _ends })
    }
}

/// Checks whether this machine has the address. Another process, or a running daemon, may use the port.
///
/// # Errors
/// It has not. The error names the key.
pub fn check(settings: &MetricsSettings) -> Result<()> {
    let Some(ListenAddress(address)) = settings.listen else { return Ok(()) };
    let tried = TcpListener::bind((address.ip(), 0));
    tried.map(|_| ()).with_context(|| format!("metrics.listen: cannot listen on {address}"))
}

fn bind(address: SocketAddr) -> Result<TcpListener> {
    let listener =
        TcpListener::bind(address).with_context(|| format!("metrics.listen: cannot listen on {address}"))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn routes(source: Source) -> Router {
    Router::new()
        .route("/", get(|| async { POINTER }))
        .route("/metrics", get(Source::answer_to))
        .fallback(|| async { ApiError::unknown("there is only /metrics here") })
        .method_not_allowed_fallback(|| async {
            ApiError { status: 405, text: "only GET is allowed".into() }
        })
        .with_state(source)
}

#[cfg(test)]
mod tests;
