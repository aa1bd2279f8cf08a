//! A list of elements, run one after another over a batch.

use super::{
    Batch, Counters, Element, Now,
    contract::{self, BadChain},
    packet::Loss,
};

/// A path's elements, each with what it counted. One dynamic call per element and batch.
pub struct Chain {
    links: Vec<Link>,
    /// What came, and the verdicts of those that none of them gave one.
    whole: Counters,
    asks_when: bool,
}

struct Link {
    element: Box<dyn Element>,
    counters: Counters,
    /// It is in front of one that encrypts, so that it may not pass up what the kernel would forward (`clear`).
    is_guarded: bool,
}

/// Packets of a whole chain; those that elements passed up or dropped are in theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whole {
    /// That came.
    pub packets: u64,
    /// That left by a port.
    pub to: u64,
    /// Dropped at the end ([`Loss::NoExit`]).
    pub no_exit: u64,
}

impl Chain {
    /// In this order.
    pub fn new(elements: Vec<Box<dyn Element>>) -> Result<Chain, BadChain> {
        contract::check(&elements)?;
        let asks_when = elements.iter().any(|element| element.contract().asks_when);
        let encrypts = elements.iter().rposition(|element| element.contract().encrypts).unwrap_or(0);
        let link = |(at, element)| Link { element, counters: Counters::default(), is_guarded: at < encrypts };
        let links = elements.into_iter().enumerate().map(link).collect();
        Ok(Chain { links, whole: Counters::default(), asks_when })
    }

    /// In place of another, of the same elements with the same parameters: counts go on, and so does what elements keep.
    pub fn go_on_from(&mut self, before: &Chain) {
        self.whole = before.whole.clone();
        for (link, before) in self.links.iter_mut().zip(&before.links) {
            link.counters = before.counters.clone();
            if let Some(kept) = before.element.kept() {
                link.element.go_on_from(kept);
            }
        }
    }

    /// Gives every packet of the batch its verdict.
    pub fn run(&mut self, now: &Now, batch: &mut Batch<'_>) {
        self.whole.come(batch.going());
        for Link { element, counters, is_guarded } in &mut self.links {
            if batch.going() == 0 {
                return;
            }
            counters.come(batch.going());
            batch.guard(*is_guarded);
            element.run(now, batch, counters);
        }
        batch.leave(&mut self.whole);
    }

    /// Has all elements let go of what was replaced where they read, such as SAs.
    pub fn refresh(&mut self) {
        self.links.iter_mut().for_each(|link| link.element.refresh());
    }

    /// Does what it does depend on the time? If not, packets that came at different times may be of one run.
    pub fn asks_when(&self) -> bool {
        self.asks_when
    }

    /// Each element's name and counters, in order, and what it counted besides; of [`Loss::InClear`] the reasons too.
    pub fn counters(&self) -> impl Iterator<Item = (&'static str, &Counters, Vec<(&'static str, u64)>)> {
        self.links.iter().map(|Link { element, counters, .. }| {
            let mut counted = element.counted();
            counted.extend(counters.in_clear().map(|(reason, packets)| (reason.name(), packets)));
            (element.name(), counters, counted)
        })
    }

    /// All that came, and what left at the end.
    pub fn whole(&self) -> Whole {
        let Chain { whole, .. } = self;
        Whole { packets: whole.packets(), to: whole.to(), no_exit: whole.dropped(Loss::NoExit) }
    }
}
