#!/usr/bin/env python3
"""Checks pages that people read: links and anchors of all pages; width, sentences and phrases, except of generated pages.

Usage: prose.py [FILE...]    without files: all pages that git knows
Exit status 1: something is wrong. Each finding is a line FILE:LINE: TEXT.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
COLUMNS = 100
WORDS = 30
# Generated pages: only their links are checked.
GENERATED = {"lab/scenarios/results.md"}
# Phrases to avoid, each with advice.
PHRASES = [
    (r"\bbut for\b", "except"),
    (r"\banew\b", "again"),
    (r"\bas it comes\b", "by default"),
    (r"\bby themselves\b", "automatically"),
    (r"\b(is|are|was|were|be) told\b", "name who reports, logs or returns it"),
    (r"\bin vain\b", "say what happened"),
    (r"\[pending\]", "say what holds today"),
    (r"\b(Q|P|V|M)\d{1,2}\b", "no paper ids on pages for users"),
    (r"\bof late\b", "recently"),
]


def pages():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True)
    return [name for name in listed.stdout.split() if (ROOT / name).is_file() and not name.startswith("lab/runs/")]


def slug(heading):
    """The anchor that GitHub and mdBook give a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def lines_of(name):
    """Yields number, line, and whether it is text: not in a code block, and not indented outside a list."""
    code = in_list = False
    for number, line in enumerate((ROOT / name).read_text().split("\n"), 1):
        if re.match(r"\s*(```|~~~)", line):
            code = not code
            yield number, line, False
            continue
        indented = line.startswith("    ")
        if line.strip() and not indented:
            in_list = bool(re.match(r"\s*([-*]|\d+\.)\s", line)) or in_list and line.startswith(" ")
        yield number, line, not code and (not indented or in_list)


def anchors(name):
    return {slug(line.lstrip("# ")) for _, line, text in lines_of(name) if text and line.startswith("#")}


def check_links(name):
    for number, line, text in lines_of(name):
        if not text:
            continue
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", line)):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = ((ROOT / name).parent / path).resolve() if path else ROOT / name
            if not file.exists():
                yield number, f"the link leads nowhere: {target}"
            elif anchor and file.suffix == ".md" and anchor not in anchors(str(file.relative_to(ROOT))):
                yield number, f"the page has no such heading: {target}"


def sentences(name):
    """Yields the first line and the text of each sentence, without markup and code."""
    begin, words = 0, []
    for number, line, text in [*lines_of(name), (0, "", True)]:
        prose = text and line.strip() and not re.match(r"\s*(#|\||<!--|- \[)", line)
        if re.match(r"\s*([-*]|\d+\.)\s", line) or not prose:
            if words:
                yield begin, " ".join(words)
            words = []
        if not prose:
            continue
        line = re.sub(r"^\s*([-*>]|\d+\.)\s+", "", line)
        line = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "CODE", line))
        for word in line.split():
            if not words:
                begin = number
            words.append(word)
            if re.search(r"[.?!:]\)?$", word) and not re.search(r"^(e\.g|i\.e|etc|vs|Fig|No)\.$", word):
                yield begin, " ".join(words)
                words = []


def check_prose(name):
    for number, line, text in lines_of(name):
        if text and len(line) > COLUMNS and not line.lstrip().startswith("|") and "](" not in line:
            yield number, f"{len(line)} columns; the maximum is {COLUMNS}"
        if text:
            for pattern, instead in PHRASES:
                user_page = not name.startswith("docs/inside/") and name not in ("SPEC.md", "CONTRIBUTING.md")
                if pattern.startswith(r"\b(Q|") and not user_page:
                    continue
                found = re.search(pattern, re.sub(r"`[^`]*`", "", line))
                if found:
                    yield number, f"\"{found[0]}\": {instead}"
    for number, sentence in sentences(name):
        if len(sentence.split()) > WORDS:
            yield number, f"a sentence of {len(sentence.split())} words; the maximum is {WORDS}: {sentence[:60]}..."
        if re.match(r"(What|Who|Whose|That which)\b", sentence) and not sentence.endswith(("?", ":")):
            yield number, f"name the subject: {sentence[:60]}"


def check_summary():
    summary = (ROOT / "docs/SUMMARY.md").read_text()
    listed = {"docs/" + target for target in re.findall(r"\]\(([^)]+)\)", summary)}
    there = {name for name in pages() if name.startswith("docs/") and name != "docs/SUMMARY.md"}
    for name in sorted(there - listed):
        yield 1, f"{name} is not in the book"


def main():
    wrong = 0
    names = sys.argv[1:] or pages()
    for name in names:
        findings = list(check_links(name))
        if name not in GENERATED or sys.argv[1:]:
            findings += check_prose(name)
        if name == "docs/SUMMARY.md":
            findings += check_summary()
        for number, what in sorted(findings):
            print(f"{name}:{number}: {what}")
        wrong += len(findings)
    return 1 if wrong else 0


sys.exit(main())
