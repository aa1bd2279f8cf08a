//! Each request and its answer or error.

use super::{Agent, ConnectionId, Outside, machine::Subscription, session::Version};
use crate::{
    flow::{FlowCommand, FlowMod, RulePort, kernel::FlowMemory, rule::TABLES},
    openflow::{
        BadMessage, Message,
        extension::Extension,
        message::{Config, Experimenter, Role, StatsRequest},
    },
};

/// OFPTC_DEPRECATED_MASK: bits of a table's settings that have no meaning any more.
const DEPRECATED: u32 = 3;

impl<M: FlowMemory> Agent<M> {
    /// Does what a message asks for, and answers it.
    pub(super) fn request(
        &mut self,
        id: ConnectionId,
        version: Version,
        xid: u32,
        message: Message,
        now_ms: u64,
        outside: &dyn Outside,
    ) -> Result<(), BadMessage> {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        if connection.role == Role::Slave && changes(&message) {
            return Err(BadMessage::IsSlave);
        }
        let reply = match message {
            Message::Hello { .. } | Message::Error(_) | Message::EchoReply(_) => return Ok(()),
            Message::EchoRequest(data) => Message::EchoReply(data),
            Message::Experimenter(message) => {
                return self.extension(id, version, xid, &message, now_ms, outside);
            }
            Message::FeaturesRequest => Message::FeaturesReply(self.features(version)),
            Message::GetConfigRequest => Message::GetConfigReply(Config {
                fragments: self.fragments,
                miss_send_len: connection.miss_send_len,
            }),
            Message::SetConfig(config) => return self.set_config(id, config),
            Message::PacketOut(packet) => return self.packet_out(packet, now_ms),
            Message::FlowMod(change) => return self.flow_mod(&change, version, now_ms),
            Message::GroupMod(change) => return Ok(self.flows.apply_group(&change, now_ms)?),
            Message::MeterMod(change) => return Ok(self.flows.apply_meter(&change, now_ms)?),
            Message::PortMod(change) => return self.port_mod(id, &change),
            Message::TableMod { table, config } => return table_mod(table, config),
            Message::StatsRequest(request) => {
                return self.statistics(id, version, xid, request, now_ms, outside);
            }
            Message::BarrierRequest => {
                self.barrier(id, xid);
                return Ok(());
            }
            Message::QueueConfigRequest { port } => {
                // 1.0 asks for one port only.
                let all = port == RulePort::NONE && version == Version::OpenFlow13;
                if !all && !self.ports.are_told(port) {
                    return Err(BadMessage::Port);
                }
                Message::QueueConfigReply { port, queues: Vec::new() }
            }
            Message::RoleRequest { role, generation } => self.set_role(id, role, generation)?,
            Message::GetAsyncRequest => Message::GetAsyncReply(connection.wants),
            Message::SetAsync(wants) => {
                connection.wants = wants;
                return Ok(());
            }
            // Messages that only a switch sends.
            Message::FeaturesReply(_)
            | Message::GetConfigReply(_)
            | Message::PacketIn(_)
            | Message::FlowRemoved(_)
            | Message::PortStatus { .. }
            | Message::StatsReply { .. }
            | Message::BarrierReply
            | Message::QueueConfigReply { .. }
            | Message::RoleReply { .. }
            | Message::GetAsyncReply(_) => return Err(BadMessage::Type),
        };
        self.tell(id, xid, &reply);
        Ok(())
    }

    /// Changes rules. No buffers exist, so a buffer's number is refused.
    fn flow_mod(&mut self, change: &FlowMod, version: Version, now_ms: u64) -> Result<(), BadMessage> {
        if change.buffer.is_some() && !matches!(change.command, FlowCommand::Delete { .. }) {
            return Err(BadMessage::BufferUnknown);
        }
        Ok(self.flows.apply(change, version.dialect(), now_ms)?)
    }

    /// Handles vendor and experimenter messages. Those that only a switch sends are refused as unknown.
    fn extension(
        &mut self,
        id: ConnectionId,
        version: Version,
        xid: u32,
        message: &Experimenter,
        now_ms: u64,
        outside: &dyn Outside,
    ) -> Result<(), BadMessage> {
        match Extension::decode(message)? {
            Extension::Subscribe { cores, workloads } => {
                self.subscribe(id, xid, Subscription { cores, workloads });
                Ok(())
            }
            Extension::CoreFlowMod(inner) => self.core_flow_mod(id, version, &inner, now_ms),
            Extension::CoreStatsRequest { core } => {
                let mut cores = outside.core_stats();
                cores.retain(|stats| core.is_none_or(|core| core == stats.number));
                self.tell(id, xid, &Message::Experimenter(Extension::CoreStats(cores).encode()));
                Ok(())
            }
            Extension::Cores(_)
            | Extension::WorkloadStart(_)
            | Extension::WorkloadStop { .. }
            | Extension::CoreStats(_) => Err(BadMessage::ExperimenterType),
        }
    }
}

/// Is it a message that a slave may not send (1.3.5 section 6.3.6)?
fn changes(message: &Message) -> bool {
    matches!(
        message,
        Message::PacketOut(_)
            | Message::FlowMod(_)
            | Message::GroupMod(_)
            | Message::MeterMod(_)
            | Message::PortMod(_)
            | Message::TableMod { .. }
            | Message::StatsRequest(StatsRequest::TableFeatures { sets: true })
    )
}

/// Checks a table-mod: tables have no settings.
fn table_mod(table: Option<u8>, config: u32) -> Result<(), BadMessage> {
    if table.is_some_and(|table| table >= TABLES) {
        return Err(BadMessage::Table);
    }
    if config & !DEPRECATED == 0 { Ok(()) } else { Err(BadMessage::SwitchConfig) }
}
