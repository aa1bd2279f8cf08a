use super::*;
use crate::flow::text::parse_actions;

fn program(actions: &str) -> Program {
    compile(&Instructions::apply(parse_actions(actions).unwrap()), &|id| id == 1)
}

fn ports(list: &[u16]) -> Verdict {
    Verdict::Broadcast(Ports::These(list.iter().map(|&port| RulePort(port)).collect()))
}

#[test]
fn the_kernel_plane_does_rules_that_send_once_at_the_end() {
    let last = |actions| program(actions).steps.last().cloned();
    for (actions, verdict) in [
        ("output:2", Verdict::Output(RulePort(2))),
        ("in_port", Verdict::InPort),
        ("normal", Verdict::Normal),
        ("local", Verdict::Local),
        ("flood", Verdict::Broadcast(Ports::Flood)),
        ("all", Verdict::Broadcast(Ports::All)),
        ("output:3,output:1,output:2", ports(&[1, 2, 3])),
        ("mod_vlan_vid:5,dec_ttl,output:2", Verdict::Output(RulePort(2))),
        ("controller,output:2", Verdict::Output(RulePort(2))),
        ("output:2,set_tunnel:5", Verdict::Output(RulePort(2))),
    ] {
        assert_eq!(last(actions), Some(Step::Verdict(verdict)), "{actions}");
    }
    assert_eq!(program("drop"), Program::default());
    assert_eq!(program("dec_ttl").steps, [Step::DecTtl]);
    assert_eq!(program("dec_ttl,group:1").steps, [Step::DecTtl, Step::Group(1)]);
}

#[test]
fn user_space_does_copies_that_differ() {
    for actions in [
        "output:1,dec_ttl,output:2",
        "output:1,dec_ttl",
        "output:1,normal",
        "output:1,output:1",
        "flood,output:2",
        "group:1,output:2",
        "group:2",
        "group:1,dec_ttl",
        "mod_nw_ttl:3,set_field:2->arp_op,output:1",
    ] {
        assert!(program(actions).is_slow(), "{actions}");
    }
}

#[test]
fn later_tables_see_set_fields_and_packets_leave_only_after_them() {
    let goes_on = |actions: &str| {
        let apply = parse_actions(actions).unwrap();
        let metadata = Some((5, 0xff));
        let does = Instructions { apply, metadata, goto_table: Some(1), ..Instructions::default() };
        compile(&does, &|_| true)
    };
    let Patch { value, mask, needs } = goes_on("set_field:10.0.0.1->ip_dst,push_vlan:0x8100").patch.unwrap();
    assert_eq!(needs, needs::IPV4 | needs::ROOM);
    assert_eq!((value.get(Field::Ipv4Dst), mask.get(Field::Ipv4Dst)), (0x0a00_0001, 0xffff_ffff));
    assert_eq!((value.get(Field::VlanVid), mask.get(Field::VlanVid)), (0x1000, 0x1000));
    assert_eq!((value.get(Field::Metadata), mask.get(Field::Metadata)), (5, 0xff));
    let tunnel = goes_on("set_tunnel:0x1122334455667788");
    let Patch { value, mask, needs } = tunnel.patch.unwrap();
    assert_eq!((needs, mask.get(Field::TunnelId)), (0, u128::from(u64::MAX)));
    assert_eq!(value.get(Field::TunnelId), 0x1122_3344_5566_7788);
    assert_eq!(tunnel.steps, [Step::TunnelId(0x1122_3344_5566_7788)]);
    for actions in ["output:1", "strip_vlan", "mod_vlan_vid:3", "mod_nw_tos:4"] {
        assert!(goes_on(actions).is_slow(), "{actions}");
    }
}

