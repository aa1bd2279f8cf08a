//! Millrace while a capture runs: of packets that never come, or of all packets, at the default rate.

use std::{
    io::{self, Read},
    process::{Child, Stdio},
    thread,
};

use anyhow::{Context, Result};

use super::{Millrace, Subject};
use crate::{command::Running, testbed::Testbed};

/// What is captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// The filter is asked about each packet, and none matches.
    None,
    All,
}

pub(super) struct MillraceCapture {
    // The capture ends before its daemon.
    capture: Child,
    daemon: Millrace,
    wanted: Wanted,
}

impl MillraceCapture {
    pub(super) fn start(testbed: &Testbed, wanted: Wanted) -> Result<Self> {
        let daemon = Millrace::start(testbed)?;
        let filter: &[&str] = match wanted {
            Wanted::None => &["host", "203.0.113.77", "and", "udp", "port", "53"],
            Wanted::All => &[],
        };
        let mut command = daemon.control(&[&["capture", "-w", "-"], filter].concat());
        let mut capture =
            command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().context("starting a capture")?;
        let file = capture.stdout.take();
        let subject = Self { capture, daemon, wanted };
        let mut file = file.context("a capture without output")?;
        // The file begins once packets are captured.
        file.read_exact(&mut [0]).context("the capture has ended")?;
        thread::spawn(move || io::copy(&mut file, &mut io::sink()));
        Ok(subject)
    }
}

impl Drop for MillraceCapture {
    fn drop(&mut self) {
        let _ = self.capture.kill();
        let _ = self.capture.wait();
    }
}

impl Subject for MillraceCapture {
    fn name(&self) -> &'static str {
        match self.wanted {
            Wanted::None => "millrace-filter",
            Wanted::All => "millrace-capture",
        }
    }

    fn programs(&self) -> Vec<Running> {
        self.daemon.programs()
    }

    fn fast_path_packets(&self) -> Result<Option<u64>> {
        self.daemon.fast_path_packets()
    }
}
