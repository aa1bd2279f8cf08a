use super::*;
use crate::flow::{
    Action, CoreChoice, FcfPlace, Field, RulePort, Vxlan,
    field::{FIELDS, VLAN_PRESENT},
    table::{Dialect, PathPort, Tables, settable},
};
use proptest::prelude::*;
use std::collections::BTreeSet;

const ADD: FlowCommand = FlowCommand::Add;
const DELETE: FlowCommand = FlowCommand::Delete { strict: false };

/// Flows, and their match (with priority) and actions as Open vSwitch 3.1 writes them in OpenFlow 1.0. We write the
/// same.
const IN_OPENFLOW_10: &[(&str, &str, &str)] = &[
    ("actions=drop", "", "drop"),
    ("priority=0,actions=NORMAL", "priority=0", "NORMAL"),
    (
        "priority=100,tcp,nw_src=10.0.0.0/8,tp_dst=80,actions=output:1",
        "priority=100,tcp,nw_src=10.0.0.0/8,tp_dst=80",
        "output:1",
    ),
    ("in_port=1 actions=2,3,in_port", "in_port=1", "output:2,output:3,IN_PORT"),
    ("in_port=LOCAL,actions=flood,all,local,controller", "in_port=LOCAL", "FLOOD,ALL,LOCAL,CONTROLLER:65535"),
    ("actions=controller:128,controller(max_len=60)", "", "CONTROLLER:128,CONTROLLER:60"),
    ("dl_vlan=5,actions=pop_vlan,output:2", "dl_vlan=5", "strip_vlan,output:2"),
    ("dl_vlan=5,dl_vlan_pcp=3,actions=1", "dl_vlan=5,dl_vlan_pcp=3", "output:1"),
    ("dl_vlan_pcp=3,actions=1", "dl_vlan_pcp=3", "output:1"),
    ("dl_vlan=0xffff,actions=1", "vlan_tci=0x0000", "output:1"),
    ("vlan_tci=0,actions=1", "vlan_tci=0x0000", "output:1"),
    ("vlan_tci=0x1000/0x1000,actions=1", "vlan_tci=0x1000/0x1000", "output:1"),
    ("vlan_tci=0xb064,actions=1", "dl_vlan=100,dl_vlan_pcp=5", "output:1"),
    ("vlan_tci=0x1000/0x1f00,actions=1", "vlan_tci=0x1000/0x1f00", "output:1"),
    ("vlan_vid=0x1005/0x1fff,actions=1", "dl_vlan=5", "output:1"),
    (
        "dl_src=02:00:00:00:00:01,eth_dst=01:00:00:00:00:00/01:00:00:00:00:00,actions=1",
        "dl_src=02:00:00:00:00:01,dl_dst=01:00:00:00:00:00/01:00:00:00:00:00",
        "output:1",
    ),
    ("dl_type=0x88cc,actions=controller", "dl_type=0x88cc", "CONTROLLER:65535"),
    ("dl_type=0x800,nw_proto=6,tcp_src=1,actions=1", "tcp,tp_src=1", "output:1"),
    ("tp_dst=53,nw_proto=17,dl_type=0x800,actions=1", "udp,tp_dst=53", "output:1"),
    ("ip,nw_proto=89,nw_tos=184,nw_ecn=1,actions=1", "ip,nw_proto=89,nw_tos=184,nw_ecn=1", "output:1"),
    ("ip,ip_dscp=46,actions=1", "ip,nw_tos=184", "output:1"),
    ("ip,nw_dst=192.0.2.0/255.255.255.0,actions=1", "ip,nw_dst=192.0.2.0/24", "output:1"),
    ("ip,nw_dst=10.0.0.1/255.0.0.255,actions=1", "ip,nw_dst=10.0.0.1/255.0.0.255", "output:1"),
    ("ip,nw_dst=10.1.2.3/0,actions=1", "ip", "output:1"),
    ("icmp,icmp_type=8,icmp_code=0,actions=1", "icmp,icmp_type=8,icmp_code=0", "output:1"),
    ("sctp,sctp_dst=9,actions=1", "sctp,tp_dst=9", "output:1"),
    (
        "arp,arp_op=1,arp_spa=10.0.0.1,arp_tpa=10.0.0.0/24,arp_sha=02:00:00:00:00:01,arp_tha=02:00:00:00:00:02,actions=1",
        "arp,arp_spa=10.0.0.1,arp_tpa=10.0.0.0/24,arp_op=1,arp_sha=02:00:00:00:00:01,arp_tha=02:00:00:00:00:02",
        "output:1",
    ),
    ("arp,nw_src=10.0.0.1,nw_proto=2,actions=1", "arp,arp_spa=10.0.0.1,arp_op=2", "output:1"),
    ("rarp,actions=1", "rarp", "output:1"),
    (
        "ipv6,ipv6_src=2001:db8::/32,ipv6_dst=fe80::1,ipv6_label=0x12345,actions=1",
        "ipv6,ipv6_src=2001:db8::/32,ipv6_dst=fe80::1,ipv6_label=0x12345",
        "output:1",
    ),
    ("ipv6,ipv6_dst=::1/::ffff,actions=1", "ipv6,ipv6_dst=::1/::ffff", "output:1"),
    ("tcp6,tcp_dst=443,actions=1", "tcp6,tp_dst=443", "output:1"),
    ("udp6,udp_src=53,actions=1", "udp6,tp_src=53", "output:1"),
    ("sctp6,actions=1", "sctp6", "output:1"),
    ("ipv6,nw_proto=1,actions=1", "ipv6,nw_proto=1", "output:1"),
    (
        "icmp6,icmpv6_type=135,icmpv6_code=0,nd_target=fe80::2,nd_sll=02:00:00:00:00:01,actions=1",
        "icmp6,icmp_type=135,icmp_code=0,nd_target=fe80::2,nd_sll=02:00:00:00:00:01",
        "output:1",
    ),
    (
        "icmp6,nd_tll=02:00:00:00:00:01,icmp_type=136,actions=1",
        "icmp6,icmp_type=136,nd_tll=02:00:00:00:00:01",
        "output:1",
    ),
    (
        "tun_id=0x7b,metadata=5/0xff,in_port=2,ip,actions=1",
        "ip,tun_id=0x7b,metadata=0x5/0xff,in_port=2",
        "output:1",
    ),
    ("actions=enqueue:1:2,enqueue(3,4),set_queue:5,1", "", "enqueue:1:2,enqueue:3:4,set_queue:5,output:1"),
    ("actions=mod_vlan_vid:5,mod_vlan_pcp:6,1", "", "mod_vlan_vid:5,mod_vlan_pcp:6,output:1"),
    (
        "actions=mod_dl_src:02:00:00:00:00:01,mod_dl_dst:02:00:00:00:00:02,1",
        "",
        "mod_dl_src:02:00:00:00:00:01,mod_dl_dst:02:00:00:00:00:02,output:1",
    ),
    (
        "tcp,actions=mod_nw_src:10.0.0.1,mod_nw_dst:10.0.0.2,mod_nw_tos:184,mod_tp_src:1,mod_tp_dst:2,1",
        "tcp",
        "mod_nw_src:10.0.0.1,mod_nw_dst:10.0.0.2,mod_nw_tos:184,mod_tp_src:1,mod_tp_dst:2,output:1",
    ),
];

