//! Packets of a path copied to a file: with a daemon that is asked to end, with one that is killed, and on a full disk.

use std::{
    fs::{self, File},
    os::unix::fs::PermissionsExt,
    path::Path,
    thread,
};

use lab::command;
use pcap_file::pcap::PcapReader;
use serde_json::Value;

use crate::{
    bed::Bed,
    daemon::{Daemon, Leftovers, eventually, eventually_true, problems},
    user_plane::{numbered, path, start, workers},
};

/// Size of the tmpfs. It cannot be smaller than a page.
const DISK_KIB: usize = 128;
/// Length of the frame of a datagram with four bytes, which nothing pads on a veth.
const FRAME: usize = 14 + 20 + 8 + 4;
const CUT: usize = 44;

/// A path for red's UDP packets, which are copied as they come.
fn mirrored(bed: &Bed, file: &Path) -> String {
    format!(
        "{}[[path]]\nname = \"udp\"\nrouter = \"{}\"\nclass = {{ protocol = \"udp\" }}\notherwise = \"drop\"\n\
         chain = [{{ element = \"mirror\", file = \"{}\", snap_bytes = {CUT} }}, \"check\", \"route\", \"ttl\", \"rewrite\"]\n",
        workers("0"),
        bed.red_name(),
        file.display()
    )
}

/// Sends numbered datagrams, and asserts that none is lost, whatever happens to copies.
fn all_arrive(bed: &Bed, count: u32) {
    assert_eq!(numbered(bed, "10.7.1.2:4000", "10.7.2.2:4000", count), Vec::from_iter(0..count));
}

/// Counters of the mirror, once they add up to this many.
fn counted(daemon: &Daemon, all: u64) -> Value {
    eventually("all copies counted", || {
        let counted = path(daemon, "udp")["run"]["elements"][0]["counted"].clone();
        let sum: u64 = counted.as_object().into_iter().flatten().filter_map(|(_, n)| n.as_u64()).sum();
        if sum == all { Ok(counted) } else { Err(format!("{counted:#}")) }
    })
}

/// Sends datagrams one by one until one of them is in the file, which is then open and writable. Returns the mirror's
/// counters, and how many datagrams were sent.
fn is_copied(bed: &Bed, daemon: &Daemon) -> (Value, u64) {
    let sum =
        |counted: &Value| counted.as_object().into_iter().flatten().filter_map(|(_, n)| n.as_u64()).sum();
    let number = |counted: &Value| counted["written"].as_u64().unwrap_or(0);
    let before = path(daemon, "udp")["run"]["elements"][0]["counted"].clone();
    let (all, mut sent): (u64, u64) = (sum(&before), 0);
    let after = eventually("a copy", || {
        all_arrive(bed, 1);
        sent += 1;
        let after = counted(daemon, all + sent);
        if number(&after) > number(&before) { Ok(after) } else { Err(format!("{after:#}")) }
    });
    (after, sent)
}

/// Checks all records: they are cut, in order of time, and UDP from the client to the server. Returns their number.
fn records(file: &Path) -> usize {
    let mut reader = PcapReader::new(File::open(file).unwrap()).unwrap();
    let (mut count, mut last) = (0, Default::default());
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap();
        assert_eq!((packet.data.len(), packet.orig_len as usize), (CUT, FRAME));
        assert_eq!(packet.data[26..40], [10, 7, 1, 2, 10, 7, 2, 2, 0x0f, 0xa0, 0x0f, 0xa0, 0, 12]);
        assert_eq!(packet.data[22], 64, "the TTL has not changed");
        assert!(packet.timestamp >= last);
        (count, last) = (count + 1, packet.timestamp);
    }
    count
}

