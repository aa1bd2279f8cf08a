//! `millrace-lab figures`: the experiments behind the papers' figures, on our testbed, drawn beside the values that the
//! papers publish ([`published`]). Each experiment describes its picture in its result file, so that `report` can draw
//! it again. There is a file for each group of papers: `m` (virtual routers), `q` (Q and O: forwarding beside
//! applications), `v` (which core receives a flow), `p` (paths of the user plane, memory to memory). `simulated` has
//! the parts that need more cores.

mod m;
mod p;
pub mod published;
mod q;
mod simulated;
mod v;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, value_parser};
use serde_json::Value;

use crate::{
    compare::Plan,
    experiment::seconds,
    figure::{Axis, Figure},
    generator::Pace,
    measure::Window,
    record::{Output, Recorder},
    report,
    sys::Interrupted,
};

use published::PaperFigure;

/// Letters of the papers (published.toml has their titles), in the order of reports.
const PAPERS: [&str; 5] = ["Q", "O", "P", "V", "M"];

/// What can be measured: the id of the figure, and its experiment.
const FIGURES: [(&str, Experiment); 30] = [
    ("M4", m::load),
    ("M5", m::several_into_one),
    ("M6", m::routers),
    ("M7", m::interfaces),
    ("M8", m::more_interfaces),
    ("M9", m::latency),
    ("MT1", m::isolation),
    ("Q2", q::entries),
    ("Q3", q::scaling),
    ("Q4", q::core_load),
    ("Q5", q::wakeups),
    ("Q7", q::two_cores),
    ("Q8", q::four_cores),
    ("O2", q::application),
    ("P6", p::crossing_cores),
    ("P7", p::one_phase),
    ("P8", p::transmit_queues),
    ("P9", p::receive_queues),
    ("P11", p::unequal_paths),
    ("P12", p::equal_runs),
    ("P13", p::equal_cpu),
    ("P14", p::equal_memory),
    ("P15", p::batches),
    ("P17", p::unified_input),
    ("P19", p::alike_on_a_core),
    ("P20", p::unlike_on_siblings),
    ("VT4", v::collisions),
    ("VT5", v::cores),
    ("VT6", v::losses),
    ("VT7", v::priority),
];

/// Figures of this paper are measured memory to memory, and need no root.
const WITHOUT_ROOT: &str = "P";

/// Time of load before counting begins. It is short, because there are many points.
const WARM_UP: Duration = Duration::from_millis(200);

type Experiment = fn(&PaperFigure, &FiguresOptions, &mut Recorder) -> Result<()>;

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct FiguresOptions {
    /// Only figures of this paper
    #[arg(long, value_parser = PAPERS)]
    pub paper: Option<String>,
    /// Only this figure: M4, Q2, ...
    #[arg(long, value_name = "FIG")]
    pub only: Option<String>,
    /// Directory for raw results and the report
    #[arg(long, value_name = "DIR", default_value = "target/figures")]
    pub out: PathBuf,
    /// Length of each measurement, seconds
    #[arg(long, default_value_t = 1.5, value_parser = seconds)]
    pub seconds: f64,
    /// How often each is repeated
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u16).range(1..=1000))]
    pub repeat: u16,
    /// For Q7: the two cores that forward and run applications.
    #[arg(skip = [1, 2])]
    pub cores: Vec<usize>,
}

impl FiguresOptions {
    /// Does any figure that was asked for need root?
    pub fn needs_root(&self) -> bool {
        let chosen = choose(self).unwrap_or_default();
        chosen.iter().any(|(id, _)| !id.starts_with(WITHOUT_ROOT))
    }

    fn window(&self) -> Window {
        Window::new(WARM_UP, Duration::from_secs_f64(self.seconds))
    }

    fn plan<'a>(
        &self,
        figure: &'a PaperFigure,
        parameters: Value,
        subjects: &'a [&'a str],
        paces: &'a [Pace],
    ) -> Plan<'a> {
        let repeats = 0..self.repeat.into();
        Plan { case: &figure.id, parameters, subjects, paces, repeats, window: self.window() }
    }
}

/// Measures, and writes a report of all results in the directory, also after an interruption.
pub fn run(options: &FiguresOptions, command: Vec<String>) -> Result<()> {
    let chosen = choose(options)?;
    std::fs::create_dir_all(&options.out).with_context(|| options.out.display().to_string())?;
    let measured = measure(&chosen, options, &command);
    report::write(&options.out, None).and(measured)
}