/// Flows that only later versions can express, as Open vSwitch writes them in OpenFlow 1.3.
const IN_OPENFLOW_13: &[(&str, &str, &str)] = &[
    (
        "dl_vlan=1,actions=push_vlan:0x88a8,set_field:4101->vlan_vid,1",
        "dl_vlan=1",
        "push_vlan:0x88a8,set_field:4101->vlan_vid,output:1",
    ),
    (
        "ip,actions=mod_nw_ecn:2,mod_nw_ttl:9,dec_ttl,1",
        "ip",
        "set_field:2->nw_ecn,mod_nw_ttl:9,dec_ttl,output:1",
    ),
    (
        "udp6,actions=set_field:53->udp_dst,set_field:fe80::1->ipv6_src",
        "udp6",
        "set_field:53->udp_dst,set_field:fe80::1->ipv6_src",
    ),
    (
        "arp,actions=set_field:2->arp_op,set_field:10.0.0.9->arp_spa,in_port",
        "arp",
        "set_field:2->arp_op,set_field:10.0.0.9->arp_spa,IN_PORT",
    ),
    (
        "icmp6,icmp_type=136,actions=set_field:fe80::3->nd_target,set_field:02:00:00:00:00:09->nd_tll,1",
        "icmp6,icmp_type=136",
        "set_field:fe80::3->nd_target,set_field:02:00:00:00:00:09->nd_tll,output:1",
    ),
    ("ipv6,actions=set_field:0x12345->ipv6_label,1", "ipv6", "set_field:0x12345->ipv6_label,output:1"),
    ("actions=set_field:5->tun_id,1", "", "set_field:0x5->tun_id,output:1"),
    ("actions=group:7", "", "group:7"),
    (
        "actions=meter:1,output:2,clear_actions,write_actions(output:3,group:4),write_metadata:0x5/0xff,goto_table:6",
        "",
        "meter:1,output:2,clear_actions,write_actions(output:3,group:4),write_metadata:0x5/0xff,goto_table:6",
    ),
    ("actions=goto_table:1", "", "goto_table:1"),
    ("actions=write_metadata:7", "", "write_metadata:0x7"),
];

