//! The core table: which core goes on with a packet (V1). It is changed by our extension's CORE_FLOW_MOD, from a controller or
//! through another switch (V5); `docs/openflow-extension.md` says what it means.

use super::{
    Agent, ConnectionId,
    session::{FLOW_MOD, Version},
};
use crate::{
    flow::{
        Action, CoreChoice, FlowCommand, FlowFilter, FlowMod, FlowStats, Instructions, Match, Port, Refused,
        RuleId, Tables,
        kernel::FlowMemory,
        table::{Change, Count},
    },
    openflow::{
        BadMessage, Message,
        extension::{Extension, PROXY_ETHER_TYPE},
        message::Role,
        wire::{Header, Split, split},
    },
};
use std::collections::BTreeSet;

/// How many rules the core table may have.
pub const CORE_RULES: usize = 65_536;

/// An Ethernet header.
const ETHERNET: usize = 14;

/// A rule of the core table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreRule {
    /// Of a rule that is gone it may be given to another at once.
    pub id: RuleId,
    pub priority: u16,
    pub matching: Match,
    pub choice: CoreChoice,
    pub cookie: u64,
    /// Seconds; 0: never.
    pub idle_timeout: u16,
    pub hard_timeout: u16,
}

/// Frames with [`PROXY_ETHER_TYPE`] for a port of ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProxiedCount {
    /// Their change was made.
    pub applied: u64,
    /// They came in by a port that is not trusted, or hold something that is no change or cannot be made.
    pub refused: u64,
}

/// Its rules, in table 0 of tables of their own.
pub(super) struct CoreTable {
    /// Packets can be handed to other cores.
    can_hand: bool,
    tables: Tables,
    generation: u64,
    proxied: ProxiedCount,
}

impl CoreTable {
    pub fn new(can_hand: bool) -> Self {
        let mut tables = Tables::new();
        tables.set_cores(can_hand.then(BTreeSet::new));
        Self { can_hand, tables, generation: 0, proxied: ProxiedCount::default() }
    }

    pub fn set_cores(&mut self, cores: Option<BTreeSet<u16>>) {
        self.tables.set_cores(cores);
    }

    /// Ends the rules whose timeouts have passed.
    pub fn expire(&mut self, now_ms: u64) {
        let changes = self.tables.expire(now_ms);
        if !changes.is_empty() {
            self.changed(&changes);
        }
    }

    fn changed(&mut self, changes: &[Change]) {
        self.generation += 1;
        for change in changes {
            if let Change::Removed { id, .. } = change {
                self.tables.release(*id);
            }
        }
    }

    /// How many there are.
    fn rules(&self) -> usize {
        self.tables.tables().map(|(_, rules)| rules as usize).sum()
    }

    /// Does what the bytes of a flow-mod say.
    fn flow_mod(&mut self, version: Version, message: &[u8], now_ms: u64) -> Result<(), BadMessage> {
        if !self.can_hand {
            return Err(Refused::BadInstruction.into());
        }
        let header = Header::read(message).ok_or(BadMessage::Length)?;
        if usize::from(header.length) != message.len() {
            return Err(BadMessage::Length);
        }
        if header.version != version.number() {
            return Err(BadMessage::Version);
        }
        // Of another message not even the errors are of interest.
        if header.kind != FLOW_MOD {
            return Err(BadMessage::Type);
        }
        let Message::FlowMod(request) = version.decode(message)? else { return Err(BadMessage::Type) };
        check(&request)?;
        let changes = self.tables.apply(&request, version.dialect(), now_ms)?;
        if let [Change::Added(id)] = changes[..]
            && self.rules() > CORE_RULES
        {
            self.tables.withdraw(id);
            return Err(Refused::TableFull.into());
        }
        self.changed(&changes);
        Ok(())
    }

