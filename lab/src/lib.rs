//! The lab measures Millrace. It builds a testbed of network namespaces, with a generator and a sink inside the kernel,
//! and puts the router under test between them. Baselines do the same work in the same run.
//!
//! | module | holds |
//! |---|---|
//! | [`topology`], [`testbed`], [`addresses`], [`namespace`] | throwaway testbeds that clean up after themselves |
//! | [`generator`], [`sink`], [`packet`], [`histogram`], [`bpf`] | packets in and out, what they look like, how long they took |
//! | [`subject`] | what can be measured: one small file each |
//! | [`work`] | extra work for each packet |
//! | [`measure`], [`check`], [`cpu`], [`clock`], [`losses`] | one measurement; bytes compared before it; CPU time and losses by name |
//! | [`application`] | benchmarks and servers on the cores that forward |
//! | [`steering`] | a server of virtual machines behind a tunnel, and flows to them |
//! | [`method`] | RFC 2544 and its successors as procedures over trials |
//! | [`compare`], [`workload`] | measures subjects alternately on the same work; describes this work |
//! | `masquerade` | connections behind a firewall with NAT, and how soon they are fast |
//! | [`replay`] | captures, sent through subjects and compared |
//! | [`prefixes`] | routes to load and destinations to send to |
//! | [`record`], [`progress`] | raw results as JSON lines; progress of a long run |
//! | [`figure`], [`report`] | which pictures to draw from results; results as HTML and Markdown |
//! | [`figures`] | the experiments behind the papers' figures, and what the papers say |
//! | `built_in` | files that are built into the lab, found by name |
//! | [`paths`] | the user plane, memory to memory |
//! | [`simulation`] | simulated machines with more cores than this one has, in virtual time |
//! | [`relay`] | a port of the machine that leads into a testbed |
//! | [`experiment`], [`demo`], [`shell`] | the commands |
//!
//! Results leave this crate as raw data, and as ratios of subjects that were measured alternately in one run. Absolute
//! figures from a shared machine mean little (docs/measured.md).

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
mod masquerade;
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
pub mod relay;
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
