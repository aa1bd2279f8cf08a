use super::*;
use crate::flow::{
    Dialect, FlowCommand, Group, GroupKind, GroupMod, Meter, MeterMod,
    packet::{Headers, Network, VXLAN_PORT, samples::Recipe},
    rule::{Bucket, MeterUnit},
    text::{parse_actions, parse_flow, parse_instructions},
};
use proptest::prelude::*;

/// Ports 1 to 4; port 2 is down and port 4 does not flood. Group 1 is all (port 2, and port 3 with another VLAN id), and
/// group 2 is indirect (port 2). Group 3 fails over from port 2 to port 3. Group 4 leads to group 1. Group 9 sets the
/// tunnel id (port 2). Meter 1 lets no packet pass, the other meters all.
fn tables() -> Tables {
    let mut tables = Tables::new();
    tables.set_ports((1..=4).map(|port| (RulePort(port), port != 2)));
    let bucket = |actions: &str, watch: u16| Bucket {
        actions: parse_actions(actions).unwrap(),
        watch_port: (watch > 0).then_some(RulePort(watch)),
        ..Bucket::default()
    };
    for (id, kind, buckets) in [
        (1, GroupKind::All, vec![bucket("output:2", 0), bucket("output:3,mod_vlan_vid:7", 0)]),
        (2, GroupKind::Indirect, vec![bucket("output:2", 0)]),
        (3, GroupKind::FastFailover, vec![bucket("output:2", 2), bucket("output:3", 3)]),
        (4, GroupKind::Indirect, vec![bucket("group:1,dec_ttl", 0)]),
        (9, GroupKind::Indirect, vec![bucket("set_tunnel:5,output:2", 0)]),
    ] {
        tables.apply_group(&GroupMod::Add(Group { id, kind, buckets }), 0).unwrap();
    }
    for id in [1, 2] {
        let meter = Meter { id, unit: MeterUnit::Pps, burst: false, stats: false, bands: vec![] };
        tables.apply_meter(&MeterMod::Add(meter), 0).unwrap();
    }
    tables
}

