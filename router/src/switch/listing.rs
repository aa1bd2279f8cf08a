//! Lists rules for clients, some at a time. So a million rules are never in memory as text, and a slow client
//! delays nobody.

use super::change::names;
use crate::{
    api::{ApiError, flows::FlowReport},
    switch::seam::SwitchPort,
};
use logic::{
    flow::{
        FlowFilter,
        kernel::FlowMemory,
        slow::why_slow,
        table::{PathPorts, RuleId},
        text::{self, InstructionsText, MatchText},
    },
    openflow::agent::Agent,
};
use std::collections::BTreeMap;
use tokio::sync::{mpsc, oneshot};

/// Rules in one piece of a listing.
const PIECE: usize = 512;

/// A client's request for a listing: the rules that a flow to delete would match.
pub struct Request {
    pub matching: String,
    pub reply: oneshot::Sender<Result<Started, ApiError>>,
}

/// A listing that has begun: lines of JSON. A piece comes after each [`super::Event::More`].
pub struct Started {
    pub id: u64,
    pub pieces: mpsc::Receiver<Vec<u8>>,
}

/// Listings that are not at their end yet.
#[derive(Default)]
pub struct Listings {
    last: u64,
    begun: BTreeMap<u64, Listing>,
}

struct Listing {
    ids: std::vec::IntoIter<RuleId>,
    to: mpsc::Sender<Vec<u8>>,
}

impl Listings {
    pub fn begin<M: FlowMemory>(
        &mut self,
        request: Request,
        mut agent: Option<&mut Agent<M>>,
        ports: &[SwitchPort],
        now_ms: u64,
    ) {
        let paths = agent.as_mut().map(|agent| agent.flows().tables().paths().clone()).unwrap_or_default();
        let filter = match filter(&request.matching, ports, &paths) {
            Ok(filter) => filter,
            Err(error) => return drop(request.reply.send(Err(error))),
        };
        let (to, pieces) = mpsc::channel(1);
        self.last += 1;
        let ids = agent.as_mut().map(|agent| agent.flows().tables().sorted(&filter)).unwrap_or_default();
        self.begun.insert(self.last, Listing { ids: ids.into_iter(), to });
        if request.reply.send(Ok(Started { id: self.last, pieces })).is_ok() {
            self.go_on(self.last, agent, now_ms);
        } else {
            self.begun.remove(&self.last);
        }
    }

    /// The client has taken a piece, or is gone.
    pub fn go_on<M: FlowMemory>(&mut self, id: u64, agent: Option<&mut Agent<M>>, now_ms: u64) {
        let Some(listing) = self.begun.get_mut(&id) else { return };
        let mut piece = Vec::new();
        if let Some(agent) = agent {
            for id in listing.ids.by_ref().take(PIECE) {
                // The rule may have ended meanwhile.
                let Some(report) = report(agent, id, now_ms) else { continue };
                if serde_json::to_writer(&mut piece, &report).is_ok() {
                    piece.push(b'\n');
                }
            }
        }
        let more = listing.ids.len() > 0;
        if listing.to.try_send(piece).is_err() || !more {
            self.begun.remove(&id);
        }
    }
}

/// Reads a filter in the form of `ovs-ofctl dump-flows`.
fn filter(matching: &str, ports: &[SwitchPort], paths: &PathPorts) -> Result<FlowFilter, ApiError> {
    let names = names(ports, paths);
    text::parse_filter_named(matching, text::Names::of(&names)).map_err(|why| ApiError::bad(why.to_string()))
}

fn report<M: FlowMemory>(agent: &mut Agent<M>, id: RuleId, now_ms: u64) -> Option<FlowReport> {
    let flows = agent.flows();
    let flow = flows.flow_if_meant(id, &FlowFilter::EVERYTHING, now_ms)?;
    let (used_ms, slow) = (flows.tables().used_ms(id)?, flows.is_slow(id));
    Some(FlowReport {
        table: flow.table,
        priority: flow.priority,
        cookie: flow.cookie,
        matching: MatchText(&flow.matching).to_string(),
        actions: InstructionsText(&flow.instructions).to_string(),
        packets: flow.packets,
        bytes: flow.bytes,
        age_s: flow.duration_sec.into(),
        idle_s: now_ms.saturating_sub(used_ms) / 1000,
        idle_timeout_s: flow.idle_timeout,
        hard_timeout_s: flow.hard_timeout,
        flags: text::kept_flags(flow.flags).into_iter().map(String::from).collect(),
        slow,
        why: slow.then(|| {
            why_slow(&flow.instructions, flows.deaf())
                .unwrap_or_else(|| "it is being changed, or the tables are full".into())
        }),
    })
}
