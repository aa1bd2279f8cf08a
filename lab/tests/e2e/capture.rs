//! `millrace capture`: what is in the file, how it ends, and that no packet is lost meanwhile.

use crate::{
    bed::{Bed, output},
    connections::{self, exchange, udp},
    daemon::{Daemon, Leftovers, binary, eventually},
    firewall::{SERVER, nft},
    user_plane::numbered,
};
use pcap_file::pcapng::{
    Block, PcapNgReader,
    blocks::{enhanced_packet::EnhancedPacketOption, interface_description::InterfaceDescriptionOption},
};
use std::{
    fs::{self, File},
    io::Read,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command, Stdio},
};

/// A packet of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Packet {
    port: String,
    outbound: bool,
    comment: String,
    frame: Vec<u8>,
}

impl Packet {
    /// The number in a datagram that [`numbered`] sends.
    fn number(&self) -> u32 {
        u32::from_be_bytes(self.frame[42..46].try_into().unwrap())
    }
}

fn packets(file: &Path) -> Vec<Packet> {
    let mut reader = PcapNgReader::new(File::open(file).unwrap()).unwrap();
    let (mut ports, mut packets, mut last) = (Vec::new(), Vec::new(), Default::default());
    while let Some(block) = reader.next_block() {
        match block.unwrap() {
            Block::InterfaceDescription(interface) => {
                ports.extend(interface.options.iter().find_map(|option| match option {
                    InterfaceDescriptionOption::IfName(name) => Some(name.to_string()),
                    _ => None,
                }));
            }
            Block::EnhancedPacket(packet) => {
                let [EnhancedPacketOption::Comment(comment), EnhancedPacketOption::Flags(flags)] =
                    &packet.options[..]
                else {
                    panic!("{packet:?}")
                };
                assert_eq!(packet.original_len as usize, packet.data.len());
                assert!(packet.timestamp >= last);
                last = packet.timestamp;
                packets.push(Packet {
                    port: ports[packet.interface_id as usize].clone(),
                    outbound: *flags == 2,
                    comment: comment.to_string(),
                    frame: packet.data.to_vec(),
                });
            }
            block => panic!("{block:?}"),
        }
    }
    packets
}

/// A capture that runs. It is killed at the end.
struct Capture(Child);

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Capture {
    /// Starts it, and waits until it captures.
    fn start(daemon: &Daemon, file: &Path, words: &[&str]) -> Capture {
        let mut command = Command::new(binary());
        command.args(["capture", "--instance", &daemon.instance, "-w"]).arg(file).args(words);
        let mut capture = Capture(command.stderr(Stdio::piped()).spawn().unwrap());
        eventually("the capture begins", || match fs::metadata(file) {
            Ok(data) if data.len() > 0 => Ok(()),
            other => {
                assert!(capture.0.try_wait().unwrap().is_none(), "the capture has ended");
                Err(format!("{other:?}"))
            }
        });
        capture
    }

    fn interrupt(&self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    }

    /// Its output at its end.
    fn ended(mut self) -> String {
        let mut said = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(self.0.wait().unwrap().success(), "{said}");
        said
    }
}

/// The program on a port.
fn program(bed: &Bed) -> String {
    let link = output(&bed.the_box, "ip -d link show dev p1");
    let name = link.split("prog/xdp ").nth(1).and_then(|rest| rest.split_once("name ")).map(|(_, name)| name);
    name.and_then(|name| name.split_whitespace().next()).unwrap_or(&link).to_owned()
}

fn is_plain(bed: &Bed) {
    eventually("the program without a capture is back", || match program(bed) {
        name if name == "millrace" => Ok(()),
        other => Err(other),
    });
}

/// Sends numbered datagrams, and asserts that none is lost.
fn all_arrive(bed: &Bed, count: u32) {
    assert_eq!(numbered(bed, "10.7.1.2:4000", "10.7.2.2:4000", count), Vec::from_iter(0..count));
}

fn start() -> (Bed, Leftovers, Daemon, tempfile::TempDir) {
    let bed = Bed::new();
    let leftovers = Leftovers(bed.name.clone());
    let daemon = bed.start(2, &[]);
    all_arrive(&bed, 100);
    (bed, leftovers, daemon, tempfile::tempdir().unwrap())
}

