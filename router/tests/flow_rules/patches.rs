//! What later tables see of a packet that the cache answers.

use crate::{Tried, common::in_new_namespace, compare, notices::udp_frame, world::FlowWorld};
use logic::flow::{
    Action, Field, FlowCommand, Instructions, Match, RulePort, field::ether_type, packet::VXLAN_PORT,
};

fn goto(actions: &[Action]) -> Instructions {
    Instructions { goto_table: Some(1), ..Instructions::apply(actions.to_vec()) }
}

fn to(port: u16) -> Instructions {
    Instructions::apply([Action::output(RulePort(port))])
}

/// A packet that the kernel plane answers from the cache, and one with the same key that it cannot answer.
fn compare_two(w: &mut FlowWorld, cached: &[u8], other: &[u8], at: &str) {
    let mut tried = Tried::default();
    compare(w, RulePort(1), cached, 3, &mut tried, at);
    assert_eq!((tried.fast, tried.slow), (3, 0), "{at}");
    compare(w, RulePort(1), other, 3, &mut tried, at);
    assert_eq!((tried.fast, tried.slow), (3, 3), "{at}");
}

#[test]
#[ignore = "needs root"]
fn a_packet_that_lacks_what_patches_need_is_not_answered_from_the_cache() {
    in_new_namespace(|| {
        let mut w = FlowWorld::new();
        let mut plain = udp_frame(64, 61);
        plain[16..18].copy_from_slice(&47_u16.to_be_bytes());
        let tagged = |tags: &[u8]| {
            let tags: Vec<u8> = tags.iter().flat_map(|&tag| [0x81, 0, 0, tag]).collect();
            [&plain[..12], &tags, &plain[12..]].concat()
        };
        let ipv4 = Match::ANY.with(Field::EthType, ether_type::IPV4);
        let push = [Action::PushVlan(ether_type::VLAN), Action::set(Field::VlanVid, 0x1007_u16)];
        w.change(FlowCommand::Add, 0, 1, Match::ANY, goto(&push));
        w.change(FlowCommand::Add, 1, 1, ipv4.with(Field::VlanVid, 0x1007_u16), to(2));
        w.finish();
        compare_two(&mut w, &tagged(&[5]), &tagged(&[5, 6]), "a third tag hides the headers after it");

        let udp = ipv4.with(Field::IpProto, 17_u8);
        let mut fragment = plain.clone();
        fragment[34..38].fill(0);
        let mut whole = fragment.clone();
        fragment[20] = 0x20;
        whole[20] = 0;
        let delete = FlowCommand::Delete { strict: false };
        w.change(delete, 0, 1, Match::ANY, Instructions::default());
        w.change(FlowCommand::Add, 0, 1, udp, goto(&[Action::set(Field::UdpDst, 5_u16)]));
        w.change(delete, 1, 1, Match::ANY, Instructions::default());
        w.change(FlowCommand::Add, 1, 1, udp.with(Field::UdpDst, 5_u16), to(3));
        w.finish();
        compare_two(&mut w, &whole, &fragment, "rules do not see the ports of fragments");

        // A frame inside appears with the port.
        let (mut before, mut after) = (plain.clone(), plain.clone());
        before[36..38].copy_from_slice(&VXLAN_PORT.to_be_bytes());
        after[36..38].copy_from_slice(&1_u16.to_be_bytes());
        w.change(delete, 0, 1, Match::ANY, Instructions::default());
        w.change(delete, 1, 1, Match::ANY, Instructions::default());
        w.change(FlowCommand::Add, 0, 1, udp, goto(&[Action::set(Field::UdpDst, VXLAN_PORT)]));
        w.change(FlowCommand::Add, 1, 1, udp, to(2));
        w.finish();
        compare_two(&mut w, &before, &after, "a frame inside appears");
    });
}
