use super::{file::Calibration, *};
use crate::{api::workers::Switch, user_plane::workers::Counter};
use logic::paths::{Resource, Used, calibrate::fit};
use std::{fs, os::unix::fs::PermissionsExt, path::Path, time::Instant};

const LONGEST: Duration = Duration::from_micros(100);

/// Each run waits `MORE` cycles, so every size must measure at least as many, however busy the cores are.
#[test]
fn the_cycles_of_every_size_include_the_wait_of_its_runs() {
    const MORE: u64 = 50_000;
    let Measured { points, .. } = measure_with(Clock::of_process(), 3, MORE).unwrap();
    assert!(points.iter().map(|point| point.batch).eq(SIZES), "{points:?}");
    assert!(points.iter().all(|point| point.cycles >= MORE as f64), "{points:?}");
}

fn calibration(clock: Clock) -> Calibration {
    let points: Vec<Point> =
        SIZES.map(|batch| Point { batch, cycles: 612.3 + 27.7 * f64::from(batch) }).to_vec();
    Calibration::new(&points, fit(&points).unwrap(), Err(anyhow::anyhow!("no counter")), clock)
}

fn why_not(file: &Path, clock: Clock) -> String {
    let Calibrated { switch, memory } = Calibrated::read(file, clock, LONGEST);
    assert_eq!((switch.cycles, switch.calibrated, memory.per_second), (0, None, None));
    assert_eq!(switch.not_calibrated.as_ref(), Some(&memory.basis));
    memory.basis
}

#[test]
fn workers_use_the_values_of_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("new/calibration.json");
    let clock = Clock::of_process();
    assert_eq!(why_not(&file, clock), format!("{} is not there", file.display()));
    let kept = calibration(clock);
    kept.write(&file).unwrap();
    let read = Calibration::read(&file).unwrap().unwrap();
    assert!(
        (read.switch_cycles - 612.3).abs() < 1e-6 && (read.packet_cycles - 27.7).abs() < 1e-6,
        "{read:?}"
    );
    assert_eq!((&read.cpu, read.hz, read.runs.len()), (&kept.cpu, kept.hz, kept.runs.len()));
    let calibrated = Some(file.display().to_string());
    let told = || Calibrated::read(&file, clock, LONGEST);
    assert_eq!(told().switch, Switch { cycles: 612, calibrated, not_calibrated: None });
    let memory = |memory: Option<u64>, basis: &str| {
        let named = basis.replace("FILE", &file.display().to_string());
        assert_eq!((told().memory.per_second, told().memory.basis), (memory, named));
    };
    memory(None, "no counter (FILE)");
    let bandwidth = Bandwidth { bytes_per_second: 20_000_000_000, cores: [2, 3].into() };
    Calibration { memory: Some(bandwidth), no_memory: None, ..kept.clone() }.write(&file).unwrap();
    memory(Some(20_000_000_000), "2 cores together, FILE");
    // A file from before memory was measured is good for the rest.
    Calibration { no_memory: None, ..kept.clone() }.write(&file).unwrap();
    assert!(!fs::read_to_string(&file).unwrap().contains("memory"));
    memory(None, "FILE lacks it (`millrace calibrate` measures it)");
    assert_eq!(told().switch.cycles, 612);
    // Another replaces it, and nothing else is left behind.
    calibration(clock).write(&file).unwrap();
    assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
}

#[test]
fn a_file_that_is_damaged_or_of_another_machine_is_reported_and_not_used() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("calibration.json");
    let clock = Clock::of_process();
    let good = calibration(clock);
    good.write(&file).unwrap();
    let text = fs::read_to_string(&file).unwrap();
    let none_of_ours = "`millrace calibrate` did not write it";
    let longer = Calibration {
        runs: good.runs.iter().map(|r| Runs { cycles: r.cycles + 1e6, ..*r }).collect(),
        ..good.clone()
    };
    let longer = Calibration { switch_cycles: fit_of(&longer), ..longer };
    let as_text = |c: &Calibration| serde_json::to_string(c).unwrap();
    for (text, why) in [
        (text[..text.len() / 2].to_string(), none_of_ours),
        (String::new(), none_of_ours),
        (text.replace("switch_error_cycles", "error"), none_of_ours),
        ("x".repeat(1 << 17), none_of_ours),
        (
            as_text(&Calibration { switch_cycles: 600.0, ..good.clone() }),
            "it says 600.0 cycles, and the runs in it 612.3",
        ),
        (as_text(&Calibration { runs: good.runs[..2].to_vec(), ..good.clone() }), "at least 3 are needed"),
        (as_text(&Calibration { cpu: "Z80".into(), ..good.clone() }), "another CPU, \"Z80\""),
        (as_text(&Calibration { hz: good.hz * 2, ..good.clone() }), "and workers use the"),
        (as_text(&Calibration { clock: "sundial".into(), ..good.clone() }), "with the sundial at"),
        (
            as_text(&Calibration {
                memory: Some(Bandwidth { bytes_per_second: 0, cores: [0].into() }),
                ..good.clone()
            }),
            "there is no memory bandwidth",
        ),
        (as_text(&longer), "not less than a tenth of the longest run of a path"),
    ] {
        fs::write(&file, &text).unwrap();
        let told = why_not(&file, clock);
        let named = format!("{} cannot be used: ", file.display());
        assert!(told.starts_with(&named) && told.contains(why), "{why}: {told}");
    }
    // A file that others may write can say anything.
    fs::write(&file, &text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o664)).unwrap();
    assert!(why_not(&file, clock).contains("others may write it"));
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert!(why_not(&file, clock).ends_with(none_of_ours));
}

