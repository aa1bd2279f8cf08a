//! Policies that change: they apply to packets sent after the command has returned, although the daemon is stopped
//! meanwhile.

use lab::namespace::Namespace;

use crate::{
    bed::{Bed, output, ping, run},
    daemon::Leftovers,
};

const SERVER_BY_RED: &str = "10.7.2.2";
const SERVER_BY_THE_BOX: &str = "10.8.2.2";

fn is_answered(from: &Namespace, to: &str) -> bool {
    output(from, &format!("ping -n -W 1 -c 1 {to}")).contains("1 received")
}

#[test]
#[ignore = "needs root"]
fn a_policy_is_obeyed_when_its_command_returns_though_the_daemon_is_stopped() {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    ping(&bed.client, SERVER_BY_RED, 3);
    ping(&bed.client, SERVER_BY_THE_BOX, 3);
    let mut daemon = bed.start(2, &["--heartbeat", "1h"]);
    let before = daemon.forwarded();
    ping(&bed.client, SERVER_BY_RED, 20);
    assert!(daemon.forwarded() >= before + 40, "by the fast path");
    let chain = "nft add chain ip t c {type filter hook forward priority 0;policy drop;}";
    let changes: [(&[&str], &[&str]); 5] = [
        (&["nft add table ip t", chain], &["nft delete table ip t"]),
        (&["ip rule add pref 1 blackhole"], &["ip rule del pref 1"]),
        (
            &["ip xfrm policy add dir fwd src 10.7.1.0/24 dst 10.7.2.0/24 action block"],
            &["ip xfrm policy flush"],
        ),
        (&["sysctl -qw net.ipv4.conf.in.forwarding=0"], &["sysctl -qw net.ipv4.conf.in.forwarding=1"]),
        (&["iptables-legacy -P FORWARD DROP"], &["iptables-legacy -P FORWARD ACCEPT"]),
    ];
    for (done, undone) in changes {
        ping(&bed.client, SERVER_BY_RED, 3);
        daemon.until_accelerated(2);
        daemon.pause(true);
        done.iter().for_each(|line| drop(run(&bed.red, line)));
        assert!(!is_answered(&bed.client, SERVER_BY_RED), "{done:?}");
        assert!(is_answered(&bed.client, SERVER_BY_THE_BOX), "{done:?}: another router");
        undone.iter().for_each(|line| drop(run(&bed.red, line)));
        assert!(is_answered(&bed.client, SERVER_BY_RED), "{undone:?}");
        daemon.pause(false);
    }
    daemon.stop();
}
