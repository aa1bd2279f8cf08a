//! The daemon as a service: what it reports to systemd, and all instances stopped as when the package is removed.

use crate::{
    bed::Bed,
    daemon::{Daemon, PATIENCE, binary, eventually_true},
};
use lab::command;
use std::{fs, os::unix::net::UnixDatagram, path::PathBuf, time::Duration};

/// The socket of a service manager.
struct Manager {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Manager {
    fn new(name: &str) -> Manager {
        let path = std::env::temp_dir().join(format!("{name}.notify"));
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Manager { socket, path }
    }

    fn next(&self) -> String {
        let mut buffer = [0; 256];
        let length = self.socket.recv(&mut buffer).expect("a report");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    /// Skips reports that the daemon works, and those of [`Manager::fill`].
    fn next_state(&self) -> String {
        std::iter::repeat_with(|| self.next())
            .find(|report| !["WATCHDOG=1", "X=1"].contains(&&**report))
            .unwrap()
    }

    /// Leaves no room for a report.
    fn fill(&self) {
        let other = UnixDatagram::unbound().unwrap();
        other.set_nonblocking(true).unwrap();
        while other.send_to(b"X=1", &self.path).is_ok() {}
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[test]
#[ignore = "needs root"]
fn the_daemon_reports_that_it_is_ready_reloads_and_works() {
    let bed = Bed::new();
    let manager = Manager::new(&bed.name);
    let socket = manager.path.to_str().unwrap();
    let variables = [("NOTIFY_SOCKET", socket), ("WATCHDOG_USEC", "1000000")];
    let mut daemon =
        Daemon::launch_with(&bed.the_box, &bed.name, &["--port", "p1", "--port", "p2"], &variables);
    assert_eq!(manager.next_state(), "READY=1");
    for _ in 0..3 {
        assert_eq!(manager.next(), "WATCHDOG=1");
    }
    daemon.signal(libc::SIGHUP);
    let reloading = manager.next_state();
    assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
    assert_eq!(manager.next_state(), "READY=1");
    // Nobody reads any more: the heartbeat goes on, and the last report comes later.
    manager.fill();
    daemon.signal(libc::SIGHUP);
    eventually_true("reports that are not taken", || daemon.log().matches("does not take").count() == 2);
    let confirmed = |status: &serde_json::Value| status["heartbeat"]["age_s"].as_f64().unwrap() < 2.5;
    for _ in 0..3 {
        std::thread::sleep(Duration::from_secs(1));
        daemon.until("a confirmation", |status| status["ready"] == true && confirmed(status));
    }
    assert_eq!(manager.next_state(), "READY=1");
    assert_eq!(manager.next(), "WATCHDOG=1");
}

/// In a mount namespace, where /run and the file system of pins are the test's own: other tests have instances, too.
#[test]
#[ignore = "needs root"]
fn all_instances_are_stopped_at_once() {
    let bed = Bed::new();
    let script = format!(
        r#"
        mount -t tmpfs tmpfs /run
        mount -t bpf -o mode=0700 bpf /sys/fs/bpf
        millrace={}
        answers() {{ "$millrace" status "$@" >/dev/null 2>&1; }}
        "$millrace" run --port p1 &
        "$millrace" run --port p2 --instance a &
        until answers && answers --instance a; do sleep 0.1; done
        "$millrace" stop --all
        wait
        echo "left: $(ls -A /run /sys/fs/bpf | grep millrace)"
        "$millrace" stop --all
        "#,
        binary().display()
    );
    let mut run = bed.the_box.command("timeout");
    let said = command::run(run.args(["300", "unshare", "--mount", "bash", "-ec", &script])).unwrap();
    for line in [
        "port p1: program removed, the kernel forwards",
        "removed /sys/fs/bpf/millrace",
        "a: port p2: program removed, the kernel forwards",
        "a: removed /sys/fs/bpf/millrace-a",
        "left: ",
        "nothing to do: no instance runs or has left anything behind",
    ] {
        assert!(said.lines().any(|said| said == line), "{line}: {said}");
    }
}
