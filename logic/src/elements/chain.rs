//! A list of elements, run one after another over a batch.

use super::{
    Batch, Counters, Element, Now,
    contract::{self, BadChain},
    packet::{Loss, Verdict},
};

/// A path's elements, each with what it counted. One dynamic call per element and batch.
pub struct Chain {
    links: Vec<(Box<dyn Element>, Counters)>,
    /// What came, and what left at the end.
    whole: Counters,
}

impl Chain {
    /// In this order.
    pub fn new(elements: Vec<Box<dyn Element>>) -> Result<Chain, BadChain> {
        contract::check(&elements)?;
        let links = elements.into_iter().map(|element| (element, Counters::default())).collect();
        Ok(Chain { links, whole: Counters::default() })
    }

    /// Gives every packet of the batch its verdict.
    pub fn run(&mut self, now: &Now, batch: &mut Batch<'_>) {
        self.whole.come(batch.going());
        for (element, counters) in &mut self.links {
            if batch.going() == 0 {
                return;
            }
            counters.come(batch.going());
            element.run(now, batch, counters);
        }
        batch.each(&mut self.whole, |packet| {
            Some(packet.exit.map_or(Verdict::Drop(Loss::NoExit), Verdict::To))
        });
    }

    /// Each element's name and counters, in order, and what it counted besides.
    pub fn counters(&self) -> impl Iterator<Item = (&'static str, &Counters, Vec<(&'static str, u64)>)> {
        self.links.iter().map(|(element, counters)| (element.name(), counters, element.counted()))
    }

    /// Of all that came: what left by a port is [`Counters::to`], what elements passed up and dropped is theirs.
    pub fn whole(&self) -> &Counters {
        &self.whole
    }
}
