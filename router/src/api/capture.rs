//! Captures of packets: request and report.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which packets to capture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CaptureRequest {
    /// The filter, as `tcpdump -ddd` prints it: code, jt, jf and k of each instruction of classic BPF; empty: all packets.
    #[serde(default)]
    pub filter: Vec<(u16, u8, u8, u32)>,
    /// Names of ports where the packets come in or leave; empty: all.
    #[serde(default)]
    pub ports: Vec<String>,
    /// The name of the router that the packets are for; null: all packets.
    #[serde(default)]
    pub router: Option<String>,
    /// Names of reasons why packets were not forwarded, such as `over_mtu`; empty: all packets, forwarded or not.
    #[serde(default)]
    pub reasons: Vec<String>,
    /// The most bytes of each frame.
    #[serde(default = "CaptureRequest::all_bytes")]
    pub snaplen: u32,
    /// The most packets per second on each core.
    #[serde(default = "CaptureRequest::usual_rate")]
    pub rate: u32,
    /// The capture ends after this many packets; null: no limit.
    #[serde(default)]
    pub count: Option<u64>,
    /// The capture ends after the packet with which the file has this many bytes; null: no limit.
    #[serde(default)]
    pub size: Option<u64>,
}

impl CaptureRequest {
    /// More than any frame has.
    pub const fn all_bytes() -> u32 {
        262_144
    }

    /// A core has time for it.
    pub const fn usual_rate() -> u32 {
        50_000
    }
}

impl Default for CaptureRequest {
    fn default() -> Self {
        CaptureRequest {
            filter: Vec::new(),
            ports: Vec::new(),
            router: None,
            reasons: Vec::new(),
            snaplen: Self::all_bytes(),
            rate: Self::usual_rate(),
            count: None,
            size: None,
        }
    }
}

/// The running capture, or the last one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CaptureReport {
    /// A capture is running.
    pub running: bool,
    /// Packets that were captured.
    pub packets: u64,
    /// Packets that matched but are missing, because they exceeded the rate.
    pub over_rate: u64,
    /// Packets that matched but are missing, because the client was too slow to take earlier ones.
    pub no_room: u64,
}