fn normal_form(text: &str) -> (String, String) {
    let flow = parse_flow(text, ADD).unwrap_or_else(|e| panic!("{text}: {e}"));
    let flow = FlowMod { table: Some(0), ..flow };
    let line = FlowText { flow: &flow, counted: None }.to_string();
    let (matching, actions) = line.split_once("actions=").unwrap();
    (matching.trim_end().to_owned(), actions.to_owned())
}

#[test]
fn the_normal_form_is_that_of_open_vswitch() {
    for &(text, matching, actions) in IN_OPENFLOW_10.iter().chain(IN_OPENFLOW_13) {
        let (m, a) = normal_form(text);
        assert_eq!((m.as_str(), a.as_str()), (matching, actions), "{text}");
    }
}

#[test]
fn open_vswitch_agrees() {
    let ofctl = |version, text| {
        std::process::Command::new("ovs-ofctl").args(["-O", version, "parse-flow", text]).output()
    };
    if ofctl("OpenFlow10", "actions=drop").is_err() {
        eprintln!("SKIPPED: ovs-ofctl is not installed (Debian: openvswitch-common)");
        return;
    }
    for (version, table) in [("OpenFlow10", IN_OPENFLOW_10), ("OpenFlow13", IN_OPENFLOW_13)] {
        for &(text, matching, actions) in table {
            let output = ofctl(version, text).unwrap();
            let (out, err) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            let line = out.lines().last().unwrap_or_else(|| panic!("{text}: {err}"));
            assert!(line.ends_with(&format!(" actions={actions}")), "{text}: {line} {err}");
            assert!(matching.is_empty() || line.contains(&format!(" {matching} ")), "{text}: {line} {err}");
        }
    }
}

