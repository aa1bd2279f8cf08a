//! `millrace-lab demo`: the same packets through Linux and through Millrace, side by side, in under a minute.

use std::{net::TcpListener, time::Duration};

use anyhow::{Context, Result, bail};

use crate::{
    check::check_forwarding,
    compare::{SETTLE, ns},
    generator::{Load, Pace},
    masquerade::{self, Masquerade},
    measure::{Sample, Window, measure},
    relay::{self, Relay},
    subject::{self, Millrace, Subject},
    sys,
    testbed::{Priority, Testbed},
    topology::Topology,
    workload::{Family, Workload},
};

const VIRTUAL_ROUTERS: u16 = 2;
const DESTINATIONS: u32 = 4096;
/// A load that Linux also carries on one core, to compare loss and cost at equal work.
const EQUAL_RATE_PPS: u64 = 300_000;
const WINDOW: Window = Window::new(Duration::from_millis(250), Duration::from_millis(1000));

struct Case {
    title: String,
    workload: Workload,
    /// Behind a stateful firewall that masquerades.
    is_masqueraded: bool,
}

/// How the demo ends.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct DemoOptions {
    /// At the end, keep some traffic running and show the web page of the daemon, until Ctrl-C
    #[arg(long)]
    web: bool,
}

/// The port of the web page, if it is free.
const WEB_PORT: u16 = 9112;
/// The rates at the end of the demo, in turn, so that there is something to see.
const RATES_PPS: [u64; 6] = [50_000, 100_000, 200_000, 300_000, 150_000, 20_000];
/// How long each of them lasts.
const EACH: Duration = Duration::from_secs(15);

/// Saturated, and at [`EQUAL_RATE_PPS`].
type Pair = [Sample; 2];

/// Builds a testbed, measures and prints. Fails if Millrace cannot run, or if either one forwards wrongly.
pub fn demo(options: &DemoOptions) -> Result<()> {
    let cases = cases();
    println!(
        "Building a testbed: generator - router box (host and {VIRTUAL_ROUTERS} namespace routers) - sink ..."
    );
    let mut testbed = Testbed::for_rates(&Topology::rfc2544().with_routers(VIRTUAL_ROUTERS))?;

    let (sender, _) = testbed.host_ends()[0];
    masquerade::nft(sender, masquerade::NO_ANSWERS)?;

    println!("Linux forwards ...");
    let linux = subject::start("linux", &testbed)?;
    let by_linux = measure_all(&mut testbed, &*linux, None, &cases)?;
    drop(linux);

    let listener = options.web.then(|| relay::listener(WEB_PORT)).transpose()?;
    testbed.web = listener.as_ref().map(|listener| listener.local_addr()).transpose()?;

    println!("Millrace forwards ...");
    let millrace = match Millrace::start(&testbed) {
        Ok(millrace) => millrace,
        Err(error) => {
            print_table(&cases, &by_linux, None);
            bail!("Millrace could not be measured: {error:#}");
        }
    };
    let by_millrace = measure_all(&mut testbed, &millrace, Some(&millrace), &cases)?;
    let status = millrace.status_text()?;

    print_table(&cases, &by_linux, Some(&by_millrace));
    println!("\nmillrace status\n{}", status.trim_end());
    listener.map_or(Ok(()), |listener| show_page(&mut testbed, listener))
}

/// Makes the page reachable from this machine, and keeps traffic running until somebody ends it.
fn show_page(testbed: &mut Testbed, listener: TcpListener) -> Result<()> {
    let address = listener.local_addr()?;
    masquerade::forget(testbed)?;
    let _relay = Relay::start(listener, &testbed.box_namespace)?;
    // The browser needs the cores, too.
    testbed.set_priority(Priority::Reaction)?;
    let workload = Workload::benchmark(Family::V4, DESTINATIONS, 0..=VIRTUAL_ROUTERS);
    testbed.generator.set_targets(workload.targets.clone(), workload.frame_bytes)?;
    println!("\nThe web page of the daemon: http://{address}/ (Ctrl-C ends the demo)");
    loop {
        for pps in RATES_PPS {
            let load = Load { frame_bytes: workload.frame_bytes, pace: Pace::Rate(pps) };
            testbed.generator.start(load)?;
            let slept = sys::sleep(EACH);
            testbed.generator.stop()?;
            if slept.is_err() {
                return Ok(());
            }
        }
    }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for family in [Family::V4, Family::V6] {
        let host = Workload::benchmark(family, DESTINATIONS, 0..=0);
        cases.push(Case { title: format!("{}, host", family.name()), workload: host, is_masqueraded: false });
        let virtual_routers = Workload::benchmark(family, DESTINATIONS, 1..=VIRTUAL_ROUTERS);
        let title = format!("{}, {VIRTUAL_ROUTERS} virtual routers", family.name());
        cases.push(Case { title, workload: virtual_routers, is_masqueraded: false });
    }
    let workload = Workload::benchmark(Family::V4, DESTINATIONS, 0..=0);
    cases.push(Case { title: "IPv4, firewall and NAT".into(), workload, is_masqueraded: true });
    cases
}

