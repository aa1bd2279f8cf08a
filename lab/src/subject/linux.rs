//! Plain Linux forwarding: the testbed without anything added.

use super::Subject;

pub(super) struct Linux;

impl Subject for Linux {
    fn name(&self) -> &'static str {
        "linux"
    }
}