    fn rule(&self, id: RuleId) -> Option<CoreRule> {
        let FlowStats { priority, matching, cookie, idle_timeout, hard_timeout, instructions, .. } =
            self.tables.flow(id, 0)?;
        let choice = choice(&instructions).ok()?;
        Some(CoreRule { id, priority, matching, choice, cookie, idle_timeout, hard_timeout })
    }
}

/// What a rule of the flow tables may be and one of this table not.
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
    // FLOW_REMOVED could not say that it is of this table.
    if request.flags.send_removed {
        return Err(BadMessage::Flags);
    }
    choice(&request.instructions)?;
    Ok(())
}

/// The core of instructions that are to apply one SET_CORE and nothing else.
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
    /// Is there something in the core table?
    pub fn wants_core_table(&self) -> bool {
        self.core_table.rules() > 0
    }

    /// The rules of the core table, the highest priority first.
    pub fn core_rules(&self) -> Vec<CoreRule> {
        let ids = self.core_table.tables.sorted(&FlowFilter::EVERYTHING);
        ids.into_iter().filter_map(|id| self.core_table.rule(id)).collect()
    }

    /// Another number than before: [`core_rules`](Agent::core_rules) may have changed.
    pub fn core_generation(&self) -> u64 {
        self.core_table.generation
    }

    /// What was counted of a rule of the core table since its id was given out, and when its last packet came: idle timeouts go
    /// by that.
    pub fn count_core_rule(&mut self, id: RuleId, total: Count, last_used_ms: u64) {
        self.core_table.tables.count(id, total, last_used_ms);
    }

    /// A frame that came in by a port: changes the core table if it was sent there through another switch. False: it is not such
    /// a frame, or not for a port of this switch.
    pub fn proxied(&mut self, port: Port, frame: &[u8], now_ms: u64) -> bool {
        let Some((header, message)) = frame.split_at_checked(ETHERNET) else { return false };
        if header[12..] != PROXY_ETHER_TYPE.to_be_bytes() || !self.ports.has_mac(&header[..6]) {
            return false;
        }
        let trusted = self.settings.proxy_ports.contains(&port);
        let applied = trusted && self.proxied_message(message, now_ms).is_ok();
        let count = &mut self.core_table.proxied;
        *(if applied { &mut count.applied } else { &mut count.refused }) += 1;
        true
    }

    /// What became of frames that [`proxied`](Agent::proxied) took.
    pub fn proxied_count(&self) -> ProxiedCount {
        self.core_table.proxied
    }

    /// A message, and padding after it.
    fn proxied_message(&mut self, bytes: &[u8], now_ms: u64) -> Result<(), BadMessage> {
        let Split::Message(header, message) = split(bytes) else { return Err(BadMessage::Length) };
        let spoken = |version: &&Version| version.number() == header.version;
        let version = *self.settings.versions.iter().find(spoken).ok_or(BadMessage::Version)?;
        let Message::Experimenter(message) = version.decode(message)? else { return Err(BadMessage::Type) };
        match Extension::decode(&message)? {
            Extension::CoreFlowMod(inner) => self.core_table.flow_mod(version, &inner, now_ms),
            _ => Err(BadMessage::ExperimenterType),
        }
    }

    /// A flow-mod for the core table. Errors about it are its own, as if it had come by itself.
    pub(super) fn core_flow_mod(
        &mut self,
        id: ConnectionId,
        version: Version,
        inner: &[u8],
        now_ms: u64,
    ) -> Result<(), BadMessage> {
        // Without a header it has no transaction id to be told by.
        let header = Header::read(inner).ok_or(BadMessage::Length)?;
        let is_slave = self.connections.get(&id).is_some_and(|connection| connection.role == Role::Slave);
        let done = match is_slave {
            true => Err(BadMessage::IsSlave),
            false => self.core_table.flow_mod(version, inner, now_ms),
        };
        if let Err(bad) = done {
            self.refuse(id, header.xid, bad, inner);
        }
        Ok(())
    }
}
