//! `millrace capture`: packets of the kernel plane into a file or a pipe.

use super::{LONG_PATIENCE, PATIENCE, complain, get, pcap_filter, said};
use crate::{
    api::{
        capture::{CaptureReport, CaptureRequest},
        status::PortReport,
    },
    base::instance::Instance,
    daemon::client,
};
use anyhow::{Context, Result, bail};
use clap::Args;
use std::{
    fs::{OpenOptions, Permissions},
    io::{self, ErrorKind, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::signal::unix::{SignalKind, signal};

pub const HELP: &str = "\
Captures packets that come in or leave by the named ports, or by any port if none is named. The other words are
a filter in the language of tcpdump (pcap-filter(7)). A filter also matches packets with VLAN tags.
  millrace capture -w - | tcpdump -nr -
  millrace capture eth1 udp port 53 -w dns.pcapng
  millrace capture --reason over_mtu --count 10 -w long.pcapng
Each port is an interface in the file. A packet is recorded where it came in and, if it was forwarded, again
where it left. Comments name its router, what happened to it and why. Ctrl-C ends the capture.";

#[derive(Debug, Args)]
pub struct Capture {
    /// Ports, then a filter.
    #[arg(value_name = "PORT... FILTER")]
    words: Vec<String>,
    /// The file to write, in the format pcapng; -: standard output.
    #[arg(short, long, value_name = "FILE")]
    write: PathBuf,
    /// Capture only packets for this router.
    #[arg(long, value_name = "NAME")]
    router: Option<String>,
    /// Capture only packets that were not forwarded for this reason; may be repeated (docs/reference/reasons.md).
    #[arg(long, value_name = "REASON")]
    reason: Vec<String>,
    /// Capture at most this many bytes of each packet.
    #[arg(short, long, value_name = "BYTES", default_value_t = CaptureRequest::all_bytes())]
    snaplen: u32,
    /// Capture at most this many packets per second on each core; 0: all.
    #[arg(long, value_name = "PPS", default_value_t = CaptureRequest::usual_rate())]
    rate: u32,
    /// End after this many packets.
    #[arg(short, long, value_name = "N")]
    count: Option<u64>,
    /// End after this many seconds.
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u64>,
    /// End before the file exceeds this many MiB.
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    size: u64,
}

impl Capture {
    pub fn run(self, instance: &Instance) -> Result<()> {
        let (request, seconds) = (self.request(instance)?, self.seconds);
        let mut file = None;
        let write = |piece: &[u8]| {
            // Now the daemon captures. Until then, an existing file stays as it is.
            let file = match &mut file {
                Some(file) => file,
                None => file.insert(open(&self.write)?),
            };
            match file.write_all(piece).and_then(|()| file.flush()) {
                Ok(()) => Ok(true),
                // The reader of a pipe has seen enough.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
                Err(error) => Err(error).with_context(|| format!("writing {}", self.write.display())),
            }
        };
        let body = serde_json::to_value(&request)?;
        let captured = client::file(&instance.socket(), "/capture", body, LONG_PATIENCE, end(seconds), write);
        let report = client::call::<CaptureReport>(&instance.socket(), "GET", "/capture", None, PATIENCE);
        if let Err(error) = captured {
            return Err(match error.downcast() {
                Ok(error) => said(instance, error),
                Err(error) => error,
            });
        }
        // A daemon that has ended reports no counts.
        if let Ok(report) = report {
            complain(&summary(&report));
        }
        Ok(())
    }

    fn request(&self, instance: &Instance) -> Result<CaptureRequest> {
        let ports: Vec<PortReport> = match self.words.is_empty() {
            true => Vec::new(),
            false => get(instance, "/ports")?,
        };
        let is_port = |word: &&String| ports.iter().any(|port| port.port == **word);
        let named: Vec<String> = self.words.iter().take_while(is_port).cloned().collect();
        let filter = self.words[named.len()..].join(" ");
        let filter = match filter.as_str() {
            "" => Ok(Vec::new()),
            filter => pcap_filter::compile(filter),
        };
        let filter = match filter {
            Err(error) if named.is_empty() => bail!("'{}' is not a port, and {error:#}", self.words[0]),
            compiled => compiled?,
        };
        Ok(CaptureRequest {
            filter,
            ports: named,
            router: self.router.clone(),
            reasons: self.reason.clone(),
            snaplen: self.snaplen,
            rate: self.rate,
            count: self.count,
            size: Some(self.size << 20),
        })
    }
}

/// Only the user may read captured packets.
fn open(file: &Path) -> Result<Box<dyn Write>> {
    if file == Path::new("-") {
        return Ok(Box::new(io::stdout()));
    }
    let opened = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(file);
    let opened = opened.with_context(|| format!("cannot write {}", file.display()))?;
    let data = opened.metadata()?;
    if data.is_file() {
        // The file may have been there with another mode.
        opened
            .set_permissions(Permissions::from_mode(0o600))
            .and_then(|()| opened.set_len(0))
            .with_context(|| format!("{}: it cannot be emptied and kept from others", file.display()))?;
    }
    Ok(Box::new(opened))
}

/// Ready when the user or the time ends the capture.
async fn end(seconds: Option<u64>) {
    let mut signals = [SignalKind::interrupt(), SignalKind::terminate()].map(signal);
    let [Ok(interrupt), Ok(terminate)] = &mut signals else { return std::future::pending().await };
    let time = async {
        match seconds {
            Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {}, () = time => {} }
}

fn summary(report: &CaptureReport) -> String {
    let CaptureReport { packets, over_rate, no_room, .. } = report;
    let mut text = format!("{packets} packets captured");
    if *over_rate > 0 {
        text += &format!("; {over_rate} are missing, because they exceeded --rate");
    }
    if *no_room > 0 {
        text += &format!("; {no_room} are missing, because they were not written in time");
    }
    text
}
