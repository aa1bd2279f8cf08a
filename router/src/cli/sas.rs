//! `millrace sas`: security associations of a daemon's paths.

use super::{LONG_PATIENCE, Output, get, said, show, table::Table};
use crate::{
    api::sas::{SaName, SaReport, SasReport, SasRequest},
    base::instance::Instance,
    daemon::client,
};
use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use std::{
    fs,
    path::{self, PathBuf},
};

pub const HELP: &str = "\
FILE has [[sa]] tables like the daemon's own configuration (docs/howto/esp.md). SAs that are not in it stay as
they are. An outbound SA replaces the one with its name. An inbound SA joins those with its name, so both keys
are accepted until the old one is removed. To change a key:
  1. `millrace sas set FILE` with the new inbound SA, here and at the peer
  2. `millrace sas set FILE` with the new outbound SA, here and at the peer
  3. `millrace sas remove NAME SPI` of the old inbound SA, when no packets use it any more
The daemon forgets these changes when it ends, so change its configuration file, too.";

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Sas {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Set the SAs of a file, all or none.
    Set {
        /// A TOML file with [[sa]] tables.
        file: PathBuf,
        #[command(flatten)]
        output: Output,
    },
    /// Remove one SA.
    Remove {
        /// The name of the SA.
        name: String,
        /// The SPI, decimal, or hexadecimal after 0x.
        #[arg(value_parser = spi)]
        spi: u32,
        #[command(flatten)]
        output: Output,
    },
}

/// Parses a decimal number, or a hexadecimal one after 0x.
fn spi(text: &str) -> Result<u32, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.map_err(|e| e.to_string())
}

impl Sas {
    pub fn is_json(&self) -> bool {
        self.output().json
    }

    fn output(&self) -> Output {
        match self.command {
            None => self.output,
            Some(Command::Set { output, .. } | Command::Remove { output, .. }) => output,
        }
    }

    pub fn run(self, instance: &Instance) -> Result<()> {
        let output = self.output();
        let report = match self.command {
            None => get::<SasReport>(instance, "/sas")?,
            Some(Command::Set { file, .. }) => {
                let cannot = || format!("cannot read {}", file.display());
                let set = fs::read_to_string(&file).with_context(cannot)?;
                let file = path::absolute(&file).with_context(cannot)?;
                change(instance, SasRequest { set, file, ..SasRequest::default() })?
            }
            Some(Command::Remove { name, spi, .. }) => {
                let remove = vec![SaName { sa: name, spi }];
                change(instance, SasRequest { remove, ..SasRequest::default() })?
            }
        };
        show(output, &report, text)
    }
}

fn change(instance: &Instance, request: SasRequest) -> Result<SasReport> {
    let body = serde_json::to_value(request)?;
    client::call(&instance.socket(), "POST", "/sas", Some(body), LONG_PATIENCE).map_err(|e| said(instance, e))
}

fn text(report: &SasReport) -> String {
    let Some(crypto) = &report.crypto else { return "no SAs\n".into() };
    let note = crypto.note.as_ref().map(|note| format!(" ({note})")).unwrap_or_default();
    let mut table = Table::new(&["SA", "SPI", "DIRECTION", "MODE", "LOCAL", "REMOTE", "SEQUENCE", "LEFT"]);
    for SaReport { sa, spi, direction, mode, local, remote, sequence, left } in &report.sas {
        table.row([
            sa.clone(),
            format!("{spi:#x}"),
            direction.clone(),
            mode.clone(),
            local.to_string(),
            remote.to_string(),
            sequence.to_string(),
            left.map(|left| left.to_string()).unwrap_or_default(),
        ]);
    }
    format!("{}encrypted by {}{note}\n", table.text(), crypto.library)
}
