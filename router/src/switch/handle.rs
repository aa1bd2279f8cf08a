//! The API's end of the switch: sends requests, and waits for their answers.

use super::{
    Event, Reload,
    change::Change,
    controllers::ControllersReport,
    explain,
    listing::{self, Started},
    machine,
};
use crate::{
    api::{
        ApiError,
        cores::CoresReport,
        flows::{FlowsChanged, FlowsRequest, RulesReport},
    },
    base::guard::locked,
    config::Config,
    cores,
    plane::FlowMaps,
};
use anyhow::{anyhow, bail};
use axum::body::Bytes;
use hyper::body::{Body, Frame};
use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc, Mutex, OnceLock,
        mpsc::{RecvTimeoutError, Sender, sync_channel},
    },
    task::{Context, Poll},
    time::Duration,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// The most requests that may be under way.
const PLACES: usize = 16;
/// How long the control loop waits for the switch to follow another configuration.
const PATIENCE: Duration = Duration::from_secs(5);

/// The way to the switch thread.
#[derive(Clone)]
pub struct Handle {
    to: Sender<Event>,
    places: Arc<Semaphore>,
    maps: Arc<OnceLock<Arc<FlowMaps>>>,
}

impl Handle {
    pub(super) fn new(to: Sender<Event>, maps: Arc<OnceLock<Arc<FlowMaps>>>) -> Handle {
        Handle { to, places: Arc::new(Semaphore::new(PLACES)), maps }
    }

    /// Gives the switch the source of cores and workloads, for its reports.
    pub fn set_machine(&self, machine: cores::handle::CoresHandle) {
        // The daemon may be ending.
        let _ = self.to.send(Event::Machine(machine));
    }

    /// Makes the switch follow another configuration, and waits until it does.
    ///
    /// # Errors
    /// Everything is as before: an address cannot be listened on, a TLS file cannot be used, or the switch is too busy.
    pub fn reload(&self, config: &Config) -> anyhow::Result<()> {
        let ended = || anyhow!("the thread of flow rules has ended; restart the daemon");
        let (reply, answer) = sync_channel(1);
        let config = Arc::new(Mutex::new(Some(config.clone())));
        self.to.send(Event::Reload(Reload { config: config.clone(), reply })).map_err(|_| ended())?;
        match answer.recv_timeout(PATIENCE) {
            Ok(done) => return done,
            Err(RecvTimeoutError::Disconnected) => return Err(ended()),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if locked(&config).take().is_some() {
            bail!("the thread of flow rules was busy for {} s; try again", PATIENCE.as_secs());
        }
        // It has begun, and nothing that it does takes long.
        answer.recv().map_err(|_| ended())?
    }

    /// The maps of rules, once they are made.
    pub fn maps(&self) -> &Arc<OnceLock<Arc<FlowMaps>>> {
        &self.maps
    }

    /// Adds the packets and flows that were handed to cores to a report for clients.
    pub fn add_handed(&self, report: &mut CoresReport) {
        if let Some(maps) = self.maps.get() {
            machine::add_handed(report, maps.memory());
        }
    }

    /// Changes rules. Waits until packets obey, if the request asks for that.
    ///
    /// # Errors
    /// There can be no rules, or the daemon is ending.
    pub async fn change(&self, request: FlowsRequest) -> Result<FlowsChanged, ApiError> {
        let _place = self.place()?;
        self.ask(|reply| Event::Change(Change { request, reply })).await?
    }

    /// Lists the rules that a flow matches, in the form of `ovs-ofctl del-flows`: a line of JSON for each rule
    /// ([`crate::api::flows::FlowReport`]).
    ///
    /// # Errors
    /// The flow cannot be read, or the daemon is ending.
    pub async fn list(&self, matching: String) -> Result<Lines, ApiError> {
        let place = self.place()?;
        let started = self.ask(|reply| Event::List(listing::Request { matching, reply })).await??;
        Ok(Lines { started, to: self.to.clone(), _place: place })
    }

    /// Reports what rules do with a frame that arrives on a port; `None`: they do not decide about it.
    ///
    /// # Errors
    /// The daemon is ending.
    pub async fn explain(&self, port: String, frame: Vec<u8>) -> Result<Option<RulesReport>, ApiError> {
        let _place = self.place()?;
        self.ask(|reply| Event::Explain(explain::Request { port, frame, reply })).await
    }

    /// Reports the controllers and their connections.
    ///
    /// # Errors
    /// The daemon is ending.
    pub async fn controllers(&self) -> Result<ControllersReport, ApiError> {
        let _place = self.place()?;
        self.ask(Event::Controllers).await
    }

    fn place(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        let place = self.places.clone().try_acquire_owned();
        place.map_err(|_| ApiError::full())
    }

    /// Sends the event that `event` makes of an answer's channel, and waits for the answer.
    async fn ask<T>(&self, event: impl FnOnce(oneshot::Sender<T>) -> Event) -> Result<T, ApiError> {
        let (reply, answer) = oneshot::channel();
        self.to.send(event(reply)).map_err(|_| ApiError::ending())?;
        answer.await.map_err(|_| ApiError::ending())
    }
}

/// A listing as the body of an answer. Each piece is made when the client has taken the one before.
pub struct Lines {
    started: Started,
    to: Sender<Event>,
    _place: OwnedSemaphorePermit,
}

impl Body for Lines {
    type Data = Bytes;
    type Error = Infallible;
    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.started.pieces.poll_recv(context).map(|piece| {
            let piece = piece?;
            let _ = self.to.send(Event::More(self.started.id));
            Some(Ok(Frame::data(piece.into())))
        })
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.started.pieces.close();
        let _ = self.to.send(Event::More(self.started.id));
    }
}
