// Each poll has at most one request in flight. Hidden pages send none.

const PATIENCE_MS = 10_000;
/** The longest pause after a slow answer. Two answers are then less than `LONGEST_S` of rates.js apart. */
const LONGEST_PAUSE_MS = 15_000;

/** An answer of the API that is an error. */
export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

/** One request to the daemon that served this page. */
export async function ask(path, body) {
  const answer = await fetch(path, {
    method: body === undefined ? "GET" : "POST",
    headers: body === undefined ? {} : { "content-type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
    cache: "no-store",
    credentials: "omit",
    redirect: "error",
    signal: AbortSignal.timeout(PATIENCE_MS),
  });
  const json = await answer.json();
  if (!answer.ok) throw new Refused(answer.status, String(json?.error ?? answer.status));
  return json;
}

/** A request that is repeated. */
export class Poll {
  /**
   * @param path the path, or a function that returns it
   * @param heard is called with each answer, and the time when it came
   * @param failed is called with each error
   */
  constructor(path, { every, heard, failed }) {
    this.path = path;
    this.every = every;
    this.heard = heard;
    this.failed = failed;
    this.isAsking = false;
    this.timer = null;
    document.addEventListener("visibilitychange", () => this.next(0));
    this.next(0);
  }

  next(wait) {
    clearTimeout(this.timer);
    if (!document.hidden && !this.isAsking) this.timer = setTimeout(() => this.#ask(), wait);
  }

  async #ask() {
    this.isAsking = true;
    const began = performance.now();
    let show;
    try {
      const answer = await ask(typeof this.path === "function" ? this.path() : this.path);
      show = () => this.heard(answer, performance.now());
    } catch (error) {
      show = () => this.failed(error);
    }
    this.isAsking = false;
    try {
      show();
    } catch (error) {
      // A fault of this page is no silence of the daemon.
      console.error(error);
    }
    // A daemon with thousands of interfaces is asked less often: three quarters of the time are pauses.
    const took = performance.now() - began;
    this.next(Math.max(this.every - took, Math.min(3 * took, LONGEST_PAUSE_MS), 100));
  }
}
