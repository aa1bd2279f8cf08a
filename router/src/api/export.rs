//! The report about exports of sampled packets.

use crate::config::{Collector, ExportSettings};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Samples for collectors: how many there were, and who gets them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExportReport {
    /// One packet in this many is sampled, on average.
    pub every: u32,
    /// Packets that were sampled.
    pub samples: u64,
    /// Samples that were lost, because the daemon had no time to read them.
    pub lost: u64,
    /// Samples that IPFIX does not report, because they are not IP packets.
    pub not_ip: u64,
    /// The collectors, those of sFlow first.
    pub collectors: Vec<CollectorReport>,
}

/// A collector.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CollectorReport {
    /// What it gets.
    pub protocol: Protocol,
    /// Where it receives datagrams.
    pub address: String,
    /// Datagrams that were sent to it.
    pub datagrams: u64,
    /// Datagrams that could not be sent.
    pub failed: u64,
    /// Why datagrams could not be sent lately; null: they could.
    pub error: Option<String>,
}

/// How samples are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// sFlow version 5.
    Sflow,
    /// IPFIX (RFC 7011).
    Ipfix,
}

impl Protocol {
    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Sflow => "sFlow",
            Protocol::Ipfix => "IPFIX",
        }
    }
}

impl ExportReport {
    /// The report before anything was exported.
    pub fn new(settings: &ExportSettings) -> ExportReport {
        let of = |protocol, all: &[Collector]| -> Vec<_> {
            all.iter().map(|collector| CollectorReport::new(protocol, *collector)).collect()
        };
        ExportReport {
            every: settings.every.0,
            collectors: [of(Protocol::Sflow, &settings.sflow), of(Protocol::Ipfix, &settings.ipfix)].concat(),
            ..ExportReport::default()
        }
    }
}

impl CollectorReport {
    /// The report before anything was sent.
    pub fn new(protocol: Protocol, address: Collector) -> CollectorReport {
        CollectorReport { protocol, address: address.to_string(), datagrams: 0, failed: 0, error: None }
    }
}
