//! `millrace metrics`: prints the metrics, or writes them to a file for a collector.

use super::{PATIENCE, print, said};
use crate::{
    base::{guard, instance::Instance},
    daemon::client,
};
use anyhow::{Context, Result};
use clap::Args;
use std::{collections::BTreeSet, path::PathBuf};

#[derive(Debug, Args)]
pub struct Metrics {
    /// Atomically replace this file with the metrics, in the text format that node_exporter reads. Every user may read it.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl Metrics {
    pub fn run(self, instance: &Instance) -> Result<()> {
        let text = client::reading(instance, |socket| client::text(socket, "/metrics", PATIENCE));
        let text = text.map_err(|e| said(instance, e))?;
        match self.out {
            None => print(&text),
            Some(file) => guard::replace_for_all(&file, classic(&text).as_bytes())
                .with_context(|| format!("cannot write {}; an older file stays as it is", file.display())),
        }
    }
}

/// The text format of Prometheus before OpenMetrics. There, a counter has the name of its samples.
fn classic(open_metrics: &str) -> String {
    let types = open_metrics.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let counters: BTreeSet<_> = types.filter_map(|line| line.strip_suffix(" counter")).collect();
    let mut text = String::with_capacity(open_metrics.len());
    for line in open_metrics.lines() {
        let words: Vec<_> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "EOF"] | ["#", "UNIT", ..] => continue,
            ["#", word, name, rest] if counters.contains(name) => {
                text += &format!("# {word} {name}_total {rest}");
            }
            _ => text += line,
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_exporter_gets_the_older_format() {
        let open_metrics = "# HELP a_packets Packets # TYPE x counter\n# TYPE a_packets counter\n# UNIT a_packets packets\n\
                            a_packets_total{port=\"# EOF \\\" a_packets\"} 1\n# HELP b Help.\n# TYPE b gauge\nb{} 2.0\n# EOF\n";
        let expected = "# HELP a_packets_total Packets # TYPE x counter\n# TYPE a_packets_total counter\n\
                        a_packets_total{port=\"# EOF \\\" a_packets\"} 1\n# HELP b Help.\n# TYPE b gauge\nb{} 2.0\n";
        assert_eq!(classic(open_metrics), expected);
    }
}
