//! Compiles the kernel plane, and generates its skeleton: types, maps and constants, from BTF.

use libbpf_cargo::SkeletonBuilder;
use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

fn main() {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR").unwrap()).join("../bpf");
    let out = PathBuf::from(env::var("OUT_DIR").unwrap());
    let failed = |e| panic!("the kernel plane does not compile (is clang installed? `make setup`): {e:#}");
    builder(&root, "millrace").build_and_generate(out.join("millrace.skel.rs")).unwrap_or_else(failed);
    builder(&root, "policy").build_and_generate(out.join("policy.skel.rs")).unwrap_or_else(failed);
    for object in ["multipath_key", "pass", "paths", "polls", "transmit"] {
        builder(&root, object).obj(out.join(format!("{object}.bpf.o"))).build().unwrap_or_else(failed);
    }
    // Measurements compile a program of the lab with the same headers (tests/common/driver.rs).
    let headers = env::var("DEP_BPF_INCLUDE").expect("libbpf-sys names its headers");
    println!("cargo::rustc-env=LIBBPF_HEADERS={headers}");
    println!("cargo::rerun-if-changed={}", root.display());
    println!("cargo::rerun-if-env-changed=CLANG");
}

fn builder(root: &Path, name: &str) -> SkeletonBuilder {
    // Instructions that Linux has since 5.1. Without those for 32 bits, a packet takes 3 to 4 % more of them.
    let flags = ["-mcpu=v3", "-Wall", "-Wextra", "-Wshadow", "-Werror", "-Wno-unused-parameter"];
    let mut builder = SkeletonBuilder::new();
    builder
        .source(root.join(format!("{name}.bpf.c")))
        .clang(clang())
        .clang_args(flags.map(str::to_owned).into_iter().chain([system_headers()]));
    builder
}

fn clang() -> String {
    env::var("CLANG").unwrap_or_else(|_| {
        let found =
            |name: &&str| Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success());
        ["clang-16", "clang"].into_iter().find(found).unwrap_or("clang").to_string()
    })
}

/// Debian keeps <asm/types.h> in a directory named after the host, which clang does not search for `-target bpf`.
fn system_headers() -> String {
    format!("-I/usr/include/{}-linux-gnu", env::var("CARGO_CFG_TARGET_ARCH").unwrap())
}
