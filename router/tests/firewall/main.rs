//! Linux is the judge of proofs about rules: random rules are loaded, proofs are made about connections that Linux
//! tracks, and packets of these connections are sent through Linux. Packets of a proof must come out. Needs root: the
//! tests have namespaces of their own.
//!
//! [`real`] has the rules of real firewalls, and compares what is proven about them with what they allow.
//!
//! `MILLRACE_SEED=n` starts with another seed, and `MILLRACE_ROUNDS` sets the number of rulesets.

mod bed;
#[path = "../common/mod.rs"]
mod common;
mod random;
mod real;

use bed::{Bed, Connection, Rules};
use fastrand::Rng;
use logic::firewall::{
    prove::{AddressPart, Proof, prove},
    ruleset::Ruleset,
    traffic::{Device, Scope, Traffic, Version},
};
use std::{env, fmt::Write as _};

const ROUNDS: u64 = 150;

/// For each kind of traffic: the number of proofs, then the number of questions.
#[derive(Default, Debug)]
struct Tally {
    rulesets: u64,
    refused_by_tools: u64,
    all: [u64; 2],
    established: [u64; 2],
    connection: [u64; 2],
    /// Directions of connections without a proof whose packets all came out.
    passed_without_proof: u64,
}

#[test]
#[ignore = "needs root"]
fn packets_of_proofs_come_out() {
    common::in_new_namespace(|| {
        let first = variable("MILLRACE_SEED").unwrap_or(20_261_127);
        let rounds = variable("MILLRACE_ROUNDS").unwrap_or(ROUNDS);
        let mut tally = Tally::default();
        let mut bed = Bed::new();
        let connections = bed.connect();
        let mut found = String::new();
        for seed in first..first + rounds {
            let mut rng = Rng::with_seed(seed);
            let rules = match rng.u8(0..4) {
                0 => Rules::Legacy(random::iptables(&mut rng)),
                1 => Rules::Iptables(random::iptables(&mut rng)),
                _ => Rules::Nft(common::ruleset::rules(&mut rng)),
            };
            if let Err(error) = bed.load(&rules) {
                tally.refused_by_tools += 1;
                eprintln!("seed {seed}: {error}{}", rules.text());
                continue;
            }
            tally.rulesets += 1;
            let ruleset = bed.ruleset();
            for fault in round(&mut bed, &ruleset, &connections, &mut rng, &mut tally) {
                writeln!(found, "seed {seed}: {fault}\n{}", rules.text()).unwrap();
            }
        }
        eprintln!("{tally:?}");
        assert!(found.is_empty(), "{found}");
        assert!(tally.refused_by_tools * 20 <= rounds, "{tally:?}");
        let kinds = [tally.all, tally.established, tally.connection];
        assert!(
            kinds.iter().all(|[proven, asked]| proven * 20 > *asked && proven * 20 < asked * 19),
            "{tally:?}"
        );
    });
}

fn variable(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

fn traffic(bed: &Bed, back: bool, scope: Scope) -> Traffic {
    let device = |name: &str| Device { ifindex: bed.ifindex(name), name: name.into(), below: Vec::new() };
    let [input, output] = if back { [device("wan"), device("lan")] } else { [device("lan"), device("wan")] };
    Traffic { version: Version::V4, input, output, scope }
}

/// The proofs that Linux contradicts.
fn round(
    bed: &mut Bed,
    ruleset: &Ruleset,
    connections: &[Connection],
    rng: &mut Rng,
    tally: &mut Tally,
) -> Vec<String> {
    let mut faults = Vec::new();
    for back in [false, true] {
        let proof = prove(ruleset, &traffic(bed, back, Scope::All));
        tally.all[1] += 1;
        if let Ok(proof) = &proof {
            tally.all[0] += 1;
            for _ in 0..8 {
                let (frame, out) = bed.stray(back, rng);
                if is_left_out(proof, &frame) {
                    continue;
                }
                if !bed.passes(back, &frame, &out) {
                    faults.push(format!("all, back {back}: {frame:02x?}, {proof:?}"));
                }
            }
        }
        for protocol in [6, 17] {
            let established = prove(ruleset, &traffic(bed, back, Scope::Established { protocol }));
            tally.established[1] += 1;
            tally.established[0] += u64::from(established.is_ok());
            for connection in connections.iter().filter(|c| c.protocol == protocol) {
                let scope = Scope::Connection(Box::new(connection.direction(back)));
                let one = prove(ruleset, &traffic(bed, back, scope));
                tally.connection[1] += 1;
                tally.connection[0] += u64::from(one.is_ok());
                if established.is_ok() && one.is_err() {
                    faults.push(format!("established without {one:?}"));
                }
                let came_out = (0..3).all(|_| {
                    let (frame, out) = connection.frame(back, rng);
                    bed.passes(back, &frame, &out)
                });
                match (&one, came_out) {
                    (Ok(proof), false) => {
                        faults.push(format!("{connection:?}, back {back}: {proof:?}"));
                    }
                    (Err(_), true) => tally.passed_without_proof += 1,
                    _ => (),
                }
            }
        }
    }
    faults
}

fn is_left_out(proof: &Proof, frame: &[u8]) -> bool {
    proof.except.iter().any(|except| {
        let at = match except.part {
            AddressPart::Source => 26,
            AddressPart::Destination => 30,
        };
        (&except.low[..]..=&except.high[..]).contains(&&frame[at..at + 4])
    })
}
