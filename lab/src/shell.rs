//! `millrace-lab shell`: a testbed to look around in; it goes when the shell ends.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::{
    sys,
    testbed::{PORT_IN, PORT_OUT, Spec, Testbed},
};

/// Builds a testbed with so many virtual routers and runs `$SHELL` in its box namespace.
pub fn shell(routers: u16) -> Result<()> {
    let testbed = Testbed::new(Spec { routers, ..Spec::default() })?;
    let name = &testbed.name;
    println!(
        "You are on the router box. Its ports are {PORT_IN} (to {name}-gen) and {PORT_OUT} (to {name}-sink)."
    );
    match routers {
        0 => {}
        1 => println!("Virtual router: namespace {name}-r1."),
        n => println!("Virtual routers: namespaces {name}-r1 to {name}-r{n}."),
    }
    println!(
        "Other namespaces: ip netns exec {name}-gen ...   Millrace: millrace run --port {PORT_IN} --port {PORT_OUT} --instance {name}"
    );
    println!("The testbed goes when you leave this shell.");
    let program = PathBuf::from(std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into()));
    let mut command = testbed.box_namespace.command(&program);
    if let Some(directory) = std::env::current_exe().ok().as_deref().and_then(|lab| lab.parent()) {
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", directory.display()));
    }
    let mut child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
    // Ctrl-C belongs to the shell's programs: a signal to us alone must end the shell first.
    while child.try_wait()?.is_none() {
        std::thread::sleep(std::time::Duration::from_millis(50));
        if sys::terminated() {
            sys::hang_up(child.id() as i32);
        }
    }
    Ok(())
}
