//! Makes pages. One page answers all requests within [`AGE`], so many scrapers cost the control thread no more than one.

use super::{Beside, Observed, page, page::Steady};
use crate::{
    api::ApiError,
    cores::handle::CoresHandle,
    daemon::api::{Query, Requests, ask},
    switch,
    user_plane::sas::RunningSas,
};
use axum::{
    body::Bytes,
    extract::State,
    http::header::CONTENT_TYPE,
    response::{IntoResponse, Response},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::Mutex;

/// The content type of a page.
pub const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// How old a page may be.
const AGE: Duration = Duration::from_millis(200);

/// Clones share their pages.
#[derive(Clone)]
pub struct Source {
    requests: Requests,
    switch: switch::Handle,
    cores: Option<CoresHandle>,
    sas: RunningSas,
    /// Held while a page is made. Other requests wait for it, and get the same page.
    last: Arc<Mutex<Last>>,
}

#[derive(Default)]
struct Last {
    page: Option<(Instant, Bytes)>,
    steady: Steady,
}

impl Source {
    pub fn new(
        requests: Requests,
        switch: switch::Handle,
        cores: Option<CoresHandle>,
        sas: RunningSas,
    ) -> Source {
        Source { requests, switch, cores, sas, last: Arc::default() }
    }

    /// A page, as the answer to a request.
    ///
    /// # Errors
    /// A thread does not answer, or has no room for the question.
    pub async fn answer_to(State(source): State<Source>) -> Result<Response, ApiError> {
        Ok(([(CONTENT_TYPE, OPEN_METRICS)], source.bytes().await?).into_response())
    }

    /// A page. It is completed even if the client leaves: clients that come and go would otherwise fill the queue of the control
    /// thread.
    async fn bytes(&self) -> Result<Bytes, ApiError> {
        let source = self.clone();
        let made = tokio::spawn(async move { source.page().await }).await;
        made.map_err(|error| ApiError::failed(format!("no metrics: {error}")))?
    }

    async fn page(&self) -> Result<Bytes, ApiError> {
        let mut last = self.last.lock().await;
        if let Some((at, bytes)) = &last.page
            && at.elapsed() < AGE
        {
            return Ok(bytes.clone());
        }
        let observed: serde_json::Value = ask(self.requests.clone(), Query::Metrics).await?.0;
        let observed: Observed = serde_json::from_value(observed)
            .map_err(|error| ApiError::failed(format!("no metrics: {error}")))?;
        let beside = Beside {
            cores: self.cores_report(),
            controllers: self.switch.controllers().await?,
            sas: self.sas.report(),
        };
        let mut page = page(&observed, &beside);
        last.steady.follow(&mut page);
        let text = page.text().map_err(|error| ApiError::failed(format!("no metrics: {error}")))?;
        let bytes = Bytes::from(text);
        last.page = Some((Instant::now(), bytes.clone()));
        Ok(bytes)
    }

    fn cores_report(&self) -> crate::api::cores::CoresReport {
        let mut report = self.cores.as_ref().map(CoresHandle::cores).unwrap_or_default();
        self.switch.add_handed(&mut report);
        report
    }
}
