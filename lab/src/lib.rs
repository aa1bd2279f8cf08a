//! How Millrace is measured: a testbed of network namespaces, a generator and a sink inside the kernel, the router under
//! test between them, and baselines that do the same work in the same run.
//!
//! | module | holds |
//! |---|---|
//! | [`topology`], [`testbed`], [`addresses`], [`namespace`] | throwaway testbeds that clean up after themselves |
//! | [`generator`], [`sink`], [`packet`], [`histogram`], [`bpf`] | packets in and out, what they look like, how long they took |
//! | [`subject`] | what can be measured: one small file each |
//! | [`work`] | packets that take longer |
//! | [`measure`], [`check`], [`cpu`], [`clock`], [`losses`] | one measurement; bytes compared before it; CPU time and losses by name |
//! | [`application`] | benchmarks and servers on the cores that forward |
//! | [`steering`] | a server of virtual machines behind a tunnel, and flows to them |
//! | [`method`] | RFC 2544 and its successors as procedures over trials |
//! | [`compare`], [`workload`] | subjects on the same work, alternately; what that work is |
//! | [`replay`] | captures, sent through subjects and compared |
//! | [`prefixes`] | routes to load and destinations to send to |
//! | [`record`], [`progress`] | raw results as JSON lines; how far a long run is |
//! | [`figure`], [`report`] | what to draw of results; results as HTML and Markdown |
//! | [`figures`] | the experiments behind the papers' figures, and what the papers say |
//! | `built_in` | files that come with the lab under a name |
//! | [`paths`] | the user plane, memory to memory |
//! | [`simulation`] | machines with more cores than there are, in virtual time |
//! | [`experiment`], [`demo`], [`shell`] | the commands |
//!
//! Numbers leave this crate as raw data and as ratios of subjects measured alternately in one run: absolute figures of a
//! shared machine mean little (docs/measured.md).

pub mod addresses;
pub mod application;
pub mod bpf;
mod built_in;
pub mod check;
pub mod clock;
pub mod command;
pub mod compare;
pub mod cpu;
pub mod demo;
pub mod experiment;
pub mod figure;
pub mod figures;
pub mod generator;
pub mod histogram;
pub mod losses;
pub mod mark;
pub mod measure;
pub mod method;
pub mod namespace;
pub mod netlink;
pub mod openflow;
pub mod packet;
pub mod paths;
pub mod prefixes;
pub mod progress;
pub mod record;
pub mod redirects;
pub mod replay;
pub mod report;
pub mod rules;
pub mod shell;
pub mod simulation;
pub mod sink;
pub mod steering;
pub mod subject;
pub mod sys;
pub mod testbed;
pub mod topology;
pub mod work;
pub mod workload;
