//! `millrace-lab demo`: the same packets through Linux and through Millrace, side by side, in under a minute.

use std::time::Duration;

use anyhow::{Result, bail};

use crate::{
    check::check_forwarding,
    generator::Load,
    measure::{Sample, Window, measure},
    subject::{self, Millrace, Subject},
    sys,
    testbed::{Priority, Spec, Testbed},
    workload::{Family, Workload},
};

const VIRTUAL_ROUTERS: u16 = 2;
const DESTINATIONS: u32 = 4096;
/// A load that Linux carries on one core too: loss and cost at equal work.
const EQUAL_RATE_PPS: u64 = 300_000;
const WINDOW: Window = Window { warm_up: Duration::from_millis(250), length: Duration::from_millis(1000) };

struct Case {
    title: String,
    workload: Workload,
}

/// Flat out, and at [`EQUAL_RATE_PPS`].
type Pair = [Sample; 2];

/// Builds a testbed, measures, prints. Fails if Millrace cannot run or either forwards wrongly.
pub fn demo() -> Result<()> {
    let cases = cases();
    let spec = Spec { routers: VIRTUAL_ROUTERS, ..Spec::default() };
    println!(
        "Building a testbed: generator - router box (host and {VIRTUAL_ROUTERS} namespace routers) - sink ..."
    );
    let mut testbed = Testbed::new(spec)?;
    sys::set_affinity(0, &[spec.cores.generator])?;
    testbed.set_priority(Priority::Rates)?;

    println!("Linux forwards ...");
    let linux = subject::start("linux", &testbed)?;
    let by_linux = measure_all(&mut testbed, &*linux, &cases)?;
    drop(linux);

    println!("Millrace forwards ...");
    let millrace = match Millrace::start(&testbed) {
        Ok(millrace) => millrace,
        Err(error) => {
            print_table(&cases, &by_linux, None);
            bail!("Millrace could not be measured: {error:#}");
        }
    };
    let by_millrace = measure_all(&mut testbed, &millrace, &cases)?;
    let status = millrace.status_text()?;
    drop(millrace);

    print_table(&cases, &by_linux, Some(&by_millrace));
    println!("\nmillrace status\n{}", status.trim_end());
    Ok(())
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for family in [Family::V4, Family::V6] {
        let host = Workload::benchmark(family, DESTINATIONS, 0..=0);
        cases.push(Case { title: format!("{}, host", family.name()), workload: host });
        let virtual_routers = Workload::benchmark(family, DESTINATIONS, 1..=VIRTUAL_ROUTERS);
        let title = format!("{}, {VIRTUAL_ROUTERS} virtual routers", family.name());
        cases.push(Case { title, workload: virtual_routers });
    }
    cases
}

fn measure_all(testbed: &mut Testbed, subject: &dyn Subject, cases: &[Case]) -> Result<Vec<Pair>> {
    cases
        .iter()
        .map(|Case { workload, .. }| {
            let frame_bytes = workload.frame_bytes;
            let next_hop = |address| workload.next_hop(address);
            check_forwarding(testbed, subject, &workload.targets, frame_bytes, next_hop)?;
            testbed.generator.set_targets(workload.targets.clone(), frame_bytes)?;
            Ok([
                measure(testbed, Load { frame_bytes, rate_pps: None }, WINDOW)?,
                measure(testbed, Load { frame_bytes, rate_pps: Some(EQUAL_RATE_PPS) }, WINDOW)?,
            ])
        })
        .collect()
}

fn print_table(cases: &[Case], linux: &[Pair], millrace: Option<&Vec<Pair>>) {
    let equal_mpps = EQUAL_RATE_PPS as f64 / 1e6;
    println!(
        "\n64-byte UDP (IPv6: 66), {DESTINATIONS} destinations, one core for the router (the sink included)."
    );
    println!("Before each case packets were compared byte by byte: MACs, TTL, checksum.\n");
    println!(
        "{:26} {:>10} {:>10} {:>7}   {:>10} {:>10}",
        "", "Linux", "Millrace", "ratio", "Linux", "Millrace"
    );
    println!("{:26} {:^29}   {:^21}", "", "Mpps of one core, flat out", "lost, offered flat out");
    for (i, case) in cases.iter().enumerate() {
        row(&case.title, linux, millrace, i, 0, |sample| sample.received_pps / 1e6, 3);
    }
    println!("\n{:26} {:^29}", "", "CPU ns per packet, flat out");
    for (i, case) in cases.iter().enumerate() {
        row(&case.title, linux, millrace, i, 0, crate::compare::ns, 0);
    }
    println!("\n{:26} {:^29}   {:^21}", "", format!("CPU ns, {equal_mpps} Mpps offered"), "lost");
    for (i, case) in cases.iter().enumerate() {
        row(&case.title, linux, millrace, i, 1, crate::compare::ns, 0);
    }
}

/// A figure of both subjects, their ratio, and what each lost in the same measurement.
fn row(
    title: &str,
    linux: &[Pair],
    millrace: Option<&Vec<Pair>>,
    case: usize,
    rate: usize,
    figure: impl Fn(&Sample) -> f64,
    digits: usize,
) {
    let a = &linux[case][rate];
    let b = millrace.map(|pairs| &pairs[case][rate]);
    let show =
        |value: Option<f64>, unit: &str| value.map_or("-".into(), |value| format!("{value:.digits$}{unit}"));
    let loss =
        |sample: Option<&Sample>| sample.map_or("-".into(), |sample| format!("{:.2} %", sample.loss * 100.0));
    println!(
        "{title:26} {:>10} {:>10} {:>7}   {:>10} {:>10}",
        show(Some(figure(a)), ""),
        show(b.map(&figure), ""),
        b.map_or("-".into(), |b| format!("{:.2}x", figure(b) / figure(a))),
        loss(Some(a)),
        loss(b)
    );
}
