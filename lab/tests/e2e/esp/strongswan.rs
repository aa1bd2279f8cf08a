//! strongSwan's user-space IPsec (kernel-libipsec, ESP in UDP) as the other end. It agrees on keys with a strongSwan in
//! red, whose IKE goes through Millrace's paths. The keys are given to Millrace, which has the packets.

use super::*;
use crate::bed::{Background, output, run};

/// charon in a namespace, with its own files.
struct Charon<'a> {
    files: &'a Files,
    name: &'static str,
    namespace: &'a lab::namespace::Namespace,
    _process: Background,
}

impl<'a> Charon<'a> {
    fn start(
        files: &'a Files,
        name: &'static str,
        namespace: &'a lab::namespace::Namespace,
        connection: &str,
    ) -> Self {
        let at = |end: &str| files.path(&format!("{name}.{end}")).display().to_string();
        let text = format!(
            "charon {{
                load_modular = no
                load = random nonce openssl aes gcm sha2 hmac kdf kernel-libipsec kernel-netlink socket-default vici
                # A rule for a table of its own would leave the router to the kernel.
                routing_table = 0
                plugins {{ vici {{ socket = unix://{} }} }}
                filelog {{ all {{ path = {}
                    default = 1
                    chd = 4
                    flush_line = yes }} }}
            }}",
            at("vici"),
            at("log")
        );
        let (settings, run) = (files.write(&format!("{name}.conf"), &text), at("run"));
        files.write(&format!("{name}.swanctl"), connection);
        // Its files under /run have fixed names, which two of them would share. Where AppArmor has a profile for it, it
        // may use no other files.
        let binary = at("binary");
        let script = format!(
            "mkdir {run} && mount --bind {run} /run && cp /usr/lib/ipsec/charon {binary}\nSTRONGSWAN_CONF={} exec {binary}\n",
            settings.display()
        );
        files.write(&format!("{name}.sh"), &script);
        let process = Background::start(namespace, &format!("unshare -m sh -e {}", at("sh")));
        let charon = Self { files, name, namespace, _process: process };
        eventually_true("charon (strongswan-charon, libcharon-extra-plugins: `make setup`)", || {
            files.path(&format!("{name}.vici")).exists()
        });
        charon.swanctl(&format!("--load-all --noprompt --file {}", at("swanctl")));
        charon
    }

    fn swanctl(&self, words: &str) -> String {
        let socket = self.files.path(&format!("{}.vici", self.name));
        run(self.namespace, &format!("swanctl {words} --uri unix://{}", socket.display()))
    }

    /// SPIs in and out of the installed child SA, hexadecimal, and how many packets charon itself sent or received with
    /// it.
    fn child(&self) -> (u32, u32, u64) {
        let text = self.swanctl("--list-sas --raw");
        let mut children = text.split("{c-").skip(1).filter(|child| child.contains("state=INSTALLED"));
        let child = children.next().unwrap_or_else(|| panic!("{text}"));
        let value = |name: &str| child.split(&format!(" {name}=")).nth(1).unwrap().split(' ').next().unwrap();
        let spi = |name| u32::from_str_radix(value(name), 16).unwrap();
        let packets = |name| value(name).parse::<u64>().unwrap();
        (spi("spi-in"), spi("spi-out"), packets("packets-in") + packets("packets-out"))
    }

    /// The latest keys: that of the initiator, and that of the other one.
    fn keys(&self) -> [String; 2] {
        let log = fs::read_to_string(self.files.path(&format!("{}.log", self.name))).unwrap();
        ["initiator", "responder"].map(|of| {
            let behind = log.rsplit(&format!("encryption {of} key => 20 bytes")).next().unwrap();
            let rows = behind.lines().skip(1).take(2).map(|line| line.split_once(": ").unwrap().1);
            rows.flat_map(|row| row.split("  ").next().unwrap().split(' ')).collect()
        })
    }
}

fn connection(local: (&str, &str, &str), remote: (&str, &str, &str)) -> String {
    let ((near, id, net), (far, its, theirs)) = (local, remote);
    format!(
        "connections {{ t {{
            version = 2
            local_addrs = {near}
            remote_addrs = {far}
            encap = yes
            proposals = aes128-sha256-modp2048
            local {{ auth = psk
                id = {id} }}
            remote {{ auth = psk
                id = {its} }}
            children {{ c {{
                local_ts = {net}
                remote_ts = {theirs}
                esp_proposals = aes128gcm16 }} }} }} }}
        secrets {{ ike-1 {{ secret = not-much-of-one }} }}\n"
    )
}

