use super::*;
use clap::{CommandFactory as _, Parser};

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    options: PlanOptions,
}

fn described(words: &str) -> Described {
    Line::try_parse_from(["plan"].into_iter().chain(words.split(' '))).unwrap().options.described
}

fn planned(words: &str) -> Plan {
    Plan::new(&described(words).named().unwrap().scenario).unwrap()
}

fn near(value: f64, expected: f64, within: f64) -> bool {
    (value - expected).abs() <= within
}

/// Computed by hand: time is rate times cost; a core forwards up to the marks, and applications get the rest.
#[test]
fn known_answers() {
    struct Answer {
        words: &'static str,
        /// Cores with packing, median over time.
        cores: u16,
        forwarding: f64,
        loss: f64,
        applications: f64,
    }
    let answer = |words, cores, forwarding, loss, applications| Answer {
        words,
        cores,
        forwarding,
        loss,
        applications,
    };
    let table = [
        // 0.28 * 3: less than the high mark, but a core is given back only below the low one, 70 %.
        answer("--mpps 0.28 --cores 4 --packet-ns 3000 --wake-ns 0 --traffic constant", 2, 0.84, 0.0, 3.16),
        answer("--mpps 0.28 --cores 4 --packet-ns 3000 --wake-ns 0", 2, 0.84, 0.0, 3.16),
        answer("--mpps 0.22 --cores 4 --packet-ns 3000 --wake-ns 0", 1, 0.66, 0.0, 3.34),
        // 0.55 * 3.
        answer("--mpps 0.55 --cores 4 --packet-ns 3000 --wake-ns 0 --queues 12", 3, 1.65, 0.0, 2.35),
        // (3000 + 6430) / (1 + 0.00028 * 6430) = 3368 ns for each of 280,000.
        answer("--mpps 0.28 --cores 1 --packet-ns 3000 --wake-ns 6430", 1, 0.943, 0.0, 0.057),
        // 333,000 of 400,000.
        answer("--mpps 0.4 --cores 1 --packet-ns 3000 --wake-ns 0", 1, 1.0, 0.167, 0.0),
        // A queue brings more than a core carries, whatever the others do.
        answer("--mpps 0.4 --cores 4 --queues 1 --packet-ns 3000 --wake-ns 0", 1, 1.0, 0.167, 3.0),
        // The applications want less than what is left.
        answer("--mpps 0.1 --cores 2 --packet-ns 3000 --wake-ns 0 --applications 0.5", 1, 0.3, 0.0, 1.0),
    ];
    for Answer { words, cores, forwarding, loss, applications } in table {
        let plan = planned(&format!("{words} --seconds 2"));
        let (_, packed) = &plan.results[0];
        assert_eq!(packed.cores.quantile(0.5), cores, "{words}: {:?}", packed.cores);
        let found = [plan.cores(packed.forwarding), packed.loss(), plan.cores(packed.applications)];
        let is_right = found.iter().zip([forwarding, loss, applications]).all(|(a, b)| near(*a, b, 0.005));
        assert!(is_right, "{words}: {found:?}");
    }
}

#[test]
fn traffic_has_the_requested_rate() {
    // A day goes from a tenth of its peak to all of it, so its mean is 0.55 of the peak.
    let table = [
        ("constant", 1.0, 0.001),
        ("poisson", 1.0, 0.01),
        ("bursty", 1.0, 0.15),
        ("diurnal", 0.55, 0.01),
        ("elephants", 1.0, 0.2),
    ];
    for (traffic, mean, within) in table {
        let seconds: u32 = if traffic == "diurnal" { 20 } else { 5 };
        let words = format!("--mpps 2 --cores 2 --ports 2 --traffic {traffic} --seconds {seconds}");
        // Elephants come in the first second.
        let settle = Duration::from_secs(if traffic == "elephants" { 1 } else { 0 });
        let scenario = Scenario { settle, ..described(&words).scenario().unwrap() };
        let mpps = scenario.run(&Placement::RssHash).unwrap().sent as f64 / f64::from(seconds) / 1e6;
        assert!(near(mpps / 2.0, mean, within), "{traffic}: {mpps}");
    }
}

