//! What the daemon costs while nothing happens, and how soon it still answers.

mod common;

use common::{in_new_namespace, run};
use std::{
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

struct Daemon {
    child: Child,
    instance: String,
}

impl Daemon {
    fn start() -> Daemon {
        let instance = format!("idle-{}", std::process::id());
        let child = Command::new(env!("CARGO_BIN_EXE_millrace"))
            .args(["run", "--port", "p0", "--instance", &instance])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let daemon = Daemon { child, instance };
        let until = Instant::now() + Duration::from_secs(20);
        while !daemon.cli("status").status.success() {
            assert!(Instant::now() < until, "millrace did not start");
            thread::sleep(Duration::from_millis(50));
        }
        daemon
    }

    fn cli(&self, command: &str) -> Output {
        let mut cli = Command::new(env!("CARGO_BIN_EXE_millrace"));
        cli.args([command, "--instance", &self.instance]).output().unwrap()
    }

    /// How often the control thread has gone to sleep.
    fn sleeps(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:")).unwrap();
        line.trim().parse().unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.cli("stop");
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "needs root"]
fn an_idle_daemon_sleeps_and_answers_at_once() {
    in_new_namespace(|| {
        run("ip link add p0 type veth peer name q0");
        let daemon = Daemon::start();
        // The first seconds have dumps and port checks of their own.
        thread::sleep(Duration::from_secs(3));
        let before = daemon.sleeps();
        thread::sleep(Duration::from_secs(4));
        let a_second = (daemon.sleeps() - before) / 4;
        assert!(a_second < 25, "the control thread wakes {a_second} times a second with nothing to do");

        let started = Instant::now();
        (0..20).for_each(|_| assert!(daemon.cli("ports").status.success()));
        let each = started.elapsed() / 20;
        assert!(each < Duration::from_secs(1), "an answer takes {each:?}");
    });
}
