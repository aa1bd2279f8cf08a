//! Progress of long runs and the time that is left: a bar on a terminal, plain lines elsewhere. It is drawn only when a step
//! ends: a thread that redraws it would take time from the generator, whose core it would be on.

use std::{
    io::{IsTerminal, stderr},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Steps done and expected. Dropped, the bar is gone and what was printed stays.
pub struct Progress {
    /// `None`: not on a terminal.
    bar: Option<ProgressBar>,
    started: Instant,
    done: u64,
    left: u64,
    /// Of what is left: steps of later parts.
    later: u64,
}

impl Progress {
    /// So many steps, as far as is known, on standard error.
    pub fn new(steps: u64) -> Self {
        let bar = stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template("{bar:40} {pos}/{len}{msg}");
            bar.with_style(style.expect("the template is right"))
        });
        Self { bar, started: Instant::now(), done: 0, left: steps, later: 0 }
    }

    /// After what [`Progress::expect`] is told of, so many steps are to come.
    pub fn then(&mut self, later: u64) {
        self.later = later;
    }

    /// A step has ended; `found` is what people want to know of it.
    pub fn step(&mut self, found: &str) {
        self.done += 1;
        self.left = self.left.saturating_sub(1);
        let left = time_left(self.started.elapsed(), self.done, self.left);
        match &self.bar {
            Some(bar) => {
                bar.println(format!("  {found}"));
                bar.inc(1);
                self.show(bar, left);
            }
            None => eprintln!("  [{}/{}{}] {found}", self.done, self.done + self.left, caption(left)),
        }
    }

    /// So many steps are left of this part: a search ends sooner or later than was expected.
    pub fn expect(&mut self, left: u64) {
        self.left = left + self.later;
        if let Some(bar) = &self.bar {
            self.show(bar, time_left(self.started.elapsed(), self.done, self.left));
        }
    }

    /// Prints lines to standard output, out of the bar's way.
    pub fn print(&self, lines: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| println!("{lines}")),
            None => println!("{lines}"),
        }
    }

    fn show(&self, bar: &ProgressBar, left: Option<Duration>) {
        bar.set_length(self.done + self.left);
        bar.set_message(caption(left));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// If steps go on to take as long as they took on average. `None`: none has ended.
fn time_left(elapsed: Duration, done: u64, left: u64) -> Option<Duration> {
    (done > 0).then(|| elapsed.mul_f64(left as f64 / done as f64))
}

/// For people, after something else.
pub(crate) fn caption(left: Option<Duration>) -> String {
    let Some(left) = left else { return String::new() };
    let seconds = left.as_secs_f64().ceil() as u64;
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    match (hours, minutes) {
        (0, 0) => format!(", {seconds} s left"),
        (0, _) => format!(", {minutes} min {} s left", seconds % 60),
        _ => format!(", {hours} h {minutes} min left"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_follows_the_steps_done() {
        let minute = Duration::from_secs(60);
        assert_eq!(time_left(minute, 0, 10), None);
        assert_eq!(time_left(minute, 4, 10), Some(Duration::from_secs(150)));
        assert_eq!(time_left(minute, 4, 0), Some(Duration::ZERO));
    }

    #[test]
    fn time_left_is_told_in_units_that_fit() {
        let of = |seconds| caption(Some(Duration::from_secs_f64(seconds)));
        assert_eq!([of(0.2), of(59.0), of(60.0)], [", 1 s left", ", 59 s left", ", 1 min 0 s left"]);
        assert_eq!([of(3599.5), of(9000.0)], [", 1 h 0 min left", ", 2 h 30 min left"]);
        assert_eq!(caption(None), "");
    }

    #[test]
    fn steps_count_down_and_expectations_may_change() {
        let mut progress = Progress { bar: None, started: Instant::now(), done: 0, left: 2, later: 0 };
        progress.step("one");
        assert_eq!((progress.done, progress.left), (1, 1));
        progress.expect(5);
        progress.step("two");
        assert_eq!((progress.done, progress.left), (2, 4));
        for _ in 0..9 {
            progress.step("more than expected");
        }
        assert_eq!((progress.done, progress.left), (11, 0));
        progress.then(7);
        progress.expect(3);
        assert_eq!(progress.left, 10);
    }
}
