//! Over how many queues of each port packets are spread: said to who places them, and done as that decides.

use super::placing::Happened;
use crate::linux::spreading::{Spreading, Spreads};
use logic::{cores::in_use::Resize, plan::PortId};
use std::{collections::BTreeMap, time::Duration};

/// What was refused is asked for again sooner than that.
const ASKED_AGAIN: Duration = Duration::from_secs(5);

/// Speaks to the tables, if they are to follow.
#[derive(Default)]
pub struct Spreader {
    spreading: Option<Spreading>,
    /// What was not done, by port, as sentences, and when.
    refused: BTreeMap<PortId, (String, Duration)>,
    /// Why tables are left alone, by device, as sentences.
    left_alone: BTreeMap<String, String>,
    /// Those that nobody was told yet.
    news: Vec<String>,
}

impl Spreader {
    pub fn new(spreading: Spreading) -> Spreader {
        Spreader { spreading: Some(spreading), ..Spreader::default() }
    }

    /// How a device spreads packets; `None`: it does not, or that is nobody's business here.
    ///
    /// # Errors
    /// It does, and cannot be asked now.
    pub fn look(&mut self, name: &str, ifindex: u32) -> Result<Option<Spreads>, String> {
        let Some(spreading) = &self.spreading else { return Ok(None) };
        let looked = spreading.look(ifindex);
        let spreads = looked.map_err(|error| format!("over which queues {name} spreads packets: {error}"))?;
        let Some(Spreads::LeftAlone(queues, why)) = spreads else {
            self.left_alone.remove(name);
            return Ok(spreads);
        };
        let why = format!("packets of {name} are spread over {queues} queues: {why}");
        if self.left_alone.get(name) != Some(&why) {
            self.news.push(why.clone());
            self.left_alone.insert(name.to_owned(), why);
        }
        Ok(spreads)
    }

    /// A port is not looked at any more: if it is still there, all of its queues are in use.
    pub fn let_go(&self, name: &str, ifindex: u32) {
        if let Some(Err(error)) = self.spreading.as_ref().map(|spreading| spreading.let_go(ifindex)) {
            tracing::warn!("{name} may spread packets over the first queues only: {error:#}");
        }
    }

    /// What was noticed since the last call.
    pub fn take_news(&mut self, at: Duration) -> Vec<Happened> {
        let told = |why| Happened { at, why, ..Happened::default() };
        std::mem::take(&mut self.news).into_iter().map(told).collect()
    }

    /// Does what was decided at this time, and says it. What is refused is said once: it is asked for again.
    pub fn resize(&mut self, name: &str, ifindex: u32, at: Duration, resize: &Resize) -> Option<Happened> {
        let Resize { port, from, to, why } = resize;
        let why = match self.spreading.as_ref()?.use_first(ifindex, *to) {
            Ok(spreads) => {
                self.refused.remove(port);
                // It may have been done in the meantime, or others may have been reserved.
                let [from, to] = spreads?.map(|spread| spread.used);
                (from != to).then(|| {
                    format!("packets of {name} are spread over {to} queues, no longer over {from}: {why}")
                })?
            }
            Err(error) => {
                let why =
                    format!("packets of {name} are spread over {from} queues, and not over {to}: {error:#}");
                let before = self.refused.insert(*port, (why.clone(), at));
                before.is_none_or(|(before, _)| before != why).then_some(why)?
            }
        };
        Some(Happened { at, why, ..Happened::default() })
    }

    /// As sentences: what was refused, and is still wanted.
    pub fn troubles(&self, now: Duration) -> impl Iterator<Item = String> {
        let is_wanted = move |at: Duration| now.saturating_sub(at) < ASKED_AGAIN;
        self.refused.values().filter(move |(_, at)| is_wanted(*at)).map(|(why, _)| why.clone())
    }

    /// Packets are spread as before; says where they are not.
    pub fn end(&mut self) -> Vec<String> {
        self.spreading.as_ref().map(Spreading::use_all).unwrap_or_default()
    }
}
