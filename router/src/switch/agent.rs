//! What is decided about flow rules: no thread, socket or clock.

use logic::flow::{
    FlowFilter, FlowMod, FlowStats, Port, Refused,
    execute::Packet,
    flows::Flows,
    kernel::{FlowMemory, Notice},
    pipeline::Output,
    table::{Dialect, RuleId},
};

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Out of a port.
    Transmit { port: Port, frame: Vec<u8> },
    /// As Linux would forward it.
    Normal { in_port: Port, frame: Vec<u8> },
    /// To the kernel's stack.
    Local { in_port: Port, frame: Vec<u8> },
}

/// The rules, and whether they are to be in charge.
pub struct Agent<M> {
    flows: Flows<M>,
    /// A packet that no rule matches goes as Linux would send it: without rules there is nothing to be in charge of.
    misses_to_normal: bool,
    effects: Vec<Effect>,
}

impl<M: FlowMemory> Agent<M> {
    pub fn new(flows: Flows<M>, misses_to_normal: bool) -> Self {
        Self { flows, misses_to_normal, effects: Vec::new() }
    }

    /// The ports there are, and whether they are up.
    pub fn set_ports(&mut self, ports: impl IntoIterator<Item = (Port, bool)>) {
        self.flows.set_ports(ports);
    }

    /// A packet of which user space does what the rules say. False: not all of it came, and nothing can be done with it.
    pub fn notice(&mut self, notice: Notice, frame: Vec<u8>, now_ns: u64) -> bool {
        if frame.len() != notice.frame_bytes as usize {
            return false;
        }
        let done = self.flows.run(Packet::new(frame, notice.port), now_ns);
        self.effects.extend(done.outputs.into_iter().filter_map(
            |Output { port, in_port, frame, .. }| match port {
                Port::NORMAL => Some(Effect::Normal { in_port, frame }),
                Port::LOCAL => Some(Effect::Local { in_port, frame }),
                port if port.is_real() => Some(Effect::Transmit { port, frame }),
                _ => None,
            },
        ));
        true
    }

    /// What is to be done since the last call, in order.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// To be called once a second: ends what has lived long enough.
    pub fn tick(&mut self, now_ms: u64) {
        self.flows.expire(now_ms);
    }

    /// Changes rules as OpenFlow 1.3 does.
    ///
    /// # Errors
    /// Refused: nothing has changed.
    pub fn change(&mut self, request: &FlowMod, now_ms: u64) -> Result<(), Refused> {
        self.flows.apply(request, Dialect::OpenFlow13, now_ms)
    }

    /// How many rules a request to modify or delete means.
    pub fn meant_by(&self, request: &FlowMod) -> usize {
        self.flows.tables().meant_by(request).len()
    }

    /// How many rules there are.
    pub fn count(&self) -> usize {
        self.flows.tables().tables().map(|(_, rules)| rules as usize).sum()
    }

    /// The rules that a filter means, by table, priority, mask and values.
    pub fn ids(&self, filter: &FlowFilter) -> Vec<RuleId> {
        self.flows.tables().sorted(filter)
    }

    /// A rule with its counters, when it was last used, and whether user space does it; `None`: it is gone.
    pub fn flow(&mut self, id: RuleId, now_ms: u64) -> Option<(FlowStats, u64, bool)> {
        let stats = self.flows.flow_if_meant(id, &FlowFilter::EVERYTHING, now_ms)?;
        Some((stats, self.flows.tables().used_ms(id)?, self.flows.is_slow(id)))
    }

    /// Should rules be in charge?
    pub fn wants_rules(&self) -> bool {
        !self.misses_to_normal || self.count() > 0
    }

    /// See [`Flows::seal`].
    pub fn seal(&mut self) -> bool {
        self.flows.seal()
    }

    /// See [`Flows::void`].
    pub fn void(&mut self) {
        self.flows.void();
    }

    /// See [`Flows::finish`].
    pub fn finish(&mut self) {
        // Nobody is there to be told which rules ended.
        self.flows.finish();
    }
}