fn measure(chosen: &[(&str, Experiment)], options: &FiguresOptions, command: &[String]) -> Result<()> {
    let mut failed = Ok(());
    for (id, experiment) in chosen {
        let figure = published::figure(id)?;
        eprintln!("{id} ({}): {} ...", figure.paper, figure.title);
        let mut recorder = output(&options.out, id, command).recorder()?;
        for published in &figure.published {
            recorder.published(published)?;
        }
        match experiment(&figure, options, &mut recorder).with_context(|| format!("figure {id}")) {
            Err(error) if error.is::<Interrupted>() => return Err(error),
            Err(error) => {
                eprintln!("{error:#}");
                failed = failed.and(Err(error));
            }
            Ok(()) => {}
        }
    }
    failed
}

fn output(directory: &Path, id: &str, command: &[String]) -> Output {
    Output { path: Some(directory.join(format!("{id}.jsonl"))), command: command.to_vec() }
}

/// The figures that were asked for.
fn choose(options: &FiguresOptions) -> Result<Vec<(&'static str, Experiment)>> {
    let there_are = || FIGURES.map(|(id, _)| id).join(", ");
    if let Some(id) = &options.only {
        ensure!(
            FIGURES.iter().any(|(other, _)| other == id),
            "no figure is called {id}; there are: {}",
            there_are()
        );
    }
    let of_paper = |id: &str| options.paper.as_deref().is_none_or(|paper| id.starts_with(paper));
    let asked = |id: &str| options.only.as_deref().is_none_or(|only| only == id) && of_paper(id);
    let chosen: Vec<_> = FIGURES.into_iter().filter(|(id, _)| asked(id)).collect();
    if chosen.is_empty() {
        let paper = options.paper.as_deref().unwrap_or_default();
        let what = options.only.as_ref().map_or("no figure of".into(), |only| format!("{only} is not of"));
        bail!("{what} paper {paper}, or it comes with the part that it measures; there are: {}", there_are());
    }
    Ok(chosen)
}

/// The picture of a paper's figure: lines of its case, by subject.
fn picture(figure: &PaperFigure, x: Axis, y: Axis, ours: &str) -> Figure {
    let title = format!("{}: {}", figure.paper, figure.title);
    let note = format!("Published: {}. Ours: {ours}.", figure.setup);
    Figure::new(&figure.id, &title, Some(x), y)
        .only("/case", figure.id.clone())
        .series("/subject")
        .note(&note)
}

/// The same figure in absolute rates, without published values.
fn in_kpps(figure: Figure) -> Figure {
    Figure { name: format!("{} in kpps", figure.name), title: format!("{}, in kpps", figure.title), ..figure }
}

fn kpps(at: &str, label: &str) -> Axis {
    Axis::new(at, label, "kpps").times(1e-3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(paper: Option<&str>, only: Option<&str>) -> FiguresOptions {
        let (paper, only) = (paper.map(str::to_owned), only.map(str::to_owned));
        FiguresOptions { paper, only, out: PathBuf::new(), seconds: 1.0, repeat: 1, cores: vec![1, 2] }
    }

    fn chosen(paper: Option<&str>, only: Option<&str>) -> Result<Vec<&'static str>, String> {
        let chosen = choose(&options(paper, only)).map_err(|error| error.to_string())?;
        Ok(chosen.into_iter().map(|(id, _)| id).collect())
    }

    #[test]
    fn figures_are_chosen_by_paper_and_id() {
        let all = FIGURES.map(|(id, _)| id);
        assert_eq!(chosen(None, None).unwrap(), all);
        assert_eq!(chosen(Some("M"), None).unwrap(), all[..7]);
        assert_eq!(chosen(Some("O"), None).unwrap(), ["O2"]);
        assert_eq!(chosen(None, Some("Q2")).unwrap(), ["Q2"]);
        let error = |paper, only| chosen(paper, only).unwrap_err();
        let there_are = all.join(", ");
        assert_eq!(error(None, Some("M99")), format!("no figure is called M99; there are: {there_are}"));
        let late = |what: &str| {
            format!("{what}, or it comes with the part that it measures; there are: {there_are}")
        };
        assert_eq!(chosen(Some("P"), None).unwrap().len(), 12);
        assert_eq!(error(Some("M"), Some("Q2")), late("Q2 is not of paper M"));
    }

    #[test]
    fn figures_in_memory_need_no_root() {
        let needs = |paper, only| options(paper, only).needs_root();
        assert!(!needs(Some("P"), None) && !needs(None, Some("P15")));
        assert!(needs(None, None) && needs(Some("Q"), None) && needs(None, Some("MT1")));
    }

    #[test]
    fn every_experiment_has_its_published_values() {
        for (id, _) in FIGURES {
            assert_eq!(published::figure(id).unwrap().id, id);
        }
    }
}
