//! Starts, asks and kills the `millrace` binary.

use std::{
    fs::File,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use lab::{namespace::Namespace, sys};
use serde_json::Value;

/// How long to wait for something that takes a moment: another program may have both cores.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// Waits until `look` returns something. Panics with the last reason why not.
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Result<T, String>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        match look() {
            Ok(found) => return found,
            Err(why) if Instant::now() > end => panic!("{what}: not within {PATIENCE:?}: {why}"),
            Err(_) => thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// As [`eventually`], for a condition.
pub fn eventually_true(what: &str, mut look: impl FnMut() -> bool) {
    eventually(what, || if look() { Ok(()) } else { Err("still not".into()) });
}

/// A daemon of an instance. Dropping it stops it, and it leaves nothing.
pub struct Daemon {
    child: Child,
    pub instance: String,
    log: PathBuf,
}

impl Daemon {
    /// Starts `millrace run` with more arguments in a namespace, and does not wait.
    pub fn launch(namespace: &Namespace, instance: &str, arguments: &[&str]) -> Self {
        Self::launch_with(namespace, instance, arguments, &[])
    }

    /// The same, with environment variables.
    pub fn launch_with(
        namespace: &Namespace,
        instance: &str,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        let log = std::env::temp_dir().join(format!("{instance}.log"));
        let file = File::options().create(true).append(true).open(&log).unwrap();
        let mut run = namespace.command(binary());
        sys::end_with_parent(&mut run);
        sys::start_on_all_cores(&mut run);
        run.args(["run", "--instance", instance]).args(arguments).envs(variables.iter().copied());
        let child = run.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).spawn().unwrap();
        Self { child, instance: instance.into(), log }
    }

    /// Starts it and waits until it is ready.
    pub fn start(namespace: &Namespace, instance: &str, arguments: &[&str]) -> Self {
        let mut daemon = Self::launch(namespace, instance, arguments);
        let pid = u64::from(daemon.child.id());
        daemon.until("ready", |status| status["ready"] == true && status["pid"] == pid);
        daemon
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Stops the process, or lets it go on.
    pub fn pause(&self, pause: bool) {
        self.signal(if pause { libc::SIGSTOP } else { libc::SIGCONT });
    }

    pub fn signal(&self, signal: libc::c_int) {
        // SAFETY: no pointers; the process is our child, which was not waited for yet.
        assert_eq!(unsafe { libc::kill(self.pid() as libc::pid_t, signal) }, 0);
    }

    /// Waits for a status that `wanted` accepts.
    pub fn until(&mut self, what: &str, mut wanted: impl FnMut(&Value) -> bool) -> Value {
        eventually(what, || {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("millrace ended ({status}):\n{}", self.log());
            }
            let status = self.try_ask(&["status"]).map_err(|e| format!("{e}\n{}", self.log()))?;
            if wanted(&status) { Ok(status) } else { Err(format!("{status:#}\n{}", self.log())) }
        })
    }

    /// Waits until it accelerates this many routers for IPv4 and IPv6 and trusts every port.
    pub fn until_accelerated(&mut self, routers: usize) -> Value {
        self.until(&format!("{routers} routers accelerated"), |status| {
            let empty = Vec::new();
            let list = |name: &str| status[name].as_array().unwrap_or(&empty).clone();
            let fast = |r: &&Value| r["accelerated"]["ipv4"] == true && r["accelerated"]["ipv6"] == true;
            list("routers").iter().filter(fast).count() == routers
                && list("ports").iter().all(|p| p["problems"].as_array().is_some_and(Vec::is_empty))
        })
    }

    /// Its status, if it is ready.
    pub fn ask_if_ready(&self) -> Option<Value> {
        self.try_ask(&["status"]).ok().filter(|status| status["ready"] == true)
    }

    /// A command of the same instance.
    pub fn millrace(&self, words: &[&str]) -> Output {
        Command::new(binary()).args(words).args(["--instance", &self.instance]).output().unwrap()
    }

    /// JSON of a command that prints state.
    pub fn ask(&self, words: &[&str]) -> Value {
        self.try_ask(words).unwrap_or_else(|e| panic!("millrace {}: {e}\n{}", words.join(" "), self.log()))
    }

    fn try_ask(&self, words: &[&str]) -> Result<Value, String> {
        let output = self.millrace(&[words, &["--json"]].concat());
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            return Err(format!("{text}{}", String::from_utf8_lossy(&output.stderr)));
        }
        // Events are a line each.
        let parsed = match words {
            ["events", ..] => text.lines().map(serde_json::from_str::<Value>).collect(),
            _ => serde_json::from_str(&text),
        };
        parsed.map_err(|e| format!("{e}: {text}"))
    }

    /// Packets that the fast path has forwarded.
    pub fn forwarded(&self) -> u64 {
        self.ask(&["status"])["packets"]["forwarded"].as_u64().expect("packets.forwarded")
    }

    /// One router in the output of `status`; null if it is not listed.
    pub fn router(&self, name: &str) -> Value {
        router(&self.ask(&["status"]), name)
    }

    /// Asserts that `routes --verify` finds nothing.
    pub fn assert_verified(&self) {
        let output = self.millrace(&["routes", "--verify"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }

    /// Kills it with `kill -9`.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        // The instance lives on in the kernel: no `stop`.
        std::mem::forget(self);
    }

    /// Ends the daemon by SIGTERM, as an upgrade does. Its kernel program continues to forward packets.
    pub fn leave(mut self) {
        self.signal(libc::SIGTERM);
        let ended = lab::command::wait(&mut self.child, PATIENCE).unwrap();
        assert!(ended.is_some_and(|status| status.success()), "{ended:?}\n{}", self.log());
        // The instance lives on in the kernel: no `stop`.
        std::mem::forget(self);
    }

    /// `millrace stop`.
    pub fn stop(self) {
        let output = self.millrace(&["stop"]);
        assert!(output.status.success(), "{}\n{}", String::from_utf8_lossy(&output.stderr), self.log());
        self.ended();
    }

    /// Waits until it has ended on its own, without an error.
    pub fn ended(mut self) {
        let ended = lab::command::wait(&mut self.child, PATIENCE).unwrap();
        assert!(ended.is_some_and(|status| status.success()), "{ended:?}\n{}", self.log());
    }

    /// Asserts that it ends on its own with an error, and returns its last messages.
    pub fn refused(mut self) -> String {
        let ended = lab::command::wait(&mut self.child, PATIENCE).unwrap();
        assert!(ended.is_some_and(|status| !status.success()), "not refused: {ended:?}\n{}", self.log());
        let words = self.log();
        let _ = std::fs::remove_file(&self.log);
        // The reason may be another daemon of this instance, which must not be stopped.
        std::mem::forget(self);
        words
    }

    /// Its last messages.
    pub fn log(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // After `stop` there is nothing to stop; the error is harmless.
        let _ = self.millrace(&["stop"]);
        if !matches!(lab::command::wait(&mut self.child, PATIENCE), Ok(Some(_))) {
            eprintln!("millrace did not stop and was killed");
        }
        let _ = std::fs::remove_file(&self.log);
    }
}

/// Conditions of a status that are more than notes, as sentences.
pub fn problems(status: &Value) -> Vec<String> {
    let conditions = status["conditions"].as_array().unwrap();
    let problems = conditions.iter().filter(|condition| condition["is_note"] == false);
    problems.map(|condition| condition["sentence"].as_str().unwrap().to_owned()).collect()
}

/// One router of a status; null if it is not listed.
pub fn router(status: &Value, name: &str) -> Value {
    let mut list = status["routers"].as_array().into_iter().flatten();
    list.find(|router| router["router"] == name).cloned().unwrap_or_default()
}

/// Removes what a killed daemon has left, if a test fails before the next daemon is started.
pub struct Leftovers(pub String);

impl Drop for Leftovers {
    fn drop(&mut self) {
        let _ = Command::new(binary()).args(["stop", "--instance", &self.0]).output();
        let _ = std::fs::remove_file(std::env::temp_dir().join(format!("{}.log", self.0)));
    }
}

pub fn binary() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    // Tests are in deps/; the binaries are one directory up.
    let found = test.ancestors().nth(2).unwrap().join("millrace");
    assert!(found.is_file(), "no {}: run `make build`", found.display());
    found
}
