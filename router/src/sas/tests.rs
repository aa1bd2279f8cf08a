//! Sequence files; the rest is in `router/tests/esp.rs`, over the binary.

use super::sequence_file::{Fault, SequenceFile};
use logic::esp::{Key, Sequence};
use std::{fs, os::unix::fs::PermissionsExt};

fn key(byte: u8) -> Key {
    Key::new(&[byte; 20]).unwrap()
}

/// What a process that is killed now would find.
fn noted(file: &std::path::Path) -> u64 {
    fs::read_to_string(file).unwrap().trim_end().rsplit_once(' ').unwrap().1.parse().unwrap()
}

#[test]
fn numbers_are_noted_before_they_can_be_taken() {
    for (is_extended, block) in [(false, 1u64 << 20), (true, 1 << 24)] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.sequence");
        let mut file = SequenceFile::open(&path, &key(1)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let sequence = Sequence::new(is_extended, file.used());
        assert!(sequence.take(1).is_empty());
        for blocks in 1..5 {
            file.reserve(&sequence).unwrap();
            assert_eq!((noted(&path), sequence.reserved()), (blocks * block, blocks * block));
            // Not again before half of it is used.
            sequence.take(if blocks == 1 { block / 2 - 1 } else { block - 1 });
            file.reserve(&sequence).unwrap();
            assert_eq!(noted(&path), blocks * block);
            sequence.take(1);
        }
        assert!(matches!(SequenceFile::open(&path, &key(1)), Err(Fault::Locked(_))));
        drop(file);
        let again = SequenceFile::open(&path, &key(1)).unwrap();
        assert_eq!(again.used(), 4 * block);
        drop(again);
        assert!(matches!(SequenceFile::open(&path, &key(2)), Err(Fault::OtherKey(_))));
        SequenceFile::open(&path, &key(1)).unwrap().finish(sequence.taken()).unwrap();
        assert_eq!(noted(&path), sequence.taken());
    }
}

/// /dev/full takes nothing, as a full disk; it is no file, so it is not even tried.
#[test]
fn what_is_no_file_is_refused() {
    for path in ["/dev/full", "/", "/nonexistent/a"] {
        assert!(SequenceFile::open(path.as_ref(), &key(1)).is_err(), "{path}");
    }
}
