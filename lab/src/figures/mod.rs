//! `millrace-lab figures`: the experiments behind the papers' figures, on our testbed; ours are drawn beside what the papers
//! say ([`published`]). Each experiment describes its picture in its result file, so that `report` can draw it again.

pub mod published;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, value_parser};
use serde_json::json;

use crate::{
    compare::{Plan, compare},
    experiment::seconds,
    figure::{Axis, Figure, Reference},
    generator::Pace,
    measure::Window,
    prefixes::{self, Prefixes},
    record::{Output, Recorder},
    report,
    testbed::Testbed,
    topology::Topology,
    workload::{Family, Workload},
};

use published::PaperFigure;

/// Letters of PAPERS, in the order of reports.
const PAPERS: [&str; 5] = ["Q", "O", "P", "V", "M"];

/// What can be measured: the figure's id, and its experiment.
const FIGURES: [(&str, Experiment); 3] = [("M4", load), ("M6", routers), ("Q2", entries)];

type Experiment = fn(&PaperFigure, &Options, &mut Recorder) -> Result<()>;

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Only figures of this paper
    #[arg(long, value_parser = PAPERS)]
    paper: Option<String>,
    /// Only this figure: M4, Q2, ...
    #[arg(long, value_name = "FIG")]
    only: Option<String>,
    /// Where raw results and the report go
    #[arg(long, value_name = "DIR", default_value = "target/figures")]
    out: PathBuf,
    /// Length of each measurement, seconds
    #[arg(long, default_value_t = 1.5, value_parser = seconds)]
    seconds: f64,
    /// How often each is repeated
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u16).range(1..=1000))]
    repeat: u16,
}

/// Measures, and writes the report of all that the directory holds; also when it is interrupted.
pub fn run(options: &Options, command: Vec<String>) -> Result<()> {
    let chosen = choose(options)?;
    std::fs::create_dir_all(&options.out).with_context(|| options.out.display().to_string())?;
    let measured = measure(&chosen, options, &command);
    report::write(&options.out, None).and(measured)
}

fn measure(chosen: &[(&str, Experiment)], options: &Options, command: &[String]) -> Result<()> {
    for (id, experiment) in chosen {
        let figure = published::figure(id)?;
        eprintln!("{id} ({}): {} ...", figure.paper, figure.title);
        let mut recorder = output(&options.out, id, command).recorder()?;
        for published in &figure.published {
            recorder.published(published)?;
        }
        experiment(&figure, options, &mut recorder).with_context(|| format!("figure {id}"))?;
    }
    Ok(())
}

fn output(directory: &Path, id: &str, command: &[String]) -> Output {
    Output { path: Some(directory.join(format!("{id}.jsonl"))), command: command.to_vec() }
}

