//! `[metrics] listen`: the page over TCP, for scrapers on other machines.
//!
//! It has two pages and nothing else of the API. Everyone who can reach the address may read them.

use super::Source;
use crate::{
    api::ApiError,
    base::door::Room,
    config::MetricsSettings,
    daemon::{
        listening::{self, Listening, Pending, Table},
        serving::{self, Limits},
    },
};
use anyhow::Result;
use axum::{Router, routing::get};
use std::time::Duration;

/// A scraper asks for a page every few seconds, so few connections are enough.
const LIMITS: Limits = Limits {
    room: Room { waiting: 64, waiting_of_a_source: 16, inside: 32, inside_of_a_source: 8 },
    head: 16 << 10,
    body: 1 << 10,
    longest: Duration::from_secs(15),
    ..serving::CONTROL
};

const TABLE: Table = "metrics";
const POINTER: &str = "This is Millrace. Its metrics are at /metrics.\n";

/// Listens in a new thread; `None`: no address is configured.
///
/// # Errors
/// The daemon cannot listen on the address. The error names the key.
pub fn start(settings: &MetricsSettings, source: &Source) -> Result<Option<Listening>> {
    let start = |address| Listening::start(TABLE, address, routes(source.clone()), LIMITS);
    settings.listen.map(|address| start(address.0)).transpose()
}

/// As [`start`], for a daemon that starts: if it cannot listen on the address, it tries again, and `pending` says why.
///
/// # Errors
/// There is no thread for it.
pub fn start_or_wait(
    settings: &MetricsSettings,
    source: &Source,
    pending: &Pending,
) -> Result<Option<Listening>> {
    let start = |address| Listening::start_or_wait(pending, TABLE, address, routes(source.clone()), LIMITS);
    settings.listen.map(|address| start(address.0)).transpose()
}

/// Checks whether this machine has the address. Another process, or a running daemon, may use the port.
///
/// # Errors
/// This machine does not have the address. The error names the key.
pub fn check(settings: &MetricsSettings) -> Result<()> {
    settings.listen.map_or(Ok(()), |address| listening::check(TABLE, address.0))
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
