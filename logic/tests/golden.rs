//! Reads the messages that os-ken tests itself with (`scripts/openflow-golden.sh`), and writes them again to the same
//! bytes.

use logic::openflow::{
    BadMessage, CannotSay, Message, v10, v13,
    wire::{Header, Split, split},
};
use std::{fs, path::Path};

type Decode = fn(&[u8]) -> Result<(Header, Message), BadMessage>;
type Encode = fn(&Message, u32, &mut Vec<u8>) -> Result<(), CannotSay>;

/// The result for a message that is not written as it was read.
enum Becomes {
    /// It is refused.
    Refused(BadMessage),
    /// It is written with other bytes at these places.
    Otherwise(&'static [(usize, &'static [u8])]),
    /// It is written differently, but reads as the same message.
    Retold,
    /// It is read, but cannot be written.
    Unsaid,
}
use Becomes::*;

/// A file's name without `.packet`, the result for its message, and why.
type Exception = (&'static str, Becomes, &'static str);

const NICIRA: &str = "an action of Nicira's";

#[test]
fn of10() {
    let exceptions = [
        (
            "1-2-ofp_flow_mod",
            Otherwise(&[(8, &[0, 0x38, 0x20, 0xf7]), (68, &[0xff, 0xff])]),
            "63 wildcarded bits of an address mean the same as 32; an add has no out_port",
        ),
        (
            "1-6-ofp_switch_features",
            Otherwise(&[(0x3f, &[0]), (0x6f, &[0])]),
            "states that 1.0 does not have",
        ),
        ("ovs-ofctl-of10-action_dec_mpls_ttl", Refused(BadMessage::ActionExperimenter), NICIRA),
        ("ovs-ofctl-of10-action_dec_nw_ttl", Refused(BadMessage::ActionExperimenter), NICIRA),
        ("ovs-ofctl-of10-action_pop_mpls", Refused(BadMessage::ActionExperimenter), NICIRA),
        ("ovs-ofctl-of10-action_push_mpls", Refused(BadMessage::ActionExperimenter), NICIRA),
        ("ovs-ofctl-of10-action_set_mpls_label", Refused(BadMessage::ActionExperimenter), NICIRA),
        ("ovs-ofctl-of10-action_set_mpls_tc", Refused(BadMessage::ActionExperimenter), NICIRA),
        ("ovs-ofctl-of10-action_set_mpls_ttl", Refused(BadMessage::ActionExperimenter), NICIRA),
    ];
    golden("of10", v10::decode, v10::encode, &exceptions);
}

/// Fields of class 0 or 1, which are Nicira's.
const NXM: Becomes = Refused(BadMessage::Refused(logic::flow::Refused::BadField));
const NICIRA_FIELD: &str = "a field of Nicira's";