#[test]
#[ignore = "needs root"]
fn every_packet_is_in_the_file_as_it_came_in_and_as_it_left() {
    let (bed, _leftovers, daemon, directory) = start();
    let file = directory.path().join("all.pcapng");
    is_plain(&bed);
    let capture = Capture::start(&daemon, &file, &["--count", "1000", "udp", "port", "4000"]);
    assert_eq!(program(&bed), "millrace_captur");
    all_arrive(&bed, 1000);
    assert_eq!(capture.ended(), "millrace: 1000 packets captured\n");
    is_plain(&bed);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);

    let all = packets(&file);
    assert_eq!(all.len(), 2000);
    for (number, pair) in (0..).zip(all.chunks(2)) {
        let [came, left] = pair else { unreachable!() };
        assert_eq!((came.number(), left.number()), (number, number));
        assert_eq!(
            (came.port.as_str(), came.outbound, left.port.as_str(), left.outbound),
            ("p1", false, "p2", true)
        );
        assert_eq!((came.frame[22], left.frame[22]), (64, 63), "TTL");
        assert_eq!(came.comment, format!("router {}: forwarded by p2", bed.red_name()));
        assert_eq!(left.comment, format!("router {}: forwarded from p1", bed.red_name()));
    }
    // tcpdump reads it, too.
    let read = format!("tcpdump -nr {} udp port 4000", file.display());
    let lines = output(&bed.the_box, &read);
    assert_eq!(lines.matches("10.7.1.2.4000 > 10.7.2.2.4000: UDP, length 4").count(), 2000, "{lines}");
}

#[test]
#[ignore = "needs root"]
fn a_capture_takes_packets_of_a_router_a_reason_and_a_port() {
    let (bed, _leftovers, daemon, directory) = start();
    let file = directory.path().join("some.pcapng");
    let ping = |to: &str, ttl: &str| output(&bed.client, &format!("ping -c 3 -i 0.2 -W 1 -t {ttl} {to}"));

    let capture = Capture::start(&daemon, &file, &["--reason", "ttl_exceeded", "--count", "3"]);
    all_arrive(&bed, 10);
    ping("10.7.2.2", "1");
    capture.ended();
    let all = packets(&file);
    assert_eq!(all.len(), 3);
    let comment =
        format!("router {}: to the kernel (ttl_exceeded): TTL or hop limit is 1 or less", bed.red_name());
    assert!(all.iter().all(|p| p.comment == comment && p.port == "p1" && p.frame[22] == 1), "{all:#?}");

    let file = directory.path().join("router.pcapng");
    // Afterwards both neighbours are known.
    ping("10.8.2.2", "64");
    let capture = Capture::start(&daemon, &file, &["--router", "host", "p2", "icmp", "--count", "6"]);
    ping("10.7.2.2", "64");
    ping("10.8.2.2", "64");
    capture.ended();
    let all = packets(&file);
    // Each request leaves and each answer comes in by p2.
    assert!(all.iter().all(|p| p.port == "p2" && p.comment.starts_with("router host: ")), "{all:#?}");
    let outbound: Vec<bool> = all.iter().map(|p| p.outbound).collect();
    assert_eq!(outbound, [true, false, true, false, true, false]);

    for (words, why) in [
        (vec!["p3"], "'p3' is not a port, and the filter 'p3' is wrong"),
        (vec!["p1", "udp", "prot", "53"], "the filter 'udp prot 53' is wrong: can't parse filter expression"),
        (vec!["--router", "none"], "there is no router none"),
        (vec!["--reason", "none"], "there is no reason none"),
    ] {
        let said = daemon.millrace(&[&["capture", "-w", "-"], &words[..]].concat());
        let error = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(!said.status.success() && error.contains(why), "{words:?}: {error}");
    }
    is_plain(&bed);
}

