//! Progress of long runs, and the time left: a bar on a terminal, plain lines elsewhere. It is drawn only when a step
//! ends, because a thread that redraws it would take time from the generator, which runs on the same core.

use std::{
    collections::VecDeque,
    io::{IsTerminal, stderr},
    mem,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Steps done and expected. When this is dropped, the bar disappears and the printed lines stay.
pub struct Progress {
    /// `None`: not on a terminal.
    bar: Option<ProgressBar>,
    started: Instant,
    done: u64,
    left: u64,
    /// Steps of later parts, which `left` includes.
    later: u64,
    /// Length of each step that is left, if known.
    lengths: VecDeque<Duration>,
    /// Does the next step repeat the last one?
    again: bool,
}

impl Progress {
    /// Shows this number of steps, as far as it is known, on standard error.
    pub fn new(steps: u64) -> Self {
        let bar = stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template("{bar:40} {pos}/{len}{msg}");
            bar.with_style(style.expect("the template is right"))
        });
        Self {
            bar,
            started: Instant::now(),
            done: 0,
            left: steps,
            later: 0,
            lengths: VecDeque::new(),
            again: false,
        }
    }

    /// After the steps of [`Progress::expect`], this many are still to come.
    pub fn then(&mut self, later: u64) {
        self.later = later;
    }

    /// A step has ended; `found` is its result for people.
    pub fn step(&mut self, found: &str) {
        let again = if mem::take(&mut self.again) { "again, it was noisy: " } else { "" };
        self.done += 1;
        self.left = self.left.saturating_sub(1);
        self.lengths.pop_front();
        let left = self.time_left();
        match &self.bar {
            Some(bar) => {
                bar.println(format!("  {again}{found}"));
                bar.inc(1);
                self.show(bar, left);
            }
            None => eprintln!("  [{}/{}{}] {again}{found}", self.done, self.done + self.left, caption(left)),
        }
    }

    /// This many steps are left of this part. A search can end sooner or later than expected.
    pub fn expect(&mut self, left: u64) {
        self.left = left + self.later;
        if let Some(bar) = &self.bar {
            self.show(bar, self.time_left());
        }
    }

    /// Exactly these steps are left, with these lengths.
    pub fn expect_lengths(&mut self, lengths: Vec<Duration>) {
        self.lengths = lengths.into();
        self.expect(self.lengths.len() as u64);
    }

    /// The last step was noisy and is repeated: it counts once, and the next step is marked.
    pub fn again(&mut self) {
        self.again = true;
        self.done = self.done.saturating_sub(1);
        self.left += 1;
        if let Some(bar) = &self.bar {
            bar.set_position(self.done);
        }
    }

    /// Prints lines to standard output without disturbing the bar.
    pub fn print(&self, lines: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| println!("{lines}")),
            None => println!("{lines}"),
        }
    }

    fn time_left(&self) -> Option<Duration> {
        let known = (!self.lengths.is_empty()).then(|| self.lengths.iter().sum());
        known.or_else(|| time_left(self.started.elapsed(), self.done, self.left))
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

/// Time left if steps continue to take as long as they did on average. `None` if no step has ended.
fn time_left(elapsed: Duration, done: u64, left: u64) -> Option<Duration> {
    (done > 0).then(|| elapsed.mul_f64(left as f64 / done as f64))
}

/// The time left for people, as the end of a phrase.
pub(crate) fn caption(left: Option<Duration>) -> String {
    left.map_or(String::new(), |left| format!(", {} left", in_words(left)))
}

/// A time in units that fit.
pub(crate) fn in_words(time: Duration) -> String {
    let seconds = time.as_secs_f64().ceil() as u64;
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds} s"),
        (0, _) => format!("{minutes} min {} s", seconds % 60),
        _ => format!("{hours} h {minutes} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quiet(steps: u64) -> Progress {
        let (started, lengths) = (Instant::now(), VecDeque::new());
        Progress { bar: None, started, done: 0, left: steps, later: 0, lengths, again: false }
    }

    #[test]
    fn time_left_follows_the_steps_done() {
        let minute = Duration::from_secs(60);
        assert_eq!(time_left(minute, 0, 10), None);
        assert_eq!(time_left(minute, 4, 10), Some(Duration::from_secs(150)));
        assert_eq!(time_left(minute, 4, 0), Some(Duration::ZERO));
    }

    #[test]
    fn time_left_is_shown_in_units_that_fit() {
        let of = |seconds| caption(Some(Duration::from_secs_f64(seconds)));
        assert_eq!([of(0.2), of(59.0), of(60.0)], [", 1 s left", ", 59 s left", ", 1 min 0 s left"]);
        assert_eq!([of(3599.5), of(9000.0)], [", 1 h 0 min left", ", 2 h 30 min left"]);
        assert_eq!(caption(None), "");
    }

    #[test]
    fn steps_count_down_and_expectations_may_change() {
        let mut progress = quiet(2);
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

    #[test]
    fn a_step_that_is_made_again_counts_once() {
        let mut progress = quiet(3);
        progress.step("one");
        progress.again();
        progress.step("one, again");
        assert_eq!((progress.done, progress.left), (1, 2));
    }

    #[test]
    fn steps_of_known_lengths_give_the_time_left() {
        let mut progress = quiet(0);
        progress.expect_lengths([1, 600, 600].map(Duration::from_secs).into());
        progress.step("the short one");
        assert_eq!((progress.left, progress.time_left()), (2, Some(Duration::from_secs(1200))));
        progress.step("a long one");
        progress.step("the other");
        assert_eq!((progress.left, progress.time_left()), (0, Some(Duration::ZERO)));
    }
}
