use super::*;
use crate::{
    flow::{
        FlowFilter, GroupMod, MeterMod,
        kernel::{Notice, NoticeReason},
    },
    openflow::{
        extension::{Core, Cores, Extension, Features, Workload},
        message::{Config, Fragments, PacketOut},
    },
};
use proptest::{
    collection::vec,
    prelude::*,
    sample::{Index, select},
};

fn ours(extension: &Extension) -> Message {
    Message::Experimenter(extension.encode())
}

/// Changes of the core table.
fn core_flow_mods() -> Vec<Vec<u8>> {
    let changes =
        [add("in_port=1,hard_timeout=1,actions=set_core:1"), add("actions=set_core:choose"), delete("")];
    let of = |version| {
        let inner = |change| encoded(version, 6, change);
        changes.each_ref().map(|change| encoded(version, 5, &ours(&Extension::CoreFlowMod(inner(change)))))
    };
    [OpenFlow10, OpenFlow13].map(of).concat()
}

/// Valid messages, which the tests then damage.
fn samples() -> Vec<Vec<u8>> {
    let out = |actions| PacketOut { buffer: None, in_port: RulePort(1), actions, data: vec![0; 60] };
    let both = [
        Message::Hello { versions: None },
        Message::EchoRequest(vec![1; 9]),
        Message::FeaturesRequest,
        Message::GetConfigRequest,
        Message::SetConfig(Config { fragments: Fragments::Drop, miss_send_len: 9 }),
        Message::SetConfig(Config { fragments: Fragments::Normal, miss_send_len: 128 }),
        Message::BarrierRequest,
        add("in_port=1,hard_timeout=1,send_flow_rem,actions=output:2"),
        add("in_port=2,send_flow_rem,actions=controller"),
        delete(""),
        Message::PacketOut(out(vec![Action::output(RulePort::TABLE), Action::output(RulePort::CONTROLLER)])),
        Message::StatsRequest(StatsRequest::Flow(FlowFilter::EVERYTHING)),
        Message::StatsRequest(StatsRequest::Port(RulePort::NONE)),
        Message::StatsRequest(StatsRequest::Table),
        ours(&Extension::Subscribe { cores: true, workloads: true }),
        ours(&Extension::Subscribe { cores: false, workloads: true }),
    ];
    let new = [
        Message::RoleRequest { role: Role::Master, generation: 7 },
        Message::GetAsyncRequest,
        add("in_port=1,actions=set_tunnel:5,controller,goto_table:1"),
        add("table=1,tun_id=5,actions=set_tunnel:6,output:2,controller"),
        Message::GroupMod(GroupMod::Delete(None)),
        Message::MeterMod(MeterMod::Delete(None)),
        Message::StatsRequest(StatsRequest::TableFeatures { sets: false }),
        Message::StatsRequest(StatsRequest::GroupDescription),
    ];
    let of = |version, list: &[Message]| list.iter().map(|m| encoded(version, 5, m)).collect::<Vec<_>>();
    [of(OpenFlow10, &both), of(OpenFlow13, &both), of(OpenFlow13, &new), core_flow_mods()].concat()
}

#[derive(Clone, Debug)]
enum Event {
    /// More bytes of a connection. The last number is the part of them, in 256ths, that arrives now.
    Bytes(usize, Vec<u8>, u8),
    /// A connection reads this number of the bytes that were sent to it.
    Reads(usize, usize),
    Leaves(usize),
    Seconds(u8),
    Seal,
    Void,
    Finish,
    Packet(u32, NoticeReason, Vec<u8>),
    /// The load of the only core.
    Load(u16),
    /// A tenant runs so many workloads.
    Workloads(u32, u32),
    Proxied(Vec<u8>),
}

fn message() -> impl Strategy<Value = Vec<u8>> {
    let spoils = vec((any::<Index>(), any::<u8>()), 0..3);
    let spoilt = (select(samples()), spoils).prop_map(|(mut bytes, spoils)| {
        for (at, byte) in spoils {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes
    });
    prop_oneof![12 => select(samples()), 4 => spoilt, 1 => vec(any::<u8>(), 0..40)]
}

fn event() -> impl Strategy<Value = Event> {
    let reasons = select(vec![NoticeReason::Action, NoticeReason::Ttl, NoticeReason::Slow]);
    let bytes = vec(message(), 1..8).prop_map(|list| list.concat());
    let proxied = message().prop_map(|message| {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0x88, 0xb5];
        frame.extend(message);
        frame
    });
    prop_oneof![
        8 => (0..3_usize, bytes, any::<u8>()).prop_map(|(n, bytes, part)| Event::Bytes(n, bytes, part)),
        2 => (0..3_usize, 0..100_000_usize).prop_map(|(n, bytes)| Event::Reads(n, bytes)),
        1 => (0..3_usize).prop_map(Event::Leaves),
        1 => any::<u8>().prop_map(Event::Seconds),
        2 => Just(Event::Seal),
        2 => Just(Event::Void),
        2 => Just(Event::Finish),
        2 => (0..40_u32, reasons, vec(any::<u8>(), 0..80)).prop_map(|(r, k, f)| Event::Packet(r, k, f)),
        1 => (0..1001_u16).prop_map(Event::Load),
        1 => (0..2 * WORKLOADS as u32, 0..3_u32).prop_map(|(count, tenant)| Event::Workloads(count, tenant)),
        1 => proxied.prop_map(Event::Proxied),
    ]
}

