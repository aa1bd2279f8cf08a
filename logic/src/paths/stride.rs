//! Stride scheduling (P5; Waldspurger and Weihl 1995): the task that ran least for its tickets runs next.
//!
//! Every task has a *pass*. A run advances it by its use times the task's *stride*, [`ONE`] / tickets. The task with
//! the lowest pass runs next, and among equals the one with the lowest number. The use is known only after a run, so a
//! pass is where the next run starts, as in start-time fair queueing. Any two tasks that always have work are therefore
//! at most a run of each apart, by their tickets.
//!
//! **The global pass** is that of the task picked last. No task that is awake is behind it. A task that wakes or is new
//! starts there, so an idle task has saved nothing. It also cannot escape a charge: a task that sleeps right after a
//! long run wakes at the pass where that run ended, if the others have not reached it yet.
//!
//! **Wrap.** A pass has 58 bits and wraps. It is compared by its distance from the global pass. Tasks that are awake
//! are ahead by at most one run, [`MOST_UNITS`] x [`ONE`] = 2^56, a quarter of the circle, so the comparison is exact.
//! 32 bits would not be enough for the range of runs and tickets. With one ticket, passes wrap each second at 4 GHz, so
//! wrapping is exercised all the time and not once in months. A sleeper may miss any number of wraps, so the global
//! pass and the passes of sleepers have 128 bits.
//!
//! **The scan.** A task's number is below its pass in one word. So `pick` is the minimum of the words of tasks awake,
//! less the global pass. It takes only subtractions and comparisons on an array without gaps, 8 words to a cache line,
//! and ties need no extra code.
//!
//! # Measured
//! Nanoseconds to pick a task and charge it, all awake, with runs of random length (`cargo bench -p millrace-logic
//! --bench paths`, which has all four; AMD EPYC of family 26 in a virtual machine with two cores):
//!
//! | tasks | 4 | 8 | 16 | 64 |
//! |---|---|---|---|---|
//! | pass and task in one word, scanned | 7.7 | 8.6 | 19 | 20 |
//! | passes without gaps, scanned | 6.7 | 8.4 | 20 | 38 |
//! | passes by task, a bit for each that is awake | 6.6 | 8.6 | 14 | 41 |
//! | binary heap (passes that do not wrap) | 12 | 17 | 19 | 21 |
//!
//! Lists are short, because paths are grouped by router (see [`super`]), and with words even long ones are no slower
//! than a heap. The whole scheduler was measured with a run of one packet / with a measured run of 32, which changes
//! the known cost of its path. The values are 4 paths of one router 14 / 23, 16 of one 17 / 28, 64 of one 28 / 36, 4 of
//! each of four 19 / 31, 8 of each of eight 19 / 27.

/// The most tasks of one scheduler.
pub const MOST_TASKS: usize = 1 << TASK_BITS;
/// The most tickets of a task. Strides are then exact to 0.05 %; with 1,000 tickets to 0.001 %.
pub const MOST_TICKETS: u32 = u16::MAX as u32;
/// The stride of one ticket.
pub const ONE: u32 = 1 << 26;
/// The most that a run is charged: a quarter of a second at 4 GHz.
pub const MOST_UNITS: u64 = 1 << 30;

const TASK_BITS: u32 = 6;
const TASK: u64 = (1 << TASK_BITS) - 1;
/// The place of a task that sleeps.
const ASLEEP: u8 = u8::MAX;

/// A task's number in its list, below [`MOST_TASKS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Task(u8);

impl Task {
    /// Its number, from 0.
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0) % MOST_TASKS
    }

    #[inline]
    fn bit(self) -> u64 {
        1 << self.index()
    }
}

/// There are [`MOST_TASKS`] already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{MOST_TASKS} tasks share this core already, it takes no more")]
pub struct Full;

/// Tasks that share something in proportion to their tickets.
#[derive(Clone, Debug)]
pub struct Stride {
    /// The global pass, in the form of `words` without the task.
    global: u128,
    /// The number of entries in `words`.
    awake: usize,
    /// Pass x 64 + task of the tasks awake, in any order.
    words: [u64; MOST_TASKS],
    /// Where in `words` each task is, or [`ASLEEP`].
    place: [u8; MOST_TASKS],
    strides: [u32; MOST_TASKS],
    /// The numbers in use, as bits.
    present: u64,
    tickets: [u32; MOST_TASKS],
    /// For sleeping tasks: pass x 64, not wrapped.
    asleep_at: [u128; MOST_TASKS],
}

impl Default for Stride {
    fn default() -> Self {
        Stride {
            global: 0,
            awake: 0,
            words: [0; MOST_TASKS],
            place: [ASLEEP; MOST_TASKS],
            strides: [ONE; MOST_TASKS],
            present: 0,
            tickets: [1; MOST_TASKS],
            asleep_at: [0; MOST_TASKS],
        }
    }
}

