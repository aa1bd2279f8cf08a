//! `millrace controllers`: the OpenFlow connections and their state.

use super::net;
use crate::{
    api::flows::ControllerLost,
    api::status::Why,
    config::{FailMode, OpenFlowSettings},
    switch::seam::Gauge,
};
use logic::openflow::{
    agent::{ConnectionReport as Said, Version},
    message::Role,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{net::SocketAddr, sync::atomic::Ordering::Relaxed};

/// The configured controllers, and their effect on flow rules.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ControllersReport {
    /// The configured targets.
    pub controllers: Vec<ControllerReport>,
    /// `standalone` or `secure`; null: no controller is dialled, so rules always apply.
    pub fail: Option<String>,
    /// Flow rules.
    pub rules: u64,
    /// Packets go by flow rules; otherwise they are routed.
    pub in_charge: bool,
    /// Why packets do not go by flow rules, although there are some.
    pub why_not: Option<Why>,
    /// Packets for controllers that no controller got.
    pub lost: ControllerLost,
}

/// A configured target: one that the daemon dials, or an address that it listens on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ControllerReport {
    /// As in the configuration, with the port.
    pub target: String,
    /// The address of a listener; null: it cannot be listened on yet, or the target is dialled.
    pub listening: Option<SocketAddr>,
    /// Its connections.
    pub connections: Vec<Connection>,
    /// The number of times that it was dialled.
    pub attempts: u64,
    /// Connections that a listener refused because it had too many.
    pub refused: u64,
    /// Why the last attempt failed, or the last connection ended; not about those in `connections`.
    pub last_end: Option<String>,
    /// Seconds since then.
    #[serde(default)]
    pub last_end_age_s: Option<f64>,
}

/// An OpenFlow connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Connection {
    /// The address of the other end.
    pub peer: String,
    /// Seconds since it began.
    pub age_s: f64,
    /// `1.0` or `1.3`; null: no HELLO has arrived yet.
    pub version: Option<String>,
    /// `equal`, `master` or `slave`.
    pub role: String,
    /// Messages that came from the controller.
    pub messages: u64,
    /// Packet-ins that were sent to the controller.
    pub packet_ins: u64,
    /// Packet-ins that were dropped because the controller does not read fast enough.
    pub packet_ins_dropped: u64,
    /// Rules, groups and notices that its version cannot express.
    pub unsaid: u64,
    /// Bytes that wait until the controller reads.
    pub unsent_bytes: usize,
}

/// The fail mode; `None` if no controller is dialled.
pub(super) fn fail_mode(settings: &OpenFlowSettings) -> Option<&'static str> {
    let dials = settings.controllers.iter().any(|target| !target.listens);
    dials.then_some(match settings.fail {
        FailMode::Standalone => "standalone",
        FailMode::Secure => "secure",
    })
}

/// The report, from the connections of the network and the agent's reports about them (`said`).
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
        why_not: gauge.why_not().as_ref().map(Why::from),
        lost: gauge.controller_lost(),
    }
}
