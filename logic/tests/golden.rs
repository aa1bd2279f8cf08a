//! The messages that os-ken tests itself with (`scripts/openflow-golden.sh`) are read, and written again to the same bytes.

use logic::openflow::{
    BadMessage, CannotSay, Message, v10,
    wire::{Header, Split, split},
};
use std::{fs, path::Path};

type Decode = fn(&[u8]) -> Result<(Header, Message), BadMessage>;
type Encode = fn(&Message, u32, &mut Vec<u8>) -> Result<(), CannotSay>;

/// What becomes of a message that does not come back as it was.
enum Becomes {
    /// It is not read.
    Refused(BadMessage),
    /// It has other bytes at these places.
    Otherwise(&'static [(usize, &'static [u8])]),
}
use Becomes::*;

/// A file's name without `.packet`, what becomes of its message, and why.
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
        None => {}
    }
    let (read, message) = decoded.unwrap_or_else(|bad| panic!("{name}: {bad}"));
    assert_eq!(read, header, "{name}");
    let mut written = Vec::new();
    encode(&message, header.xid, &mut written).unwrap_or_else(|cannot| panic!("{name}: {cannot}"));
    assert_eq!(written, expected, "{name}: {message:?}");
}
