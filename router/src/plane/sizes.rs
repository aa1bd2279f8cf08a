//! Compares the sizes of loaded programs with those in `sizes.txt`. Sizes are exact, while times vary. Each packet runs a
//! part of a program, so a program may grow only for a good reason. `MILLRACE_WRITE` then records the new size.

use super::{
    Settings, size,
    variants::{ALL, Variant},
};
use crate::abi;
use libbpf_rs::{
    Program,
    query::{ProgInfoIter, ProgInfoQueryOptions},
    skel::{OpenSkel as _, Skel as _, SkelBuilder as _},
};
use logic::memory::Capacity;
use std::{
    collections::BTreeMap,
    fs,
    mem::MaybeUninit,
    os::fd::{AsFd as _, AsRawFd as _},
};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/plane/sizes.txt");
const COLUMNS: &str = "load program instructions bytes";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    /// Instructions that the verifier has left.
    instructions: usize,
    /// Bytes of machine code.
    bytes: usize,
}

impl Size {
    /// Whether these are sizes of the same program. On another machine, jumps and addresses may be shorter.
    fn is_same(self, other: Size) -> bool {
        self.instructions == other.instructions && self.bytes.abs_diff(other.bytes) * 100 <= other.bytes
    }
}

/// Each program of a load, as "Routing millrace".
fn sizes(variant: Variant) -> BTreeMap<String, Size> {
    let settings = Settings {
        capacity: Capacity::SMALL,
        interface_rows: 64,
        sample_interval: 128,
        exception_pps: 1000,
        control_pps: 1000,
        queue_rows: false,
        help: true,
    };
    let mut storage = MaybeUninit::uninit();
    let mut open = abi::MillraceSkelBuilder::default().open(&mut storage).unwrap();
    size(&mut open, &settings, libbpf_rs::num_possible_cpus().unwrap()).unwrap();
    variant.select(&mut open).unwrap();
    let skel = open.load().unwrap();
    let options = ProgInfoQueryOptions::default();
    let options = options.include_xlated_prog_insns(true).include_jited_prog_insns(true);
    let of_machine: Vec<_> = ProgInfoIter::with_query_opts(options).collect();
    let size_of = |program: Program<'_>| {
        let id = id(&program);
        let info = of_machine.iter().find(|info| info.id == id).unwrap();
        let size =
            Size { instructions: info.xlated_prog_insns.len() / 8, bytes: info.jited_prog_insns.len() };
        (format!("{variant:?} {}", program.name().to_str().unwrap()), size)
    };
    skel.object().progs().filter(|program| program.autoload()).map(size_of).collect()
}

fn id(program: &Program<'_>) -> u32 {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", program.as_fd().as_raw_fd())).unwrap();
    text.lines().find_map(|line| line.strip_prefix("prog_id:")).unwrap().trim().parse().unwrap()
}

/// "Linux 6.18.5, x86_64".
fn machine() -> String {
    let kernel = rustix::system::uname();
    format!("Linux {}, {}", kernel.release().to_string_lossy(), std::env::consts::ARCH)
}

fn written(sizes: &BTreeMap<String, Size>) -> String {
    let lines = sizes.iter().map(|(name, size)| format!("{name} {} {}\n", size.instructions, size.bytes));
    format!("{}\n{COLUMNS}\n{}", machine(), lines.collect::<String>())
}

fn read<'a>(lines: impl Iterator<Item = &'a str>) -> BTreeMap<String, Size> {
    let row = |line: &str| {
        let [load, program, instructions, bytes] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("not a row: {line}");
        };
        let size = Size { instructions: instructions.parse().unwrap(), bytes: bytes.parse().unwrap() };
        (format!("{load} {program}"), size)
    };
    lines.map(row).collect()
}

#[test]
#[ignore = "needs root"]
fn programs_have_the_recorded_sizes() {
    let found: BTreeMap<String, Size> = ALL.into_iter().flat_map(sizes).collect();
    assert!(found.len() > 20 && found.values().all(|size| size.bytes > 0), "{found:?}");
    if std::env::var_os("MILLRACE_WRITE").is_some() {
        return fs::write(FILE, written(&found)).unwrap();
    }
    let text = fs::read_to_string(FILE).unwrap();
    let mut lines = text.lines();
    let recorded_on = lines.next().unwrap();
    if recorded_on != machine() {
        // The verifier and the compiler of another kernel make other programs.
        return eprintln!("not compared: the sizes were recorded on {recorded_on}, not {}", machine());
    }
    assert_eq!(lines.next(), Some(COLUMNS));
    let recorded = read(lines);
    let names = found.keys().chain(recorded.keys()).collect::<std::collections::BTreeSet<_>>();
    let changed = names.into_iter().filter_map(|name| {
        let (now, then) = (found.get(name), recorded.get(name));
        let is_same = now.zip(then).is_some_and(|(now, then)| now.is_same(*then));
        (!is_same).then(|| format!("{name}: {now:?}, recorded: {then:?}\n"))
    });
    let changed: String = changed.collect();
    assert!(
        changed.is_empty(),
        "programs have changed:\n{changed}If this is worth it, record it, as root: \
         MILLRACE_WRITE=1 cargo test -p millrace --lib -- --ignored recorded_sizes"
    );
}