#[test]
#[ignore = "needs root"]
fn strongswan_is_the_other_end() {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    let files = Files(tempfile::tempdir().unwrap());
    bed.server.ip_batch(&format!("link set lo up\naddr add {FAR}/32 dev lo\n")).unwrap();
    bed.client.ip_batch("route add 10.9.0.0/24 via 10.7.1.1\n").unwrap();
    let text = config(&bed, "sas_later = [\"to-server\", \"from-server\"]")
        .replace("protocol = \"esp\"", "protocol = \"udp\", destination_port = 4500");
    let daemon = start(&bed, &files.write("m.toml", &text));
    let (near, far) = (("10.7.2.1", "near", "10.7.1.0/24"), ("10.7.2.2", "far", "10.9.0.0/24"));
    let here = Charon::start(&files, "near", &bed.red, &connection(near, far));
    let there = Charon::start(&files, "far", &bed.server, &connection(far, near));
    let initiated = here.swanctl("--initiate --child c --timeout 20");
    assert!(initiated.contains("initiate completed successfully"), "{initiated}");
    // No packet is sent before it can be encrypted.
    assert!(!output(&bed.client, &format!("ping -n -c 1 -W 1 {FAR}")).contains("1 received"));

    let mut old = None;
    for (round, count) in (1..).zip([1500, 700]) {
        let ((inbound, outbound, _), [ours, theirs]) = (here.child(), here.keys());
        let (out, back) = (format!("out{round}"), format!("in{round}"));
        files.secret(&out, &ours);
        files.secret(&back, &theirs);
        let udp = "udp = { local = 4500, remote = 4500 }";
        let numbers = format!("{udp}\nsequence_file = \"{out}.sequence\"");
        let set = sa("to-server", outbound, &out, &numbers) + &sa("from-server", inbound, &back, udp);
        let set = files.write("set.toml", &set);
        let done = daemon.millrace(&["sas", "set", set.to_str().unwrap()]);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        ping(&bed.client, FAR, 20);
        assert_eq!(both_ways(&bed, count), [Vec::from_iter(0..count), Vec::from_iter(0..count)]);
        assert_eq!(here.child(), (inbound, outbound, 0), "its own encryption had nothing to do");
        let seen = there.child();
        assert_eq!(seen, (outbound, inbound, u64::from(2 * count + 40)));
        let sas = daemon.ask(&["sas"]);
        let sequence = |spi: u32| {
            let of_spi = sas["sas"].as_array().unwrap().iter().find(|sa| sa["spi"] == spi);
            of_spi.unwrap_or_else(|| panic!("{sas:#}"))["sequence"].as_u64().unwrap()
        };
        let all = u64::from(count + 20);
        assert_eq!((sequence(outbound), sequence(inbound)), (all, all));
        if let Some(old) = old.replace(inbound) {
            let removed = daemon.millrace(&["sas", "remove", "from-server", &format!("{old:#x}")]);
            assert!(removed.status.success(), "{}", String::from_utf8_lossy(&removed.stderr));
        } else {
            let rekeyed = here.swanctl("--rekey --child c");
            assert!(rekeyed.contains("rekey completed successfully"), "{rekeyed}");
            eventually_true("other keys at both ends", || {
                here.child().0 != inbound && there.child().1 == here.child().0
            });
        }
    }
    daemon.stop();
}