#[test]
fn our_own_fields_and_actions_are_written_as_they_are_read() {
    for (text, written) in [
        ("set_fcf(tos,workload=3,priority=1)", ""),
        ("set_fcf(vlan,workload=4095,priority=0)", ""),
        ("set_core:7,set_core:choose,set_core:choose_first", ""),
        ("decap_vxlan,output:1", ""),
        (
            "encap_vxlan(vni=5,src=192.0.2.1,dst=192.0.2.2,eth_src=02:00:00:00:00:01,eth_dst=02:00:00:00:00:02,port=8472),output:1",
            "",
        ),
        (
            "encap_vxlan(dst=192.0.2.2,src=192.0.2.1,vni=0x5)",
            "encap_vxlan(vni=5,src=192.0.2.1,dst=192.0.2.2)",
        ),
        ("pop_vlan", "strip_vlan"),
        ("set_field:02:00:00:00:00:01->eth_src", "mod_dl_src:02:00:00:00:00:01"),
        ("set_field:10.0.0.0/8->ip_src", "set_field:10.0.0.0/8->ip_src"),
        ("set_field:5->vlan_vid", "set_field:4101->vlan_vid"),
        ("set_field:9->nw_ttl", "mod_nw_ttl:9"),
        ("set_tunnel:9", "set_field:0x9->tun_id"),
        ("", "drop"),
    ] {
        let actions = parse_actions(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(ActionsText(&actions).to_string(), if written.is_empty() { text } else { written });
    }
    let inner = "udp,tun_id=0x5,tp_dst=4789,inner_eth_type=0x800,inner_vlan_vid=0x1005,inner_ip_proto=6,\
                 inner_ipv4_dst=10.0.0.0/8,inner_tp_dst=80";
    assert_eq!(MatchText(&parse_match(inner).unwrap()).to_string(), inner);
}

#[test]
fn every_word_of_a_flow_is_read() {
    let text = "table=2,priority=7,cookie=0x1,idle_timeout=10,hard_timeout=20,send_flow_rem,check_overlap,\
                reset_counts,no_packet_counts,no_byte_counts,in_port=3,actions=output:4";
    let flow = FlowMod {
        command: ADD,
        table: Some(2),
        cookie: 1,
        cookie_mask: 0,
        priority: 7,
        matching: Match::ANY.with(Field::InPort, 3_u8),
        instructions: Instructions::apply([Action::output(RulePort(4))]),
        idle_timeout: 10,
        hard_timeout: 20,
        out_port: None,
        out_group: None,
        flags: FlowFlags {
            send_removed: true,
            check_overlap: true,
            reset_counts: true,
            no_packet_counts: true,
            no_byte_counts: true,
            emergency: false,
        },
        buffer: None,
    };
    assert_eq!(parse_flow(text, ADD), Ok(flow.clone()));
    let counted = Counted { duration_sec: 3, duration_nsec: 50_000_000, packets: 5, bytes: 320 };
    let line = FlowText { flow: &flow, counted: Some(counted) }.to_string();
    assert_eq!(
        line,
        "cookie=0x1, duration=3.050s, table=2, n_packets=5, n_bytes=320, idle_timeout=10, hard_timeout=20, \
         send_flow_rem check_overlap reset_counts no_packet_counts no_byte_counts priority=7,in_port=3 actions=output:4"
    );
    assert_eq!(parse_flow(&line, ADD), Ok(flow), "a listing is read back");
}

#[test]
fn rules_to_delete_are_selected_by_table_cookie_and_output() {
    let all = parse_flow("", DELETE).unwrap();
    assert_eq!((all.table, all.matching, all.cookie_mask), (None, Match::ANY, 0));
    let some = parse_flow("table=3,cookie=0x5/-1,out_port=2,out_group=9,udp", DELETE).unwrap();
    assert_eq!((some.table, some.cookie, some.cookie_mask), (Some(3), 5, u64::MAX));
    assert_eq!((some.out_port, some.out_group), (Some(RulePort(2)), Some(9)));
    assert_eq!(
        FlowText { flow: &some, counted: None }.to_string(),
        "cookie=0x5/-1, table=3, out_port=2, out_group=9, udp "
    );
}

#[test]
fn ports_have_numbers_and_names() {
    for (text, port) in [
        ("1", RulePort(1)),
        ("0x10", RulePort(16)),
        ("65280", RulePort::MAX),
        ("normal", RulePort::NORMAL),
        ("Local", RulePort::LOCAL),
        ("any", RulePort::NONE),
        ("NONE", RulePort::NONE),
        ("65534", RulePort::LOCAL),
        ("0xfffffffd", RulePort::CONTROLLER),
    ] {
        assert_eq!(parse_port(text), Ok(port), "{text}");
    }
    for text in ["65281", "eth0", "", "-1", "010"] {
        assert!(parse_port(text).is_err(), "{text}");
    }
}

/// Flows that are refused: the word that the error names, and a part of what would be right.
#[test]
fn errors_name_the_word_and_what_would_be_right() {
    for (text, word, right) in [
        ("tpc,actions=1", "tpc", "not a field; did you mean tcp? There are ip, icmp, tcp"),
        ("Udp,actions=1", "Udp", "did you mean udp?"),
        ("ETH_SRC=1,actions=1", "ETH_SRC", "did you mean eth_src?"),
        ("Priority=5,actions=1", "Priority", "did you mean priority?"),
        ("nothing_like_it,actions=1", "nothing_like_it", "not a field; there are ip"),
        ("in_port=eth9,actions=1", "in_port=eth9", "needs a port number"),
        ("actions=encap_vxlan", "encap_vxlan", "needs a value: encap_vxlan(vni=VNI,src=IPV4,dst=IPV4"),
        ("actions=set_fcf", "set_fcf", "needs a value: set_fcf(tos|vlan,workload=N"),
        ("actions=meter:5,drop", "drop", "a packet that nothing sends is dropped"),
        ("tp_dst=80,actions=1", "tp_dst=80", "needs tcp or tcp6 or udp or udp6"),
        ("nw_src=10.0.0.1,actions=1", "nw_src=10.0.0.1", "also needs ip or arp"),
        ("ip,nw_src=10.0.0.256,actions=1", "nw_src=10.0.0.256", "needs an IPv4 address such as"),
        ("ip,nw_src=10.0.0.0/33,actions=1", "nw_src=10.0.0.0/33", "needs an IPv4 address such as"),
        ("dl_src=2:0:0:0:0,actions=1", "dl_src=2:0:0:0:0", "needs a MAC address such as"),
        ("tcp,tp_dst=65536,actions=1", "tp_dst=65536", "from 0 to 0xffff"),
        ("tcp,tp_dst=080,actions=1", "tp_dst=080", "decimal or 0x"),
        ("tcp,tp_dst=80/0xff,actions=1", "tp_dst=80/0xff", "cannot be matched with a mask"),
        ("tcp,udp,actions=1", "udp", "contradicts an earlier value of ip_proto"),
        ("icmp6,nd_target=fe80::1,actions=1", "nd_target=fe80::1", "needs icmp6,icmp_type=135 or 136"),
        ("dl_vlan=4096,actions=1", "dl_vlan=4096", "from 0 to 4095"),
        ("vlan_tci=0x2000/0x2000,actions=1", "vlan_tci=0x2000/0x2000", "all three bits"),
        ("ip,nw_tos=1,actions=1", "nw_tos=1", "two lowest bits 0"),
        ("ct_state=+trk,actions=1", "ct_state", "not supported here"),
        ("reg0=1,actions=1", "reg0", "not supported here"),
        ("table=16,actions=1", "table=16", "from 0 to 15"),
        ("cookie=1/2,actions=1", "cookie=1/2", "no mask"),
        ("idle_timeout=65536,actions=1", "idle_timeout=65536", "from 0 to 65535"),
        ("tcp=5,actions=1", "tcp=5", "takes no value"),
        ("in_port,actions=1", "in_port", "needs a value"),
        ("in_port=1", "in_port=1", "needs actions"),
        ("actions=resubmit(,1)", "resubmit(,1)", "not supported here"),
        ("actions=learn(table=1)", "learn(table=1)", "not supported here"),
        ("actions=load:1->NXM_NX_REG0[]", "load:1->NXM_NX_REG0[]", "not supported here"),
        ("actions=outptu:1", "outptu:1", "did you mean output? There are output, in_port"),
        ("actions=output:eth0", "output:eth0", "needs a port number"),
        ("actions=drop,1", "drop", "alone"),
        ("actions=goto_table:1,output:2", "output:2", "before goto_table"),
        ("actions=meter:1,meter:2", "meter:2", "once"),
        ("actions=goto_table:16", "goto_table:16", "from 0 to 15"),
        ("actions=write_actions(goto_table:1)", "goto_table:1", "only actions"),
        ("actions=push_vlan:0x9100", "push_vlan:0x9100", "0x8100 or 0x88a8"),
        ("actions=set_field:1->eth_type", "eth_type", "can be matched, not set"),
        ("actions=set_field:1->nowhere", "nowhere", "not a field"),
        ("actions=set_field:x->udp_dst", "set_field:x->udp_dst", "needs a number"),
        ("actions=encap_vxlan(vni=1)", "encap_vxlan(vni=1)", "needs at least vni, src and dst"),
        ("actions=set_fcf(tos,workload=32)", "workload=32", "from 0 to 31"),
        (
            "actions=set_core:many",
            "set_core:many",
            "needs the number of a core, choose or choose_first: set_core:1",
        ),
        ("actions=write_actions(1", "write_actions(1", "needs a )"),
        ("actions=enqueue(1,2)3", "enqueue(1,2)3", "after the )"),
    ] {
        let bad = parse_flow(text, ADD).expect_err(text);
        assert_eq!(bad.word, word, "{text}: {bad}");
        assert!(bad.right.contains(right), "{text}: {bad}");
    }
}

/// Words without an effect on the command are refused, and the error says what would have an effect.
#[test]
fn words_without_an_effect_on_the_command_are_refused() {
    use FlowCommand::*;
    let modify = Modify { strict: false };
    for (command, text, word, right) in [
        (DELETE, "priority=90", "priority=90", "rules of every priority; for just the one"),
        (
            modify,
            "priority=90,actions=1",
            "priority=90",
            "--strict (in a file: modify_strict, delete_strict)",
        ),
        (modify, "idle_timeout=9,actions=1", "idle_timeout=9", "only for flows to add"),
        (
            modify,
            "cookie=5,actions=1",
            "cookie=5",
            "rules can be modified by cookie only with a mask: cookie=5/-1",
        ),
        (modify, "out_port=5,actions=1", "out_port=5", "only selects rules to delete or to list"),
        (ADD, "out_group=5,actions=1", "out_group=5", "only selects rules to delete or to list"),
        (DELETE, "hard_timeout=9", "hard_timeout=9", "rules cannot be deleted by it; select them by match"),
        (DELETE, "n_packets=0", "n_packets=0", "rules cannot be deleted by it"),
        (DELETE, "send_flow_rem", "send_flow_rem", "rules cannot be deleted by it"),
        (DELETE, "cookie=5", "cookie=5", "rules can be deleted by cookie only with a mask: cookie=5/-1"),
        (DELETE, "udp,actions=1", "actions", "rules cannot be deleted by their actions"),
    ] {
        let bad = parse_flow(text, command).expect_err(text);
        assert_eq!(bad.word, word, "{text}: {bad}");
        assert!(bad.right.contains(right), "{text}: {bad}");
    }
    for (text, right) in [
        ("priority=90", "rules cannot be listed by it"),
        ("cookie=5", "rules can be listed by cookie only with a mask: cookie=5/-1"),
        ("actions=drop", "rules cannot be listed by their actions; select them by match, table="),
    ] {
        let bad = parse_filter_named(text, Names::default()).expect_err(text);
        assert!(bad.right.contains(right), "{text}: {bad}");
    }
    let some = parse_filter_named("table=3,cookie=0x5/0xf,out_port=2,udp", Names::default()).unwrap();
    assert_eq!((some.table, some.cookie, some.cookie_mask), (Some(3), 5, 15));
    for command in [Modify { strict: true }, Delete { strict: true }] {
        let text = if command == (Modify { strict: true }) { "priority=9,actions=1" } else { "priority=9" };
        assert_eq!(parse_flow(text, command).unwrap().priority, 9);
    }
    assert!(parse_flow("reset_counts,actions=1", modify).unwrap().flags.reset_counts);
}

/// A match that text can express: each field with the fields that it needs, and masks where OpenFlow 1.3 has them.
fn any_match() -> impl Strategy<Value = Match> {
    let kinds = (
        prop::option::of(prop::sample::select(vec![0x0800_u16, 0x0806, 0x86dd, 0x8035, 0x88cc, 0x05ff])),
        prop::option::of(prop::sample::select(vec![1_u8, 6, 17, 58, 89, 132])),
        prop::option::of(prop::sample::select(vec![128_u8, 135, 136])),
    );
    let fields =
        prop::collection::vec((0..FIELDS.len(), any::<u128>(), prop::option::of(any::<u128>())), 0..12);
    (kinds, any::<bool>(), fields).prop_map(|((kind, proto, icmp6), tagged, mut fields)| {
        let mut m = Match::ANY;
        let set = |m: &mut Match, field: Field, value: u128, mask: Option<u128>| {
            if m.permits(field) {
                let mask = mask.filter(|_| field.spec().maskable).unwrap_or(field.all_bits());
                m.set(field, value, mask & field.all_bits());
            }
        };
        for (field, value) in [
            (Field::EthType, kind.map(u128::from)),
            (Field::IpProto, proto.map(Into::into)),
            (Field::Icmpv6Type, icmp6.map(Into::into)),
        ] {
            if let Some(value) = value {
                set(&mut m, field, value, None);
            }
        }
        if tagged {
            m.set(Field::VlanVid, VLAN_PRESENT.into(), VLAN_PRESENT.into());
        }
        fields.sort();
        for (at, value, mask) in fields {
            let field = FIELDS[at].field;
            // A port is real or reserved. Fields that others need were chosen above.
            let value = if field == Field::InPort { value % 0xff00 + 1 } else { value };
            if ![Field::EthType, Field::IpProto, Field::Icmpv6Type].contains(&field) {
                set(&mut m, field, value, mask);
            }
        }
        m.normalised()
    })
}

fn any_action() -> impl Strategy<Value = Action> {
    let field = (0..FIELDS.len(), any::<u128>(), prop::option::of(1..=u128::MAX)).prop_filter_map(
        "a field that can be set, and some of its bits",
        |(at, value, mask)| {
            let field = FIELDS[at].field;
            let mask = mask.unwrap_or(u128::MAX) & field.all_bits();
            let present = if field == Field::VlanVid { VLAN_PRESENT.into() } else { 0 };
            let action = Action::SetField { field, value: (value | present) & mask, mask };
            (settable(field) && mask != 0).then_some(action)
        },
    );
    let vxlan = (0..1_u32 << 24, any::<[u32; 2]>(), any::<[u8; 6]>(), any::<[u8; 6]>(), any::<u16>());
    prop_oneof![
        (1..=0xff00_u16).prop_map(|port| Action::output(RulePort(port))),
        prop::sample::select(vec![
            RulePort::IN_PORT,
            RulePort::TABLE,
            RulePort::NORMAL,
            RulePort::FLOOD,
            RulePort::ALL,
            RulePort::LOCAL
        ])
        .prop_map(Action::output),
        any::<u16>().prop_map(|max_len| Action::Output { port: RulePort::CONTROLLER, max_len }),
        (1..=0xff00_u16, any::<u32>())
            .prop_map(|(port, queue)| Action::Enqueue { port: RulePort(port), queue }),
        any::<u32>().prop_map(Action::SetQueue),
        any::<u32>().prop_map(Action::Group),
        (0..4096_u16).prop_map(Action::SetVlanVid),
        (0..8_u8).prop_map(Action::SetVlanPcp),
        any::<u16>().prop_map(Action::SetTpSrc),
        any::<u16>().prop_map(Action::SetTpDst),
        prop::sample::select(vec![
            Action::PushVlan(0x8100),
            Action::PushVlan(0x88a8),
            Action::PopVlan,
            Action::DecTtl,
            Action::DecapVxlan
        ]),
        any::<u8>().prop_map(Action::SetTtl),
        field,
        vxlan.prop_map(|(vni, [source, destination], eth_source, eth_destination, udp_port)| {
            let (source, destination) = (source.into(), destination.into());
            Action::EncapVxlan(Vxlan { vni, source, destination, eth_source, eth_destination, udp_port })
        }),
        (0..32_u16, any::<bool>()).prop_map(|(workload, priority)| Action::SetFcf {
            place: FcfPlace::Tos,
            workload,
            priority
        }),
        (0..4096_u16, any::<bool>()).prop_map(|(workload, priority)| Action::SetFcf {
            place: FcfPlace::Vlan,
            workload,
            priority
        }),
        any::<u16>().prop_map(|core| Action::SetCore(CoreChoice::This(core))),
        Just(Action::SetCore(CoreChoice::Choose)),
        Just(Action::SetCore(CoreChoice::ChooseFirst)),
    ]
}

fn any_instructions() -> impl Strategy<Value = Instructions> {
    let actions = || prop::collection::vec(any_action(), 0..5);
    let metadata = prop::option::of((any::<u64>(), 1..=u64::MAX));
    let rest = (prop::option::of(any::<u32>()), any::<bool>(), metadata, prop::option::of(0..TABLES));
    (actions(), actions(), rest).prop_map(|(apply, write, (meter, clear, metadata, goto_table))| {
        Instructions { meter, apply, clear, write, metadata, goto_table }
    })
}

proptest! {
    #[test]
    fn a_match_is_read_back_as_it_was(m in any_match()) {
        let text = MatchText(&m).to_string();
        prop_assert_eq!(parse_match(&text), Ok(m), "{}", text);
    }

    #[test]
    fn instructions_are_read_back_as_they_were(instructions in any_instructions()) {
        let text = InstructionsText(&instructions).to_string();
        prop_assert_eq!(parse_instructions(&text), Ok(instructions), "{}", text);
        for word in words(&text, Names::default()).unwrap() {
            let name = word.key.to_ascii_lowercase();
            prop_assert!(name == "table" || actions::syntax(&name).is_some(), "{} is not in the list", name);
        }
    }

    /// A rule that a controller or a user could add is a rule again after it was saved, even if ports, paths and cores are gone.
    #[test]
    fn a_saved_rule_can_be_loaded_again(m in any_match(), instructions in any_instructions(), of_10: bool) {
        let flow = FlowMod::new(ADD, 7, m, instructions);
        let mut all = Tables::new();
        let (mut ports, mut cores) = (Vec::new(), BTreeSet::new());
        for action in flow.instructions.actions() {
            match action {
                Action::Output { port, .. } | Action::Enqueue { port, .. } => ports.push(*port),
                Action::SetCore(CoreChoice::This(core)) => _ = cores.insert(*core),
                _ => {}
            }
        }
        let path = |port: &RulePort| Some((port.path()?, PathPort { name: "x".into(), drops: false }));
        all.set_paths(ports.iter().filter_map(path).collect());
        all.set_ports(ports.iter().map(|port| (*port, true)));
        all.set_cores(Some(cores));
        let dialect = if of_10 { Dialect::OpenFlow10 } else { Dialect::OpenFlow13 };
        if all.apply(&flow, dialect, 0).is_ok() {
            let text = format!("priority=7,{},actions={}", MatchText(&flow.matching), InstructionsText(&flow.instructions));
            let again = parse_flow(&text, ADD).unwrap_or_else(|e| panic!("{text}: {e}"));
            prop_assert_eq!((again.matching, &again.instructions), (flow.matching, &flow.instructions));
            let done = Tables::new().apply(&again, Dialect::Kept, 0);
            prop_assert!(done.is_ok(), "{}: {:?}", text, done);
        }
    }

    #[test]
    fn no_text_causes_a_panic(text in "[a-z_0-9=:,()/>.x -]{0,60}", at in 0..IN_OPENFLOW_10.len(), cut: prop::sample::Index, with: char) {
        let _ = parse_flow(&text, ADD);
        let _ = parse_flow(&format!("actions={text}"), ADD);
        let mut known: Vec<char> = IN_OPENFLOW_10[at].0.chars().collect();
        *cut.get_mut(&mut known) = with;
        let _ = parse_flow(&known.into_iter().collect::<String>(), ADD);
    }
}

#[test]
fn ports_can_be_given_by_name() {
    let ports =
        [("eth1".into(), RulePort(1)), ("up.link-2".into(), RulePort(2)), ("normal".into(), RulePort(3))];
    let read = |text| parse_flow_named(text, FlowCommand::Add, Names::of(&ports));
    for (named, numbered) in [
        ("in_port=eth1,actions=output:up.link-2", "in_port=1,actions=output:2"),
        ("actions=eth1,enqueue:up.link-2:0", "actions=output:1,enqueue:2:0"),
        ("actions=write_actions(eth1),goto_table:1", "actions=write_actions(output:1),goto_table:1"),
        ("actions=normal", "actions=NORMAL"),
    ] {
        assert_eq!(read(named), parse_flow(numbered, FlowCommand::Add), "{named}");
    }
    let delete = FlowCommand::Delete { strict: false };
    let named = parse_flow_named("out_port=eth1", delete, Names::of(&ports));
    assert_eq!(named, parse_flow("out_port=1", delete));
    let error = read("actions=output:eth2").unwrap_err().to_string();
    assert!(error.ends_with("or the name of a port: eth1, up.link-2, normal"), "{error}");
    let error = read("in_port=eth2,actions=drop").unwrap_err().to_string();
    assert!(error.ends_with("or the name of a port: eth1, up.link-2, normal"), "{error}");
}