fn pipeline(tables: &Tables, miss: &str, run: impl FnOnce(&mut Pipeline<'_>) -> Done) -> Done {
    let ports: Vec<(RulePort, bool)> = (1..=4).map(|port| (RulePort(port), port != 4)).collect();
    let (miss, meter) = (parse_instructions(miss).unwrap(), &mut |id: u32, _: usize| id != 1);
    run(&mut Pipeline { tables, miss: &miss, ports: &ports, vxlan_port: VXLAN_PORT, meter })
}

fn with_rules(rules: &[&str]) -> Tables {
    let mut tables = tables();
    for text in rules {
        let request = parse_flow(text, FlowCommand::Add).unwrap();
        tables.apply(&request, Dialect::OpenFlow10, 0).unwrap_or_else(|e| panic!("{text}: {e}"));
    }
    tables
}

/// The ports of the outputs. `v` and the VLAN id follow if there is a tag; `t` and the TTL follow if it is not 64.
fn went(done: &Done) -> Vec<String> {
    let look = |output: &Output| {
        let key = Key::of(&output.frame, RulePort(0), VXLAN_PORT);
        let tag = key.get(Field::VlanVid) as u16;
        let tag = if tag == 0 { String::new() } else { format!("v{}", tag & 0xfff) };
        let ttl = match Headers::of(&output.frame, 0, None).unwrap().network {
            Network::Ipv4(at) if output.frame[at + 8] != 64 => format!("t{}", output.frame[at + 8]),
            _ => String::new(),
        };
        format!("{}{tag}{ttl}", output.port)
    };
    done.outputs.iter().map(look).collect()
}

fn frame(ttl: u8) -> Vec<u8> {
    Recipe { ttl, ..Recipe::default() }.frame()
}

#[test]
fn instructions_are_done_table_by_table_and_the_action_set_at_the_end() {
    for (rules, went_to, tables_seen) in [
        (&["actions=output:2,dec_ttl,output:3"][..], &["2", "3t63"][..], &[0][..]),
        // Later tables see the changes of earlier ones.
        (&["actions=mod_vlan_vid:5,goto_table:2", "table=2,dl_vlan=5,actions=output:3"], &["3v5"], &[0, 2]),
        (&["actions=write_metadata:5,goto_table:1", "table=1,metadata=5,actions=output:2"], &["2"], &[0, 1]),
        (
            &[
                "actions=set_tunnel:0x123456789ab,goto_table:1",
                "table=1,tun_id=0x123456789ab,actions=output:2",
            ],
            &["2"],
            &[0, 1],
        ),
        (&["actions=set_tunnel:6,goto_table:1", "table=1,tun_id=5,actions=output:2"], &[], &[0, 1]),
        (&["tun_id=0,actions=output:2"], &["2"], &[0]),
        // A bucket changes only its own copy.
        (&["actions=group:9,goto_table:1", "table=1,tun_id=0,actions=output:3"], &["2", "3"], &[0, 1]),
        (
            &[
                "actions=write_metadata:0xf0/0xf0,goto_table:1",
                "table=1,actions=write_metadata:1/0xf,goto_table:2",
                "table=2,metadata=0xf1,actions=output:2",
            ],
            &["2"],
            &[0, 1, 2],
        ),
        // Actions are added to the set, the set is cleared, and its actions are done in its own order.
        (&["actions=write_actions(output:2,dec_ttl)"], &["2t63"], &[0]),
        (
            &[
                "actions=write_actions(output:2),goto_table:1",
                "table=1,actions=write_actions(output:3,dec_ttl)",
            ],
            &["3t63"],
            &[0, 1],
        ),
        (
            &[
                "actions=write_actions(output:2,dec_ttl),goto_table:1",
                "table=1,actions=clear_actions,write_actions(output:3)",
            ],
            &["3"],
            &[0, 1],
        ),
        (&["actions=write_actions(output:2),goto_table:1", "table=1,actions=clear_actions"], &[], &[0, 1]),
        (
            &[
                "actions=dec_ttl,output:2,write_actions(output:3),goto_table:1",
                "table=1,actions=dec_ttl,output:4",
            ],
            &["2t63", "4t62", "3t62"],
            &[0, 1],
        ),
        // A miss in a later table drops the packet and its action set.
        (&["actions=output:2,goto_table:1", "table=1,arp,actions=output:3"], &["2"], &[0, 1]),
        (&["arp,actions=output:3"], &["NORMAL"], &[0]),
        (&["priority=2,ip,actions=output:3", "priority=3,udp,actions=output:2"], &["2"], &[0]),
        // Meters.
        (&["actions=meter:2,output:2"], &["2"], &[0]),
        (&["actions=meter:1,output:2,goto_table:1", "table=1,actions=output:3"], &[], &[0]),
        (
            &["actions=output:3,write_actions(output:2),goto_table:1", "table=1,actions=meter:1,output:3"],
            &["3"],
            &[0, 1],
        ),
    ] {
        let tables = with_rules(rules);
        let done = pipeline(&tables, "normal", |p| p.run(Packet::new(frame(64), RulePort(1))));
        assert_eq!(went(&done), went_to, "{rules:?}");
        let table =
            |row: &u32| kernel::rule_of(*row).map_or(row - 1, |id| tables.rule(id).unwrap().table.into());
        assert_eq!(done.rows.iter().map(table).collect::<Vec<_>>(), tables_seen, "{rules:?}");
    }
}

#[test]
fn reserved_ports_are_resolved() {
    for (in_port, actions, went_to) in [
        (1, "flood", &["2", "3"][..]),
        (4, "flood", &["1", "2", "3"]),
        (2, "all", &["1", "3", "4"]),
        (2, "output:2,in_port", &["2"]),
        (2, "normal,local", &["NORMAL", "LOCAL"]),
        (2, "group:1", &["3v7"]),
        (1, "group:1", &["2", "3v7"]),
        (1, "group:4,output:3", &["2t63", "3v7t63", "3"]),
        (1, "group:3", &["3"]),
        (0xfffe, "local,flood", &["1", "2", "3"]),
        (0xfffe, "in_port", &["LOCAL"]),
        (0xfffd, "in_port,output:1", &["1"]),
    ] {
        let tables = with_rules(&[&format!("actions={actions}")]);
        let done = pipeline(&tables, "", |p| p.run(Packet::new(frame(64), RulePort(in_port))));
        assert_eq!(went(&done), went_to, "{actions} from {in_port}");
    }
    // A port that no longer exists.
    let mut tables = with_rules(&["actions=output:3"]);
    tables.set_ports([]);
    let (miss, meter) = (Instructions::default(), &mut |_: u32, _: usize| true);
    let mut none = Pipeline { tables: &tables, miss: &miss, ports: &[], vxlan_port: VXLAN_PORT, meter };
    assert_eq!(none.run(Packet::new(frame(64), RulePort(1))).outputs, []);
}

#[test]
fn the_buckets_that_a_packet_took_are_reported() {
    let tables = with_rules(&["actions=group:4,write_actions(group:2)"]);
    let done = pipeline(&tables, "", |p| p.run(Packet::new(frame(64), RulePort(1))));
    assert_eq!(done.buckets, [(4, 0), (1, 0), (1, 1), (2, 0)]);
}

#[test]
fn the_tunnel_id_goes_to_controllers_as_it_is_at_each_output() {
    for (rules, told) in [
        (
            &["actions=controller,set_tunnel:5,controller,write_actions(set_tunnel:7,controller)"][..],
            &[0, 5, 7][..],
        ),
        (&["actions=set_tunnel:0x1122334455667788,dec_ttl,output:2"], &[0x1122_3344_5566_7788]),
        (&["actions=set_field:0xff->tun_id,set_field:0/0xf->tun_id,controller"], &[0xf0]),
        (&["actions=set_tunnel:5,goto_table:1", "table=1,actions=controller"], &[5]),
    ] {
        let done = pipeline(&with_rules(rules), "", |p| p.run(Packet::new(frame(1), RulePort(1))));
        assert_eq!(done.outputs.iter().map(|o| o.tunnel_id).collect::<Vec<_>>(), told, "{rules:?}");
    }
}

#[test]
fn outputs_name_their_rule_and_their_reason() {
    use PacketInReason::{InvalidTtl, NoMatch};
    const ACTION: PacketInReason = PacketInReason::Action;
    for (rules, miss, ttl, told) in [
        (&["cookie=7,ip,actions=controller(max_len=99)"][..], "", 64, vec![(ACTION, 0, 7, 0)]),
        (&["cookie=7,priority=0,actions=controller"], "", 64, vec![(NoMatch, 0, 7, 0)]),
        (&["cookie=7,priority=0,ip,actions=controller"], "", 64, vec![(ACTION, 0, 7, 0)]),
        (&["cookie=7,priority=1,actions=controller"], "", 64, vec![(ACTION, 0, 7, 0)]),
        (&[], "controller(max_len=128)", 64, vec![(NoMatch, 0, NO_COOKIE, 0)]),
        (&["cookie=7,actions=dec_ttl,output:2"], "", 1, vec![(InvalidTtl, 0, 7, 0)]),
        (&["cookie=7,priority=0,actions=dec_ttl,output:2"], "", 0, vec![(InvalidTtl, 0, 7, 0)]),
        (
            &[
                "cookie=7,actions=controller,write_actions(controller,dec_ttl),write_metadata:3,goto_table:4",
                "table=4,cookie=8,actions=controller,write_actions(mod_nw_ttl:9)",
            ],
            "",
            64,
            vec![(ACTION, 0, 7, 0), (ACTION, 4, 8, 3), (ACTION, 0, 7, 3)],
        ),
        (
            &[
                "cookie=7,actions=write_actions(dec_ttl),goto_table:4",
                "table=4,cookie=8,actions=write_actions(output:2)",
            ],
            "",
            1,
            vec![(InvalidTtl, 0, 7, 0)],
        ),
        // An invalid TTL ends the rest of the actions, the tables, and the set.
        (
            &["cookie=7,actions=dec_ttl,write_actions(output:2),goto_table:1", "table=1,actions=output:3"],
            "",
            1,
            vec![(InvalidTtl, 0, 7, 0)],
        ),
    ] {
        let tables = with_rules(rules);
        let done = pipeline(&tables, miss, |p| p.run(Packet::new(frame(ttl), RulePort(1))));
        let tell = |o: &Output| (o.reason, o.table, o.cookie, o.metadata);
        assert_eq!(done.outputs.iter().map(tell).collect::<Vec<_>>(), told, "{rules:?}");
        assert!(done.outputs.iter().all(|o| o.port == RulePort::CONTROLLER && o.in_port == RulePort(1)));
    }
}

#[test]
fn the_controller_sends_a_packet_and_the_tables_take_it_once() {
    let output = |port| Action::output(port);
    let tables = with_rules(&["cookie=5,in_port=3,actions=output:2,in_port", "priority=1,actions=output:4"]);
    let run = |in_port, actions: &[Action]| {
        pipeline(&tables, "", |p| p.packet_out(Packet::new(frame(64), in_port), actions))
    };
    let done = run(
        RulePort(3),
        &[Action::DecTtl, output(RulePort::TABLE), output(RulePort(1)), output(RulePort(3))],
    );
    assert_eq!(went(&done), ["2t63", "3t63", "1t63"]);
    let of: Vec<_> = done.outputs.iter().map(|o| (o.reason, o.cookie)).collect();
    assert_eq!(of, [5, 5, NO_COOKIE].map(|cookie| (PacketInReason::Action, cookie)));
    assert_eq!(done.rows.len(), 1);
    let done =
        run(RulePort::NONE, &[output(RulePort::ALL), output(RulePort::TABLE), output(RulePort::IN_PORT)]);
    assert_eq!(went(&done), ["1", "2", "3", "4", "4"]);
    let done = run(RulePort::CONTROLLER, &[Action::Group(2), output(RulePort::CONTROLLER)]);
    assert_eq!((went(&done), done.rows.len()), (vec!["2".into(), "CONTROLLER".into()], 0));
}

#[test]
fn the_copies_of_a_packet_are_limited() {
    let mut tables = tables();
    let bucket = Bucket { actions: vec![Action::output(RulePort(2)); 64], ..Bucket::default() };
    let wide = |id, buckets| GroupMod::Add(Group { id, kind: GroupKind::All, buckets });
    tables.apply_group(&wide(10, vec![bucket; 64]), 0).unwrap();
    for id in 11..13 {
        let next = Bucket { actions: vec![Action::Group(id - 1)], ..Bucket::default() };
        tables.apply_group(&wide(id, vec![next; 64]), 0).unwrap();
    }
    for table in 0..TABLES {
        let goto = if table + 1 < TABLES { format!(",goto_table:{}", table + 1) } else { String::new() };
        let rule = format!("table={table},actions=group:12,all,all{goto}");
        tables.apply(&parse_flow(&rule, FlowCommand::Add).unwrap(), Dialect::OpenFlow13, 0).unwrap();
    }
    let done = pipeline(&tables, "", |p| p.run(Packet::new(frame(64), RulePort(1))));
    assert!(done.outputs.len() <= MOST_OUTPUTS && !done.outputs.is_empty(), "{}", done.outputs.len());
    let done = pipeline(&tables, "", |p| {
        p.packet_out(Packet::new(frame(64), RulePort(1)), &vec![Action::output(RulePort::TABLE); 64])
    });
    assert!(done.outputs.len() <= MOST_OUTPUTS && done.rows.len() <= 64 * usize::from(TABLES));
}

proptest! {
    #[test]
    fn all_frames_and_rules_terminate(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        in_port: u16,
        parts in prop::collection::vec((0_u8..16, 0_usize..14, any::<bool>(), 0_u8..16), 0..12),
    ) {
        const ACTIONS: [&str; 14] = [
            "flood", "all", "in_port", "dec_ttl", "group:1", "group:4", "strip_vlan", "mod_vlan_vid:5", "mod_tp_dst:4789",
            "normal", "controller", "push_vlan:0x8100", "mod_nw_src:10.0.0.1", "output:2",
        ];
        let rules: Vec<String> = parts.into_iter().map(|(table, action, writes, next)| {
            let action = if writes { format!("write_actions({})", ACTIONS[action]) } else { ACTIONS[action].into() };
            let goto = if next > table { format!(",goto_table:{next}") } else { String::new() };
            format!("table={table},actions={action}{goto}")
        }).collect();
        let tables = with_rules(&rules.iter().map(String::as_str).collect::<Vec<_>>());
        let done = pipeline(&tables, "flood", |p| p.run(Packet::new(bytes.clone(), RulePort(in_port))));
        prop_assert!((1..=usize::from(TABLES)).contains(&done.rows.len()));
        for output in &done.outputs {
            let resolved = (1..=4).contains(&output.port.0)
                || [RulePort::CONTROLLER, RulePort::NORMAL, RulePort::LOCAL].contains(&output.port);
            prop_assert!(resolved, "{output:?}");
        }
        let actions: Vec<_> = [RulePort::TABLE, RulePort::FLOOD].map(Action::output).into();
        pipeline(&tables, "", |p| p.packet_out(Packet::new(bytes, RulePort(in_port)), &actions));
    }
}