/// `millrace`: the subject, if it is Millrace.
fn measure_all(
    testbed: &mut Testbed,
    subject: &dyn Subject,
    millrace: Option<&Millrace>,
    cases: &[Case],
) -> Result<Vec<Pair>> {
    let of = |case: &Case| {
        if case.is_masqueraded {
            set_up_firewall(testbed, &case.workload, millrace)?;
            let masquerade = Masquerade { inner: subject, ruled: true };
            let pair = measure_both(testbed, &masquerade, &case.workload)?;
            masquerade::forget(testbed)?;
            return Ok(pair);
        }
        measure_both(testbed, subject, &case.workload)
    };
    cases.iter().map(of).collect()
}

/// Loads rules into the box, and makes established connections. With Millrace, waits until these are fast.
fn set_up_firewall(testbed: &mut Testbed, workload: &Workload, millrace: Option<&Millrace>) -> Result<()> {
    masquerade::forget(testbed)?;
    masquerade::nft(&testbed.box_namespace, &masquerade::rules())?;
    // Millrace makes connections fast that begin after it has read the rules.
    sys::sleep(SETTLE)?;
    masquerade::begin(testbed, workload, 0)?;
    if let Some(millrace) = millrace {
        masquerade::until_fast(testbed, millrace, |_| Ok(())).context("behind a firewall")?;
    }
    testbed.set_priority(Priority::Rates)
}

fn measure_both(testbed: &mut Testbed, subject: &dyn Subject, workload: &Workload) -> Result<Pair> {
    let frame_bytes = workload.frame_bytes;
    let next_hop = |address| workload.next_hop(address);
    check_forwarding(testbed, subject, &workload.targets, frame_bytes, next_hop)?;
    testbed.generator.set_targets(workload.targets.clone(), frame_bytes)?;
    Ok([
        measure(testbed, Load { frame_bytes, pace: Pace::Saturate }, WINDOW)?,
        measure(testbed, Load { frame_bytes, pace: Pace::Rate(EQUAL_RATE_PPS) }, WINDOW)?,
    ])
}

fn print_table(cases: &[Case], linux: &[Pair], millrace: Option<&Vec<Pair>>) {
    println!(
        "\n64-byte UDP (IPv6: 66), {DESTINATIONS} destinations, one core for the router, the sink included."
    );
    println!("Before each case the packets were compared byte by byte: MACs, TTL, checksum, NAT.");
    println!("Firewall and NAT: {DESTINATIONS} established connections behind a masquerade and three rules.");
    let saturated = |sample: &Pair| sample[0].received_pps / 1e6;
    let saturated_ns = |sample: &Pair| ns(&sample[0]);
    let equal_ns = |sample: &Pair| ns(&sample[1]);
    let equal_loss = |sample: &Pair| sample[1].loss * 100.0;
    let saturated_loss = |sample: &Pair| sample[0].loss * 100.0;
    let equal_mpps = EQUAL_RATE_PPS as f64 / 1e6;
    print_block(cases, linux, millrace, "Mpps, saturated", 3, Some("x"), saturated);
    print_block(cases, linux, millrace, "CPU ns per packet, saturated", 0, Some("x"), saturated_ns);
    print_block(cases, linux, millrace, "lost %, saturated", 1, None, saturated_loss);
    print_block(
        cases,
        linux,
        millrace,
        &format!("CPU ns, {equal_mpps} Mpps offered"),
        0,
        Some("x"),
        equal_ns,
    );
    print_block(cases, linux, millrace, &format!("lost %, {equal_mpps} Mpps offered"), 2, None, equal_loss);
}

/// Prints one figure of all cases side by side, with the ratio Millrace / Linux if it has a meaning.
fn print_block(
    cases: &[Case],
    linux: &[Pair],
    millrace: Option<&Vec<Pair>>,
    title: &str,
    digits: usize,
    ratio: Option<&str>,
    figure: impl Fn(&Pair) -> f64,
) {
    println!("\n{title:30} {:>10} {:>10} {:>8}", "Linux", "Millrace", ratio.map_or("", |_| "ratio"));
    for (i, case) in cases.iter().enumerate() {
        let by_linux = figure(&linux[i]);
        let by_millrace = millrace.map(|pairs| figure(&pairs[i]));
        let show = |value: f64| format!("{value:.digits$}");
        println!(
            "  {:28} {:>10} {:>10} {:>8}",
            case.title,
            show(by_linux),
            by_millrace.map_or("-".into(), show),
            by_millrace
                .zip(ratio)
                .map_or(String::new(), |(value, unit)| format!("{:.2}{unit}", value / by_linux)),
        );
    }
}
