//! `forward`: sends frames to a given port, unchanged (FWD of P11).
//!
//! - **Input**: any frame.
//! - **Output**: the same frame, which leaves by the port.
//! - **Dropped**: `no_port`, all frames while the port cannot transmit.
//!
//! | parameter | meaning |
//! |---|---|
//! | `port` | the port's number |

use super::{
    Batch, Contract, Counters, Element, Known, Now,
    packet::{Loss, Verdict},
};
use crate::plan::PortId;

/// See the head of this file.
#[derive(Clone, Copy, Debug)]
pub struct Forward {
    port: PortId,
}

impl Forward {
    /// Forwards to this port.
    pub fn new(port: PortId) -> Self {
        Forward { port }
    }
}

impl Element for Forward {
    fn name(&self) -> &'static str {
        "forward"
    }

    fn contract(&self) -> Contract {
        Contract { gives: Known::EXIT, ..Contract::default() }
    }

    fn run(&mut self, now: &Now, batch: &mut Batch<'_>, counters: &mut Counters) {
        let ready = now.can_send(self.port);
        batch.each(counters, |packet| {
            packet.exit = Some(self.port);
            (!ready).then_some(Verdict::Drop(Loss::NoPort))
        });
    }
}
