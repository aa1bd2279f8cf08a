use super::{file::Calibration, *};
use logic::paths::{Resource, calibrate::fit};
use std::{fs, os::unix::fs::PermissionsExt, path::Path};

const LONGEST: Duration = Duration::from_micros(100);

/// Cores are shared with other tests, so noise is what it is: tried again where the measurement itself says that it is not sure.
fn switch(more: u64) -> (f64, f64) {
    let clock = Clock::of_process();
    let measured = (0..20).map(|_| measure_with(clock, 101, more).unwrap().fit);
    let fit = measured.flatten().next().expect("the machine is too busy for this test");
    (fit.switch_cycles, fit.switch_error)
}

#[test]
fn a_known_cost_of_switches_is_found() {
    let (without, error_without) = switch(0);
    for more in [5_000, 20_000] {
        let (with, error) = switch(more);
        let off = with - without - more as f64;
        // Waiting for a clock takes up to a reading of it more: a hundred cycles, more where the clock is no counter of the CPU.
        let allowed = 6.0 * (error + error_without) + 0.02 * more as f64 + 400.0;
        assert!(
            off.abs() < allowed,
            "{more}: {with:.0} +- {error:.0}, without {without:.0} +- {error_without:.0}"
        );
    }
}

fn calibration(clock: Clock) -> Calibration {
    let points: Vec<Point> =
        SIZES.map(|batch| Point { batch, cycles: 612.3 + 27.7 * f64::from(batch) }).to_vec();
    Calibration::new(&points, fit(&points).unwrap(), clock)
}

fn why_not(file: &Path, clock: Clock) -> String {
    let switch = Switch::read(file, clock, LONGEST);
    assert_eq!((switch.cycles, switch.calibrated), (0, None));
    switch.not_calibrated.unwrap()
}

#[test]
fn what_was_kept_is_what_workers_go_by() {
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
    assert_eq!(Switch::read(&file, clock, LONGEST), Switch { cycles: 612, calibrated, not_calibrated: None });
    // Another replaces it, and nothing else is left behind.
    calibration(clock).write(&file).unwrap();
    assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
}

#[test]
fn a_file_that_is_spoilt_or_of_another_machine_is_told_and_not_used() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("calibration.json");
    let clock = Clock::of_process();
    let good = calibration(clock);
    good.write(&file).unwrap();
    let text = fs::read_to_string(&file).unwrap();
    let none_of_ours = "it is none that `millrace calibrate` wrote";
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
        (as_text(&Calibration { hz: good.hz * 2, ..good.clone() }), "and workers go by the"),
        (as_text(&Calibration { clock: "sundial".into(), ..good.clone() }), "by the sundial at"),
        (as_text(&longer), "and the longest run of a path is"),
    ] {
        fs::write(&file, &text).unwrap();
        let told = why_not(&file, clock);
        let named = format!("{} cannot be used: ", file.display());
        assert!(told.starts_with(&named) && told.contains(why), "{why}: {told}");
    }
    // One that others may write says what they want.
    fs::write(&file, &text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o664)).unwrap();
    assert!(why_not(&file, clock).contains("others may write it"));
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert!(why_not(&file, clock).ends_with(none_of_ours));
}

/// `cargo test --release -p millrace --lib -- --ignored --nocapture measure_what_counting_io_costs`: runs without and with it take turns.
#[test]
#[ignore = "a measurement"]
fn measure_what_counting_io_costs() {
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

fn fit_of(calibration: &Calibration) -> f64 {
    let points: Vec<Point> =
        calibration.runs.iter().map(|r| Point { batch: r.packets, cycles: r.cycles }).collect();
    fit(&points).unwrap().switch_cycles
}
