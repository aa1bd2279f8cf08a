//! Plain Linux forwarding: the testbed without anything added.

use super::Subject;

pub(crate) struct Linux;

impl Subject for Linux {
    fn name(&self) -> &'static str {
        "linux"
    }
}
