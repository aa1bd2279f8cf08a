// What is on the fast path, in the words of `millrace routers`.

import { versions } from "./text.js";

// With one of these causes, Linux does not forward either. A test compares them with `Code::is_idle`.
const IDLE = ["no_interface", "device_down", "forwarding_off", "ipv6_disabled", "device_missing", "port_down"];

const isIdle = (why) => IDLE.includes(why.code);

/** The reasons of a version; none if Linux does not forward it either. */
const slowing = (whyNot, version) => (whyNot[version].some(isIdle) ? [] : whyNot[version]);

/** Whether all (`fast`), some (`partly`) or none (`kernel`) of the interfaces of a router are accelerated. As `how_much` of the command. */
function howMuch(router, version) {
  if (router.accelerated[version]) return "fast";
  const left = router.left_to_kernel.filter((one) => one.why_not[version].length > 0).length;
  return router.why_not[version].length === 0 && left < router.interfaces ? "partly" : "kernel";
}

/** `how`: a word for each version, or null for one that Linux does not forward either. */
function described(how) {
  const of = (word) => versions(how.ipv4 === word, how.ipv6 === word);
  const text = [["fast", "fast"], ["partly", "partly fast"], ["kernel", "by the kernel"]].map(([word, is]) => of(word) && `${of(word)} ${is}`);
  const words = Object.values(how).filter((word) => word !== null);
  return {
    text: text.filter(Boolean).join(", ") || "no forwarding",
    /** A class of badges. */
    colour: words.length === 0 ? "pass" : words.every((word) => word === "fast") ? "good" : "up",
    /** Nothing of what Linux forwards is fast. */
    isSlow: words.length > 0 && words.every((word) => word === "kernel"),
  };
}

const byVersion = (of) => described({ ipv4: of("ipv4"), ipv6: of("ipv6") });

/** A text for what is fast of a router, and how to colour it. */
export const ofRouter = (router) =>
  byVersion((version) => {
    const how = howMuch(router, version);
    const reasons = [router.why_not, ...router.left_to_kernel.map((left) => left.why_not)];
    const isIdleOnly = reasons.some((whyNot) => whyNot[version].some(isIdle)) && reasons.every((whyNot) => slowing(whyNot, version).length === 0);
    return how === "kernel" && isIdleOnly ? null : how;
  });

/** The same for an interface. */
export const ofInterface = ({ accelerated, why_not }) =>
  byVersion((version) => (accelerated[version] ? "fast" : why_not[version].some(isIdle) ? null : "kernel"));