/// Those asked for.
fn choose(options: &Options) -> Result<Vec<(&'static str, Experiment)>> {
    let there_are = || FIGURES.map(|(id, _)| id).join(", ");
    if let Some(id) = &options.only
        && !FIGURES.iter().any(|(other, _)| other == id)
    {
        match published::figure(id) {
            Ok(figure) => bail!("{id} ({}) cannot be measured yet; there are: {}", figure.paper, there_are()),
            Err(_) => bail!("no figure is called {id}; there are: {}", there_are()),
        }
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

/// Beside the ratios, without published values.
fn in_kpps(figure: Figure) -> Figure {
    Figure { name: format!("{} in kpps", figure.name), title: format!("{}, in kpps", figure.title), ..figure }
}

fn kpps(at: &str, label: &str) -> Axis {
    Axis::new(at, label, "kpps").times(1e-3)
}

/// M4: load against throughput.
fn load(figure: &PaperFigure, options: &Options, recorder: &mut Recorder) -> Result<()> {
    const OFFERED_KPPS: [u64; 11] = [250, 500, 750, 1000, 1500, 2000, 2500, 3000, 4000, 6000, 8000];
    let x = kpps("/sample/offered_pps", "offered").by("/pace").log();
    let y = kpps("/sample/received_pps", "throughput").log();
    recorder.figure(&picture(figure, x, y, "100 destinations, veth ports instead of gigabit ones"))?;
    let mut testbed = Testbed::for_rates(&Topology::rfc2544())?;
    let workload = Workload::benchmark(Family::V4, 100, 0..=0);
    let plan = Plan {
        case: &figure.id,
        parameters: json!({}),
        subjects: &["linux", "linux-macvlan", "linux-bridge-veth", "millrace", "millrace-macvlan"],
        paces: &OFFERED_KPPS.map(|kpps| Pace::Rate(kpps * 1000)),
        repeats: options.repeat.into(),
        window: Window::seconds(options.seconds),
    };
    compare(&mut testbed, &workload, &plan, recorder).map(drop)
}

/// M6: the number of virtual routers. Theirs carry the packets one after another, ours take turns packet by packet.
fn routers(figure: &PaperFigure, options: &Options, recorder: &mut Recorder) -> Result<()> {
    let ours =
        "virtual routers with two interfaces each, packets through all of them in turn, the core saturated";
    let x = Axis::new("/parameters/routers", "virtual routers", "").log();
    let absolute = picture(figure, x, kpps("/sample/received_pps", "throughput"), ours);
    recorder.figure(&absolute.clone().relative_to(Reference::First))?;
    recorder.figure(&in_kpps(absolute))?;
    for routers in [1, 2, 4, 8, 16, 32, 255] {
        let mut testbed = Testbed::for_rates(&Topology::rfc2544().with_routers(routers))?;
        let workload = Workload::benchmark(Family::V4, 4096, 1..=routers);
        let plan = Plan {
            case: &figure.id,
            parameters: json!({"routers": routers}),
            subjects: &["linux", "millrace"],
            paces: &[Pace::Saturate],
            repeats: options.repeat.into(),
            window: Window::seconds(options.seconds),
        };
        compare(&mut testbed, &workload, &plan, recorder)?;
    }
    Ok(())
}

/// Q2: the number of table entries; ours are routes.
fn entries(figure: &PaperFigure, options: &Options, recorder: &mut Recorder) -> Result<()> {
    const ENTRIES: [usize; 4] = [100, 500, 1000, 5000];
    const FLOWS: usize = 100;
    let ours = "routes instead of flow entries, 100 destinations, the core saturated";
    let x = Axis::new("/parameters/entries", "table entries", "").log();
    let absolute = picture(figure, x, kpps("/sample/received_pps", "throughput"), ours);
    recorder.figure(&absolute.clone().relative_to(Reference::First))?;
    recorder.figure(&in_kpps(absolute))?;
    let full = prefixes::prefixes(prefixes::default_file().as_deref(), ENTRIES[ENTRIES.len() - 1], 0)?;
    let mut testbed = Testbed::for_rates(&Topology::rfc2544())?;
    for entries in ENTRIES {
        let loaded =
            Prefixes { v4: full.v4[..entries].to_vec(), v6: Vec::new(), source: full.source.clone() };
        testbed.load_routes(&loaded)?;
        let workload = Workload::inside(&loaded, Family::V4, FLOWS, testbed.next_hops()?);
        let plan = Plan {
            case: &figure.id,
            parameters: json!({"entries": entries, "prefixes": full.source}),
            subjects: &["linux", "millrace"],
            paces: &[Pace::Saturate],
            repeats: options.repeat.into(),
            window: Window::seconds(options.seconds),
        };
        compare(&mut testbed, &workload, &plan, recorder)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(paper: Option<&str>, only: Option<&str>) -> Result<Vec<&'static str>, String> {
        let (paper, only) = (paper.map(str::to_owned), only.map(str::to_owned));
        let options = Options { paper, only, out: PathBuf::new(), seconds: 1.0, repeat: 1 };
        let chosen = choose(&options).map_err(|error| error.to_string())?;
        Ok(chosen.into_iter().map(|(id, _)| id).collect())
    }

    #[test]
    fn figures_are_chosen_by_paper_and_id() {
        assert_eq!(chosen(None, None).unwrap(), ["M4", "M6", "Q2"]);
        assert_eq!(chosen(Some("M"), None).unwrap(), ["M4", "M6"]);
        assert_eq!(chosen(None, Some("Q2")).unwrap(), ["Q2"]);
        let error = |paper, only| chosen(paper, only).unwrap_err();
        assert_eq!(error(None, Some("M99")), "no figure is called M99; there are: M4, M6, Q2");
        assert_eq!(error(None, Some("M5")), "M5 (M, fig. 5) cannot be measured yet; there are: M4, M6, Q2");
        let late =
            |what: &str| format!("{what}, or it comes with the part that it measures; there are: M4, M6, Q2");
        assert_eq!(error(Some("P"), None), late("no figure of paper P"));
        assert_eq!(error(Some("M"), Some("Q2")), late("Q2 is not of paper M"));
    }

    #[test]
    fn every_experiment_has_its_published_values() {
        for (id, _) in FIGURES {
            assert_eq!(published::figure(id).unwrap().id, id);
        }
    }
}
