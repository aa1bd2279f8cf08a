//! Linux behind an XDP program that passes each packet up. This is the least that an XDP program adds to the cost of a
//! packet that the kernel handles.

use anyhow::Result;

use super::{Subject, redirect::Attached};
use crate::testbed::Testbed;

/// Dropping it unloads the program.
pub(crate) struct Pass {
    _program: Attached,
}

impl Pass {
    pub(crate) fn start(testbed: &Testbed) -> Result<Self> {
        Ok(Self { _program: Attached::start(testbed, "pass", [0; 6], [0; 6])? })
    }
}

impl Subject for Pass {
    fn name(&self) -> &'static str {
        "pass"
    }
}
