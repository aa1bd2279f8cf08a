// Rates, from two answers and the time between them.

/** Rates over a longer time are not shown as current: the page was hidden, or the daemon did not answer. */
export const LONGEST_S = 30;
/** The least time without an answer that interrupts a line. */
const GAP_S = 4;

/** Increase per second; null: not known, or the counter was reset. */
export function rate(before, now, seconds) {
  if (before === undefined || before === null || now === undefined || !(seconds > 0 && seconds <= LONGEST_S) || now < before) return null;
  return (now - before) / seconds;
}

/** Readings of counters, by keys. */
export class Counters {
  #before = new Map();
  #now = new Map();
  #seconds = 0;
  #at = null;

  /** Takes the readings of another moment. `at`: when the daemon read them, in seconds of any steady clock. */
  take(at, readings) {
    if (this.#at !== null && at <= this.#at) {
      // The clock began again, as after a reboot, or this is the same answer.
      if (at === this.#at) return;
      this.#now = new Map();
    }
    this.#seconds = this.#at === null ? 0 : at - this.#at;
    this.#at = at;
    this.#before = this.#now;
    this.#now = readings;
  }

  /** The rate of the counter `field` of a key. */
  rate(key, field) {
    return rate(this.#before.get(key)?.[field], this.#now.get(key)?.[field], this.#seconds);
  }

  /** The sum of known rates of several keys; null: none is known. */
  sum(keys, field) {
    const known = keys.map((key) => this.rate(key, field)).filter((value) => value !== null);
    return known.length === 0 ? null : known.reduce((sum, value) => sum + value, 0);
  }
}

/** The values of the last minutes, for charts. */
export class History {
  constructor(seconds) {
    this.seconds = seconds;
    /** Points `{at, values}`, the oldest first; `values` has an object for each key. */
    this.points = [];
  }

  /** A line is interrupted between points that are further apart, seconds. A slow daemon is asked less often. */
  get gap() {
    const steps = this.points.slice(1).map((point, i) => point.at - this.points[i].at).sort((a, b) => a - b);
    return Math.max(GAP_S, 3 * (steps[Math.floor(steps.length / 2)] ?? 0));
  }

  /** Adds the values of a moment, and forgets those that are too old. */
  add(at, values) {
    const last = this.points.at(-1);
    if (last && at < last.at) this.points = [];
    this.points.push({ at, values });
    const oldest = at - this.seconds - 2;
    while (this.points.length > 0 && this.points[0].at < oldest) this.points.shift();
  }
}

/**
 * Chooses at most `most` of these items: the busiest ones, in their own order. A choice is kept for a while, so that a picture does
 * not jump with every change of a rate.
 */
export class Choice {
  #keys = new Set();
  #since = -Infinity;
  #most = 0;

  choose(items, most, key, weight) {
    if (items.length <= most) return items;
    const now = performance.now();
    const there = items.filter((item) => this.#keys.has(key(item)));
    if (now - this.#since > 10_000 || there.length < most || this.#most !== most) {
      const busiest = [...items].sort((a, b) => weight(b) - weight(a)).slice(0, most);
      this.#keys = new Set(busiest.map(key));
      // Before the first rates are known, this is no choice yet.
      this.#since = busiest.some((item) => weight(item) > 0) ? now : -Infinity;
      this.#most = most;
    }
    return items.filter((item) => this.#keys.has(key(item)));
  }
}
