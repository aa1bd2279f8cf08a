//! TLS between two networks, and with wrong files.

use super::*;
use rcgen::{CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose};
use std::path::PathBuf;

/// A directory with a CA and the certificates that it has signed.
pub struct Authority {
    directory: tempfile::TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("ca"), issuer.pem()).unwrap();
        Self { directory, issuer }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A new key and its certificate from this CA. The member trusts the CA `trusted`.
    pub fn member(&self, name: &str, trusted: &Authority) -> TlsFiles {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::default().signed_by(&key, &self.issuer).unwrap();
        std::fs::write(self.file(&format!("{name}.key")), key.serialize_pem()).unwrap();
        std::fs::write(self.file(&format!("{name}.cert")), certificate.pem()).unwrap();
        TlsFiles {
            key: self.file(&format!("{name}.key")),
            certificate: self.file(&format!("{name}.cert")),
            ca: trusted.file("ca"),
        }
    }
}

#[test]
fn tls_with_certificates_of_one_authority_carries_bytes_both_ways() {
    let ca = Authority::new("ours");
    let controller = Observed::start(&["pssl:0:127.0.0.1"], Some(ca.member("controller", &ca))).unwrap();
    let target = format!("ssl:{}", controller.address());
    let switch = Observed::start(&[&target], Some(ca.member("switch", &ca))).unwrap();
    let (there, here) = (controller.connected(), switch.connected());
    for (from, from_id, to, to_id) in
        [(&switch, here, &controller, there), (&controller, there, &switch, here)]
    {
        from.network.send(from_id, pattern(MUCH / 4));
        // The sender is stuck by then. The bytes that TLS has taken must leave later.
        thread::sleep(Duration::from_millis(300));
        let mut read = Vec::new();
        while read.len() < MUCH / 4 {
            read.extend(to.received(to_id));
        }
        assert!(read == pattern(MUCH / 4));
        let mut written = 0;
        while written < MUCH / 4 {
            match from.next() {
                NetEvent::Written { bytes, .. } => written += bytes,
                event => panic!("{event:?}"),
            }
        }
        assert_eq!(written, MUCH / 4);
    }
    controller.network.read(there);
    switch.network.close(here, "done");
    assert_eq!(controller.closed(there), "closed by the peer");
    assert_eq!(switch.closed(here), "done");
}

/// This holds if one address has all sockets that wait at a listener, and also if many addresses have them.
#[test]
fn idle_sockets_keep_no_controller_out() {
    let ca = Authority::new("ours");
    let pace = Timing { connect: PATIENCE * 2, ..PACE };
    for sources in [1, 12] {
        let files = ca.member("switch", &ca);
        let switch = Observed::start_at(&["pssl:0:127.0.0.1"], Some(files), pace).unwrap();
        let dial = |source| (0..ROOM.waiting_of_a_source * 2).map(move |_| source);
        let idle: Vec<_> =
            (2..2 + sources).flat_map(dial).map(|source| dial_from(source, switch.address())).collect();
        let target = format!("ssl:{}", switch.address());
        let controller = Observed::start_at(&[&target], Some(ca.member("controller", &ca)), pace).unwrap();
        let (here, there) = (switch.connected(), controller.connected());
        controller.network.send(there, HELLO.to_vec());
        assert_eq!(switch.received(here), HELLO);
        assert_eq!(controller.network.report()[0].attempts, 1, "at the first attempt");
        // A flood now evicts other waiting peers, not the controller.
        let more: Vec<_> = (0..64).map(|_| dial_from(1, switch.address())).collect();
        controller.network.send(there, b"more".to_vec());
        assert_eq!(switch.received(here), b"more");
        drop((idle, more));
    }
}

#[test]
fn tls_with_another_authority_is_refused_on_either_side() {
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    let cases = [
        // The switch does not know the signer of the controller's certificate. The controller accepts that of the
        // switch.
        (other.member("controller", &ours), ours.member("switch", &ours), "UnknownIssuer", "UnknownCA"),
        (ours.member("controller", &ours), other.member("switch", &ours), "UnknownCA", "UnknownIssuer"),
    ];
    for (controller, switch, seen_by_switch, seen_by_controller) in cases {
        let controller = Observed::start(&["pssl:0:127.0.0.1"], Some(controller)).unwrap();
        let switch = Observed::start(&[&format!("ssl:{}", controller.address())], Some(switch)).unwrap();
        // A TLS 1.3 client learns only when it reads that its certificate was refused (RFC 8446, 4.4.2.4).
        let reader = |event| match event {
            NetEvent::Connected { connection, .. } => switch.network.read(connection),
            NetEvent::Closed { why, .. } => assert!(why.contains(seen_by_switch), "{why}"),
            event => panic!("{event:?}"),
        };
        let refused = |report: &ControllerReport, by: &str| {
            report.last_end.as_ref().is_some_and(|end| end.contains(by))
        };
        let begun = Instant::now();
        while !refused(&switch.network.report()[0], seen_by_switch) {
            assert!(begun.elapsed() < PATIENCE, "{:?}", switch.network.report());
            switch.events.recv_timeout(Duration::from_millis(10)).into_iter().for_each(reader);
        }
        controller.report_until(|report| refused(report, seen_by_controller));
        controller.nothing_for(Duration::ZERO);
    }
}

