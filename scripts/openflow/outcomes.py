"""Compares the outcome of each case of a suite of os-ken with suite13.txt: outcomes.py SUITE LOG EXPECTED.

Prints a line for each case: `ok` or the fault, a tab, and the case. With --write instead of EXPECTED, prints the lines of
that file. An outcome is `ok`, TYPE/CODE of the error that refused a rule, or `differs`.
"""

import re
import sys

ERROR = re.compile(r"OFPErrorMsg\[type=0x([0-9a-f]+), code=0x([0-9a-f]+)\]")


def cases(log):
    """File, description, outcome and the suite's message, in order. The log has a file's name before its cases."""
    found, name = [], None
    for line in log:
        line = line.rstrip()
        if line.startswith("--- Test report"):
            break
        ended = re.fullmatch(r"    (\S.*?) +(OK|ERROR)", line)
        if ended:
            outcome = "ok" if ended[2] == "OK" else "differs"
            found.append([name, ended[1], outcome, ""])
        elif line.startswith("        ") and found:
            refused = ERROR.search(line)
            if refused:
                found[-1][2] = "/".join(str(int(part, 16)) for part in refused.groups())
            found[-1][3] = line.strip()
        elif re.match(r"\w+: \S", line) and not line.startswith("dpid="):
            name = line
    return found


def by_file(found):
    files = {}
    for name, _, outcome, _ in found:
        files.setdefault(name, []).append(outcome)
    return files


def write(found):
    for name, outcomes in by_file(found).items():
        runs = []
        for outcome in outcomes:
            if runs and runs[-1][1] == outcome:
                runs[-1][0] += 1
            else:
                runs.append([1, outcome])
        print(f"{name} | " + ", ".join(f"{count} {outcome}" for count, outcome in runs))


def read(lines, suite):
    expected = {}
    for line in lines:
        if line.startswith(suite + ":"):
            name, _, runs = line.rstrip().rpartition(" | ")
            pairs = [run.split() for run in runs.split(", ")]
            expected[name] = [outcome for count, outcome in pairs for _ in range(int(count))]
    return expected


def main(suite, log, expectation):
    with open(log, encoding="utf-8", errors="replace") as lines:
        found = cases(lines)
    if expectation == "--write":
        return write(found)
    with open(expectation, encoding="utf-8") as lines:
        left = read(lines, suite)
    for name, description, outcome, said in found:
        wanted = left.get(name, []).pop(0) if left.get(name) else "no such case"
        note = "" if outcome == "ok" else f" ({outcome})"
        if outcome == wanted:
            print(f"ok\t{name}: {description}{note}")
        else:
            print(f"wanted {wanted}, got {outcome}: {said}\t{name}: {description}")
    for name, outcomes in left.items():
        for outcome in outcomes:
            print(f"wanted {outcome}, but the case did not run\t{name}")


main(*sys.argv[1:])
