//! xdp-forward of xdp-tools (<https://github.com/xdp-project/xdp-tools>): an XDP program that looks up the kernel's
//! table with `bpf_fib_lookup`. It runs in its default mode, without libxdp's dispatcher, which would cost one more
//! call. Debian 12's version (1.3.1) does not load on recent kernels, so MILLRACE_LAB_XDP_FORWARD can give the path of
//! another one.

use anyhow::{Context, Result};

use super::{
    Subject,
    process::{Ports, given_or_on_path},
};
use crate::{
    command,
    testbed::{PORT_IN, PORT_OUT, Testbed},
};

/// Path of the program, if it is not on PATH.
const VARIABLE: &str = "MILLRACE_LAB_XDP_FORWARD";

pub(super) struct XdpForward(Ports);

impl XdpForward {
    pub(super) fn start(testbed: &Testbed) -> Result<Self> {
        let program = given_or_on_path(VARIABLE, "xdp-forward")?;
        let ports = Ports::new(testbed)?;
        // `ip netns exec` hides the BPF file system, so that nothing is left there.
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
