//! `[web] listen`: the web page on a loopback address, beside the requests of the API that readers may make.
//!
//! Every user of this machine can reach the address, so it shows no more than the read-only socket. [`crate::web`] has the files of the
//! page, and refuses requests that other web pages made.

use super::{
    api::{Served, endpoints::Endpoint, routes},
    listening::{self, Listening, Pending, Table},
    serving::{self, Limits},
};
use crate::{
    api::ApiError,
    base::door::Room,
    config::WebSettings,
    web::{files, protected, refusal},
};
use anyhow::Result;
use axum::{
    Router,
    extract::Request,
    middleware::{self, Next},
    response::IntoResponse,
};
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

/// Clients are not told apart. Requests take at most a quarter of the time of the threads that answer, however many of them are
/// inside.
const LIMITS: Limits = Limits {
    room: Room { waiting: 64, waiting_of_a_source: 64, inside: 64, inside_of_a_source: 64 },
    head: 16 << 10,
    longest: Duration::from_secs(30),
    pause: Some(3),
    refusal,
    ..serving::READ_ONLY
};

const TABLE: Table = "web";
/// The request that readers may make only with `explain = true`: it shows firewall and flow rules.
const EXPLAIN: &str = "/v1/explain";

/// The page, and how it follows the configuration.
#[derive(Debug)]
pub struct WebPage {
    served: Served,
    may_explain: Arc<AtomicBool>,
    listening: Option<Listening>,
}

impl WebPage {
    /// Serves the page, if an address is configured. If the daemon cannot listen on it, it tries again, and `pending` says why.
    ///
    /// # Errors
    /// There is no thread for it.
    pub fn start(settings: &WebSettings, served: Served, pending: &Pending) -> Result<WebPage> {
        let may_explain = Arc::new(AtomicBool::new(settings.explain));
        let mut page = WebPage { served, may_explain, listening: None };
        let start = |address: SocketAddr| {
            Listening::start_or_wait(pending, TABLE, address, page.routes(address.port()), LIMITS)
        };
        let listening = settings.listen.map(|address| start(address.0)).transpose()?;
        page.put_in_force(settings, listening);
        Ok(page)
    }

    /// Listens on the address of other settings, beside the present one.
    ///
    /// # Errors
    /// The daemon cannot listen on the address. The error names the key.
    pub fn listen(&self, settings: &WebSettings) -> Result<Option<Listening>> {
        let start =
            |address: SocketAddr| Listening::start(TABLE, address, self.routes(address.port()), LIMITS);
        settings.listen.map(|address| start(address.0)).transpose()
    }

    /// Follows these settings. `listening`: what [`WebPage::listen`] returned, if the address has changed.
    pub fn follow(&mut self, settings: &WebSettings, listening: Option<Option<Listening>>) {
        self.may_explain.store(settings.explain, Relaxed);
        if let Some(listening) = listening {
            self.put_in_force(settings, listening);
        }
    }

    fn put_in_force(&mut self, settings: &WebSettings, listening: Option<Listening>) {
        let is_open = listening.as_ref().is_some_and(Listening::began_at_once);
        if let Some(address) = settings.listen.filter(|_| is_open) {
            tracing::info!("the web page is at http://{}/", address.0);
        }
        self.listening = listening;
    }

    fn routes(&self, port: u16) -> Router {
        page_routes(self.served.clone(), self.may_explain.clone(), port)
    }
}

/// Checks whether this machine has the address. Another process, or a running daemon, may use the port.
///
/// # Errors
/// This machine does not have the address. The error names the key.
pub fn check(settings: &WebSettings) -> Result<()> {
    settings.listen.map_or(Ok(()), |address| listening::check(TABLE, address.0))
}

fn page_routes(served: Served, may_explain: Arc<AtomicBool>, port: u16) -> Router {
    let is_served = |endpoint: &Endpoint| {
        endpoint.path.starts_with("/v1/") && (endpoint.is_for_readers || endpoint.path == EXPLAIN)
    };
    let of_api = routes(served, is_served, ApiError::not_on_page);
    let explaining = middleware::from_fn(move |request: Request, next: Next| {
        let is_refused = request.uri().path() == EXPLAIN && !may_explain.load(Relaxed);
        async move {
            if is_refused { ApiError::no_explanations().into_response() } else { next.run(request).await }
        }
    });
    protected(of_api.layer(explaining).merge(files()), port)
}

#[cfg(test)]
mod tests;