#[derive(Default)]
struct Peer {
    id: u32,
    /// Bytes that have not reached the switch yet.
    bytes: Vec<u8>,
    asked: bool,
    unread: usize,
}

/// A switch with three connections. A new connection takes the place of one that ended.
struct World {
    b: Bench,
    peers: [Peer; 3],
    ids: u32,
    /// A batch is under way; the value says whether its first grace period is over.
    batch: Option<bool>,
}

impl World {
    fn connect(&mut self, place: usize) {
        self.ids += 1;
        let version = if self.ids.is_multiple_of(2) { OpenFlow10 } else { OpenFlow13 };
        let hello = encoded(version, 0, &Message::Hello { versions: None });
        self.peers[place] = Peer { id: self.ids, bytes: hello, ..Peer::default() };
        self.b.agent.connected(ConnectionId(self.ids), "peer", true, self.b.now_ms);
    }

    fn happen(&mut self, event: Event) {
        let now_ms = self.b.now_ms;
        match event {
            Event::Bytes(n, bytes, part) => {
                let peer = &mut self.peers[n];
                peer.bytes.extend(bytes);
                if std::mem::take(&mut peer.asked) {
                    let come = peer.bytes.len() * (usize::from(part) + 1) / 256;
                    let come: Vec<u8> = peer.bytes.drain(..come).collect();
                    let id = peer.id;
                    self.b.bytes(id, &come);
                }
            }
            Event::Reads(n, bytes) => {
                let peer = &mut self.peers[n];
                let bytes = bytes.min(peer.unread);
                peer.unread -= bytes;
                self.b.agent.written(ConnectionId(peer.id), bytes, now_ms, &Counters);
            }
            Event::Leaves(n) => {
                self.b.agent.closed(ConnectionId(self.peers[n].id));
                self.connect(n);
            }
            Event::Seconds(seconds) => {
                self.b.now_ms += 1000 * u64::from(seconds);
                self.b.agent.tick(self.b.now_ms);
            }
            Event::Seal => {
                if self.b.agent.seal() {
                    assert_eq!(self.batch.replace(false), None);
                }
            }
            Event::Void => {
                if let Some(void) = self.batch.as_mut().filter(|void| !**void) {
                    *void = true;
                    self.b.agent.void();
                }
            }
            Event::Finish => {
                if self.batch.take_if(|void| *void).is_some() {
                    self.b.agent.finish(now_ms, &Counters);
                }
            }
            Event::Packet(rule, reason, frame) => {
                let notice = Notice {
                    rule,
                    port: RulePort(1),
                    reason,
                    frame_bytes: frame.len() as u32,
                    metadata: 0,
                    tunnel_id: 0,
                };
                self.b.agent.notice(notice, &frame, 1_000_000 * now_ms);
            }
            Event::Load(load) => {
                let core = Core { number: 1, load: Some(load), workloads: 0 };
                let features = Features { core_redirect: load % 8 != 0, ..Features::default() };
                self.b.agent.set_cores(Cores { features, cores: vec![core] }, now_ms);
            }
            Event::Workloads(count, tenant) => {
                let workload = |id| Workload { id, tenant, cores: vec![1] };
                self.b.agent.set_workloads((0..count).map(workload).collect(), now_ms);
            }
            Event::Proxied(frame) => {
                assert!(self.b.agent.proxied(RulePort(1), &frame, now_ms));
            }
        }
    }

    /// Checks that whole messages are sent to existing connections, and that each is asked for bytes only
    /// once.
    fn look(&mut self) {
        loop {
            let effects = self.b.agent.take_effects();
            if effects.is_empty() {
                return;
            }
            for effect in effects {
                let place = |id: ConnectionId| self.peers.iter().position(|peer| peer.id == id.0);
                match effect {
                    Effect::Send { connection, bytes } => {
                        assert!(messages(&bytes).count() > 0);
                        self.peers[place(connection).unwrap()].unread += bytes.len();
                    }
                    Effect::Read(connection) => {
                        let peer = &mut self.peers[place(connection).unwrap()];
                        assert!(!std::mem::replace(&mut peer.asked, true));
                    }
                    Effect::Close { connection, .. } => {
                        let place = place(connection).unwrap();
                        self.connect(place);
                    }
                    _ => {}
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(crate::cases(64))]

    #[test]
    fn any_input_is_answered_in_whole_messages_and_bounded(events in vec(event(), 1..60)) {
        let ours = Settings { proxy_ports: [RulePort(1)].into(), ..settings() };
        let b = bench(Settings { controllers: true, ..ours });
        let mut world = World { b, peers: Default::default(), ids: 0, batch: None };
        (0..3).for_each(|place| world.connect(place));
        for event in events {
            world.look();
            world.happen(event);
        }
        world.look();
        for report in world.b.agent.report() {
            prop_assert!(report.unsent_bytes <= 2 * UNSENT, "{report:?}");
            prop_assert!(report.unread_bytes <= 2 * UNREAD, "{report:?}");
            let peer = world.peers.iter().find(|peer| peer.id == report.connection.0).unwrap();
            prop_assert_eq!(peer.unread, report.unsent_bytes);
        }
        // Nothing waits forever: when all batches are over, every barrier is answered.
        for _ in 0..100 {
            for event in [Event::Void, Event::Finish, Event::Seal] {
                world.happen(event);
                world.look();
            }
            for n in 0..3 {
                world.happen(Event::Reads(n, usize::MAX));
                world.look();
            }
        }
        prop_assert!(world.peers.iter().all(|peer| peer.asked));
    }
}
