use super::*;
use crate::{
    cores::Role,
    flow::{Action, CoreChoice, FcfPlace, Vxlan},
    openflow::{Message, v10, v13},
};

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|two| u8::from_str_radix(str::from_utf8(two).unwrap(), 16).unwrap()).collect()
}

fn examples() -> Vec<(Extension, u32, &'static str)> {
    let features = Features { rss: true, classifier: false, native_xdp: true, core_redirect: true };
    let cores =
        vec![Core { number: 0, load: Some(250), workloads: 0 }, Core { number: 5, load: None, workloads: 2 }];
    let workload =
        |cores: &[u16]| Extension::WorkloadStart(Workload { id: 7, tenant: 9, cores: cores.into() });
    vec![
        (Extension::Subscribe { cores: false, workloads: true }, 1, "00000002 00000000"),
        (
            Extension::Cores(Cores { features, cores }),
            2,
            "0000000d 0002 0000  0000 00fa 0000 0000  0005 ffff 0002 0000",
        ),
        (workload(&[]), 3, "00000007 00000009 0000 0000 00000000"),
        (workload(&[1, 2]), 3, "00000007 00000009 0002 0000 0001 0002"),
        (workload(&[1, 2, 3]), 3, "00000007 00000009 0003 0000 0001 0002 0003 0000 00000000"),
        (Extension::WorkloadStop { id: 7, tenant: 9 }, 4, "00000007 00000009"),
        (Extension::CoreFlowMod(vec![1, 2, 3]), 5, "010203"),
        (Extension::CoreStatsRequest { core: Some(3) }, 6, "0003 000000000000"),
        (Extension::CoreStatsRequest { core: None }, 6, "ffff 000000000000"),
        (
            Extension::CoreStats(vec![
                CoreStats {
                    number: 1,
                    load: Some(250),
                    role: Some(Role::Both),
                    workloads: 2,
                    packets: 5,
                    dropped: 1,
                    flows: 4,
                    first: 3,
                },
                CoreStats {
                    number: 2,
                    load: None,
                    role: None,
                    workloads: 0,
                    packets: 0,
                    dropped: 0,
                    flows: 0,
                    first: 0,
                },
            ]),
            7,
            "0002 000000000000 \
             0001 00fa 03 00 0002 0000000000000005 0000000000000001 00000004 00000003 \
             0002 ffff ff 00 0000 0000000000000000 0000000000000000 00000000 00000000",
        ),
    ]
}

/// The examples of docs/reference/openflow-extension.md.
#[test]
fn each_message_is_these_bytes_in_both_versions() {
    for (message, subtype, hex) in examples() {
        let encoded = message.encode();
        assert_eq!((encoded.id, encoded.subtype), (0x4d4c_5243, subtype));
        assert_eq!(encoded.body, bytes(hex), "{message:?}");
        assert_eq!(Extension::decode(&encoded), Ok(message.clone()));
        let (mut ten, mut thirteen) = (Vec::new(), Vec::new());
        v10::encode(&Message::Experimenter(encoded.clone()), 3, &mut ten).unwrap();
        v13::encode(&Message::Experimenter(encoded.clone()), 3, &mut thirteen).unwrap();
        assert_eq!(ten[8..], thirteen[8..]);
        assert_eq!(ten[8..16], bytes(&format!("4d4c5243 {subtype:08x}")));
        for (read, version) in [(v10::decode(&ten), 1), (v13::decode(&thirteen), 4)] {
            let (header, read) = read.unwrap();
            assert_eq!((header.version, read), (version, Message::Experimenter(encoded.clone())));
        }
    }
}

