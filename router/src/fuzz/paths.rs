//! Forwarding paths as somebody else configured them, over a capture that somebody else made.

use crate::{
    captures::{CaptureWriters, OfRun, Sink},
    config::{PathsConfig, SaConfig},
    paths::{Input, Outputs, run},
    sas::Sas,
};
use logic::esp::Key;
use pcap_file::pcap::PcapReader;
use std::{fs::File, path::Path};

/// A configuration, and behind a zero byte the capture: every packet has one fate, and what leaves is written.
pub(super) fn paths(bytes: &[u8]) {
    let Some(end) = bytes.iter().position(|byte| *byte == 0) else { return };
    let text = String::from_utf8_lossy(&bytes[..end]);
    let config = match PathsConfig::parse(Path::new("x.toml"), &text) {
        Ok(config) => config,
        Err(error) => return assert!(error.to_string().starts_with("x.toml:"), "{error}"),
    };
    let Ok(input) = Input::new("it", 0, &bytes[end + 1..]) else { return };
    let mut written = Vec::new();
    let outputs =
        Outputs::new([("out".to_string(), None, &mut written)], true).expect("memory takes everything");
    // No file of a stranger's choice is read or made.
    let key = |sa: &SaConfig| {
        let bytes: [u8; 20] = std::array::from_fn(|i| sa.name.as_bytes().get(i).copied().unwrap_or_default());
        Key::new(&bytes).expect("20 bytes are a key")
    };
    let Ok(sas) = Sas::forgetful(&config.sas, key) else { return };
    let nowhere = || File::options().write(true).open("/dev/null").expect("it is there");
    let nowhere = || Box::new(OfRun::new(nowhere())) as Box<dyn Sink>;
    let captures = CaptureWriters::new(config.mirrors().map(|mirror| (mirror, nowhere())));
    let report = run(&config, sas, captures, &mut [input], outputs).expect("what was checked runs");
    assert_eq!(report.packets, report.out + report.up + report.dropped, "{report:?}");
    let mut reader = PcapReader::new(&written[..]).expect("what was written is read");
    let mut left = 0;
    while let Some(packet) = reader.next_packet() {
        packet.expect("what was written is read");
        left += 1;
    }
    assert_eq!(report.out, left);
}
