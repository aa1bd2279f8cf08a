//! `count`: counts packets and bytes.
//!
//! - **Output**: all packets.
//! - **Counts**: `bytes` of data besides packets. The data begins with the Ethernet header and does not include the
//!   frame check sequence.
//! - **Parameters**: none.

use super::{Batch, Contract, Counters, Element, Now};
use std::any::Any;

/// See the head of this file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Count {
    bytes: u64,
}

impl Element for Count {
    fn name(&self) -> &'static str {
        "count"
    }

    fn contract(&self) -> Contract {
        Contract::default()
    }

    fn run(&mut self, _: &Now, batch: &mut Batch<'_>, counters: &mut Counters) {
        batch.each(counters, |packet| {
            self.bytes += packet.length() as u64;
            None
        });
    }

    fn kept(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn go_on_from(&mut self, kept: &dyn Any) {
        *self = kept.downcast_ref().copied().unwrap_or(*self);
    }

    fn counted(&self) -> Vec<(&'static str, u64)> {
        vec![("bytes", self.bytes)]
    }
}