impl Stride {
    /// Adds a task, awake, with this many tickets (clamped to 1..=[`MOST_TICKETS`]). It gets the lowest free number.
    pub fn add(&mut self, tickets: u32) -> Result<Task, Full> {
        let number = self.present.trailing_ones();
        if number as usize >= MOST_TASKS {
            return Err(Full);
        }
        let task = Task(number as u8);
        self.present |= task.bit();
        self.write_tickets(task, tickets);
        self.asleep_at[task.index()] = self.global;
        self.wake(task);
        Ok(task)
    }

    /// Removes a task. Its number may be used again.
    pub fn remove(&mut self, task: Task) {
        self.sleep(task);
        self.present &= !task.bit();
    }

    /// Sets the tickets of a task. The rest of the wait for its last run changes as if they had applied then.
    pub fn set_tickets(&mut self, task: Task, tickets: u32) {
        let (ahead, before) = (self.at(task).saturating_sub(self.global), self.strides[task.index()]);
        self.write_tickets(task, tickets);
        let passes = (ahead >> TASK_BITS) * u128::from(self.strides[task.index()]) / u128::from(before);
        self.put(task, self.global + (passes << TASK_BITS));
    }

    fn write_tickets(&mut self, task: Task, tickets: u32) {
        let tickets = tickets.clamp(1, MOST_TICKETS);
        self.tickets[task.index()] = tickets;
        self.strides[task.index()] = (ONE + tickets / 2) / tickets;
    }

    /// The tickets as last set.
    pub fn tickets(&self, task: Task) -> u32 {
        self.tickets[task.index()]
    }

    /// Makes a task without work sleep: it is not picked until it wakes. Does nothing if it sleeps already.
    pub fn sleep(&mut self, task: Task) {
        if self.is_awake(task) {
            self.asleep_at[task.index()] = self.at(task);
            let place = usize::from(std::mem::replace(&mut self.place[task.index()], ASLEEP));
            // The last entry takes its place.
            self.awake -= 1;
            if place < self.awake {
                self.words[place] = self.words[self.awake];
                self.place[(self.words[place] & TASK) as usize] = place as u8;
            }
        }
    }

    /// Wakes a task that has work again. It starts at the global pass, or where its last run ended if that is ahead.
    /// Does nothing if it is awake.
    pub fn wake(&mut self, task: Task) {
        if self.has(task) && !self.is_awake(task) {
            self.place[task.index()] = self.awake as u8;
            self.awake += 1;
            self.put(task, self.asleep_at[task.index()].max(self.global));
        }
    }

    /// Pass x 64, not wrapped.
    fn at(&self, task: Task) -> u128 {
        match self.words.get(usize::from(self.place[task.index()])) {
            Some(word) => self.global + u128::from(word.wrapping_sub(self.global as u64) & !TASK),
            None => self.asleep_at[task.index()],
        }
    }

    fn put(&mut self, task: Task, at: u128) {
        match self.words.get_mut(usize::from(self.place[task.index()])) {
            Some(word) => *word = at as u64 | u64::from(task.0),
            None => self.asleep_at[task.index()] = at,
        }
    }

    /// Whether there is a task with this number.
    #[inline]
    pub fn has(&self, task: Task) -> bool {
        self.present & task.bit() != 0
    }

    /// Whether it may be picked.
    pub fn is_awake(&self, task: Task) -> bool {
        self.place[task.index()] != ASLEEP
    }

    /// Whether no task is awake.
    pub fn all_sleep(&self) -> bool {
        self.awake == 0
    }

    /// Whether there is no task, awake or asleep.
    pub fn is_empty(&self) -> bool {
        self.present == 0
    }

    /// All tasks, awake or asleep, in order.
    pub fn tasks(&self) -> impl Iterator<Item = Task> + use<> {
        let present = self.present;
        (0..MOST_TASKS as u8).map(Task).filter(move |task| present & task.bit() != 0)
    }

    /// The task that runs next. `None`: all sleep. The result is the same until the task is charged.
    #[inline]
    pub fn pick(&mut self) -> Option<Task> {
        let words = self.words.get(..self.awake).filter(|words| !words.is_empty())?;
        let least = least(words, self.global as u64);
        self.global += u128::from(least & !TASK);
        Some(Task((least & TASK) as u8))
    }

    /// Charges a task for its use (clamped to 1..=[`MOST_UNITS`], so that a task that used nothing is not picked
    /// forever).
    #[inline]
    pub fn charge(&mut self, task: Task, units: u64) {
        let advance = (units.clamp(1, MOST_UNITS) * u64::from(self.strides[task.index()])) << TASK_BITS;
        match self.words.get_mut(usize::from(self.place[task.index()])) {
            Some(word) => *word = word.wrapping_add(advance),
            None => self.asleep_at[task.index()] += u128::from(advance),
        }
    }
}

/// The smallest distance of words from the global pass. Four minima in parallel wait less for each other.
#[inline]
fn least(words: &[u64], global: u64) -> u64 {
    let (fours, rest) = words.as_chunks::<4>();
    let mut least = [u64::MAX; 4];
    for four in fours {
        for (least, word) in least.iter_mut().zip(four) {
            *least = (*least).min(word.wrapping_sub(global));
        }
    }
    let rest = rest.iter().map(|word| word.wrapping_sub(global));
    least.into_iter().chain(rest).fold(u64::MAX, u64::min)
}
