//! Tests of keys, sequence files and changes. `router/tests/esp.rs` tests the rest with the program.

use super::{
    FILES, Means, RunningSas, Sas, key,
    sequence_file::{Fault, SequenceFile},
};
use crate::{
    api::sas::SaName,
    config::{Config, KeySource},
};
use logic::{
    elements::{Element, EspDecrypt},
    esp::{Key, Sequence},
};
use std::{fs, os::unix::fs::PermissionsExt, path::Path};

fn key(byte: u8) -> Key {
    Key::new(&[byte; 20]).unwrap()
}

/// The number in the file, which a process finds if this one is killed now.
pub(super) fn noted(file: &std::path::Path) -> u64 {
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
        // A killed process has lost the rest of its block; one that ends notes what it used.
        let mut again = SequenceFile::open(&path, &key(1)).unwrap();
        assert_eq!(again.used(), 4 * block);
        assert!(matches!(SequenceFile::open(&path, &key(2)), Err(Fault::Locked(_) | Fault::OtherKey(_))));
        let sequence = Sequence::new(is_extended, again.used());
        again.reserve(&sequence).unwrap();
        assert_eq!(noted(&path), 5 * block);
        sequence.take(7);
        again.finish(sequence.taken()).unwrap();
        assert_eq!(noted(&path), 4 * block + 7);
        assert!(matches!(SequenceFile::open(&path, &key(2)), Err(Fault::OtherKey(_))));
    }
}

/// /dev/full behaves like a full disk, but it is no file, so nothing is written to it.
#[test]
fn devices_and_directories_are_refused() {
    for path in ["/dev/full", "/", "/nonexistent/a"] {
        assert!(SequenceFile::open(path.as_ref(), &key(1)).is_err(), "{path}");
    }
}

/// An SA had 64-bit numbers and now has 32-bit ones: used numbers stay used, and none is left.
#[test]
fn a_noted_number_never_becomes_smaller() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.sequence");
    let used = (1 << 32) + 7;
    SequenceFile::open(&path, &key(1)).unwrap().finish(used).unwrap();
    let mut file = SequenceFile::open(&path, &key(1)).unwrap();
    let sequence = Sequence::new(false, file.used());
    file.reserve(&sequence).unwrap();
    assert!(sequence.take(1).is_empty());
    assert_eq!(noted(&path), used);
    file.finish(sequence.taken()).unwrap();
    assert_eq!(noted(&path), used);
    SequenceFile::open(&path, &key(1)).unwrap().finish(3).unwrap();
    assert_eq!(noted(&path), used);
    let mut file = SequenceFile::open(&path, &key(1)).unwrap();
    let sequence = Sequence::new(true, file.used());
    file.reserve(&sequence).unwrap();
    assert_eq!(sequence.take(1), used + 1..used + 2);
}

/// The line of an empty file is lost, so it is not known what was used.
#[test]
fn an_empty_file_is_broken_and_a_new_one_has_its_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.sequence");
    drop(SequenceFile::open(&path, &key(1)).unwrap());
    assert_eq!(noted(&path), 0);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    fs::write(&path, "").unwrap();
    assert!(matches!(SequenceFile::open(&path, &key(1)), Err(Fault::Broken(_))));
    assert_eq!(fs::read(&path).unwrap(), b"");
}

#[test]
fn a_file_that_others_write_is_refused_and_so_is_a_link() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.sequence");
    drop(SequenceFile::open(&path, &key(1)).unwrap());
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(matches!(SequenceFile::open(&link, &key(1)), Err(Fault::Io { what: "open", .. })));
    for (mode, is_ours) in [(0o620, false), (0o602, false), (0o644, true)] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let opened = SequenceFile::open(&path, &key(1));
        assert_eq!(opened.is_ok(), is_ours, "{mode:o}");
        assert!(is_ours || matches!(opened, Err(Fault::NotOurs(_))), "{mode:o}");
    }
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&path, Some(1), None).unwrap();
        assert!(matches!(SequenceFile::open(&path, &key(1)), Err(Fault::NotOurs(_))));
    }
}

