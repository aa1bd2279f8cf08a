//! The kernel plane's skeleton and types, generated from BTF, and proof that `logic` encodes what `bpf/abi.h` says.
//!
//! Nothing is typed twice: structures come from the C header through BTF. Where `logic` composes words itself it uses
//! numbers of its own, and the assertions below fail the build when the two disagree.

#[allow(clippy::all, clippy::undocumented_unsafe_blocks, missing_docs, non_camel_case_types, non_snake_case)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/millrace.skel.rs"));
}

pub use skeleton::*;
