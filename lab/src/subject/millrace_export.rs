//! Millrace while it samples one packet in 1000 for collectors of sFlow and IPFIX.

use anyhow::Result;

use super::{Millrace, Subject, millrace::Launch};
use crate::{command::Running, testbed::Testbed};

pub(super) struct MillraceExport(Millrace);

impl MillraceExport {
    pub(super) fn start(testbed: &Testbed) -> Result<Self> {
        testbed.box_namespace.ip_batch("link set lo up\n")?;
        let mut launch = Launch::of(testbed);
        launch.configuration +=
            "[export]\nevery = 1000\nsflow = [\"127.0.0.1:6343\"]\nipfix = [\"127.0.0.1:4739\"]\n";
        Ok(Self(Millrace::launch(&launch, testbed.routers.len() + 1)?))
    }
}

impl Subject for MillraceExport {
    fn name(&self) -> &'static str {
        "millrace-export"
    }

    fn programs(&self) -> Vec<Running> {
        self.0.programs()
    }

    fn fast_path_packets(&self) -> Result<Option<u64>> {
        self.0.fast_path_packets()
    }
}
