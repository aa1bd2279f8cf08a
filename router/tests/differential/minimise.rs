//! Leaves out steps and frames of a case while it still shows a difference of the same kind.

use crate::{
    case::{Case, Step},
    play::{Failure, HASTY, Kind, PATIENT, play},
};
use std::time::{Duration, Instant};

/// Minimising takes about this long at most.
const PATIENCE: Duration = Duration::from_secs(240);

struct Minimiser {
    case: Case,
    failure: Failure,
    end: Instant,
    played: usize,
}

/// The smallest case found in time, and its failure.
pub fn minimise(case: Case, failure: Failure) -> (Case, Failure) {
    let end = Instant::now() + PATIENCE;
    let mut minimiser = Minimiser { case: case.clone(), failure: failure.clone(), end, played: 0 };
    minimiser.cut(failure.at);
    minimiser.leave_out_early_comparisons();
    minimiser.leave_out_innocent_frames();
    minimiser.leave_out_frames();
    while minimiser.leave_out_steps() {}
    eprintln!("made smaller with {} plays", minimiser.played);
    match play(&minimiser.case, PATIENT) {
        Err(patient) if patient.kind == failure.kind => (minimiser.case, patient),
        _ => (case, failure),
    }
}

impl Minimiser {
    /// Cuts the steps after the failing one, which are of no use.
    fn cut(&mut self, at: usize) {
        self.case.steps.truncate(at + 1);
    }

    /// Takes a smaller case if it fails in the same way.
    fn takes(&mut self, smaller: Case) -> bool {
        self.played += 1;
        match play(&smaller, HASTY) {
            Err(failure) if failure.kind == self.failure.kind => {
                let at = failure.at;
                (self.case, self.failure) = (smaller, failure);
                self.cut(at);
                true
            }
            _ => false,
        }
    }

    fn late(&self) -> bool {
        Instant::now() > self.end
    }

    /// Leaves out all comparisons but the last. They take most of the time, and the last one is usually
    /// enough.
    fn leave_out_early_comparisons(&mut self) {
        let mut smaller = self.case.clone();
        let last = smaller.steps.pop();
        let wanted = |step: &Step| {
            !matches!(step, Step::Compare) && (self.failure.kind == Kind::Report || !expectation(step))
        };
        smaller.steps.retain(wanted);
        smaller.steps.extend(last);
        self.takes(smaller);
    }

    /// Leaves out frames that cannot be the origin of one that differs. A frame that comes out, alone or
    /// within an ICMP error, has the payload of one that came in.
    fn leave_out_innocent_frames(&mut self) {
        let mut smaller = self.case.clone();
        let differing = &self.failure.frames;
        smaller.frames.retain(|(_, frame)| {
            let payload = &frame[frame.len().min(34)..frame.len().min(54)];
            payload.len() > 8
                && differing.iter().any(|out| out.windows(payload.len()).any(|part| part == payload))
        });
        self.takes(smaller);
    }

    fn leave_out_frames(&mut self) {
        let mut size = self.case.frames.len();
        while size > 0 && !self.late() {
            let mut at = 0;
            while at < self.case.frames.len() && !self.late() {
                let mut smaller = self.case.clone();
                smaller.frames.drain(at..(at + size).min(smaller.frames.len()));
                if !self.takes(smaller) {
                    at += size;
                }
            }
            size /= 2;
        }
    }

    /// Returns whether any was left out, and there is time for more.
    fn leave_out_steps(&mut self) -> bool {
        let before = self.case.steps.len();
        let mut size = before / 2;
        while size > 0 && !self.late() {
            let mut at = 0;
            // The last step is the one that fails.
            while at + 1 < self.case.steps.len() && !self.late() {
                let mut smaller = self.case.clone();
                let end = (at + size).min(smaller.steps.len() - 1);
                let left_out: Vec<Step> =
                    smaller.steps.drain(at..end).filter(|s| *s == Step::Start).collect();
                smaller.steps.splice(at..at, left_out);
                if smaller.steps.len() == self.case.steps.len() || !self.takes(smaller) {
                    at += size;
                }
            }
            size /= 2;
        }
        self.case.steps.len() < before && !self.late()
    }
}

fn expectation(step: &Step) -> bool {
    matches!(step, Step::Shows(_) | Step::Hides(_))
}
