//! libFuzzer around the target of `router::fuzz` that the environment names: `FUZZ_TARGET=netlink`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use router::fuzz::{TARGETS, Target};
use std::{env, sync::LazyLock};

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = env::var("FUZZ_TARGET").unwrap_or_default();
    let found = TARGETS.into_iter().find(|t| t.0 == name);
    found.unwrap_or_else(|| panic!("no target {name:?}: FUZZ_TARGET is one of {:?}", TARGETS.map(|t| t.0))).1
});

fuzz_target!(|bytes: &[u8]| TARGET(bytes));
