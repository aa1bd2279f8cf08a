//! Ports that workers are configured to poll, in a running daemon.

use super::*;

/// Settings that hold interrupts back. A veth has no interrupts.
fn timers(roots: &Roots) -> Vec<String> {
    let names = ["gro_flush_timeout", "napi_defer_hard_irqs"];
    let files = ["p0", "p1"].into_iter().flat_map(|port| names.map(|name| roots.device(port).join(name)));
    files.map(|file| fs::read_to_string(file).unwrap()).collect()
}

const SETTINGS: &str = r#"policy = "off"
[workers]
cores = "1"
[experimental]
polling = "busy"
sample_every = 7
longest_run = "300us"
[[path]]
name = "all"
class = { ether_type = "ipv4" }
chain = ["check", "route", "ttl", "rewrite"]
"#;

#[test]
#[ignore = "needs root"]
fn each_queue_reports_whether_workers_poll_it_and_a_veth_keeps_its_settings() {
    in_new_namespace(|| {
        let mut bed = Bed::new("y");
        let before = timers(&bed.roots);
        for ends in ["kill -9", "kill"] {
            bed.start(SETTINGS);
            let begun = Instant::now();
            let workers = loop {
                let status = bed.json(&["status"]).unwrap_or_default();
                let workers = status["workers"].clone();
                if workers["queues"].as_array().is_some_and(|queues| queues.len() == 4) {
                    break workers;
                }
                assert!(begun.elapsed() < PATIENCE, "not four queues: {status}");
                thread::sleep(Duration::from_millis(50));
            };
            assert_eq!((&workers["sample_every"], &workers["longest_run_us"]), (&7.into(), &300.into()));
            // Before the first packet, no kernel reports the NAPI instance of a veth's queue.
            for queue in workers["queues"].as_array().unwrap() {
                let why = queue["not_polled_because"].as_str().unwrap();
                assert!(
                    queue["polled"] == false && why.starts_with("its driver does not report"),
                    "polled, or another reason: {queue}"
                );
            }
            let text = bed.millrace(&["status"]);
            assert!(text.contains(": workers do not poll it: its driver"), "the note is missing: {text}");
            assert_eq!(timers(&bed.roots), before);
            run(&format!("{ends} {}", bed.daemon.as_ref().unwrap().id()));
            bed.end();
            bed.millrace(&["stop"]);
            assert_eq!(timers(&bed.roots), before);
        }
    });
}
