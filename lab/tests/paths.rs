//! `millrace-lab paths`: it measures what was asked for, and the document has it. Figures of a debug build mean
//! nothing.

use std::{error::Error, process::Command};

use serde_json::Value;

fn paths(arguments: &[&str]) -> Result<Value, Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("paths.json");
    let run = Command::new(env!("CARGO_BIN_EXE_millrace-lab"))
        .arg("paths")
        .args(arguments)
        .arg("--json")
        .arg(&file)
        .output()?;
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    Ok(serde_json::from_slice(&std::fs::read(file)?)?)
}

#[test]
fn measurements_are_in_the_document() -> Result<(), Box<dyn Error>> {
    let document = paths(&["share", "esp", "--rounds", "1"])?;
    has(
        &document,
        &[
            "esp_gbps",
            "library_gbps",
            "esp_64_bytes_gbps",
            "library_64_bytes_gbps",
            "esp_imix_gbps",
            "library_imix_gbps",
            "esp_cycles_per_packet",
            "share_error_percent",
            "clock_hz",
        ],
    );
    for figure in
        ["fwd_mpps", "rtr_mpps", "rtr_full_table_mpps", "rtr_of_bare", "crc_gbps", "crc_from_memory_gbps"]
    {
        assert!(document[figure].is_null(), "{figure}: {}", document[figure]);
    }
    let lines = document["lines"].as_array().ok_or("lines")?;
    let shares: Vec<&Value> = lines.iter().filter(|line| line["case"] == "share").collect();
    assert_eq!(shares.len(), 6, "three pairs of weights, two bursts");
    for share in &shares {
        // Even this build keeps shares roughly. Packets of the second path did become about ten times as dear; a busy
        // machine changes that.
        assert!(share["error_percent"].as_f64().is_some_and(|error| error < 20.0), "{share}");
        let factor = share["cost_factor"].as_f64().ok_or("cost_factor")?;
        assert!((7.0..14.0).contains(&factor), "{share}");
        assert_eq!(share["is_ten_times"], (9.0..=11.0).contains(&factor), "{share}");
        let ns = &share["ns_per_packet_of_the_second"];
        let measured = ns[1].as_f64().zip(ns[0].as_f64()).map(|(dear, cheap)| dear / cheap);
        assert!(measured.is_some_and(|measured| (measured / factor - 1.0).abs() < 1e-9), "{share}");
    }
    assert_eq!(document["share_is_ten_times"], shares.iter().all(|share| share["is_ten_times"] == true));
    Ok(())
}

fn has(document: &Value, figures: &[&str]) {
    for figure in figures {
        assert!(document[figure].as_f64().is_some_and(|value| value > 0.0), "{figure}: {}", document[figure]);
    }
}

/// Routing with all routes and with 256,000, few flows and many, IMIX, and the loop by hand. An optimised build runs
/// `millrace-lab paths --json FILE`, as people and scripts call it, with all its measurements.
#[test]
#[cfg_attr(debug_assertions, ignore = "a measurement, takes minutes in a build that is not optimised")]
fn measure_routing_and_by_default_everything() -> Result<(), Box<dyn Error>> {
    let all = !cfg!(debug_assertions);
    let document = if all { paths(&[])? } else { paths(&["fwd", "rtr", "--rounds", "1"])? };
    has(&document, &["fwd_mpps", "rtr_mpps", "rtr_full_table_mpps"]);
    if all {
        has(
            &document,
            &["esp_gbps", "library_gbps", "crc_gbps", "crc_from_memory_gbps", "share_error_percent"],
        );
    }
    has(
        &document,
        &[
            "fwd_cycles_per_packet",
            "fwd_imix_mpps",
            "rtr_cycles_per_packet",
            "bare_rtr_mpps",
            "rtr_of_bare",
            "bare_rtr_full_table_mpps",
            "rtr_full_table_of_bare",
            "rtr_256k_routes_mpps",
            "rtr_256k_routes_cycles_per_packet",
            "rtr_256k_routes_random_mpps",
            "rtr_imix_mpps",
        ],
    );
    let lines = document["lines"].as_array().ok_or("lines")?;
    let named = |name: &str| -> Vec<&Value> { lines.iter().filter(|line| line["case"] == name).collect() };
    for of in ["", " of 1,000,000"] {
        for over in ["", " over 256,000 routes"] {
            for name in [format!("rtr{of}{over}"), format!("bare rtr{of}{over}")] {
                assert_eq!(named(&name).len(), 4, "{name}: two sizes of batches, two of pools");
            }
        }
    }
    // 7 packets of 60 bytes, 4 of 572 and one of 1,396: 85 times, and the first four again.
    let bytes = (85 * (7 * 60 + 4 * 572 + 1396) + 3 * 60 + 572) as f64 / 1024.0;
    for name in ["fwd, IMIX", "rtr, IMIX"] {
        // The same packets are also forwarded for comparison with CRCs.
        assert_eq!(named(name).len(), 1 + usize::from(all && name == "fwd, IMIX"), "{name}");
        assert!(named(name).iter().all(|line| line["bytes"].as_f64() == Some(bytes)), "{name}");
    }
    let line = named("rtr")[0];
    let hz = document["clock_hz"].as_f64().ok_or("clock_hz")?;
    let ns = line["ns_per_packet"].as_array().ok_or("ns")?.iter().filter_map(Value::as_f64);
    let (least, most) = ns.fold((f64::MAX, 0f64), |(least, most), ns| (least.min(ns), most.max(ns)));
    let median = line["cycles_per_packet"].as_f64().ok_or("cycles")? * 1e9 / hz;
    assert!((least * 0.999..most * 1.001).contains(&median), "{line}");
    Ok(())
}