#[test]
#[ignore = "needs root"]
fn a_path_is_captured_over_restarts() {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("udp.pcap");
    let (daemon, config) = start(&bed, &mirrored(&bed, &file));
    let (_, first) = is_copied(&bed, &daemon);
    all_arrive(&bed, 1000);
    let after = counted(&daemon, first + 1000);
    // The datagrams before came too early.
    assert_eq!(after["written"], 1001, "{after:#}");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let says = |words: &[&str]| String::from_utf8(daemon.millrace(words).stdout).unwrap();
    let metrics = says(&["metrics"]);
    for sample in [
        &format!("millrace_path_given_packets_total{{path=\"udp\"}} {}", first + 1000),
        &format!("millrace_path_run_packets_total{{path=\"udp\"}} {}", first + 1000),
        "millrace_path_core{path=\"udp\"} 0.0",
        "millrace_path_counted_total{path=\"udp\",at=\"1\",element=\"mirror\",what=\"written\"} 1001",
    ] {
        assert!(metrics.lines().any(|line| line == sample), "{sample}: {metrics}");
    }
    let top = says(&["top", "--once"]);
    let row: Vec<_> =
        top.lines().skip_while(|line| !line.starts_with("PATH")).nth(1).unwrap().split_whitespace().collect();
    assert_eq!([row[0], row[1], row[3], row[5], row[6]], ["udp", "0", "0", "0", "-"], "{top}");
    daemon.kill();
    assert_eq!(records(&file), 1001);

    let mut daemon = Daemon::start(&bed.the_box, &bed.name, &["--config", config.0.to_str().unwrap()]);
    daemon.until_accelerated(2);
    is_copied(&bed, &daemon);
    all_arrive(&bed, 500);
    // The mirror writes what is on its way before the daemon ends.
    daemon.stop();
    assert_eq!(records(&file), 1001 + 501);
}

#[test]
#[ignore = "needs root"]
fn a_full_disk_costs_no_packet() {
    // The mounts belong to this thread and to what it starts, and end with them.
    let test = thread::spawn(|| {
        // SAFETY: it changes nothing of this process's memory, and the thread ends with the test.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNS) }, 0, "{}", std::io::Error::last_os_error());
        let mount =
            |words: &str| command::run(std::process::Command::new("mount").args(words.split(' '))).unwrap();
        mount("--make-rprivate /");
        let directory = tempfile::tempdir().unwrap();
        mount(&format!("-t tmpfs -o size={DISK_KIB}k none {}", directory.path().display()));
        on_a_full_disk(directory.path());
        command::run(std::process::Command::new("umount").arg(directory.path())).unwrap();
    });
    if let Err(panic) = test.join() {
        std::panic::resume_unwind(panic);
    }
}

fn on_a_full_disk(disk: &Path) {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    let (file, filler) = (disk.join("udp.pcap"), disk.join("filler"));
    fs::write(&filler, vec![0; DISK_KIB / 2 * 1024]).unwrap();
    let (daemon, _config) = start(&bed, &mirrored(&bed, &file));
    let room = (DISK_KIB / 2 * 1024 - 24) / (16 + CUT);
    all_arrive(&bed, 2000);
    let full = counted(&daemon, 2000);
    let number = |counted: &Value, name: &str| counted[name].as_u64().unwrap();
    let (written, lost) = (number(&full, "written"), number(&full, "mirror_disk"));
    // The mirror writes all that fits, except records that a write which failed only at its end would have held
    // besides.
    assert_eq!((written, written + lost), (room as u64, 2000), "{full:#}");
    assert_eq!(records(&file), written as usize);
    let trouble =
        format!("mirror {}: cannot write it: No space left on device (os error 28)", file.display());
    let is_told = || problems(&daemon.ask(&["status"])).contains(&trouble);
    eventually_true("the trouble", is_told);
    assert_eq!(path(&daemon, "udp")["run"]["dropped"], serde_json::json!({}));
    // There is room again: it continues behind the earlier records.
    fs::remove_file(&filler).unwrap();
    let (again, sent) = is_copied(&bed, &daemon);
    assert_eq!((number(&again, "written"), number(&again, "mirror_disk")), (written + 1, lost + sent - 1));
    all_arrive(&bed, 100);
    let after = counted(&daemon, 2100 + sent);
    assert_eq!((number(&after, "written"), number(&after, "mirror_disk")), (written + 101, lost + sent - 1));
    eventually_true("no trouble", || !is_told());
    daemon.stop();
    assert_eq!(records(&file), written as usize + 101);
}
