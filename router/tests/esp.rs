//! ESP through `millrace paths run`: scapy's IPsec decrypts what Millrace sends, and Millrace decrypts what
//! scapy encrypts, byte for byte. Also keys, sequence numbers, and what is refused. Needs python3-scapy and
//! python3-cryptography, which `make setup` installs.

use pcap_file::pcap::{PcapPacket, PcapReader, PcapWriter};
use serde_json::{Value, json};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

const KEY_OUT: &str = "000102030405060708090a0b0c0d0e0f10111213";
const KEY_IN: &str = "202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f40414243";

struct Directory(tempfile::TempDir);

impl Directory {
    fn new() -> Self {
        Directory(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let file = self.file(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    }

    fn capture(&self, name: &str, frames: &[Vec<u8>]) {
        let mut writer = PcapWriter::new(Vec::new()).unwrap();
        for frame in frames {
            writer.write_packet(&PcapPacket::new(Duration::ZERO, frame.len() as u32, frame)).unwrap();
        }
        fs::write(self.file(name), writer.into_writer()).unwrap();
    }

    fn frames(&self, name: &str) -> Vec<Vec<u8>> {
        let bytes = fs::read(self.file(name)).unwrap();
        let mut reader = PcapReader::new(&bytes[..]).unwrap();
        std::iter::from_fn(|| reader.next_packet().map(|packet| packet.unwrap().data.to_vec())).collect()
    }

    fn run(&self, config: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
        command
            .args(["paths", "run", "--json", "--config", config])
            .args(arguments)
            .current_dir(self.0.path());
        let output = command.output().unwrap();
        for text in [&output.stdout, &output.stderr] {
            let text = String::from_utf8_lossy(text);
            for key in [KEY_OUT, KEY_IN] {
                assert!(!text.contains(&key[..16]), "a key is shown: {text}");
            }
        }
        output
    }

    fn report(&self, config: &str, arguments: &[&str]) -> Value {
        let output = self.run(config, arguments);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn refused(&self, config: &str) -> String {
        let output = self.run(config, &["--pcap", "in.pcap"]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

struct Case {
    mode: &'static str,
    outer: u8,
    inner: u8,
    udp: bool,
    esn: bool,
    library: &'static str,
}

impl Case {
    fn name(&self) -> String {
        let Case { mode, outer, inner, udp, esn, library } = self;
        format!(
            "{mode}-{inner}-in-{outer}{}{}-{library}",
            ["", "-udp"][usize::from(*udp)],
            ["", "-esn"][usize::from(*esn)]
        )
    }

    /// The first sequence number. With 64-bit numbers, the packets cross 2^32.
    fn first(&self) -> u64 {
        if self.esn { (1 << 32) - 100 } else { 1 }
    }

    fn json(&self) -> Value {
        json!({
            "mode": self.mode, "outer": self.outer, "inner": self.inner, "udp": self.udp, "esn": self.esn,
            "key_out": KEY_OUT, "key_in": KEY_IN, "spi_out": 0x1001, "spi_in": 0x2002, "first": self.first(),
        })
    }

    fn ends(&self) -> (&'static str, &'static str) {
        match self.outer {
            4 => ("192.0.2.1", "192.0.2.2"),
            _ => ("2001:db8::1", "2001:db8::2"),
        }
    }

    fn config(&self) -> String {
        let (local, remote) = self.ends();
        let udp = if self.udp { "udp = { local = 4500, remote = 4500 }" } else { "" };
        let sa = |name: &str, spi: u32, rest: &str| {
            format!(
                "[[sa]]\nname = \"{name}\"\nspi = {spi}\nkey_file = \"{name}.key\"\nmode = \"{}\"\nesn = {}\nlocal = \"{local}\"\nremote = \"{remote}\"\n{udp}\n{rest}\n",
                self.mode, self.esn
            )
        };
        let of_esp =
            if self.udp { "protocol = \"udp\", destination_port = 4500" } else { "protocol = \"esp\"" };
        [
            &format!("crypto = \"{}\"\n[[port]]\nname = \"lan\"\nmac = \"02:00:00:00:00:01\"\n", self.library),
            &sa("out", 0x1001, "sequence_file = \"out.sequence\""),
            &sa("in", 0x2002, "window = 64"),
            &format!("[[path]]\nname = \"in\"\nclass = {{ {of_esp} }}\n"),
            "chain = [\"check\", { element = \"esp_decrypt\", sas = [\"in\"] }, \"check\", { element = \"forward\", port = \"lan\" }]\n",
            "[[path]]\nname = \"out\"\n",
            "chain = [\"check\", { element = \"esp_encrypt\", sa = \"out\" }, { element = \"forward\", port = \"lan\" }]\n",
        ]
        .concat()
    }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for library in ["ipsec-mb", "aws-lc-rs"] {
        for esn in [false, true] {
            for (mode, outer, inner) in [
                ("tunnel", 4, 4),
                ("tunnel", 4, 6),
                ("tunnel", 6, 4),
                ("tunnel", 6, 6),
                ("transport", 4, 4),
                ("transport", 6, 6),
            ] {
                cases.push(Case { mode, outer, inner, udp: false, esn, library });
                // Scapy supports ESP in UDP with IPv4 only.
                if outer == 4 {
                    cases.push(Case { mode, outer, inner, udp: true, esn, library });
                }
            }
        }
    }
    cases
}

fn peer(what: &str, directory: &Path) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/esp/peer.py");
    let output = Command::new("/usr/bin/python3").arg(script).arg(what).arg(directory).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "scapy (python3-scapy, python3-cryptography): {out}{err}");
}

fn has_ipsec_mb() -> bool {
    let there = ["/usr/lib/x86_64-linux-gnu/libIPSec_MB.so.1", "/usr/lib/libIPSec_MB.so.1"];
    there.iter().any(|file| Path::new(file).exists())
}

#[test]
fn scapy_and_millrace_decrypt_each_others_packets() {
    let directory = Directory::new();
    let cases: Vec<_> =
        cases().into_iter().filter(|case| case.library != "ipsec-mb" || has_ipsec_mb()).collect();
    if !has_ipsec_mb() {
        eprintln!("libipsec-mb1 is not installed: only aws-lc-rs was tested");
    }
    for case in &cases {
        let name = case.name();
        directory.write(&format!("{name}/case.json"), &case.json().to_string());
        directory.write(&format!("{name}/p.toml"), &case.config());
        directory.write(&format!("{name}/out.key"), &format!("{KEY_OUT}\n"));
        directory.write(&format!("{name}/in.key"), &format!("0x{KEY_IN}"));
    }
    peer("write", directory.0.path());
    for case in &cases {
        let name = case.name();
        let file = |file: &str| format!("{name}/{file}");
        let (plain, sent) = (file("plain.pcap"), file("sent.pcap"));
        let report = directory.report(&file("p.toml"), &["--pcap", &plain, "--out", &sent]);
        assert_eq!((&report["out"], &report["packets"]), (&json!(43), &json!(43)), "{name}: {report:#}");
        assert_eq!(report["crypto"]["library"], case.library);
        let last = if case.esn { u64::MAX } else { u32::MAX.into() };
        let (local, remote) = case.ends();
        assert_eq!(
            report["sas"][0],
            json!({
                "sa": "out", "spi": 0x1001, "direction": "outbound", "mode": case.mode, "local": local,
                "remote": remote, "sequence": 43, "left": last - 43,
            })
        );
        let (encrypted, decrypted) = (file("encrypted.pcap"), file("decrypted.pcap"));
        let report = directory.report(&file("p.toml"), &["--pcap", &encrypted, "--out", &decrypted]);
        assert_eq!(report["out"], json!(43), "{name}: {report:#}");
        assert_eq!(report["sas"][1]["sequence"], json!(case.first() + 3 * 42));
        let expected = directory.frames(&file("expected.pcap"));
        for (n, (found, expected)) in directory.frames(&decrypted).iter().zip(&expected).enumerate() {
            assert_eq!(found, expected, "{name}, packet {n}");
        }
    }
    peer("check", directory.0.path());
}

fn plain() -> Vec<u8> {
    let mut frame = Vec::new();
    let build = etherparse::PacketBuilder::ethernet2([2, 0, 0, 0, 7, 7], [2, 0, 0, 0, 0, 1]);
    build.ipv4([10, 0, 0, 9], [10, 1, 0, 9], 64).udp(1, 2).write(&mut frame, b"some payload").unwrap();
    frame
}

const ONE: Case = Case { mode: "tunnel", outer: 4, inner: 4, udp: false, esn: false, library: "aws-lc-rs" };

fn world() -> Directory {
    let directory = Directory::new();
    directory.write("p.toml", &ONE.config());
    directory.write("out.key", KEY_OUT);
    directory.write("in.key", KEY_IN);
    directory.capture("in.pcap", &vec![plain(); 5]);
    directory
}

fn numbers(frames: &[Vec<u8>]) -> Vec<u64> {
    // The IV, which is the sequence number. It follows Ethernet, IPv4 and ESP.
    frames.iter().map(|frame| u64::from_be_bytes(frame[42..50].try_into().unwrap())).collect()
}

#[test]
fn sequence_numbers_are_never_used_again() {
    let world = world();
    let run = |out: &str| {
        world.report("p.toml", &["--pcap", "in.pcap", "--out", out]);
        numbers(&world.frames(out))
    };
    assert_eq!(run("a.pcap"), [1, 2, 3, 4, 5]);
    let noted = fs::read_to_string(world.file("out.sequence")).unwrap();
    let (rest, number) = noted.trim_end().rsplit_once(' ').unwrap();
    assert_eq!(number, "00000000000000000005");
    assert_eq!(run("b.pcap"), [6, 7, 8, 9, 10]);
    // A start that fails uses no numbers.
    assert!(!world.run("p.toml", &["--pcap", "none.pcap"]).status.success());
    assert_eq!(
        fs::read_to_string(world.file("out.sequence")).unwrap(),
        format!("{rest} 00000000000000000010\n")
    );
    // A process that was killed had noted all the numbers that it might have used.
    world.write("out.sequence", &format!("{rest} 00000000000001048576\n"));
    assert_eq!(run("c.pcap"), [1048577, 1048578, 1048579, 1048580, 1048581]);
    // The last three numbers.
    world.write("out.sequence", &format!("{rest} 00000000004294967292\n"));
    let report = world.report("p.toml", &["--pcap", "in.pcap", "--out", "d.pcap"]);
    assert_eq!(numbers(&world.frames("d.pcap")), [4294967293, 4294967294, 4294967295]);
    let encrypt = &report["paths"][1]["elements"][1];
    assert_eq!(encrypt["dropped"], json!({ "sequence_exhausted": 2 }));
    assert_eq!(encrypt["counted"]["near_end"], json!(3));
    // A file that is not understood, or belongs to another key, is refused and not overwritten.
    for (text, wanted) in [
        ("no", "is damaged"),
        (&format!("{rest} 5\n"), "is damaged"),
        ("millrace-sequence 1 0123456789abcdef 00000000000000000005\n", "belongs to another key"),
    ] {
        world.write("out.sequence", text);
        let error = world.refused("p.toml");
        assert!(
            error.contains("p.toml:6: sa.sequence_file: SA out: the sequence file") && error.contains(wanted),
            "{error}"
        );
        assert_eq!(fs::read_to_string(world.file("out.sequence")).unwrap(), text);
    }
}

/// Decrypts `sent.pcap` at the other end of `out`, which takes packets of up to `mtu` bytes. Returns the
/// packets that came through, those that were reordered, and the drops.
fn received(world: &Directory, mtu: u16) -> Value {
    let receiver = format!(
        "[[port]]\nname = \"lan\"\nmac = \"02:00:00:00:00:01\"\n\
         [[sa]]\nname = \"from-a\"\nspi = 0x1001\nkey_file = \"out.key\"\nmode = \"tunnel\"\nlocal = \"192.0.2.2\"\nremote = \"192.0.2.1\"\nmtu = {mtu}\n\
         [[path]]\nname = \"in\"\nchain = [\"check\", {{ element = \"esp_decrypt\", sas = [\"from-a\"] }}, {{ element = \"forward\", port = \"lan\" }}]\n"
    );
    world.write("receiver.toml", &receiver);
    let report = world.report("receiver.toml", &["--pcap", "sent.pcap"]);
    let decrypt = &report["paths"][0]["elements"][1];
    json!([report["out"], decrypt["counted"]["reordered"], decrypt["dropped"]])
}

#[test]
fn late_packets_are_counted_and_packets_too_long_for_their_sa_are_dropped() {
    let world = world();
    world.report("p.toml", &["--pcap", "in.pcap", "--out", "sent.pcap"]);
    let mut sent = world.frames("sent.pcap");
    sent.swap(1, 3);
    assert_eq!(numbers(&sent), [1, 4, 3, 2, 5]);
    // 40 bytes inside, 2 of padding, 2 of trailer, and the tag, IV, ESP and IPv4 header around them.
    assert!(sent.iter().all(|frame| frame.len() == 14 + 96));
    world.capture("sent.pcap", &sent);
    assert_eq!(received(&world, 96), json!([5, 2, {}]));
    assert_eq!(received(&world, 95), json!([0, 0, { "oversized": 5 }]));
}

#[test]
fn a_wrong_configuration_is_refused_with_its_line() {
    let world = world();
    let right = ONE.config();
    let mut cases = vec![
        (
            right.replace("sequence_file = \"out.sequence\"", ""),
            "p.toml:6: sa: SA out is used by esp_encrypt, and needs sequence_file",
        ),
        (
            right.replace("spi = 8194", "spi = 255"),
            "p.toml:17: sa.spi: 255 is not allowed: 256 to 4294967295",
        ),
        (
            right.replace("sas = [\"in\"]", "sas = [\"inn\"]"),
            "path in: element 2 uses inn, which is not an [[sa]] of this file: out, in",
        ),
        (right.replace("sa = \"out\"", "sa = \"in\""), "SA in is used by esp_encrypt and by esp_decrypt"),
        (
            right.replace("window = 64", "window = 100"),
            "sa.window: 100 is not allowed: a power of two from 64 to 65536 packets",
        ),
        (right.replace("window = 64", "df = \"set\""), "SA in is used by esp_decrypt, which has no df"),
        (right.replace("window = 64", "mtu = 67"), "p.toml:24: sa.mtu: 67 is not allowed: 68 to 65000"),
        (right.replace("\"in.key\"", "\"none.key\""), "p.toml:16: sa.key: SA in: cannot read the key file"),
        (right.replace("\"in.key\"", "\"out.key\""), "it has the key of SA out"),
        (
            right.replace("mode = \"tunnel\"", "mode = \"tunel\""),
            "\"tunel\" is not allowed: \"tunnel\" or \"transport\"",
        ),
        (right.replace("key_file = \"in.key\"", &format!("key = \"{KEY_IN}\"")), "unknown field 'key'"),
        (right.replace("key_file = \"in.key\"", ""), "SA in needs a key"),
        (
            right.replace("\"in.key\"", &format!("\"{KEY_IN}\"")),
            "SA in has what looks like the key itself: key_file",
        ),
        (
            right.replace("key_file = \"in.key\"", &format!("key_env = \"0x{KEY_OUT}\"")),
            "SA in has what looks like the key itself: key_env",
        ),
        (
            right.replace("mode = \"tunnel\"", "mode = \"transport\"\ndestination = [\"192.0.2.0/24\"]"),
            "is in transport mode, which has only packets between 192.0.2.1 and 192.0.2.2",
        ),
        (
            right.replace("key_file = \"in.key\"", "key_env = \"MILLRACE_NO_SUCH_KEY\""),
            "the environment has no MILLRACE_NO_SUCH_KEY",
        ),
        (
            right.replace("\"aws-lc-rs\"", "\"openssl\""),
            "\"openssl\" is not allowed: \"ipsec-mb\" or \"aws-lc-rs\"",
        ),
    ];
    let second = right.replace("spi = 8194", "spi = 4097");
    let second = second.replace("[[path]]\nname = \"out\"", "[[sa]]\nname = \"other\"\nspi = 4097\nkey_file = \"x\"\nmode = \"tunnel\"\nlocal = \"192.0.2.1\"\nremote = \"192.0.2.9\"\n[[path]]\nname = \"out\"");
    cases.push((second.replace("[\"in\"]", "[\"in\", \"other\"]"), "has the same SPI as SA in"));
    for (text, wanted) in cases {
        assert_ne!(text, right, "{wanted}");
        world.write("p.toml", &text);
        let error = world.refused("p.toml");
        assert!(error.contains(wanted), "the error lacks {wanted:?}: {error}");
    }
    world.write("p.toml", &right);
    for (key, wanted) in [
        ("00", "has 2 digits: 40 or 72 hexadecimal digits are allowed"),
        (&KEY_IN[1..], "does not consist of pairs of hexadecimal digits"),
        (&format!("{KEY_IN}00"), "has 74 digits"),
        ("", "has 0 digits"),
    ] {
        world.write("in.key", key);
        let error = world.refused("p.toml");
        assert!(error.contains(wanted), "the error lacks {wanted:?}: {error}");
    }
    world.write("in.key", KEY_IN);
    fs::set_permissions(world.file("in.key"), fs::Permissions::from_mode(0o640)).unwrap();
    assert!(world.refused("p.toml").contains("is open to others than its owner: chmod 600"));
}

/// A directory with the example of the documentation, `p.toml`, and its keys.
fn documented() -> Directory {
    let world = Directory::new();
    let text = include_str!("../../docs/howto/esp.md");
    let start = text.find("```toml\n").unwrap() + "```toml\n".len();
    world.write("p.toml", &text[start..start + text[start..].find("```").unwrap()]);
    world.write("to-b.key", KEY_OUT);
    world.write("from-b.key", KEY_IN);
    world
}

/// The example of the documentation is a valid file, and does what it says.
#[test]
fn the_documented_example_is_right() {
    let world = documented();
    world.capture("in.pcap", &[plain()]);
    let report = world.report("p.toml", &["--pcap", "lan=in.pcap", "--out", "out.pcap"]);
    assert_eq!(report["paths"][1]["out"], json!({ "wan": 1 }), "{report:#}");
    let sent = world.frames("out.pcap").remove(0);
    // It goes to the next hop of the peer's address, with a TTL of its own.
    assert_eq!(sent[..14], [2, 0, 0, 0, 9, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
    assert_eq!((sent[22], sent[23], &sent[26..34]), (64, 50, &[192, 0, 2, 1, 192, 0, 2, 2][..]));
}

/// RFC 4301 section 5.2: packets that must be encrypted, but come in clear, are discarded. Packets that were
/// inside ESP continue.
#[test]
fn packets_in_clear_that_must_be_encrypted_are_discarded() {
    let world = documented();
    // The peer.
    world.write(
        "peer.toml",
        "[[port]]\nname = \"p\"\nmac = \"02:00:00:00:00:02\"\n\
         [[sa]]\nname = \"to-a\"\nspi = 0x2002\nmode = \"tunnel\"\nlocal = \"192.0.2.2\"\nremote = \"192.0.2.1\"\n\
         key_file = \"from-b.key\"\nsequence_file = \"peer.sequence\"\n\
         [[path]]\nname = \"out\"\nchain = [\"check\", { element = \"esp_encrypt\", sa = \"to-a\" }, { element = \"forward\", port = \"p\" }]\n",
    );
    let from_b = |from: [u8; 4]| {
        let build = etherparse::PacketBuilder::ethernet2([2, 0, 0, 0, 9, 1], [2, 0, 0, 0, 0, 2]);
        let mut frame = Vec::new();
        build.ipv4(from, [10, 0, 0, 9], 64).udp(1, 2).write(&mut frame, b"some payload").unwrap();
        frame
    };
    let inside = from_b([10, 1, 0, 9]);
    world.capture("inside.pcap", std::slice::from_ref(&inside));
    world.report("peer.toml", &["--pcap", "inside.pcap", "--out", "esp.pcap"]);
    let esp = world.frames("esp.pcap").remove(0);
    // The packet in clear, the same packet in ESP, and a packet in clear that no SA protects.
    world.capture("in.pcap", &[inside.clone(), esp, from_b([10, 2, 0, 9])]);
    let report = world.report("p.toml", &["--pcap", "wan=in.pcap", "--out", "out.pcap"]);
    let path = |n: usize| &report["paths"][n];
    assert_eq!((&path(0)["packets"], &path(0)["out"]), (&json!(1), &json!({ "lan": 1 })), "{report:#}");
    assert_eq!((&path(2)["packets"], &path(2)["dropped"]), (&json!(1), &json!({ "discarded": 1 })));
    let out = world.frames("out.pcap");
    assert_eq!((out.len(), &out[0][26..34]), (1, &inside[26..34]));
    assert_eq!(out[0][34..], inside[34..]);
}
