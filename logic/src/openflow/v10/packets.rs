//! Packet-in (section 5.4.1) and packet-out (section 5.3.6).

use super::{
    super::message::{PacketIn, PacketInReason, PacketOut},
    BUFFER, BadMessage, PORT, UNKNOWN_REASON,
    actions::ACTIONS,
    cannot,
};
use crate::{
    flow::{Field, Match, RulePort},
    openflow::format::{Counted, Format, Layout, OneOf, Pad, REST, U8, U16, layout},
};

/// 1.0 has no reason for a TTL that is used up. The rule's action sends the packet.
const REASON: OneOf<U8, PacketInReason> =
    OneOf(U8, &[PacketInReason::NoMatch, PacketInReason::Action], UNKNOWN_REASON);

pub const PACKET_IN: Layout<PacketIn> = layout!(
    PacketIn { buffer: BUFFER, total_len: U16, matching: IN_PORT, reason: Pad(REASON, 1), data: REST },
    absent { table: 0, cookie: 0 }
);

const IN_PORT: Layout<Match> = Layout(
    |r| r.u16().map(|port| Match::ANY.with(Field::InPort, port)),
    |matching, out| {
        let port = matching.exact(Field::InPort).ok_or(cannot("a packet from no port"))?;
        U16.write(&(port as u16), out)
    },
);

pub const PACKET_OUT: Layout<PacketOut> = Layout(
    |r| {
        let packet = PACKET_OUT_FIELDS.read(r)?.without_ignored_data();
        if can_come_from(packet.in_port) { Ok(packet) } else { Err(BadMessage::Port) }
    },
    |packet, out| {
        if !can_come_from(packet.in_port) {
            return Err(cannot("a packet from this port"));
        }
        if packet.has_ignored_data() {
            return Err(cannot("a packet with both a buffer and data"));
        }
        PACKET_OUT_FIELDS.write(packet, out)
    },
);
const PACKET_OUT_FIELDS: Layout<PacketOut> = layout!(PacketOut {
    buffer: BUFFER,
    in_port: PORT,
    actions: Counted(0, BadMessage::ActionLength, ACTIONS),
    data: REST,
});

/// May a controller's packet have this port as its ingress port?
fn can_come_from(port: RulePort) -> bool {
    port <= RulePort::MAX || [RulePort::CONTROLLER, RulePort::LOCAL, RulePort::NONE].contains(&port)
}
