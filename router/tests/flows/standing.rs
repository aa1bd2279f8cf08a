//! Whether rules apply without a controller, how this is reported, and what becomes of packets for
//! controllers.

use super::{
    bed::{Bed, host_mac, port_mac, routable},
    common::in_new_namespace,
};
use serde_json::Value;

/// A controller to dial at an address where nobody answers.
const NOBODY: &str = "[openflow]\ncontrollers = [\"tcp:127.0.0.1:1\"]\nfail = ";

fn text(bed: &Bed, words: &[&str]) -> String {
    String::from_utf8_lossy(&bed.millrace(words).stdout).into_owned()
}

fn controllers(bed: &Bed) -> Value {
    serde_json::from_slice(&bed.millrace(&["controllers", "--json"]).stdout).unwrap()
}

#[test]
#[ignore = "needs root"]
fn fail_mode_secure_holds_before_any_controller_was_there() {
    in_new_namespace(|| {
        let bed = Bed::new("fs", &format!("{NOBODY}\"secure\"\n"));
        let bytes = routable(0, 1).bytes();
        assert_eq!(bed.flows(&["add", "in_port=p0,actions=output:3"]), "1 added\n");
        bed.wires[0].send(&bytes);
        bed.comes_out(&[2], &bytes);
        let told = controllers(&bed);
        assert_eq!(
            (&told["fail"], &told["in_charge"], &told["why_not"]),
            (&"secure".into(), &true.into(), &Value::Null)
        );
        assert!(
            bed.log().contains("flow rules are in charge: there are some now\n"),
            "the log: {}",
            bed.log()
        );
    });
}

#[test]
#[ignore = "needs root"]
fn rules_that_do_not_apply_are_reported_everywhere() {
    in_new_namespace(|| {
        let bed = Bed::new("fa", &format!("{NOBODY}\"standalone\"\n"));
        let frame = routable(0, 1);
        let said = bed.flows(&["add", "in_port=p0,actions=output:3"]);
        let why = "fail mode is \"standalone\" and no controller that the daemon dials is connected; they apply when one \
                   is, or with fail = \"secure\" in [openflow]";
        assert_eq!(said, format!("1 added\nnote: packets do not go by rules: {why}\n"));
        bed.wires[0].send(&frame.bytes());
        bed.comes_out(&[1], &frame.routed(host_mac(1), port_mac(1), &[]));
        let status = bed.status().unwrap();
        assert_eq!(
            (&status["flows"]["in_charge"], &status["flows"]["why_not"]),
            (&false.into(), &serde_json::json!({ "code": "standalone", "text": why }))
        );
        for (words, start) in [
            (["status"], "flow rules are not in charge"),
            (["controllers"], "1, NOT IN CHARGE, packets are routed"),
        ] {
            let said = text(&bed, &words);
            assert_eq!(said.matches(&format!("{start}: {why}\n")).count(), 1, "{said}");
        }
        assert_eq!(controllers(&bed)["fail"], "standalone");
        let logged = format!("flow rules are not in charge: {why}\n");
        assert_eq!(bed.log().matches(&logged).count(), 1, "times in the log: {}", bed.log());
    });
}

#[test]
#[ignore = "needs root"]
fn packets_for_controllers_count_as_lost_when_there_are_none() {
    in_new_namespace(|| {
        // There is no controller to dial, so rules apply.
        let bed = Bed::new("fc", "[openflow]\ncontrollers = [\"ptcp:6653:127.0.0.1\"]\n");
        bed.flows(&["add", "in_port=p0,actions=controller"]);
        bed.flows(&["add", "in_port=p1,actions=controller,output:3"]);
        let bytes = routable(0, 1).bytes();
        (0..3).for_each(|_| bed.wires[0].send(&bytes));
        let other = routable(1, 0).bytes();
        bed.wires[1].send(&other);
        bed.comes_out(&[2], &other);
        let lost = |n: u64| move |status: &Value| status["flows"]["controller_lost"]["no_controller"] == n;
        let status = bed.wait_for("all packets to reach the agent", lost(4));
        assert_eq!((bed.reason("rule_controller"), bed.reason("rule_drop")), (3, 0));
        assert_eq!((&status["packets"]["taken"], &status["packets"]["dropped"]), (&3.into(), &0.into()));
        let told = controllers(&bed);
        assert_eq!((&told["fail"], &told["lost"]["no_controller"]), (&Value::Null, &4.into()));
        let said = text(&bed, &["explain", "udp 10.0.0.9:1000 -> 10.0.1.9:53", "--port", "p0"]);
        assert!(said.contains("no controller is connected, so packets to CONTROLLER are lost\n"), "{said}");
    });
}