/// Measurements that need a quiet machine.
mod measure {
    use super::*;

    fn switch(more: u64) -> (f64, f64) {
        let clock = Clock::of_process();
        let fit = measure_with(clock, 101, more).unwrap().fit.expect("the machine is too busy");
        (fit.switch_cycles, fit.switch_error)
    }

    /// `cargo test --release -p millrace --lib -- --ignored --nocapture a_known_cost_of_switches_is_found`
    #[test]
    #[ignore = "a measurement"]
    fn a_known_cost_of_switches_is_found() {
        let (without, error_without) = switch(0);
        for more in [5_000, 20_000] {
            let (with, error) = switch(more);
            let found = with - without;
            println!("{more} cycles more: {found:.0} found");
            // A wait ends up to one reading of the clock late: a hundred cycles, more if it is no counter of the CPU.
            let allowed = 6.0 * (error + error_without) + 0.02 * more as f64 + 400.0;
            assert!(
                (found - more as f64).abs() < allowed,
                "{more}: {with:.0} +- {error:.0}, without {without:.0} +- {error_without:.0}"
            );
        }
    }

    /// `cargo test --release -p millrace --lib -- --ignored --nocapture what_counting_io_costs`: runs
    /// without and with counting alternate.
    #[test]
    #[ignore = "a measurement"]
    fn what_counting_io_costs() {
        let clock = Clock::of_process();
        let ways = [Counters::CYCLES, Counters::CYCLES.with(Resource::Io)];
        for size in [1, 4, 16, 64] {
            let mut benches = ways.map(|counted| Bench::new(size, clock, counted, 0).unwrap());
            let mut found = [Vec::new(), Vec::new()];
            for _ in 0..4001 {
                for (bench, found) in benches.iter_mut().zip(&mut found) {
                    bench.run(WARM_UP);
                    found.push(bench.run(WINDOW));
                }
            }
            let [without, with] = found.map(median);
            let ns = |cycles: f64| cycles * 1e9 / clock.hz() as f64;
            println!(
                "runs of {size}: {without:.0} cycles without, {with:.0} with: {:.1} more of a run ({:.2} ns), {:.2} of a packet ({:.2} ns), {:.1} %",
                with - without,
                ns(with - without),
                (with - without) / f64::from(size),
                ns(with - without) / f64::from(size),
                (with / without - 1.0) * 100.0
            );
        }
    }
}

/// The counters grow by fixed amounts with each reading: two cores read twice for each of the two walks.
#[test]
fn memory_bandwidth_is_that_of_all_cores_together() {
    let cores = [0, 1].into();
    let window = Duration::from_millis(20);
    let looks = |more: [u64; 2]| {
        move || {
            let looked = std::cell::Cell::new(0);
            anyhow::Ok(move || {
                let n = looked.get();
                looked.set(n + 1);
                Used::default().with(Resource::Memory, [0, more[0], more[0], more[0] + more[1]][n])
            })
        }
    };
    // The larger of the two walks counts. A window is at least this long, and not longer than everything took.
    let rate = |bytes: u128, time: Duration| (bytes * 1_000_000_000 / time.as_nanos()) as u64;
    for more in [[1_000_000, 10_000], [10_000, 1_000_000]] {
        let begun = Instant::now();
        let found = bandwidth::by(&cores, 1 << 20, window, &looks(more)).unwrap();
        let least = rate(2 * 1_000_000, begun.elapsed()) - 1;
        let most = rate(2 * 1_000_000, window);
        assert_eq!(found.cores, cores);
        assert!((least..=most).contains(&found.bytes_per_second), "{least}..{most}: {found:?}");
    }
    let error = |found: anyhow::Result<Bandwidth>| format!("{:#}", found.unwrap_err());
    assert!(error(bandwidth::by(&cores, 1 << 20, window, &looks([0; 2]))).contains("counts nothing"));
    let nothing = || anyhow::Ok(Used::default);
    assert!(error(bandwidth::by(&cores, 1 << 20, window, &nothing)).contains("too few counters"));
    assert!(error(bandwidth::by(&[0, 4000].into(), 1 << 20, window, &looks([1, 1]))).contains("core 4000"));
    // With the counter of this machine.
    match Counter::cache_misses() {
        Ok(_) => assert!(bandwidth(&cores).unwrap().bytes_per_second > 0),
        Err(why) => assert!(error(bandwidth(&cores)).contains(&why.to_string())),
    }
}

fn fit_of(calibration: &Calibration) -> f64 {
    let points: Vec<Point> =
        calibration.runs.iter().map(|r| Point { batch: r.packets, cycles: r.cycles }).collect();
    fit(&points).unwrap().switch_cycles
}