#[test]
fn only_one_sa_can_send_with_a_key() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.key");
    fs::write(&path, "01".repeat(20)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let source = KeySource::File(path.clone());
    let (read, held) = key::read(&source, true).unwrap();
    assert!(read == key(1) && held.is_some());
    assert!(key::read(&source, true).unwrap_err().contains("is in use by another process"));
    assert!(key::read(&source, false).unwrap().1.is_none(), "an inbound SA can read it");
    drop(held);
    assert!(key::read(&source, true).is_ok());
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&path, Some(1), None).unwrap();
        assert!(key::read(&source, false).unwrap_err().contains("does not belong"));
    }
}

/// A directory with keys `a` to `d`, and the SAs of a daemon, with `x` outbound and `y` inbound.
pub(super) fn running() -> (tempfile::TempDir, RunningSas) {
    let directory = tempfile::tempdir().unwrap();
    for (byte, name) in (1..).zip(["a", "b", "c", "d"]) {
        let file = directory.path().join(name);
        fs::write(&file, format!("{byte:02x}").repeat(20)).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    }
    let text = String::from(
        "sas_later = [\"x\", \"y\"]\n[workers]\ncores = \"0\"\n[[path]]\nname = \"out\"\notherwise = \"drop\"\nclass = { port = \"p\" }\n\
         chain = [\"check\", { element = \"esp_encrypt\", sa = \"x\" }, { element = \"forward\", port = \"p\" }]\n\
         [[path]]\nname = \"in\"\nchain = [\"check\", { element = \"esp_decrypt\", sas = [\"y\"] }, \"discard\"]\n",
    );
    let config = Config::parse(Path::new("m.toml"), &text).unwrap();
    (directory, RunningSas::load(&config.sas).unwrap())
}

pub(super) fn table(name: &str, spi: u32, key: &str) -> String {
    let more = if name == "x" { format!("sequence_file = \"{key}.sequence\"\n") } else { String::new() };
    format!(
        "[[sa]]\nname = \"{name}\"\nspi = {spi}\nmode = \"tunnel\"\nlocal = \"192.0.2.1\"\nremote = \"192.0.2.2\"\nkey_file = \"{key}\"\n{more}"
    )
}

fn spis(sas: &RunningSas) -> Vec<u32> {
    sas.report().sas.iter().map(|sa| sa.spi).collect()
}

