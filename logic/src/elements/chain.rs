//! A list of elements, run one after another over a batch.

use super::{
    Batch, Counters, Element, Now, Part,
    contract::{self, BadChain},
};

/// A path's elements, each with its counters. There is one dynamic call per element and batch, or per four elements
/// that are the parts of a router.
///
/// The type is small, because a worker moves it out and back in each run.
pub struct Chain {
    links: Vec<Link>,
    whole: Whole,
    asks_when: bool,
}

const _: () = assert!(size_of::<Chain>() <= 64);

struct Link {
    element: Box<dyn Element>,
    counters: Counters,
    /// It comes before one that encrypts, so it may not pass up packets that the kernel would forward (`clear`).
    is_guarded: bool,
    /// The number of elements that run as one from this one on: the four [`Part`]s of a router, or one.
    together: usize,
}

/// Packets of the whole chain. The elements count those that they passed up or dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Whole {
    /// Packets that arrived.
    pub packets: u64,
    /// Packets that left by a port.
    pub to: u64,
}

impl Chain {
    /// Makes a chain of these elements, in this order.
    pub fn new(elements: Vec<Box<dyn Element>>) -> Result<Chain, BadChain> {
        contract::check(&elements)?;
        let asks_when = elements.iter().any(|element| element.contract().asks_when);
        let encrypts = elements.iter().rposition(|element| element.contract().encrypts).unwrap_or(0);
        let parts: Vec<Option<Part>> = elements.iter().map(|element| element.contract().part).collect();
        let link = |(at, element)| Link {
            element,
            counters: Counters::default(),
            is_guarded: at < encrypts,
            together: if parts[at..].starts_with(&Part::ALL) { Part::ALL.len() } else { 1 },
        };
        let links = elements.into_iter().enumerate().map(link).collect();
        Ok(Chain { links, whole: Whole::default(), asks_when })
    }

    /// Replaces another chain of the same elements with the same parameters. Counters and the state of elements
    /// continue.
    pub fn go_on_from(&mut self, before: &Chain) {
        self.whole = before.whole;
        for (link, before) in self.links.iter_mut().zip(&before.links) {
            link.counters = before.counters.clone();
            if let Some(kept) = before.element.kept() {
                link.element.go_on_from(kept);
            }
        }
    }

    /// Gives every packet of the batch its verdict.
    pub fn run(&mut self, now: &Now, batch: &mut Batch<'_>) {
        self.whole.packets += batch.going() as u64;
        let mut links = &mut self.links[..];
        while batch.going() > 0 {
            let Some(first) = links.first() else {
                self.whole.to += batch.leave() as u64;
                return;
            };
            batch.guard(first.is_guarded);
            let (together, rest) = links.split_at_mut(first.together);
            match together {
                [check, route, ttl, rewrite] => {
                    let counters =
                        [&mut check.counters, &mut route.counters, &mut ttl.counters, &mut rewrite.counters];
                    if let Some(joined) = route.element.joined() {
                        joined.run(now, batch, counters);
                    }
                }
                [Link { element, counters, .. }] => {
                    counters.come(batch.going());
                    element.run(now, batch, counters);
                }
                _ => {}
            }
            links = rest;
        }
    }

    /// Makes all elements release data that was replaced in its source, such as SAs.
    pub fn refresh(&mut self) {
        self.links.iter_mut().for_each(|link| link.element.refresh());
    }

    /// Whether its work depends on the time. If not, packets that arrived at different times may share a run.
    pub fn asks_when(&self) -> bool {
        self.asks_when
    }

    /// Each element's name, counters and additional counts, in order. For [`Loss::InClear`] these include the reasons.
    pub fn counters(&self) -> impl Iterator<Item = (&'static str, &Counters, Vec<(&'static str, u64)>)> {
        self.links.iter().map(|Link { element, counters, .. }| {
            let mut counted = element.counted();
            counted.extend(counters.in_clear().map(|(reason, packets)| (reason.name(), packets)));
            (element.name(), counters, counted)
        })
    }

    /// The packets that arrived, and those that left at the end.
    pub fn whole(&self) -> Whole {
        self.whole
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Check, Count, Forward, Ttl, tests::World},
        *,
    };

    fn together(elements: Vec<Box<dyn Element>>) -> Vec<usize> {
        Chain::new(elements).unwrap().links.iter().map(|link| link.together).collect()
    }

    #[test]
    fn the_four_parts_of_a_router_are_joined_wherever_they_follow_one_another() {
        let world = World::new();
        // Counts packets before these elements of a router's four.
        let counted = |at: &[usize]| {
            let mut elements = world.router();
            at.iter().rev().for_each(|at| elements.insert(*at, Box::new(Count::default())));
            together(elements)
        };
        assert_eq!(counted(&[]), [4, 1, 1, 1]);
        assert_eq!(counted(&[0, 4]), [1, 4, 1, 1, 1, 1]);
        assert_eq!(counted(&[2]), [1; 5]);
        assert_eq!(together(vec![Box::new(Check), Box::new(Ttl), Box::new(Forward::new(1))]), [1; 3]);
    }
}
