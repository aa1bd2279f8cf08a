//! Captures and samples of the kernel plane's packets (`bpf/capture.h`).
//!
//! | file | holds |
//! |---|---|
//! | `filter.rs` | classic BPF, as libpcap compiles it, as instructions of the program |
//! | `record.rs` | the records of the ring |

pub mod filter;
pub mod record;
