//! Options that describe the packets to send.

use std::fmt::Debug;

use clap::{Args, ValueEnum, value_parser};
use serde_json::{Value, json};

use crate::{
    generator::{Order, Sizes},
    packet::{FCS_BYTES, Protocol, Target},
    workload::{Family, Workload},
};

/// What to send, except the length of frames.
#[derive(Args, Clone, Debug)]
pub struct Traffic {
    /// Destinations, one flow each: 1 to 131072
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = value_parser!(u32).range(1..=131_072))]
    pub(super) flows: u32,
    /// Send IPv6 instead of IPv4
    #[arg(long)]
    ipv6: bool,
    /// Contents of the packets
    #[arg(long, value_enum, default_value = "udp")]
    protocol: Carried,
    /// Order of flows; with zipf, the n-th flow is n times as rare as the first
    #[arg(long, value_enum, default_value = "in-turn")]
    order: Next,
    /// Send frames of 64, 594 and 1518 bytes, 7 to 4 to 1, instead of one length
    #[arg(long)]
    pub(super) imix: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Carried {
    Udp,
    Tcp,
    Icmp,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Next {
    InTurn,
    Uniform,
    Zipf,
}

impl Traffic {
    /// Parameters for the record, without the default ones.
    pub(super) fn parameters(&self, workload: &Workload) -> Value {
        let frame = if self.imix { json!("imix") } else { json!(workload.frame_bytes + FCS_BYTES) };
        let unusual = |usual: bool, value: &dyn Debug| (!usual).then(|| format!("{value:?}").to_lowercase());
        json!({"frame": frame, "flows": self.flows,
            "ip": self.ipv6.then_some(6),
            "protocol": unusual(matches!(self.protocol, Carried::Udp), &self.protocol),
            "order": unusual(matches!(self.order, Next::InTurn), &self.order)})
    }

    /// Flows to the benchmarking prefixes, in the shortest frames that have room for a stamp.
    pub(super) fn workload(&self) -> Workload {
        const SEED: u64 = 1;
        let family = if self.ipv6 { Family::V6 } else { Family::V4 };
        let protocol = match self.protocol {
            Carried::Udp => Protocol::Udp,
            Carried::Tcp => Protocol::Tcp,
            Carried::Icmp => Protocol::Echo,
        };
        let mut workload = Workload::benchmark(family, self.flows, 0..=0).over(protocol);
        workload.frame_bytes = workload.targets.iter().map(Target::min_stamped).max().unwrap_or_default();
        workload.order = match self.order {
            Next::InTurn => Order::InTurn,
            Next::Uniform => Order::Uniform { seed: SEED },
            Next::Zipf => Order::Zipf { exponent: 1.0, seed: SEED },
        };
        workload.sizes = self.imix.then(|| Sizes::imix(workload.frame_bytes));
        workload
    }
}