#[test]
fn the_core_of_the_last_output_is_named_once_for_the_whole_packet() {
    let named = |apply: &str, write: &str, goto_table| {
        let [apply, write] = [apply, write].map(|list| parse_actions(list).unwrap());
        let program =
            compile(&Instructions { apply, write, goto_table, ..Instructions::default() }, &|_| true);
        assert!(!program.is_slow());
        (program.core, program.steps.len(), program.set_ranks)
    };
    let this = |core| Some(CoreChoice::This(core));
    for (apply, core, steps) in [
        ("set_core:3,output:1", this(3), 1),
        ("set_core:3,dec_ttl,output:1", this(3), 2),
        ("set_core:3,output:1,set_core:4,output:2", this(4), 1),
        ("output:1,set_core:3", None, 1),
        ("set_core:3", this(3), 0),
        ("controller,set_core:3", this(3), 1),
        ("set_core:3,controller", this(3), 1),
        ("set_core:3,group:1", this(3), 1),
        ("output:1", None, 1),
    ] {
        assert_eq!(named(apply, "drop", None), (core, steps, 0), "{apply}");
    }
    assert_eq!(named("set_core:3", "drop", Some(1)), (this(3), 0, 0), "for later tables");
    assert_eq!(named("set_core:3", "output:1,set_core:5", None), (this(5), 0, 0b1_0000_0000));
    assert_eq!(named("set_core:3", "output:1", None), (this(3), 0, 0b1_0000_0000), "the set sends");
    // A packet is handed over before it reaches a group.
    assert_eq!(compile_bucket(&parse_actions("set_core:3,output:1").unwrap()), None);
    assert_eq!(program("set_core:choose,output:1").core, Some(CoreChoice::Choose));
    assert_eq!(program("set_core:choose,set_core:choose_first,output:1").core, Some(CoreChoice::ChooseFirst));
}

#[test]
fn parts_of_the_action_set_have_their_rank() {
    let write = parse_actions("output:1,mod_nw_ttl:3,strip_vlan").unwrap();
    let program = compile(&Instructions { write, ..Instructions::default() }, &|_| true);
    let out = Step::Verdict(Verdict::Output(RulePort(1)));
    assert_eq!((program.set, program.set_ranks), (vec![Step::PopVlan, Step::Ttl(3), out], 0b1_0001_0010));
    assert!(!program.sends);
}

#[test]
fn a_bucket_is_done_as_an_action_set_unless_it_sends_to_many_or_to_a_group() {
    let bucket = |actions: &str| compile_bucket(&parse_actions(actions).unwrap());
    let out = Step::Verdict(Verdict::Output(RulePort(2)));
    assert_eq!(bucket("output:2,mod_nw_ttl:3,strip_vlan"), Some(vec![Step::PopVlan, Step::Ttl(3), out]));
    assert_eq!(bucket("drop"), Some(vec![]));
    for actions in ["flood", "all", "group:1", "set_queue:3,output:2"] {
        assert_eq!(bucket(actions), None, "{actions}");
    }
}

#[test]
fn a_flow_control_field_is_bits_of_the_tos_byte_or_of_the_tag() {
    let steps = |place| {
        let action = Action::SetFcf { place, workload: 0xfab, priority: true };
        compile(&Instructions::apply([action]), &|_| false).steps
    };
    assert_eq!(steps(FcfPlace::Tos), [Step::Tos { value: 0b0101_1100, mask: 0xfc }]);
    assert_eq!(steps(FcfPlace::Vlan), [Step::Vlan { tci: 0x8fab, mask: 0x8fff, push: true }]);
}

/// XDP has room for four in front of a frame.
#[test]
fn user_space_does_more_than_four_tunnels() {
    let outer = Vxlan {
        vni: 7,
        source: [10, 0, 0, 1].into(),
        destination: [10, 0, 0, 2].into(),
        eth_source: [2; 6],
        eth_destination: [4; 6],
        udp_port: 4789,
    };
    for (tunnels, slow) in [(4, false), (5, true)] {
        let apply = [vec![Action::EncapVxlan(outer); tunnels], vec![Action::output(RulePort(2))]].concat();
        let program = compile(&Instructions::apply(apply), &|_| false);
        assert_eq!(program.is_slow(), slow, "{tunnels}: {} steps", program.steps.len());
    }
}
