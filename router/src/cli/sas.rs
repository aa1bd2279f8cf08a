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
FILE has [[sa]] tables as the daemon's own file does (docs/howto/esp.md); what is not in it stays as it is. An SA that sends takes the place of
the one of its name; one that receives comes beside those of its name, so that both keys are taken until the old one is removed:
  1. `millrace sas set FILE` with the new SA that receives, here, and at the peer;
  2. `millrace sas set FILE` with the new SA that sends, at both;
  3. `millrace sas remove NAME SPI` of the old one that receives, when nothing comes by it any more.
What is set so is forgotten when the daemon ends: the daemon's file is to say the same.";

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
    /// Set those of a file, all or none.
    Set {
        file: PathBuf,
        #[command(flatten)]
        output: Output,
    },
    /// Remove one.
    Remove {
        name: String,
        /// As `millrace sas` shows it, or decimal.
        #[arg(value_parser = spi)]
        spi: u32,
        #[command(flatten)]
        output: Output,
    },
}

/// A number, hexadecimal behind 0x.
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