#[test]
fn a_peer_that_does_not_speak_tls_is_not_connected() {
    let ca = Authority::new("ours");
    let observed = Observed::start(&["pssl:0:127.0.0.1"], Some(ca.member("switch", &ca))).unwrap();
    let ends = |with: &'static str| {
        observed.report_until(move |report| report.last_end.as_ref().is_some_and(|end| end.ends_with(with)))
    };
    let mut plain = dial(observed.address());
    plain.write_all(&[1, 0, 0, 8, 0, 0, 0, 1]).unwrap();
    ends("TLS handshake: received corrupt message of type InvalidContentType");
    let _silent = dial(observed.address());
    ends("TLS handshake: no answer in 2s");
    observed.nothing_for(Duration::ZERO);
}

#[test]
fn tls_files_that_cannot_be_used_are_named() {
    let ca = Authority::new("ours");
    let (good, other) = (ca.member("switch", &ca), ca.member("other", &ca));
    std::fs::write(ca.file("empty"), "").unwrap();
    std::fs::write(ca.file("garbage"), "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
        .unwrap();
    let path = |file: &str| ca.file(file).display().to_string();
    let cases = [
        (
            TlsFiles { key: ca.file("none"), ..good.clone() },
            format!("cannot read the key {}: No such file", path("none")),
        ),
        (
            TlsFiles { certificate: ca.file("none"), ..good.clone() },
            format!("cannot read the certificate {}: No", path("none")),
        ),
        (
            TlsFiles { ca: ca.file("none"), ..good.clone() },
            format!("cannot read the CA {}: No such", path("none")),
        ),
        (
            TlsFiles { key: good.certificate.clone(), ..good.clone() },
            format!("{} holds no private key", path("switch.cert")),
        ),
        (
            TlsFiles { certificate: good.key.clone(), ..good.clone() },
            format!("{} holds no certificate", path("switch.key")),
        ),
        (
            TlsFiles { ca: ca.file("empty"), ..good.clone() },
            format!("{} holds no certificate", path("empty")),
        ),
        (
            TlsFiles { ca: ca.file("garbage"), ..good.clone() },
            format!("{} is not a CA's certificate", path("garbage")),
        ),
        (
            TlsFiles { certificate: ca.file("garbage"), ..good.clone() },
            format!("{} is not a certificate of X.509", path("garbage")),
        ),
        (
            TlsFiles { key: other.key, ..good },
            format!(
                "the key {} does not belong to the certificate {}",
                path("other.key"),
                path("switch.cert")
            ),
        ),
    ];
    for (files, expected) in cases {
        let error = format!("{:#}", Observed::start(&["pssl:0:127.0.0.1"], Some(files)).err().unwrap());
        assert!(error.starts_with(&expected), "{error:?}, wanted {expected:?}");
    }
    let error = Observed::start(&["pssl:0:127.0.0.1"], None).err().unwrap().to_string();
    assert!(error.contains("needs a key, a certificate and a CA"), "{error}");
}

/// A listener gets TLS and loses it, on the same address.
#[test]
fn a_listener_changes_on_its_address() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (plain, with_tls) =
        (format!("ptcp:{}:127.0.0.1", free.port()), format!("pssl:{}:127.0.0.1", free.port()));
    let ca = Authority::new("ca");
    let mut observed = Observed::start(&[&plain], None).unwrap();
    let secure = OpenFlowSettings { tls: Some(ca.member("switch", &ca)), ..settings(&[&with_tls]) };
    observed.network.follow(&secure).unwrap();
    // Whoever speaks no TLS is turned away.
    let mut peer = dial(free);
    peer.write_all(&HELLO).unwrap();
    observed.report_until(|report| report.last_end.is_some());
    observed.network.follow(&settings(&[&plain])).unwrap();
    let mut peer = dial(free);
    let connection = observed.connected();
    peer.write_all(b"hello").unwrap();
    assert_eq!(observed.received(connection), b"hello");
}
