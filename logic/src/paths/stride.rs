//! Stride scheduling (P5; Waldspurger and Weihl 1995): who ran least for its tickets runs next.
//!
//! Every task has a *pass*, which a run advances by what it used times the task's *stride*, [`ONE`] / tickets. The
//! lowest pass runs next, the task with the lowest number where several have it. What was used is known after a run only, so a pass
//! is where the next run starts, as in start-time fair queueing, which bounds what any two tasks that always have work are apart:
//! a run of each, by their tickets.
//!
//! **The global pass** is that of the task picked last. No task that is awake is behind it, so it is where one comes in that
//! wakes or is new: an idle task has saved nothing. Nor has it escaped: who sleeps right after a long run wakes where that run left
//! its pass, if the others have not come there yet.
//!
//! **Wrap.** A pass has 58 bits, wraps, and is compared by how far it is ahead of the global pass. Tasks that are awake are ahead by one run at
//! most, [`MOST_UNITS`] x [`ONE`] = 2^56, a quarter of the circle, so that is exact. 32 bits would not do for runs and tickets that
//! are both as far apart as those of paths are. With one ticket passes wrap each second at 4 GHz, so that they do is seen
//! all the time rather than once in months. A sleeper may miss any number of wraps, so the global pass itself, and where
//! sleepers are, have 128 bits.
//!
//! **The scan.** A task's number stands below its pass in one word. So `pick` is the minimum of the words of those awake, less the global pass:
//! nothing but subtractions and comparisons on an array without gaps, 8 words to a cache line, and ties need no care.
//!
//! # Measured
//! Nanoseconds to pick a task and charge it, all awake, runs of random length (`cargo bench -p millrace-logic --bench paths`, which has
//! all four; AMD EPYC of family 26 in a virtual machine with two cores):
//!
//! | tasks | 4 | 8 | 16 | 64 |
//! |---|---|---|---|---|
//! | pass and task in one word, scanned | 7.7 | 8.6 | 19 | 20 |
//! | passes without gaps, scanned | 6.7 | 8.4 | 20 | 38 |
//! | passes by task, a bit for each that is awake | 6.6 | 8.6 | 14 | 41 |
//! | binary heap (passes that do not wrap) | 12 | 17 | 19 | 21 |
//!
//! Lists are short, as paths come by router (see [`super`]), and with words long ones are no slower than a heap. The whole scheduler,
//! for a run of one packet / for one of 32 that is measured and changes what is known of its path's cost: 4 paths of one router 14 / 23,
//! 16 of one 17 / 28, 64 of one 28 / 36, 4 of each of four 19 / 31, 8 of each of eight 19 / 27.

/// Tasks of one scheduler.
pub const MOST_TASKS: usize = 1 << TASK_BITS;
/// Tickets of a task, at most. Strides are then right to 0.05 %; with 1,000 tickets to 0.001 %.
pub const MOST_TICKETS: u32 = u16::MAX as u32;
/// The stride of one ticket.
pub const ONE: u32 = 1 << 26;
/// What a run is charged, at most: a quarter of a second at 4 GHz.
pub const MOST_UNITS: u64 = 1 << 30;

const TASK_BITS: u32 = 6;
const TASK: u64 = (1 << TASK_BITS) - 1;
/// Instead of the place of a task that sleeps.
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
    /// Like `words` without the task.
    global: u128,
    /// How many there are in `words`.
    awake: usize,
    /// Pass x 64 + task of those awake, in any order.
    words: [u64; MOST_TASKS],
    /// Where in `words` each task is, or [`ASLEEP`].
    place: [u8; MOST_TASKS],
    strides: [u32; MOST_TASKS],
    /// Numbers that are in use, as bits.
    present: u64,
    tickets: [u32; MOST_TASKS],
    /// Of those asleep: pass x 64, unwrapped.
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
    /// A task that is awake, with so many tickets (the nearest in 1..=[`MOST_TICKETS`]). It gets the lowest number that is free.
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

    /// The task is gone; another may get its number.
    pub fn remove(&mut self, task: Task) {
        self.sleep(task);
        self.present &= !task.bit();
    }

    /// Tickets from now on. What the task still has to wait for its last run changes as if they had held then.
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

    /// As last set.
    pub fn tickets(&self, task: Task) -> u32 {
        self.tickets[task.index()]
    }

    /// It has no work, and is not picked until it wakes. Nothing if it sleeps already.
    pub fn sleep(&mut self, task: Task) {
        if self.is_awake(task) {
            self.asleep_at[task.index()] = self.at(task);
            let place = usize::from(std::mem::replace(&mut self.place[task.index()], ASLEEP));
            // The last one takes its place.
            self.awake -= 1;
            if place < self.awake {
                self.words[place] = self.words[self.awake];
                self.place[(self.words[place] & TASK) as usize] = place as u8;
            }
        }
    }

    /// It has work again: it comes in at the global pass, or where its last run left it if that is ahead. Nothing if it is awake.
    pub fn wake(&mut self, task: Task) {
        if self.has(task) && !self.is_awake(task) {
            self.place[task.index()] = self.awake as u8;
            self.awake += 1;
            self.put(task, self.asleep_at[task.index()].max(self.global));
        }
    }

    /// Pass x 64, unwrapped.
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

    /// Is there a task with this number?
    #[inline]
    pub fn has(&self, task: Task) -> bool {
        self.present & task.bit() != 0
    }

    /// May it be picked?
    pub fn is_awake(&self, task: Task) -> bool {
        self.place[task.index()] != ASLEEP
    }

    /// No task is awake.
    pub fn all_sleep(&self) -> bool {
        self.awake == 0
    }

    /// No task is there, awake or asleep.
    pub fn is_empty(&self) -> bool {
        self.present == 0
    }

    /// All, awake or asleep, in order.
    pub fn tasks(&self) -> impl Iterator<Item = Task> + use<> {
        let present = self.present;
        (0..MOST_TASKS as u8).map(Task).filter(move |task| present & task.bit() != 0)
    }

    /// Who runs next; `None`: all sleep. The same again until it is charged.
    #[inline]
    pub fn pick(&mut self) -> Option<Task> {
        let words = self.words.get(..self.awake).filter(|words| !words.is_empty())?;
        let least = least(words, self.global as u64);
        self.global += u128::from(least & !TASK);
        Some(Task((least & TASK) as u8))
    }

    /// It used so much (the nearest in 1..=[`MOST_UNITS`], so that even who used nothing is not picked for ever).
    #[inline]
    pub fn charge(&mut self, task: Task, units: u64) {
        let advance = (units.clamp(1, MOST_UNITS) * u64::from(self.strides[task.index()])) << TASK_BITS;
        match self.words.get_mut(usize::from(self.place[task.index()])) {
            Some(word) => *word = word.wrapping_add(advance),
            None => self.asleep_at[task.index()] += u128::from(advance),
        }
    }
}

/// Of what words are ahead. Four minima at once wait less for each other.
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
