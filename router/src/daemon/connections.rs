//! Connections that bypass rules: tells the thread of [`crate::firewall`] what decides about them, and reports them.

use super::{
    Control,
    seam::{FastPath, Kernel, Observe},
};
use crate::{
    api::{
        ApiError, ConnectionsQuery,
        status::{ConnectionReport, ConnectionState},
    },
    config::Established,
    firewall::{FastConnections, RouterRules},
};
use logic::{
    connections::{
        admission::Consent,
        kept::{State, View},
    },
    firewall::traffic::{TCP, Tuple},
    mirror::ConnectionRules,
    plan::RouterId,
};
use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

/// The most connections in one answer.
const MOST_REPORTED: usize = 100_000;

/// The thread, and what it was last told.
pub(super) struct Following {
    thread: Option<FastConnections>,
    /// The revision of the mirror.
    revision: Option<u64>,
    rules: Vec<ConnectionRules>,
    /// The number of the generation in charge.
    generation: u64,
}

impl Following {
    pub fn new(thread: Option<FastConnections>) -> Following {
        Following { thread, revision: None, rules: Vec::new(), generation: 0 }
    }

    /// Why no connection is fast, as a sentence.
    pub fn condition(&self) -> Option<String> {
        self.thread.as_ref().and_then(FastConnections::condition)
    }

    /// Follows the configuration. Only a daemon without the thread can have [`Established::Linux`].
    pub fn follow_consent(&self, established: Established) {
        if let (Some(thread), Some(consent)) = (&self.thread, consent(established)) {
            thread.consent(consent);
        }
    }

    /// Can connections be fast?
    pub fn is_running(&self) -> bool {
        self.thread.is_some()
    }
}

impl<K: Kernel, O: Observe> Control<K, O> {
    /// Tells the thread about the generation in charge, and what decides about connections.
    pub(super) fn follow_connections(&mut self) {
        let Some(thread) = &self.connections.thread else { return };
        if self.connections.generation != self.generation.number {
            self.connections.generation = self.generation.number;
            thread.follow_heart(self.generation.plane.heart());
        }
        let revision = self.world.mirror.revision();
        if self.connections.revision == Some(revision) {
            return;
        }
        self.connections.revision = Some(revision);
        let rules: Vec<_> = self.world.mirror.connection_rules().collect();
        if rules == self.connections.rules {
            return;
        }
        let place = |rules: &ConnectionRules| {
            Some(RouterRules { rules: rules.clone(), place: self.observer.place(rules.namespace)? })
        };
        thread.follow(rules.iter().filter_map(place).collect());
        self.connections.rules = rules;
    }

    /// The number of fast connections of a router.
    pub(super) fn fast_connections(&self, router: RouterId) -> u64 {
        self.connections.thread.as_ref().map_or(0, |thread| thread.count(router))
    }

    /// `millrace connections`.
    pub(super) fn connection_reports(
        &self,
        query: &ConnectionsQuery,
    ) -> Result<Vec<ConnectionReport>, ApiError> {
        let Some(thread) = &self.connections.thread else { return Ok(Vec::new()) };
        let views = thread.views().ok_or_else(|| {
            ApiError::failed(
                "the thread that makes connections fast does not answer; see the log and try again",
            )
        })?;
        let routers = self.world.mirror.routers().filter_map(|view| Some((view.router?, view.name)));
        let names: BTreeMap<RouterId, String> = routers.collect();
        let now = self.kernel.now();
        let reports = views.into_iter().filter_map(|view| {
            let router = names.get(&view.router)?;
            Some(report(router.clone(), view, now)).filter(|report| query.wants(report))
        });
        Ok(reports.take(MOST_REPORTED).collect())
    }
}

/// Which connections may be fast; `None`: none.
pub(super) fn consent(established: Established) -> Option<Consent> {
    match established {
        Established::Udp => Some(Consent::Udp),
        Established::Fast => Some(Consent::All),
        Established::Linux => None,
    }
}

fn report(router: String, view: View, now: Duration) -> ConnectionReport {
    let [source, destination] = ends(&view.arrives);
    let seconds = |duration: Duration| duration.as_secs_f64();
    let mut report = ConnectionReport {
        router,
        protocol: if view.protocol == TCP { "tcp" } else { "udp" }.into(),
        source,
        destination,
        ..ConnectionReport::default()
    };
    match view.state {
        State::Fast { leaves, since, expires_at, counts: [there, back] } => {
            report.state = ConnectionState::Fast;
            report.translated = (leaves != view.arrives).then(|| ends(&leaves));
            report.age_s = seconds(now.saturating_sub(since));
            report.expires_s = Some(seconds(expires_at.saturating_sub(now)));
            (report.packets, report.bytes) = (there.0, there.1);
            (report.reply_packets, report.reply_bytes) = (back.0, back.1);
        }
        State::Refused { why, at } => {
            report.state = ConnectionState::Linux;
            report.why_not = Some(why.code().cause(why.to_string()).into());
            report.age_s = seconds(now.saturating_sub(at));
        }
    }
    report
}

fn ends(tuple: &Tuple) -> [String; 2] {
    [(tuple.source, tuple.source_port), (tuple.destination, tuple.destination_port)]
        .map(|(address, port)| SocketAddr::new(address, port).to_string())
}
