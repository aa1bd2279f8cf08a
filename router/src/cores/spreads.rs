//! Reads and sets over how many queues of each port packets are spread. The placing thread decides.

use super::placing::Happened;
use crate::linux::spreading::{Spreading, Spreads};
use logic::{cores::in_use::Resize, plan::PortId};
use std::{collections::BTreeMap, time::Duration};

/// A refused change that is still wanted is requested again within this time.
const ASKED_AGAIN: Duration = Duration::from_secs(5);

/// Reads and sets the tables of NICs, if the configuration asks for that.
#[derive(Default)]
pub struct Spreader {
    spreading: Option<Spreading>,
    /// The refused change of each port, as a sentence, and when it was decided.
    refused: BTreeMap<PortId, (String, Duration)>,
    /// Why tables could not be read, by device, as sentences.
    unread: BTreeMap<String, String>,
    /// Why tables are left alone, as sentences, if that is not reported yet.
    news: Vec<String>,
}

impl Spreader {
    pub fn new(spreading: Spreading) -> Spreader {
        Spreader { spreading: Some(spreading), ..Spreader::default() }
    }

    /// How a device spreads packets; `None`: it does not, or the configuration does not ask for changes. `before`: the last
    /// known value, which is returned if the table cannot be read now.
    pub fn look(&mut self, name: &str, ifindex: u32, before: Option<Spreads>) -> Option<Spreads> {
        let spreads = match self.spreading.as_ref()?.look(ifindex) {
            Ok(spreads) => spreads,
            Err(error) => {
                let why = format!("the indirection table of {name} cannot be read: {error}");
                self.unread.insert(name.to_owned(), why);
                return before;
            }
        };
        self.unread.remove(name);
        if let Some(Spreads::LeftAlone(queues, why)) = spreads
            && spreads != before
        {
            self.news.push(format!("packets of {name} are spread over {queues} queues: {why}"));
        }
        spreads
    }

    /// Whether the table of a device could not be read.
    pub fn is_unread(&self, name: &str) -> bool {
        self.unread.contains_key(name)
    }

    /// Gives up a port. If the device still exists, it uses all of its queues again.
    pub fn let_go(&mut self, name: &str, ifindex: u32) {
        self.unread.remove(name);
        if let Some(Err(error)) = self.spreading.as_ref().map(|spreading| spreading.let_go(ifindex)) {
            tracing::warn!("{name} may spread packets over the first queues only: {error:#}");
        }
    }

    /// The events since the last call.
    pub fn take_news(&mut self, at: Duration) -> Vec<Happened> {
        let told = |why| Happened { at, why, ..Happened::default() };
        std::mem::take(&mut self.news).into_iter().map(told).collect()
    }

    /// Makes the change that was decided at `at`, and returns an event. A refused change is requested again and again; only
    /// the first refusal is an event.
    pub fn resize(&mut self, name: &str, ifindex: u32, at: Duration, resize: &Resize) -> Option<Happened> {
        let Resize { port, from, to, why } = resize;
        let why = match self.spreading.as_ref()?.use_first(ifindex, *to) {
            Ok(spreads) => {
                self.refused.remove(port);
                // The change may have been made before, or fewer queues may be left because some were reserved.
                let [from, to] = spreads?.map(|spread| spread.used);
                (from != to).then(|| {
                    format!("packets of {name} are spread over {to} queues, no longer over {from}: {why}")
                })?
            }
            Err(error) => {
                let why =
                    format!("packets of {name} stay spread over {from} queues, not over {to}: {error:#}");
                let before = self.refused.insert(*port, (why.clone(), at));
                before.is_none_or(|(before, _)| before != why).then_some(why)?
            }
        };
        Some(Happened { at, why, ..Happened::default() })
    }

    /// The tables that could not be read, and the refused changes that are still wanted, as sentences.
    pub fn conditions(&self, now: Duration) -> impl Iterator<Item = String> {
        let is_wanted = move |at: Duration| now.saturating_sub(at) < ASKED_AGAIN;
        let refused = self.refused.values().filter(move |(_, at)| is_wanted(*at)).map(|(why, _)| why);
        self.unread.values().chain(refused).cloned()
    }

    /// Restores all tables. Returns the failures, as sentences.
    pub fn end(&mut self) -> Vec<String> {
        self.spreading.as_ref().map(Spreading::use_all).unwrap_or_default()
    }
}