#[test]
fn sentences_state_the_conclusion() {
    let sentence =
        |words: &str| planned(&format!("{words} --packet-ns 3000 --wake-ns 0 --seconds 2")).sentences();
    assert_eq!(
        sentence("--mpps 0.28 --cores 4"),
        "Packed, 2 of 4 cores carry it without loss; applications keep 3.2 cores.\n"
    );
    let small = sentence("--mpps 0.8 --cores 2");
    assert!(small.starts_with("Packed, 16."), "{small}");
    assert!(
        small
            .ends_with("This machine is too small: all packets take 2.40 cores, so at least 3 are wanted.\n"),
        "{small}"
    );
    let hot = sentence("--mpps 0.4 --cores 4 --queues 1");
    assert!(
        hot.contains("spread 16.") && hot.contains("brings more than a core carries (0.33 Mpps)"),
        "{hot}"
    );
    let alone = Scenario {
        applications: Vec::new(),
        ..described("--mpps 0.5 --cores 2 --seconds 2").scenario().unwrap()
    };
    let alone = Plan::new(&alone).unwrap();
    assert_eq!(alone.sentences(), "Packed, 1 of 2 cores carry it without loss.\n");
    assert!(alone.table().contains("| - |"), "{}", alone.table());
}

#[test]
fn tables_and_raw_results_hold_the_same() {
    let named = described(
        "--mpps 2.8 --cores 4 --queues 2 --packet-ns 300 --wake-ns 0 --seconds 1 --traffic constant",
    )
    .named()
    .unwrap();
    assert_eq!(
        named.description,
        "4 cores; 1 port of 2 queues; 2.8 Mpps, constant, 10000 flows; 300 ns a packet, 0 ns a wake-up; applications want 100 % of \
         each core"
    );
    let plan = Plan::new(&named.scenario).unwrap();
    let rows: Vec<_> = plan.table().lines().skip(2).map(str::to_owned).collect();
    assert!(rows[0].starts_with("| pack | 2 (2) | 0.84 cores | 0 |"), "{rows:?}");
    assert!(rows[0].ends_with("| 3.16 of 4.00 cores (79 %) |"), "{rows:?}");
    assert!(rows[1].starts_with("| spread | 2 (2) | 0.84 cores | 0 |"), "{rows:?}");
    let lines = plan.lines(&named);
    assert_eq!(lines.len(), 2);
    let sample = &lines[0]["sample"];
    assert_eq!((&lines[0]["case"], &lines[0]["subject"]), (&json!("plan"), &json!("pack")));
    assert_eq!((&sample["cores_p50"], &sample["dropped"]), (&json!(2), &json!(0)));
    assert!(near(sample["needed_cores"].as_f64().unwrap(), 0.84, 0.001), "{sample}");
    assert!(near(sample["application_cores"].as_f64().unwrap(), 3.16, 0.001), "{sample}");
}

#[test]
fn impossible_plans_are_refused() {
    Line::command().debug_assert();
    let refused =
        |words: &str| match Line::try_parse_from(["plan"].into_iter().chain(words.split_whitespace())) {
            Ok(line) => format!("{:#}", line.options.described.named().expect_err(words)),
            Err(error) => error.to_string(),
        };
    for (words, part) in [
        ("", "--mpps"),
        ("step --mpps 1", "cannot be used with"),
        ("step --cores 4", "cannot be used with"),
        ("--mpps 0", "--mpps 0: more than 0"),
        ("--mpps nan", "--mpps NaN: more than 0"),
        ("--mpps 2000", "at most 1000"),
        ("--mpps 1 --cores 0", "cores: 1 to 128"),
        ("--mpps 1 --cores 129", "cores: 1 to 128"),
        ("--mpps 1 --cores 3 --hyper-threads", "siblings"),
        ("--mpps 1 --queues 0", "queues of a port"),
        ("--mpps 1 --ports 0", "--ports 0"),
        ("--mpps 1 --packet-ns 0", "ns per packet"),
        ("--mpps 1 --applications 1.5", "--applications 1.5: 0 to 1"),
        ("--mpps 1 --seconds=-1", "--seconds"),
        ("--mpps 1 --seconds 1e9", "time: above 0"),
        ("--mpps 0.0001 --traffic elephants", "elephants: a port has"),
        ("--mpps 1 --traffic strange", "possible values"),
    ] {
        let error = refused(words);
        assert!(error.contains(part), "{words}: {error}");
    }
    assert!(Line::try_parse_from(["plan", "step"]).is_ok());
}