#[test]
fn cut_overlong_and_unknown_messages_are_refused() {
    for (message, ..) in examples() {
        let whole = message.encode();
        if matches!(message, Extension::CoreFlowMod(_)) {
            continue;
        }
        for length in 0..whole.body.len() {
            let cut = Experimenter { body: whole.body[..length].to_vec(), ..whole.clone() };
            assert_eq!(Extension::decode(&cut), Err(BadMessage::Length), "{message:?} {length}");
        }
        let mut long = whole.clone();
        long.body.push(0);
        assert_eq!(Extension::decode(&long), Err(BadMessage::Length));
    }
    let decode = |id, subtype| Extension::decode(&Experimenter { id, subtype, body: vec![0; 8] });
    assert_eq!(decode(EXPERIMENTER, 8), Err(BadMessage::ExperimenterType));
    assert_eq!(decode(0x2320, 1), Err(BadMessage::Experimenter));
}

fn actions() -> Vec<(Action, &'static str)> {
    let vxlan = Vxlan {
        vni: 0x123456,
        source: [192, 0, 2, 1].into(),
        destination: [192, 0, 2, 2].into(),
        eth_source: [2, 0, 0, 0, 0, 1],
        eth_destination: [2, 0, 0, 0, 0, 2],
        udp_port: 4789,
    };
    let fcf = |place, workload, priority| Action::SetFcf { place, workload, priority };
    vec![
        (
            Action::EncapVxlan(vxlan),
            "ffff 0028 4d4c5243 0001 12b5 00123456 c0000201 c0000202 020000000001 020000000002 00000000",
        ),
        (Action::DecapVxlan, "ffff 0010 4d4c5243 0002 000000000000"),
        (fcf(FcfPlace::Tos, 21, true), "ffff 0010 4d4c5243 0003 00 01 0015 0000"),
        (fcf(FcfPlace::Vlan, 0xabc, false), "ffff 0010 4d4c5243 0003 01 00 0abc 0000"),
        (Action::SetCore(CoreChoice::This(3)), "ffff 0010 4d4c5243 0004 0003 00000000"),
        (Action::SetCore(CoreChoice::Choose), "ffff 0010 4d4c5243 0004 ffff 00000000"),
        (Action::SetCore(CoreChoice::ChooseFirst), "ffff 0010 4d4c5243 0004 fffe 00000000"),
    ]
}

#[test]
fn each_action_is_these_bytes_in_both_versions() {
    use crate::{flow::RulePort, openflow::message::PacketOut};
    for (action, hex) in actions() {
        let message = Message::PacketOut(PacketOut {
            buffer: None,
            in_port: RulePort(1),
            actions: vec![action],
            data: vec![7],
        });
        let (mut ten, mut thirteen) = (Vec::new(), Vec::new());
        v10::encode(&message, 3, &mut ten).unwrap();
        v13::encode(&message, 3, &mut thirteen).unwrap();
        assert_eq!(ten[16..ten.len() - 1], bytes(hex), "{message:?}");
        assert_eq!(thirteen[24..thirteen.len() - 1], bytes(hex));
        assert_eq!(v10::decode(&ten).unwrap().1, message);
        assert_eq!(v13::decode(&thirteen).unwrap().1, message);
    }
}

#[test]
fn invalid_actions_have_their_errors() {
    let read = |hex: &str| {
        let body = bytes(hex);
        read_action(EXPERIMENTER, &mut Reader::new(&body, BadMessage::ActionLength))
    };
    assert_eq!(read("0005 000000000000"), Err(BadMessage::ActionExperimenterType));
    assert_eq!(read("0003 02 00 0001 0000"), Err(crate::flow::Refused::BadArgument.into()));
    assert_eq!(read("0003 00 02 0001 0000"), Err(crate::flow::Refused::BadArgument.into()));
    assert_eq!(read("0001 12b5 00123456"), Err(BadMessage::ActionLength));
    let other = read_action(0x2320, &mut Reader::new(&[0; 8], BadMessage::ActionLength));
    assert_eq!(other, Err(BadMessage::ActionExperimenter));
    assert_eq!(
        [
            v10::error(BadMessage::ActionExperimenterType, &[]),
            v13::error(BadMessage::ActionExperimenterType, &[])
        ]
        .map(|error| (error.kind, error.code)),
        [(2, 3), (2, 3)]
    );
}
