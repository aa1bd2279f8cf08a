//! Millrace's user plane: all IP packets belong to a path. Its worker, on the router's core, does what the kernel plane
//! does for `millrace`.

use std::fmt::Write;

use anyhow::{Context, Result};
use serde_json::Value;
use std::time::Duration;

use super::{Millrace, Subject, millrace::Launch, process};
use crate::{command::Running, sys, testbed::Testbed};

/// After this time, its status covers what is sent now.
const STANDS: Duration = Duration::from_millis(1200);

pub(super) struct MillracePaths(Millrace);

impl MillracePaths {
    pub(super) fn start(testbed: &Testbed) -> Result<Self> {
        let mut launch = Launch::of(testbed);
        launch.own_session = true;
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
            Some(format!("path {} has no worker: {}", without["path"], status["conditions"]))
        })?;
        Ok(Self(daemon))
    }
}

impl Subject for MillracePaths {
    fn name(&self) -> &'static str {
        "millrace-paths"
    }

    /// Its workers. Every subject returns its threads that poll AF_XDP sockets.
    fn threads(&self) -> Vec<i32> {
        process::threads(self.0.pid(), "worker/")
    }

    fn programs(&self) -> Vec<Running> {
        self.0.programs()
    }

    /// Packets of the workers, by a report that is at most a second old.
    fn fast_path_packets(&self) -> Result<Option<u64>> {
        sys::sleep(STANDS)?;
        let status = self.0.ask(&["status"])?;
        let paths = status["paths"].as_array().context("millrace status has no paths")?;
        let out = paths.iter().filter_map(|path| path["run"]["out"].as_object());
        Ok(Some(out.flat_map(|out| out.values()).filter_map(Value::as_u64).sum()))
    }
}
