//! The core table: the core that continues with a packet (V1). The CORE_FLOW_MOD of our extension changes it, from a
//! controller or through another switch (V5). `docs/reference/openflow-extension.md` defines the messages.

use super::{
    Agent, ConnectionId,
    session::{FLOW_MOD, Version},
};
use crate::{
    flow::{
        Action, CoreChoice, FlowCommand, FlowFilter, FlowMod, FlowStats, Instructions, Match, Refused,
        RulePort, kernel::FlowMemory, rule::CORE_TABLE,
    },
    openflow::{
        BadMessage, Message,
        extension::{Extension, PROXY_ETHER_TYPE},
        message::Role,
        wire::{Header, Split, split},
    },
};

/// An Ethernet header.
const ETHERNET: usize = 14;

/// A rule of the core table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreRule {
    pub priority: u16,
    pub matching: Match,
    pub choice: CoreChoice,
    pub cookie: u64,
    /// In seconds; 0: never.
    pub idle_timeout: u16,
    pub hard_timeout: u16,
}

/// Counts of frames with [`PROXY_ETHER_TYPE`] for one of our ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProxiedCount {
    /// Frames whose change was made.
    pub applied: u64,
    /// Frames that came in by a port that is not trusted, contain no valid change, or whose change was refused.
    pub refused: u64,
}

/// Refuses rules that the flow tables allow but this table does not.
fn check(request: &FlowMod) -> Result<(), BadMessage> {
    if request.table.is_some_and(|table| table != 0) {
        return Err(Refused::BadTable.into());
    }
    if matches!(request.command, FlowCommand::Delete { .. }) {
        return Ok(());
    }
    if request.buffer.is_some() {
        return Err(BadMessage::BufferUnknown);
    }
    // FLOW_REMOVED cannot name this table.
    if request.flags.send_removed {
        return Err(BadMessage::Flags);
    }
    choice(&request.instructions)?;
    Ok(())
}

/// The core, if the instructions apply one SET_CORE and nothing else.
fn choice(instructions: &Instructions) -> Result<CoreChoice, Refused> {
    if *instructions != Instructions::apply(instructions.apply.as_slice()) {
        return Err(Refused::BadInstruction);
    }
    if instructions.apply.iter().any(|action| !matches!(action, Action::SetCore(_))) {
        return Err(Refused::BadAction);
    }
    match instructions.apply[..] {
        [Action::SetCore(choice)] => Ok(choice),
        [] => Err(Refused::BadInstruction),
        _ => Err(Refused::TooManyActions),
    }
}

impl<M: FlowMemory> Agent<M> {
    /// The rules of the core table, the highest priority first.
    pub fn core_rules(&self) -> Vec<CoreRule> {
        let all = FlowFilter { table: Some(CORE_TABLE), ..FlowFilter::EVERYTHING };
        let rule = |flow: FlowStats| {
            let FlowStats { priority, matching, cookie, idle_timeout, hard_timeout, instructions, .. } = flow;
            let choice = choice(&instructions).ok()?;
            Some(CoreRule { priority, matching, choice, cookie, idle_timeout, hard_timeout })
        };
        self.flows.tables().flows(&all, 0).filter_map(rule).collect()
    }

    /// Makes the change that the bytes of a flow-mod describe.
    fn change_core_table(&mut self, version: Version, message: &[u8], now_ms: u64) -> Result<(), BadMessage> {
        let header = Header::read(message).ok_or(BadMessage::Length)?;
        if usize::from(header.length) != message.len() {
            return Err(BadMessage::Length);
        }
        if header.version != version.number() {
            return Err(BadMessage::Version);
        }
        // Of other messages not even the errors matter, so do not decode them.
        if header.kind != FLOW_MOD {
            return Err(BadMessage::Type);
        }
        let Message::FlowMod(request) = version.decode(message)? else { return Err(BadMessage::Type) };
        check(&request)?;
        // Existing rules continue, where possible, and may be deleted.
        if !self.machine.hands_over() && !matches!(request.command, FlowCommand::Delete { .. }) {
            return Err(Refused::BadInstruction.into());
        }
        self.flows.apply_core(&request, version.dialect(), now_ms)?;
        Ok(())
    }

    /// Handles a frame that came in by a port. If it is a change sent through another switch, it changes the core table.
    /// Returns false if it is not such a frame, or not for a port of this switch.
    pub fn proxied(&mut self, port: RulePort, frame: &[u8], now_ms: u64) -> bool {
        let Some((header, message)) = frame.split_at_checked(ETHERNET) else { return false };
        if header[12..] != PROXY_ETHER_TYPE.to_be_bytes() || !self.ports.has_mac(&header[..6]) {
            return false;
        }
        let trusted = self.settings.proxy_ports.contains(&port);
        let applied = trusted && self.proxied_message(message, now_ms).is_ok();
        let count = &mut self.proxied;
        *(if applied { &mut count.applied } else { &mut count.refused }) += 1;
        true
    }

    /// What happened to frames that [`proxied`](Agent::proxied) took.
    pub fn proxied_count(&self) -> ProxiedCount {
        self.proxied
    }

    /// Handles a message; padding may follow it.
    fn proxied_message(&mut self, bytes: &[u8], now_ms: u64) -> Result<(), BadMessage> {
        let Split::Message(header, message) = split(bytes) else { return Err(BadMessage::Length) };
        let spoken = |version: &&Version| version.number() == header.version;
        let version = *self.settings.versions.iter().find(spoken).ok_or(BadMessage::Version)?;
        let Message::Experimenter(message) = version.decode(message)? else { return Err(BadMessage::Type) };
        match Extension::decode(&message)? {
            Extension::CoreFlowMod(inner) => self.change_core_table(version, &inner, now_ms),
            _ => Err(BadMessage::ExperimenterType),
        }
    }

    /// Handles a flow-mod for the core table. Errors refer to it, as if it had been sent alone.
    pub(super) fn core_flow_mod(
        &mut self,
        id: ConnectionId,
        version: Version,
        inner: &[u8],
        now_ms: u64,
    ) -> Result<(), BadMessage> {
        // Without a header there is no transaction id for an error.
        let header = Header::read(inner).ok_or(BadMessage::Length)?;
        let is_slave = self.connections.get(&id).is_some_and(|connection| connection.role == Role::Slave);
        let done = match is_slave {
            true => Err(BadMessage::IsSlave),
            false => self.change_core_table(version, inner, now_ms),
        };
        if let Err(bad) = done {
            self.refuse(id, header.xid, bad, inner);
        }
        Ok(())
    }
}
