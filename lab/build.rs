//! Compiles the lab's BPF programs into skeletons. `CLANG` chooses the compiler; tests use clang-16.

use std::{env, path::PathBuf, process::Command};

use libbpf_cargo::SkeletonBuilder;

fn clang() -> String {
    println!("cargo::rerun-if-env-changed=CLANG");
    let runs = |name: &str| Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success());
    env::var("CLANG")
        .ok()
        .or_else(|| ["clang-16", "clang"].into_iter().find(|name| runs(name)).map(String::from))
        .unwrap_or_else(|| panic!("no clang-16 or clang found: run `make setup`, or set CLANG"))
}

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let clang = clang();
    println!("cargo::rerun-if-changed=bpf/lab.h");
    println!("cargo::rerun-if-changed=../bpf/kernel.h");
    for name in ["generator", "sink", "baselines", "cost", "decrypt", "faulty", "redirects", "replay", "work"]
    {
        let source = format!("bpf/{name}.bpf.c");
        println!("cargo::rerun-if-changed={source}");
        SkeletonBuilder::new()
            .source(&source)
            .clang(&clang)
            // Debian keeps asm/types.h in the multiarch directory, which clang -target bpf does not search.
            .clang_args(["-O2", "-Wall", "-Werror", "-I/usr/include/x86_64-linux-gnu"])
            .build_and_generate(out.join(format!("{name}.skel.rs")))
            .unwrap_or_else(|error| panic!("{source}: {error:#}"));
    }
}
