//! Millrace's user plane: all IP packets are a path's, whose worker, on the router's core, does what the kernel plane does for `millrace`.

use std::fmt::Write;

use anyhow::{Context, Result};

use super::{Millrace, Subject, millrace::Launch};
use crate::{command::Running, testbed::Testbed};

pub(super) struct MillracePaths(Millrace);

impl MillracePaths {
    pub(super) fn start(testbed: &Testbed) -> Result<Self> {
        let mut launch = Launch::of(testbed);
        let paths = &mut launch.configuration;
        writeln!(paths, "[workers]\ncores = \"{}\"", testbed.topology.cores.router[0])?;
        for family in ["ipv4", "ipv6"] {
            writeln!(
                paths,
                "[[path]]\nname = \"{family}\"\nclass = {{ ether_type = \"{family}\" }}\n\
                 chain = [\"check\", \"route\", \"ttl\", \"rewrite\"]\notherwise = \"drop\""
            )?;
        }
        let mut daemon = Millrace::launch(&launch, testbed.routers.len() + 1)?;
        daemon.wait_for(|status| {
            let without = status["paths"].as_array()?.iter().find(|path| !path["run"].is_object())?;
            Some(format!("path {} has no worker: {}", without["path"], status["troubles"]))
        })?;
        Ok(Self(daemon))
    }
}

impl Subject for MillracePaths {
    fn name(&self) -> &'static str {
        "millrace-paths"
    }

    fn programs(&self) -> Vec<Running> {
        self.0.programs()
    }

    /// Given to workers, who have no other way than to forward them, or to count why not.
    fn fast_path_packets(&self) -> Result<Option<u64>> {
        let status = self.0.ask(&["status"])?;
        let paths = status["paths"].as_array().context("millrace status has no paths")?;
        Ok(Some(paths.iter().filter_map(|path| path["packets"].as_u64()).sum()))
    }
}
