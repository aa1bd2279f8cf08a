//! `discard`: drops all packets as `discarded`. It must be the last element of a chain. Parameters:
//! none.

use super::{
    Batch, Contract, Counters, Element, Known, Now,
    packet::{Loss, Verdict},
};

/// See the head of this file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Discard;

impl Element for Discard {
    fn name(&self) -> &'static str {
        "discard"
    }

    fn contract(&self) -> Contract {
        Contract { gives: Known::EXIT, ends: true, ..Contract::default() }
    }

    fn run(&mut self, _: &Now, batch: &mut Batch<'_>, counters: &mut Counters) {
        batch.each(counters, |_| Some(Verdict::Drop(Loss::Discarded)));
    }
}
