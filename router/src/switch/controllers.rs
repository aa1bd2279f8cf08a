//! `millrace controllers`: whom we speak OpenFlow with, and how that goes.

use super::net;
use crate::{
    api::flows::ControllerLost,
    config::{FailMode, OpenFlowSettings},
    switch::seam::Gauge,
};
use logic::openflow::{
    agent::{ConnectionReport as Said, Version},
    message::Role,
};
use serde::{Deserialize, Serialize};
use std::{net::SocketAddr, sync::atomic::Ordering::Relaxed};

/// Those that are configured, and what they mean for flow rules.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ControllersReport {
    pub controllers: Vec<ControllerReport>,
    /// "standalone" or "secure"; `None`: no controller is to be dialled, so rules always apply.
    pub fail: Option<String>,
    pub rules: u64,
    /// Packets go by them; else they are routed.
    pub in_charge: bool,
    /// Why they do not, though there are rules, as a sentence.
    pub why_not: Option<String>,
    pub lost: ControllerLost,
}

/// A configured target: one that we connect to, or an address that we listen on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ControllerReport {
    /// As in the configuration, with the port.
    pub target: String,
    /// Of a listener: where.
    pub listening: Option<SocketAddr>,
    pub connections: Vec<Connection>,
    /// How often it was dialled.
    pub attempts: u64,
    /// Connections that a listener refused because it had too many.
    pub refused: u64,
    /// Why the last attempt failed, or the last connection ended: not those of `connections`.
    pub last_end: Option<String>,
    /// Seconds since then.
    #[serde(default)]
    pub last_end_age_s: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Connection {
    pub peer: String,
    pub age_s: f64,
    /// "1.0" or "1.3"; `None`: there was no hello yet.
    pub version: Option<String>,
    /// "equal", "master" or "slave".
    pub role: String,
    /// That came from the controller.
    pub messages: u64,
    pub packet_ins: u64,
    /// Packet-ins that were dropped because the controller does not read fast enough.
    pub packet_ins_dropped: u64,
    /// Rules, groups and notices that its version has no words for.
    pub unsaid: u64,
    pub unsent_bytes: usize,
}

/// What `fail` of the configuration means.
pub(super) fn fail_mode(settings: &OpenFlowSettings) -> Option<&'static str> {
    let dials = settings.controllers.iter().any(|target| !target.listens);
    dials.then_some(match settings.fail {
        FailMode::Standalone => "standalone",
        FailMode::Secure => "secure",
    })
}

/// What the network knows, what was said, and what it means for rules.
pub(super) fn report(
    targets: Vec<net::ControllerReport>,
    said: &[Said],
    fail: Option<&str>,
    in_charge: bool,
    gauge: &Gauge,
) -> ControllersReport {
    let connection = |c: net::ConnectionReport| {
        let said = said.iter().find(|said| said.connection.0 == c.connection)?;
        Some(Connection {
            peer: c.peer,
            age_s: c.age_s,
            version: said.version.map(|version| match version {
                Version::OpenFlow10 => "1.0".into(),
                Version::OpenFlow13 => "1.3".into(),
            }),
            role: match said.role {
                Role::Master => "master",
                Role::Slave => "slave",
                Role::Equal | Role::NoChange => "equal",
            }
            .into(),
            messages: said.messages,
            packet_ins: said.packet_ins,
            packet_ins_dropped: said.packet_ins_dropped,
            unsaid: said.unsaid,
            unsent_bytes: said.unsent_bytes,
        })
    };
    let target = |t: net::ControllerReport| ControllerReport {
        target: t.target,
        listening: t.listening,
        connections: t.connections.into_iter().filter_map(connection).collect(),
        attempts: t.attempts,
        refused: t.refused,
        last_end: t.last_end,
        last_end_age_s: t.last_end_age_s,
    };
    ControllersReport {
        controllers: targets.into_iter().map(target).collect(),
        fail: fail.map(String::from),
        rules: gauge.rules.load(Relaxed),
        in_charge,
        why_not: gauge.why_not().clone(),
        lost: gauge.controller_lost(),
    }
}
