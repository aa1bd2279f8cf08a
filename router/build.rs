//! Compiles the kernel plane and generates its skeleton: types, maps and constants come from BTF.

use libbpf_cargo::SkeletonBuilder;
use std::{env, path::PathBuf, process::Command};

fn main() {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR").unwrap()).join("../bpf");
    let out = PathBuf::from(env::var("OUT_DIR").unwrap()).join("millrace.skel.rs");
    SkeletonBuilder::new()
        .source(root.join("millrace.bpf.c"))
        .clang(clang())
        .clang_args(["-Wall", "-Wextra", "-Wshadow", "-Werror", "-Wno-unused-parameter", &system_headers()])
        .build_and_generate(&out)
        .unwrap_or_else(|e| {
            panic!("the kernel plane does not compile (is clang installed? `make setup`): {e:#}")
        });
    println!("cargo::rerun-if-changed={}", root.display());
    println!("cargo::rerun-if-env-changed=CLANG");
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
