//! Linux is the judge: the same random topologies, routes, changes and packets go through plain Linux and
//! through Millrace. The same bytes must come out of every port.
//!
//! Two beds (`bed`) live in namespaces of their own. Each command of a case runs in both, and each comparison
//! sends the same frames through both, so they have the same past. Millrace runs in one of them.
//!
//! A case follows from its seed. `MILLRACE_SEED=n` starts with another seed, and `MILLRACE_ROUNDS` sets the
//! number of cases. A case that shows a difference is made smaller automatically, and printed as text. Such a
//! text is kept in `cases/` and played each time.
//!
//! Some frames are not compared: redirects and "unreachable" for lack of a route or a neighbour (Linux limits
//! them, or sends them, by its clock), and ARP and neighbour discovery (caches). The IP identification of
//! packets that the box itself makes is a counter of the kernel, and is not compared either.

mod bed;
mod case;
mod changes;
#[path = "../common/mod.rs"]
mod common;
mod daemon;
mod draft;
mod kernel;
mod minimise;
mod packets;
mod play;
mod sides;

use case::Case;
use draft::{FRAMES, random_case};
use kernel::Kernel;
use play::{Failure, PATIENT, Played, play};
use std::{
    env, fs,
    path::{Path, PathBuf},
    time::Instant,
};

const ROUNDS: u64 = 8;
/// The run ends after this many differences.
const ENOUGH: usize = 8;

#[test]
#[ignore = "needs root"]
fn same_packets_with_and_without() {
    common::in_new_namespace(|| {
        let first = variable("MILLRACE_SEED").unwrap_or(20_261_120);
        let rounds = variable("MILLRACE_ROUNDS").unwrap_or(ROUNDS);
        let kernel = Kernel::probe();
        let mut found = Vec::new();
        for seed in first..first + rounds {
            found.extend(round(seed, &kernel));
            if found.len() >= ENOUGH {
                break;
            }
        }
        assert!(found.is_empty(), "{} differences:\n{}", found.len(), found.join("\n"));
    });
}

/// Each file has a case that once showed a difference.
#[test]
#[ignore = "needs root"]
fn kept_cases() {
    common::in_new_namespace(|| {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/differential/cases");
        let mut paths: Vec<PathBuf> =
            fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        for path in paths {
            let case = Case::parse(&fs::read_to_string(&path).unwrap());
            let case = case.unwrap_or_else(|words| panic!("{}: {words}", path.display()));
            if let Err(failure) = play(&case, PATIENT) {
                panic!("{}, step {}: {}", path.display(), failure.at, failure.words);
            }
        }
    });
}

/// `MILLRACE_CASE=file` plays this one case, and makes it smaller if it shows a difference.
#[test]
#[ignore = "needs root, and a case"]
fn one_case() {
    let Ok(file) = env::var("MILLRACE_CASE") else { return };
    common::in_new_namespace(move || {
        let case = Case::parse(&fs::read_to_string(&file).unwrap()).unwrap();
        match play(&case, PATIENT) {
            Ok(played) => eprintln!("{played:#?}"),
            Err(failure) => panic!("{}", report("case", case, failure)),
        }
    });
}

/// Plays the case of a seed, and describes the difference, if there is one.
fn round(seed: u64, kernel: &Kernel) -> Option<String> {
    let began = Instant::now();
    let case = random_case(seed, kernel);
    match play(&case, PATIENT) {
        Ok(played) => {
            eprintln!(
                "seed {seed}: {} frames out, {} by the fast path, {} commands refused, {:.1} s; reasons for not taking it: {}",
                played.out,
                played.fast,
                played.refused.len(),
                began.elapsed().as_secs_f32(),
                played.reasons
            );
            useless(&played).map(|words| format!("seed {seed}: {words}"))
        }
        Err(failure) => Some(report(&format!("seed {seed}"), case, failure)),
    }
}

/// The reason why the round tests too little, if it does.
fn useless(played: &Played) -> Option<String> {
    if played.out < FRAMES / 8 {
        return Some(format!("only {} frames came out at all", played.out));
    }
    (played.fast < FRAMES as u64 / 10).then(|| format!("the fast path took only {} packets", played.fast))
}

/// Makes the case smaller, prints it, and writes it to a file that can be kept.
fn report(name: &str, case: Case, failure: Failure) -> String {
    eprintln!("{name}, step {}: {}", failure.at, failure.words);
    let (case, failure) = minimise::minimise(case, failure);
    let path =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("differential-{}.txt", name.replace(' ', "-")));
    let comment: String = failure.words.lines().map(|line| format!("# {line}\n")).collect();
    let text = format!("{comment}{case}");
    // The machine that built the test may be another one.
    let kept =
        fs::write(&path, &text).map_or_else(|error| error.to_string(), |()| path.display().to_string());
    let text = format!("{name}: a difference, kept in {kept}\n{text}");
    eprintln!("{text}");
    text
}

fn variable(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|e| panic!("{name}: {e}")))
}
