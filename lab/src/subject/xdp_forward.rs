//! xdp-forward of xdp-tools (<https://github.com/xdp-project/xdp-tools>): an XDP program that asks the kernel's table by
//! `bpf_fib_lookup`, in its default mode, attached without libxdp's dispatcher (which would cost a call more). Debian 12 has
//! none that loads on recent kernels (1.3.1), so its place may be given: MILLRACE_LAB_XDP_FORWARD.

use anyhow::{Context, Result};

use super::{
    Subject,
    process::{Ports, given_or_on_path},
};
use crate::{
    command,
    testbed::{PORT_IN, PORT_OUT, Testbed},
};

/// Where the program is, if not on PATH.
const VARIABLE: &str = "MILLRACE_LAB_XDP_FORWARD";

pub(super) struct XdpForward(Ports);

impl XdpForward {
    pub(super) fn start(testbed: &Testbed) -> Result<Self> {
        let program = given_or_on_path(VARIABLE, "xdp-forward")?;
        let ports = Ports::new(testbed)?;
        // `ip netns exec` hides the BPF file system, where nothing is to be left.
        let mut load = std::process::Command::new("ip");
        load.args(["netns", "exec", testbed.box_namespace.name()])
            .arg(program)
            .args(["load", PORT_IN, PORT_OUT]);
        load.env("LIBXDP_SKIP_DISPATCHER", "1");
        command::run(&mut load).context("a version before 1.4 does not load on recent kernels")?;
        Ok(Self(ports))
    }
}

impl Subject for XdpForward {
    fn name(&self) -> &'static str {
        "xdp-forward"
    }

    fn fast_path_packets(&self) -> Result<Option<u64>> {
        self.0.redirected().map(Some)
    }
}