/// However captures end, no packet is lost, and the next one can begin.
#[test]
#[ignore = "needs root"]
fn captures_come_and_go_without_a_lost_packet() {
    let (bed, _leftovers, daemon, directory) = start();
    let file = |name: &str| directory.path().join(name);
    let interrupted = Capture::start(&daemon, &file("1"), &[]);
    let second = daemon.millrace(&["capture", "-w", "-"]);
    assert!(String::from_utf8_lossy(&second.stderr).contains("another capture is running"), "{second:?}");
    all_arrive(&bed, 500);
    interrupted.interrupt();
    let said = interrupted.ended();
    assert!(said.ends_with(" packets captured\n"), "{said}");
    all_arrive(&bed, 500);

    // The client is killed while no packet comes, and while packets come.
    for (name, count) in [("2", 0), ("3", 500)] {
        let killed = Capture::start(&daemon, &file(name), &[]);
        all_arrive(&bed, count);
        drop(killed);
        is_plain(&bed);
        all_arrive(&bed, 500);
    }

    // The reader of the pipe ends.
    let piped = format!(
        "{} capture --instance {} -w - | head -c 1000 >{}",
        binary().display(),
        daemon.instance,
        file("4").display()
    );
    let mut piped = Command::new("sh").args(["-c", &piped]).spawn().unwrap();
    eventually("the pipe has read enough", || {
        all_arrive(&bed, 100);
        match piped.try_wait().unwrap() {
            Some(status) if status.success() => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    is_plain(&bed);

    // The disk is full.
    let disk = file("disk");
    fs::create_dir(&disk).unwrap();
    let _mounted = Mounted::new(&disk);
    let full = Capture::start(&daemon, &disk.join("5"), &[]);
    let mut full = full;
    let said = eventually("the disk is full", || {
        all_arrive(&bed, 500);
        let status = full.0.try_wait().unwrap().ok_or("it goes on")?;
        let mut said = String::new();
        full.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(!status.success(), "{said}");
        Ok(said)
    });
    assert!(said.contains("No space left on device"), "{said}");
    is_plain(&bed);
    all_arrive(&bed, 500);

    // When the daemon ends, the capture ends too.
    let left = Capture::start(&daemon, &file("6"), &[]);
    daemon.leave();
    assert_eq!(program(&bed), "millrace");
    drop(left);
    all_arrive(&bed, 500);
}

struct Mounted(std::path::PathBuf);

impl Mounted {
    fn new(at: &Path) -> Mounted {
        lab::command::run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=128k", "capture"]).arg(at))
            .unwrap();
        Mounted(at.into())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// Flow rules and larger tables change the program while a capture runs. It goes on.
#[test]
#[ignore = "needs root"]
fn a_capture_outlives_a_change_of_the_program() {
    let (bed, _leftovers, daemon, directory) = start();
    let file = directory.path().join("all.pcapng");
    let capture = Capture::start(&daemon, &file, &["udp", "port", "4000"]);
    all_arrive(&bed, 100);
    daemon.ask(&["flows", "add", "priority=1,actions=NORMAL"]);
    assert_eq!(program(&bed), "millrace_flow_c");
    all_arrive(&bed, 100);
    daemon.ask(&["flows", "add", "priority=9,udp,tp_dst=4000,actions=drop"]);
    assert!(numbered(&bed, "10.7.1.2:4000", "10.7.2.2:4000", 5).is_empty());
    daemon.ask(&["flows", "del"]);
    eventually("the program without rules is back", || match program(&bed) {
        name if name == "millrace_captur" => Ok(()),
        other => Err(other),
    });
    all_arrive(&bed, 100);
    capture.interrupt();
    assert_eq!(capture.ended(), "millrace: 305 packets captured\n");
    let dropped =
        packets(&file).into_iter().filter(|p| p.comment == "dropped (rule_drop): a flow rule drops it");
    assert_eq!(dropped.count(), 5);
    is_plain(&bed);
}

/// The filter matches packets only after a flow rule or NAT has changed them, so all captured packets are outbound.
fn as_they_leave(daemon: &Daemon, file: &Path, filter: &[&str], send: impl FnOnce()) -> Vec<Packet> {
    let capture = Capture::start(daemon, file, filter);
    send();
    capture.interrupt();
    capture.ended();
    let packets = packets(file);
    assert!(packets.iter().all(|packet| packet.outbound), "{packets:?}");
    packets
}

#[test]
#[ignore = "needs root"]
fn a_packet_that_a_flow_rule_changes_is_captured_as_it_leaves() {
    let (bed, _leftovers, daemon, directory) = start();
    daemon.ask(&["flows", "add", "priority=1,actions=NORMAL"]);
    daemon.ask(&["flows", "add", "priority=9,udp,tp_dst=4001,actions=mod_tp_dst:4000,NORMAL"]);
    let file = directory.path().join("changed.pcapng");
    let filter = ["udp", "dst", "port", "4000"];
    let seen = as_they_leave(&daemon, &file, &filter, || {
        let server = udp(&bed.server, "10.7.2.2:4000");
        let client = udp(&bed.client, "10.7.1.2:4000");
        let mut buffer = [0; 64];
        for number in 0_u32..20 {
            client.send_to(&number.to_be_bytes(), "10.7.2.2:4001").unwrap();
            assert_eq!(server.recv(&mut buffer).unwrap(), 4);
        }
    });
    assert_eq!(seen.iter().map(Packet::number).collect::<Vec<_>>(), Vec::from_iter(0..20));
}

#[test]
#[ignore = "needs root"]
fn a_packet_that_nat_changes_is_captured_as_it_leaves() {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    nft(&bed, connections::HOME);
    let (mut daemon, _config) = connections::start(&bed, "");
    connections::until_ruled(&mut daemon, &bed);
    let (client, server) = (udp(&bed.client, "10.7.1.2:4000"), udp(&bed.server, "0.0.0.0:5000"));
    let to = format!("{SERVER}:5000");
    connections::until_fast(&daemon, ":4000", || _ = exchange(&client, &to, &server));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("nat.pcapng");
    // The masqueraded address, in packets to the server, and the client's own address in answers.
    let filter = ["src host 10.7.2.1 or dst host 10.7.1.2"];
    let seen = as_they_leave(&daemon, &file, &filter, || {
        (0..20).for_each(|_| _ = exchange(&client, &to, &server));
    });
    assert_eq!(seen.len(), 40, "{seen:?}");
}
