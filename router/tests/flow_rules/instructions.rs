//! Instructions that flow rules take (`common::instructions`).

use super::{
    common::{frame::Frame, in_new_namespace, instructions::show_instructions},
    world::FlowWorld,
};
use logic::{
    flow::{Action, Field, FlowCommand, Instructions, Match, RulePort},
    net::Mac,
};

const ROUTER: Mac = Mac([2, 0, 0, 0, 0, 1]);
const UNDER_EACH_MASK: u128 = 8;

fn to_port_2() -> Instructions {
    Instructions::apply([
        Action::set(Field::EthSrc, 0x0200_0000_0002_u64),
        Action::set(Field::EthDst, 0x0200_0000_0701_u64),
        Action::DecTtl,
        Action::output(RulePort(2)),
    ])
}

/// A rule for all UDP, and rules under `masks` masks that the packets do not meet.
fn with_masks(masks: u8) -> FlowWorld {
    let mut w = FlowWorld::new();
    let mut udp = Match::ANY;
    udp.set(Field::EthType, 0x0800, Field::EthType.all_bits());
    udp.set(Field::IpProto, 17, Field::IpProto.all_bits());
    w.change(FlowCommand::Add, 0, 1, udp, to_port_2());
    for mask in 0..masks {
        let prefix = |bits: u8| u128::from(u32::MAX << (32 - bits));
        for rule in 0..UNDER_EACH_MASK {
            let mut prefixes = udp;
            prefixes.set(Field::Ipv4Src, 0x6440_0000, prefix(16 + mask / 16));
            prefixes.set(Field::Ipv4Dst, 0x6400_0000 | rule << 16, prefix(16 + mask % 16));
            w.change(FlowCommand::Add, 0, 1000 - u16::from(mask), prefixes, to_port_2());
        }
    }
    w.finish();
    w
}

#[test]
#[ignore = "a measurement"]
fn measure_instructions_of_rules() {
    for masks in [1, 15, 63] {
        in_new_namespace(move || {
            let w = with_masks(masks);
            let frame = |n: usize| Frame::udp4(ROUTER, &format!("{}.0.1.9", n + 1), "10.0.2.9").bytes();
            let show = |case: &str, frame: &dyn Fn(usize) -> Vec<u8>| {
                let case = format!("rules, {} masks, {case}", masks + 1);
                show_instructions(&case, w.flows.program(), w.ports[0], frame);
            };
            show("new flows", &frame);
            show("a known flow", &|_| frame(1));
        });
    }
}
