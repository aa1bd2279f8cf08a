#!/usr/bin/env python3
"""Runs the tests that need root, several at a time: most of them wait more than they compute.

Usage: test-root.py [--jobs N] [FILTER...]    FILTER: part of SUITE::TEST; without filters: all tests

Each test runs in network namespaces of its own. Tests of one module run one after another, in one process. Suites that
judge what the whole machine does run alone, at the end. The last line counts the results, in the words of libtest.
Exit status 1: a test failed.
"""

import argparse
import concurrent.futures
import json
import os
import re
import signal
import subprocess
import sys
import time

# Tests that measure; `make bench-goals` and hands run them.
MEASURES = re.compile(r"(^|::)measure(_|::)")
# Suites and modules that run alone: they set what belongs to the whole machine, keep cores to themselves, look at workloads of
# the whole machine, or attach BPF links that are not Millrace's. A daemon that sees such a link anywhere passes all packets to
# the kernel for a moment.
ALONE = {"flows::choosing", "local", "netlink::hazards", "placing", "plane_kernel", "policy"}
# All suites of this crate run alone, too, except those in NOT_ALONE.
ALONE_IN = "lab"
NOT_ALONE = {"e2e", "topology"}
# Suites and modules that take long with few tests. They begin first.
LONG = {"differential", "e2e::stack", "netlink::agree", "path_mtu"}
# A module that runs longer has hung.
LIMIT_S = 900


def executables():
    """Suite name, file and directory of every test program; builds them."""
    command = ["cargo", "test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]
    built = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if built.returncode != 0:
        sys.exit(built.returncode)
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if message.get("reason") == "compiler-artifact" and message["executable"] and message["profile"]["test"]:
            yield message["target"]["name"], message["executable"], os.path.dirname(message["manifest_path"])


def tests(executable, directory):
    listed = subprocess.run(
        [executable, "--ignored", "--list", "--format=terse"], cwd=directory, stdout=subprocess.PIPE, text=True, check=True
    )
    names = [line.removesuffix(": test") for line in listed.stdout.splitlines() if line.endswith(": test")]
    return [name for name in names if not MEASURES.search(name)]


def parts(suite, executable, directory, filters):
    """One part for each module of the suite: (suite, module, executable, directory, tests)."""
    modules = {}
    for test in tests(executable, directory):
        if not filters or any(f in f"{suite}::{test}" for f in filters):
            module = test.rpartition("::")[0]
            modules.setdefault(module, []).append(test)
    return [(suite, module, executable, directory, names) for module, names in modules.items()]


def is_one_of(part, listed):
    suite, module, *_ = part
    return not listed.isdisjoint({suite, f"{suite}::{module}"})


def is_alone(part):
    suite, _, _, directory, _ = part
    return is_one_of(part, ALONE) or os.path.basename(directory) == ALONE_IN and suite not in NOT_ALONE


def run(part):
    suite, module, executable, directory, names = part
    begun = time.monotonic()
    command = [executable, "--ignored", "--test-threads=1", "--exact", *names]
    process = subprocess.Popen(
        command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        # With all that it started.
        os.killpg(process.pid, signal.SIGKILL)
        output = process.communicate()[0] + f"\n{suite} {module}: killed after {LIMIT_S} s\n"
    counts = re.findall(r"^test result: \w+\. (\d+) passed; \d+ failed", output, re.M)
    passed = int(counts[-1]) if counts else 0
    # A program that dies after its summary has failed, too.
    if process.returncode != 0:
        passed = min(passed, len(names) - 1)
    print(f"     {suite} {module}: {passed} of {len(names)} passed in {time.monotonic() - begun:.0f} s", flush=True)
    if passed == len(names):
        return passed, []
    print(output, flush=True)
    failed = set(re.findall(r"^    (\S+)$", output, re.M)) & set(names) or set(names)
    return passed, [f"{suite}::{name}{why(name, output)}" for name in sorted(failed)]


def why(name, output):
    """Where the test panicked, and the first lines of its message."""
    panics = re.findall(rf"^thread '{re.escape(name)}' .*panicked at (.*(?:\n.*){{0,5}})", output, re.M)
    return "".join(f"\n    {line[:300]}" for panic in panics[:1] for line in panic.splitlines())


def main():
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    arguments = argparse.ArgumentParser(usage=__doc__)
    arguments.add_argument("--jobs", type=int, default=(os.cpu_count() or 1) + 1)
    arguments.add_argument("filters", nargs="*")
    chosen = arguments.parse_args()
    begun = time.monotonic()
    all_parts = [p for e in sorted(executables()) for p in parts(*e, chosen.filters)]
    together = [p for p in all_parts if not is_alone(p)]
    alone = [p for p in all_parts if is_alone(p)]
    results = []
    with concurrent.futures.ThreadPoolExecutor(chosen.jobs) as pool:
        # The longest first, so that the end does not wait for one of them.
        results += pool.map(run, sorted(together, key=lambda p: (not is_one_of(p, LONG), -len(p[4]))))
    results += map(run, alone)
    passed = sum(count for count, _ in results)
    failed = sum(len(p[4]) for p in all_parts) - passed
    for name in [name for _, names in results for name in names]:
        print(f"FAILED {name}")
    word = "ok" if failed == 0 and passed > 0 else "FAILED"
    result = f"test result: {word}. {passed} passed; {failed} failed; 0 ignored; 0 measured; finished in {time.monotonic() - begun:.2f}s"
    print(result)
    os.makedirs("target", exist_ok=True)
    with open("target/test-root.result", "w", encoding="ascii") as file:
        print(result, file=file)
    sys.exit(word != "ok")


if __name__ == "__main__":
    main()