#[test]
fn of13() {
    let no_tag = "a VLAN id to set without OFPVID_PRESENT";
    let huge_port = "a port number that is neither ours nor reserved";
    let mut exceptions = vec![
        ("4-2-ofp_flow_mod", Refused(BadMessage::SetFieldValue), no_tag),
        ("4-4-ofp_packet_in", Retold, "fields in another order"),
        ("4-12-ofp_flow_stats_reply", Refused(BadMessage::SetFieldValue), no_tag),
        ("4-36-ofp_queue_get_config_reply", Retold, "properties of experimenters are skipped"),
        ("4-55-ofp_table_features_request", Unsaid, "features to set, which are not stored"),
        ("4-56-ofp_table_features_reply", Retold, "unknown parts are skipped; lists for the table-miss rule"),
        ("4-59-ofp_packet_in", Refused(BadMessage::Refused(logic::flow::Refused::BadValue)), huge_port),
        ("4-60-ofp_flow_mod", Refused(BadMessage::Refused(logic::flow::Refused::BadValue)), huge_port),
    ];
    exceptions.extend(
        [
            "libofproto-OFP13-flow_mod",
            "libofproto-OFP13-flow_mod_conjunction",
            "libofproto-OFP13-flow_mod_match_conj",
            "libofproto-OFP13-flow_removed",
            "libofproto-OFP13-packet_in",
            "ovs-ofctl-of13-action_conjunction",
            "ovs-ofctl-of13-action_ct",
            "ovs-ofctl-of13-action_ct_clear",
            "ovs-ofctl-of13-action_ct_exec",
            "ovs-ofctl-of13-action_learn",
            "ovs-ofctl-of13-action_resubmit",
            "ovs-ofctl-of13-match_conj",
            "ovs-ofctl-of13-match_load_nx_register",
            "ovs-ofctl-of13-match_move_nx_register",
            "ovs-ofctl-of13-match_pkt_mark",
            "ovs-ofctl-of13-match_pkt_mark_masked",
        ]
        .map(|name| (name, NXM, NICIRA_FIELD)),
    );
    exceptions.extend(
        [
            "ovs-ofctl-of13-action_controller",
            "ovs-ofctl-of13-action_controller2",
            "ovs-ofctl-of13-action_ct_nat",
            "ovs-ofctl-of13-action_ct_nat_v6",
            "ovs-ofctl-of13-action_dec_ttl_cnt_ids",
            "ovs-ofctl-of13-action_fintimeout",
            "ovs-ofctl-of13-action_note",
            "ovs-ofctl-of13-action_output_trunc",
            "ovs-ofctl-of13-action_sample",
            "ovs-ofctl-of13-action_sample2",
            "ovs-ofctl-of13-action_stack_pop",
            "ovs-ofctl-of13-action_stack_push",
        ]
        .map(|name| (name, Refused(BadMessage::ActionExperimenter), NICIRA)),
    );
    golden("of13", v13::decode, v13::encode, &exceptions);
}

fn golden(directory: &str, decode: Decode, encode: Encode, exceptions: &[Exception]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/openflow/golden").join(directory);
    let Ok(files) = fs::read_dir(&path) else {
        eprintln!("NOT TESTED: run scripts/openflow-golden.sh");
        return;
    };
    let mut names = Vec::new();
    for file in files.map(|file| file.unwrap().path()) {
        let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
        let exception = exceptions.iter().find(|(of, ..)| *of == name);
        let mut stream = &fs::read(&file).unwrap()[..];
        while let Split::Message(header, bytes) = split(stream) {
            check(&name, header, bytes, decode, encode, exception);
            stream = &stream[bytes.len()..];
        }
        assert!(stream.is_empty(), "{name}: more than messages");
        names.push(name);
    }
    eprintln!("{directory}: {} files, of which {} differ", names.len(), exceptions.len());
    assert!(names.len() > exceptions.len());
    for (name, ..) in exceptions {
        assert!(names.iter().any(|n| n == name), "there is no {name}");
    }
}

fn check(
    name: &str,
    header: Header,
    bytes: &[u8],
    decode: Decode,
    encode: Encode,
    exception: Option<&Exception>,
) {
    let decoded = decode(bytes);
    let mut expected = bytes.to_vec();
    match exception {
        Some((_, Refused(bad), _)) => return assert_eq!(decoded, Err(*bad), "{name}"),
        Some((_, Otherwise(places), _)) => {
            for (at, other) in *places {
                assert_ne!(expected[*at..at + other.len()], **other, "{name}: no exception at {at}");
                expected[*at..at + other.len()].copy_from_slice(other);
            }
        }
        Some((_, Retold | Unsaid, _)) | None => {}
    }
    let (read, message) = decoded.unwrap_or_else(|bad| panic!("{name}: {bad}"));
    assert_eq!(read, header, "{name}");
    let mut written = Vec::new();
    let said = encode(&message, header.xid, &mut written);
    match exception {
        Some((_, Unsaid, _)) => return assert!(said.is_err(), "{name}"),
        Some((_, Retold, _)) => {
            assert_ne!(written, expected, "{name}: no exception");
            return assert_eq!(decode(&written).map(|(_, message)| message), Ok(message), "{name}");
        }
        _ => said.unwrap_or_else(|cannot| panic!("{name}: {cannot}")),
    }
    assert_eq!(written, expected, "{name}: {message:?}");
}
