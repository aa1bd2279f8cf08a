//! `millrace-lab`: the testbed, the demo and the benches.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::{Parser, Subcommand};
use lab::{
    cpu, demo,
    experiment::{Experiment, bench},
    figures, namespace, paths, report, shell, simulation, sys,
};

/// Measures Millrace and the routers it is compared with, in temporary network namespaces. Most commands need root.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The same packets through Linux and through Millrace, side by side; takes less than a minute
    Demo(demo::DemoOptions),
    /// A shell on a testbed's router box
    Shell(shell::ShellOptions),
    #[command(flatten)]
    Experiment(Experiment),
    /// The experiments of docs/measured.md, one after another (figures, apps, flows, firewall, flow-changes and
    /// paths are separate commands)
    Bench(bench::BenchOptions),
    /// The experiments behind the papers' figures, drawn beside the published values; those of paper P need no root
    Figures(figures::FiguresOptions),
    /// Simulate how queues are placed on larger machines, in virtual time: packed, spread and hashed; needs no root
    Sim(simulation::SimulationOptions),
    /// The user plane, memory to memory, on one core: chains, ESP beside the library alone, shares; needs no root
    Paths(paths::PathsOptions),
    /// Plan a machine: how many cores forward this traffic, and what is left for applications; needs no root
    Plan(simulation::plan::PlanOptions),
    /// Make HTML with pictures, and Markdown, from the raw results in a directory
    Report(report::ReportOptions),
    #[command(name = cpu::Spinner::COMMAND, hide = true)]
    Spin { core: usize },
}

fn run(arguments: Arguments) -> Result<ExitCode> {
    match arguments.command {
        Command::Spin { core } => return cpu::spin(core).map(|()| ExitCode::SUCCESS),
        Command::Report(options) => return report::run(&options).map(|()| ExitCode::SUCCESS),
        Command::Sim(options) => {
            return simulation::run(&options, std::env::args().collect()).map(|()| ExitCode::SUCCESS);
        }
        Command::Plan(options) => {
            return simulation::plan::run(&options, std::env::args().collect()).map(|()| ExitCode::SUCCESS);
        }
        Command::Paths(options) => {
            return paths::run(&options, std::env::args().collect()).map(|()| ExitCode::SUCCESS);
        }
        Command::Figures(options) if !options.needs_root() => {
            return figures::run(&options, std::env::args().collect()).map(|()| ExitCode::SUCCESS);
        }
        Command::Shell(options) if options.list => return shell::list().map(|()| ExitCode::SUCCESS),
        _ => {}
    }
    ensure!(sys::is_root(), "millrace-lab builds network namespaces and loads BPF programs: run it as root");
    sys::handle_signals();
    namespace::clean_stale();
    let ran = match arguments.command {
        Command::Demo(options) => demo::demo(&options),
        Command::Shell(options) => return shell::shell(&options).map(ExitCode::from),
        Command::Experiment(experiment) => experiment.run(std::env::args().collect()),
        Command::Figures(options) => figures::run(&options, std::env::args().collect()),
        Command::Bench(options) => bench::bench(&options),
        Command::Spin { .. }
        | Command::Report(_)
        | Command::Sim(_)
        | Command::Plan(_)
        | Command::Paths(_) => Ok(()),
    };
    ran.map(|()| ExitCode::SUCCESS)
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(code) => code,
        Err(error) if error.is::<sys::Interrupted>() => {
            eprintln!("stopped; everything is cleaned up");
            ExitCode::from(130)
        }
        Err(error) => {
            eprintln!("millrace-lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}