#[track_caller]
fn will_note(file: &Path, number: u64) {
    for _ in 0..500 {
        if noted(file) == number {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(noted(file), number);
}

#[test]
fn sas_change_all_or_none() {
    let (directory, sas) = running();
    sas.begin().unwrap();
    let file = directory.path().join("set.toml");
    let change = |text: &str, remove: &[SaName]| sas.change(&file, text, remove);
    let name = |sa: &str, spi| SaName { sa: sa.into(), spi };
    change(&(table("x", 1000, "a") + &table("y", 2000, "b")), &[]).unwrap();
    assert_eq!(spis(&sas), [1000, 2000]);
    for (text, remove, part) in [
        (
            table("x", 1001, "c") + &table("y", 2001, "b"),
            vec![],
            "set.toml:10: sa.key: SA y: it has the key of SA y",
        ),
        (table("x", 1001, "c") + &table("y", 2000, "d"), vec![], "SA y already has its SPI"),
        (table("x", 1001, "none"), vec![], "cannot read the key file"),
        (table("x", 1001, "c"), vec![name("y", 2001)], "there is no SA y with SPI 2001"),
        (table("z", 1001, "c"), vec![], "SA z is used by no element"),
        (table("x", 1001, "c") + &table("x", 1002, "d"), vec![], "set.toml:10: sa.name: SA x is given twice"),
        (table("y", 2000, "c"), vec![name("y", 2000)], "SA y with SPI 2000 is both set and removed"),
        (
            table("y", 2001, "c").replace("192.0.2.2", "ff02::1").replace("192.0.2.1", "2001:db8::1"),
            vec![],
            "must each be the address of one machine",
        ),
        (
            table("x", 1001, "c").replace("c.sequence", "none/c"),
            vec![],
            "set.toml:2: sa.sequence_file: SA x: cannot create",
        ),
    ] {
        let why = change(&text, &remove).unwrap_err();
        assert!(why.contains(part), "{why}");
        assert_eq!(spis(&sas), [1000, 2000], "{part}");
    }
    // Refused changes have left no key locked.
    change(&(table("x", 1001, "c") + &table("y", 2001, "d")), &[name("y", 2000)]).unwrap();
    assert_eq!(spis(&sas), [1001, 2001]);
    assert!(sas.table().remove_inbound(2000).is_none(), "no element finds it");
    let outbound = sas.table().outbound();
    assert_eq!((outbound.len(), &outbound[0].0[..], outbound[0].1.sequence.taken()), (1, "x", 0));
    assert_eq!(outbound[0].1.sequence.reserved(), 1 << 20, "before the first packet");
    // No number of the old one was used.
    will_note(&directory.path().join("a.sequence"), 0);
    outbound[0].1.sequence.take(5);
    drop(outbound);
    change("", &[name("x", 1001)]).unwrap();
    assert_eq!((spis(&sas), sas.table().outbound().len()), (vec![2001], 0));
    will_note(&directory.path().join("c.sequence"), 5);
    sas.finish().unwrap();
    assert_eq!(noted(&directory.path().join("c.sequence")), 5);
    assert!(change("", &[]).is_err());
}

/// As long as a worker may send with it, its numbers stay reserved and its key stays locked.
#[test]
fn a_replaced_sa_ends_when_no_worker_has_it_any_more() {
    let (directory, sas) = running();
    sas.begin().unwrap();
    let file = directory.path().join("set.toml");
    sas.change(&file, &table("x", 1000, "a"), &[]).unwrap();
    let worker = sas.table().outbound().remove(0).1;
    sas.change(&file, &table("x", 1001, "b"), &[]).unwrap();
    worker.sequence.take(7);
    let path = directory.path().join("a.sequence");
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_eq!(noted(&path), 1 << 20);
    let again = sas.change(&file, &table("x", 1002, "a"), &[]).unwrap_err();
    assert!(again.contains("in use by another process, or by another SA"), "{again}");
    // The thread looks again until the worker is gone.
    std::thread::sleep(std::time::Duration::from_millis(200));
    drop(worker);
    will_note(&path, 7);
    // With another file its numbers would begin again, and in the other direction too.
    let other = table("x", 1002, "a").replace("a.sequence", "other.sequence");
    let why = sas.change(&file, &other, &[]).unwrap_err();
    assert!(
        why.contains("sa.sequence_file: SA x: 7 numbers were used with its key, but this file says 0"),
        "{why}"
    );
    let why = sas.change(&file, &table("y", 2000, "a"), &[]).unwrap_err();
    assert!(why.contains("an SA of the other direction used its key"), "{why}");
    // Its numbers go on from there.
    sas.change(&file, &table("x", 1002, "a"), &[]).unwrap();
    assert_eq!(sas.table().outbound()[0].1.sequence.taken(), 7);
    sas.finish().unwrap();
}

#[test]
fn one_key_in_two_files_is_one_key() {
    let (directory, sas) = running();
    sas.begin().unwrap();
    let file = directory.path().join("set.toml");
    fs::copy(directory.path().join("a"), directory.path().join("e")).unwrap();
    sas.change(&file, &table("x", 1000, "a"), &[]).unwrap();
    let why = sas.change(&file, &table("x", 1001, "e"), &[]).unwrap_err();
    assert!(why.contains("it has the key of SA x"), "{why}");
    assert_eq!((spis(&sas), sas.condition()), (vec![1000], None));
    sas.finish().unwrap();
}

/// This also holds for an inbound SA that was removed: an element may still decrypt packets with it.
#[test]
fn a_key_belongs_to_its_sa_as_long_as_an_element_has_it() {
    let (directory, sas) = running();
    sas.begin().unwrap();
    let file = directory.path().join("set.toml");
    sas.change(&file, &table("y", 2000, "a"), &[]).unwrap();
    let mut element = EspDecrypt::new(sas.table(), vec!["y".into()]);
    element.refresh();
    sas.change(&file, "", &[SaName { sa: "y".into(), spi: 2000 }]).unwrap();
    let why = sas.change(&file, &table("y", 2001, "a"), &[]).unwrap_err();
    assert!(why.contains("it has the key of SA y"), "{why}");
    let why = sas.change(&file, &table("y", 2000, "b"), &[]).unwrap_err();
    assert!(why.contains("SA y already has its SPI"), "{why}");
    assert_eq!(spis(&sas), [0; 0]);
    element.refresh();
    sas.change(&file, "", &[]).unwrap();
    sas.change(&file, &table("y", 2001, "a"), &[]).unwrap();
    sas.finish().unwrap();
}

#[test]
fn numbers_are_reserved_while_they_are_used() {
    let (directory, sas) = running();
    sas.begin().unwrap();
    sas.change(&directory.path().join("set.toml"), &table("x", 1000, "a"), &[]).unwrap();
    sas.table().outbound()[0].1.sequence.take((1 << 19) + 1);
    // The numbers are noted first, and then reserved.
    for _ in 0..500 {
        if sas.table().outbound()[0].1.sequence.reserved() == 2 << 20 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(sas.table().outbound()[0].1.sequence.reserved(), 2 << 20);
    assert_eq!(noted(&directory.path().join("a.sequence")), 2 << 20);
    sas.finish().unwrap();
    assert_eq!(noted(&directory.path().join("a.sequence")), (1 << 19) + 1);
}

/// A change of two SAs, whose numbers are noted one after another.
#[test]
fn numbers_of_a_change_that_fails_are_given_back() {
    let (directory, _) = running();
    let text = String::from(
        "sas_later = [\"x\", \"w\"]\n[workers]\ncores = \"0\"\n[[path]]\nname = \"out\"\notherwise = \"drop\"\nclass = { port = \"p\" }\n\
         chain = [\"check\", { element = \"esp_encrypt\", sa = \"x\" }, { element = \"forward\", port = \"p\" }]\n\
         [[path]]\nname = \"more\"\notherwise = \"drop\"\n\
         chain = [\"check\", { element = \"esp_encrypt\", sa = \"w\" }, { element = \"forward\", port = \"p\" }]\n",
    );
    let config = Config::parse(Path::new("m.toml"), &text).unwrap();
    let set = table("x", 1000, "a") + &table("x", 1001, "b").replace("name = \"x\"", "name = \"w\"");
    let set = config.sas.more(&directory.path().join("set.toml"), &set).unwrap();
    let broken = Means {
        numbers: &|sa, key| {
            let mut file = (FILES.numbers)(sa, key)?;
            file.iter_mut().filter(|_| sa.name == "w").for_each(SequenceFile::cannot_be_written);
            Ok(file)
        },
        ..FILES
    };
    let mut sas = Sas::load(&config.sas).unwrap();
    let why = sas.change_by(&set, &[], &broken).unwrap_err();
    assert!(why.contains("sa.sequence_file: SA w: SA w: cannot write the sequence file"), "{why}");
    assert_eq!(noted(&directory.path().join("a.sequence")), 0);
    assert!(sas.report().is_empty() && sas.table.outbound().is_empty());
    sas.change(&set, &[]).unwrap();
    assert_eq!(noted(&directory.path().join("a.sequence")), 1 << 20);
    sas.finish().unwrap();
}
