#!/usr/bin/env python3
"""Opens the web page of a daemon in a headless Chromium and uses all of it, in network namespaces of its own: `make test-web`.
Needs root. Pictures, the log of the daemon and that of the browser are in target/web.

Usage: test-web.py [--docs]     --docs: with plain names, and writes the pictures of docs/howto/web.md; takes 5 minutes longer

It fails if a step does not show what it should, if the page asks another origin for anything, or if the browser reports an error.
"""

import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts/web"))

import devtools  # noqa: E402
import large  # noqa: E402
from bed import ADDRESS, Bed  # noqa: E402

OUT = ROOT / "target/web"
URL = f"http://{ADDRESS}/"
BROWSER = os.environ.get("CHROMIUM", "chromium-headless-shell")
SECTIONS = ["topology", "rates", "reasons", "events", "explain", "routers", "interfaces", "cores"]
# Seconds of traffic before the pictures, so that the charts have lines.
WARM_UP_S, WARM_UP_OF_DOCS_S = 10, 300
# The largest picture of the docs.
MOST_BYTES = 200_000


def check(is_right, what):
    if not is_right:
        raise AssertionError(what)


def rows(page, section):
    return page.value(f"[...document.querySelectorAll('#{section} tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent))")


def no_errors(page, *expected, allowed=()):
    """No error except these. Each of those expected must have been reported."""
    left = [error for error in page.errors if not any(part in error for part in [*expected, *allowed])]
    check(not left, f"the browser reports: {left}")
    for part in expected:
        check(any(part in error for error in page.errors), f"the browser does not report {part}: {page.errors}")
    page.errors.clear()


def shows_the_state(page, bed):
    page.until("document.querySelector('#live').dataset.state === 'live'", "answers come")
    page.until("/^[1-9].* [kM]?pps$/.test(document.querySelector('.tile .value').textContent)", "rates are shown")
    first = bed.text("status").splitlines()[0]
    state, rest = first.split("; ", 1)
    check(page.text("#headline-state").lower() == state, f"{page.text('#headline-state')} is not {first}")
    check(page.text("#headline-text") == rest, f"{page.text('#headline-text')} is not {first}")
    # Rates are near those that the daemon counts.
    before, began = bed.ask("status"), time.monotonic()
    page.wait(5)
    after, seconds = bed.ask("status"), time.monotonic() - began
    counted = (after["packets"]["forwarded"] - before["packets"]["forwarded"]) / seconds
    value, prefix = page.text(".tile .value").split()
    shown = float(value) * {"pps": 1, "kpps": 1e3, "Mpps": 1e6}[prefix]
    check(0.3 * counted < shown < 3 * counted, f"{shown} is shown, {counted} is counted")


def draws_the_topology(page, bed):
    names = page.value("[...document.querySelectorAll('#topology-picture .node .name')].map((name) => name.textContent)")
    for wanted in ["host", bed.odd_router, "eth1", "eth2", "eth3", "core 0"]:
        check(wanted in names, f"{wanted} is not among {names}")
    page.until("[...document.querySelectorAll('#topology-picture .link-label')].filter((label) => /pps.*bit.s/.test(label.textContent)).length >= 8",
               "lines have packets and bits per second")
    widths = page.value("[...document.querySelectorAll('#topology-picture path.link')].map((link) => Number(link.getAttribute('stroke-width')))")
    check(max(widths) > 3 * min(widths), f"widths are {widths}")
    page.choose("#topology-most", "8")


def draws_charts(page):
    page.until("document.querySelectorAll('#chart-packets .series').length === 3", "each port has a line")
    check(page.value("new Set([...document.querySelectorAll('#chart-bits .series')].map((line) => getComputedStyle(line).strokeDasharray)).size") == 3,
          "lines have different dashes")
    received = page.value("document.querySelector('#chart-packets .series').getAttribute('d')")
    page.click("#rates-out")
    check(page.value("document.querySelector('#chart-packets .series').getAttribute('d')") != received, "the lines of sent packets are others")
    page.click("#rates-in")
    page.click("#rates-legend button")
    check(page.value("document.querySelectorAll('#chart-packets .series').length") == 2, "a line can be hidden")
    page.click("#rates-legend button")
    page.move("#chart-packets .chart", 0.95)
    page.until("document.querySelector('#rates-note').textContent.includes(' at ')", "the mouse marks a moment")
    page.value("document.querySelector('#chart-packets .chart').focus()")
    for _ in range(2):
        page.key("ArrowLeft", 37)
    check(page.value("document.querySelectorAll('.cross').length") == 2, "keys mark a moment in both charts")
    page.key("Escape", 27)
    check(page.value("document.querySelectorAll('.cross').length") == 0, "Escape removes the mark")


def lists_reasons(page, bed):
    counted = {reason["reason"]: reason for reason in bed.ask("status")["reasons"]}
    shown = {row[0]: row for row in rows(page, "reasons")}
    check("ttl_exceeded" in shown, f"reasons are {list(shown)}")
    for name, row in shown.items():
        check(name in counted and row[5] == counted[name]["text"], f"{row} is not {counted.get(name)}")
    check(shown["ttl_exceeded"][2].endswith("pps") and not shown["ttl_exceeded"][2].startswith("0 "), f"{shown['ttl_exceeded']}")
    page.choose("#reasons-of", "router host")
    page.until("document.querySelectorAll('#reasons tbody tr').length > 0", "the reasons of one router")
    page.choose("#reasons-of", "")


def lists_events(page, bed):
    page.until("document.querySelectorAll('#events tbody tr').length > 0", "events are shown")
    shown, known = rows(page, "events"), [json.loads(line) for line in run_events(bed)]
    check(shown[0][3] == known[-1]["why"], f"{shown[0]} is not {known[-1]}")
    check(len(shown[0][0]) == len("2026-11-29 14:00:00") and shown == sorted(shown, key=lambda row: row[0], reverse=True), f"{shown}")
    page.type("#events-filter", "no such event")
    page.until("document.querySelectorAll('#events tbody tr').length === 0", "a filter that nothing fits")
    page.type("#events-filter", "")
    page.until("document.querySelectorAll('#events tbody tr').length > 0", "the filter is gone")


def run_events(bed):
    return [line for line in bed.text("events", "--json").splitlines() if line.startswith("{")]


def explains(page, bed):
    page.click("#explain-form [name=source]")
    page.call("Input.insertText", text="10.8.1.2")
    page.type("#explain-form [name=source_port]", "1024")
    page.type("#explain-form [name=destination]", "10.8.2.2")
    page.type("#explain-form [name=destination_port]", "80")
    check(page.text("#explain-form code") == f"millrace explain 'udp 10.8.1.2:1024 -> 10.8.2.2:80' --instance {bed.name}", page.text("#explain-form code"))
    page.key("Enter", 13)
    page.until("document.querySelector('#explain-answer .verdict')?.textContent === 'Forwarded by port eth2'", "the packet is explained")
    check(page.value("document.querySelectorAll('#explain-answer ol li').length") > 2, "steps are shown")
    headers = rows(page, "explain-answer")
    check(any(row[0] == "TTL" and row[1:] == ["64", "63"] for row in headers), f"headers are {headers}")
    page.choose("#explain-form [name=router]", bed.odd_router)
    check(page.text("#explain-form code").endswith(f" --router {shlex.quote(bed.odd_router)} --instance {bed.name}"), page.text("#explain-form code"))
    page.type("#explain-form [name=source]", "10.6.1.2")
    page.type("#explain-form [name=destination]", "10.6.2.2")
    page.type("#explain-form [name=ttl]", "1")
    page.click("#explain-form button[type=submit]")
    page.until("/^Goes to the kernel: /.test(document.querySelector('#explain-answer .verdict')?.textContent)", "why it is not forwarded")
    no_errors(page)
    page.type("#explain-form [name=destination]", "nonsense")
    page.click("#explain-form button[type=submit]")
    page.until("document.querySelector('#explain-answer .verdict')?.textContent === 'Not explained'", "an error of the daemon is shown")
    check("nonsense" in page.text("#explain-answer"), page.text("#explain-answer"))
    page.wait(0.3)
    no_errors(page, "status of 400")
    for name, text in [("destination", "10.6.2.2"), ("ttl", "")]:
        page.type(f"#explain-form [name={name}]", text)
    page.click("#explain-form button[type=submit]")
    page.until("/^Forwarded/.test(document.querySelector('#explain-answer .verdict')?.textContent)", "it is explained again")


def lists_tables(page, bed):
    routers = {row[0]: row for row in rows(page, "routers")}
    check(bed.odd_router in routers, f"routers are {list(routers)}")
    interfaces = rows(page, "interfaces")
    check(any(row[:2] == [bed.odd_interface, bed.odd_router] for row in interfaces), f"{interfaces}")
    check(len(interfaces) == len(bed.ask("interfaces")), "all interfaces are listed")
    page.type("#interfaces-filter", bed.odd_router)
    page.until("document.querySelectorAll('#interfaces tbody tr').length === 3", "interfaces of one router")
    page.type("#interfaces-filter", "")
    page.click("#interfaces th:nth-child(6) button")
    check(page.value("document.querySelector('#interfaces th:nth-child(6)').getAttribute('aria-sort')") == "descending", "sorted by rate")
    check(len(rows(page, "cores")) >= 3 + 2, "ports, queues and cores are listed")
    # Hostile names are text: the page has no element that it has not made itself.
    check(page.value("document.querySelectorAll('b, img:not(.brand img)').length") == 0, "a name became an element")


def walks_through(page):
    """Every link of the navigation leads to its section, and the keyboard reaches everything."""
    for section in SECTIONS:
        page.click(f"nav a[href='#{section}']")
        page.until(f"(() => {{ const {{ top, bottom }} = document.getElementById('{section}').getBoundingClientRect(); return top < innerHeight && bottom > 0; }})()",
                   f"{section} is seen")
    unnamed = page.value("""[...document.querySelectorAll("button, input, select, a, svg[role=img]")].filter((element) =>
        !(element.textContent.trim() || element.getAttribute("aria-label") || element.getAttribute("aria-labelledby") || element.closest("label")))
        .map((element) => element.outerHTML.slice(0, 80))""")
    check(unnamed == [], f"without a name for screen readers: {unnamed}")
    page.value("scrollTo({ top: 0, behavior: 'instant' }), document.activeElement.blur()")
    reached = set()
    for _ in range(60):
        page.key("Tab", 9)
        reached.add(page.value("document.activeElement.id || document.activeElement.closest('[id]')?.id"))
    check({"theme", "topology-picture", "rates-in", "reasons-of", "events-filter"} <= reached, f"the keyboard reaches {reached}")


def changes_colours(page):
    background = "getComputedStyle(document.body).backgroundColor"
    page.prefer("dark")
    dark = page.value(background)
    page.prefer("light")
    light = page.value(background)
    check(dark != light, "the page follows the system")
    page.click("#theme")
    check(page.value(background) == dark, "the button changes to dark")
    page.open(URL)
    check(page.value(background) == dark, "the choice is kept")
    page.click("#theme")
    check(page.value(background) == light, "and back")
    page.value("localStorage.clear()")
    page.open(URL)


def contrast(page):
    """Text is readable (WCAG: 4.5 for text), and lines are seen (3), in both schemes."""
    script = """(() => {
        const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
        const light = (name) => {
            const probe = document.createElement("i");
            probe.className = "probe";
            document.body.append(probe);
            probe.style.color = `var(${name})`;
            canvas.fillStyle = getComputedStyle(probe).color;
            probe.remove();
            canvas.fillRect(0, 0, 1, 1);
            const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((n) => n / 255).map((n) => (n <= 0.04045 ? n / 12.92 : ((n + 0.055) / 1.055) ** 2.4));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((x, y) => y - x); return (x + 0.05) / (y + 0.05); };
        const wanted = [["--text", 7], ["--dim", 4.5], ["--good", 4.5], ["--warn", 4.5], ["--bad", 4.5], ["--accent", 4.5], ...[0, 1, 2, 3, 4, 5, 6, 7].map((n) => [`--s${n}`, 2.7])];
        return wanted.map(([name, least]) => [name, ratio(name, "--card"), least]).filter(([, is, least]) => is < least);
    })()"""
    for scheme in ["light", "dark"]:
        page.prefer(scheme)
        weak = page.value(script)
        check(weak == [], f"{scheme}: too little contrast: {weak}")
    page.prefer("light")


def outlives_the_daemon(page, bed):
    bed.kill()
    page.until("!document.querySelector('#lost').hidden && /^No answer since \\d\\d:\\d\\d:\\d\\d/.test(document.querySelector('#lost').textContent)", "the page reports that the daemon is gone")
    page.screenshot(OUT / "daemon-gone.png", 400)
    bed.start(explain=False)
    page.until("document.querySelector('#lost').hidden && document.querySelector('#live').dataset.state === 'live'", "the page recovers")
    page.wait(0.5)
    # Requests that the daemon had not answered when it ended, or to which it answers that it is starting.
    no_errors(page, "ERR_CONNECTION_REFUSED", allowed=["ERR_EMPTY_RESPONSE", "ERR_CONNECTION_RESET", "status of 503"])
    page.type("#explain-form [name=source]", "10.8.1.2")
    page.type("#explain-form [name=destination]", "10.8.2.2")
    page.click("#explain-form button[type=submit]")
    page.until("document.querySelector('#explain-answer .verdict')?.textContent === 'Not allowed here'", "explanations are refused")
    page.wait(0.3)
    no_errors(page, "status of 403")


def rests_when_hidden(page):
    hide = "Object.defineProperty(document, 'hidden', { value: %s, configurable: true }); document.dispatchEvent(new Event('visibilitychange'))"
    page.value(hide % "true")
    page.wait(1)
    asked = len(page.requests)
    page.wait(3)
    check(len(page.requests) == asked, f"a hidden page asks: {page.requests[asked:]}")
    page.value(hide % "false")
    page.wait(2.5)
    check(len(page.requests) > asked + 4, "the page asks again")


def shows_what_is_not_fast(page, bed):
    blue = bed.routers[5]
    bed.inside(blue, "ip", "rule", "add", "priority", "100", "from", "192.0.2.1", "lookup", "100")
    page.until(f"document.querySelector('#headline-text').textContent.includes('router {blue}: IPv4')", "the headline names the router")
    page.until("document.querySelectorAll('#slow li').length > 0", "what is not fast is listed")
    bed.inside(blue, "ip", "rule", "delete", "priority", "100")


def other_origins_get_nothing(browser, bed):
    """An untrusted web page in the same browser, on another port and by another loopback address."""
    directory = OUT / "untrusted"
    directory.mkdir()
    (directory / "index.html").write_text(f"""<!doctype html><title>untrusted</title><iframe id="frame" src="{URL}"></iframe>
        <script>
        window.results = Promise.all([["GET", "cors"], ["GET", "no-cors"], ["POST", "no-cors"]].map(([method, mode]) =>
            fetch("{URL}v1/" + (method === "GET" ? "status" : "explain"), {{ method, mode }})
                .then((answer) => answer.type + " " + answer.status, () => "refused")));
        </script>""")
    server = subprocess.Popen([*bed.enter(bed.box), "python3", "-m", "http.server", "8000", "--bind", "127.0.0.1", "--directory", str(directory)],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        page = browser.page()
        bed.until(lambda: page.open("http://127.0.0.1:8000/") is None, "the untrusted page is open")
        results = page.value("window.results")
        check(results == ["refused"] * 3, f"an untrusted page gets {results}")
        check(any("status of 403" in error for error in page.errors), f"it was not refused by the daemon: {page.errors}")
    finally:
        server.kill()
        server.wait()


def large_setups_stay_usable(browser):
    page = browser.page()
    page.size(1440, 1000)
    page.answer_requests("*/v1/*", large.Answers())
    page.open(URL)
    page.until("document.querySelectorAll('#chart-packets .series').length === 8", "eight lines at most")
    page.wait(3)
    counts = page.value("Object.fromEntries(['node', 'link'].map((name) => [name, document.querySelectorAll(`#topology-picture .${name}`).length]))")
    check(counts["node"] == 4 * 12, f"12 of each are drawn: {counts}")
    check("52 ports" in page.text("#topology-more") and "116 cores" in page.text("#topology-more"), page.text("#topology-more"))
    check("57 other ports" in page.text("#rates-legend"), page.text("#rates-legend"))
    check("25 of 1\u202f000 interfaces" in page.text("#interfaces-table .more"), page.text("#interfaces-table .more"))
    page.click("#interfaces-table .more button")
    check(len(rows(page, "interfaces")) == 50, "more can be shown")
    check(page.value("document.querySelectorAll('b, script:not([src]), img:not(.brand img)').length") == 0, "a name became an element")
    check(page.value("window.hostile") is None, "a name ran")
    fits_the_screen(page)
    # Versions that Linux does not forward either are left out, and a router of which one interface is slow is partly fast.
    fast = {row[0][-2:]: row[1] for row in rows(page, "routers")}
    wanted = {"r2": "IPv4 and IPv6 fast", "r3": "IPv6 fast, IPv4 by the kernel", "r5": "IPv6 fast, IPv4 partly fast", "r6": "IPv4 fast"}
    check({name: fast.get(name) for name in wanted} == wanted, f"{fast}")
    drawn = page.value("[...document.querySelectorAll('#topology-picture .node')].map((node) => node.textContent).join(' ')")
    check("IPv4 partly fast" in drawn or "IPv6 fast" in drawn, f"{drawn}")
    page.screenshot(OUT / "large.png", 5000)
    page.size(420, 900)
    page.wait(1)
    fits_the_screen(page)
    page.screenshot(OUT / "narrow.png", 2400)
    no_errors(page)


def old_sections_are_marked(browser):
    """A request that fails beside the status marks its sections; a fault of the page is no silence of the daemon."""
    page = browser.page()
    answers, interfaces = large.Answers(), 503
    page.answer_requests("*/v1/*", lambda url: interfaces if "v1/interfaces" in url and interfaces is not None else answers(url))
    page.open(URL)
    shown = "[...document.querySelectorAll('.stale')].filter((note) => !note.hidden).map((note) => `${note.closest('section').id} ${note.textContent}`)"
    page.until(f"{shown}.length === 2", "two sections are marked")
    marked = page.value(shown)
    check(all(f"{section} Interfaces: no answer yet: " in text for section, text in zip(["topology", "interfaces"], marked)), f"{marked}")
    check(page.value("document.querySelector('#live').dataset.state") == "live", "the status is answered")
    interfaces = None
    page.until(f"{shown}.length === 0", "the sections are up to date")
    no_errors(page, "status of 503")
    interfaces = {}
    page.wait(2)
    interfaces = None
    check(page.value(shown) == [] and page.value("document.querySelector('#lost').hidden"), f"{page.value(shown)}")
    page.wait(1)
    no_errors(page, "TypeError")


def fits_the_screen(page):
    """Only boxes that scroll have parts beside the screen."""
    wide = page.value("""document.documentElement.scrollWidth <= innerWidth ? [] : [...document.querySelectorAll("body *")].filter((element) =>
        element.getBoundingClientRect().right > innerWidth && !element.closest(".table-box, .scrolls"))
        .map((element) => `${element.tagName} ${element.id} ${element.className}`).slice(0, 9)""")
    check(wide == [], f"wider than the screen: {wide}")


def pictures(page, docs):
    page.size(1440, 1000)
    page.choose("#topology-most", "12")
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=2, y=500)
    page.value("document.activeElement.blur()")
    page.wait(1.5)
    for scheme in ["light", "dark"]:
        page.prefer(scheme)
        page.wait(0.3)
        page.screenshot(OUT / f"{scheme}.png")
        if docs:
            height = page.value("document.getElementById('reasons').getBoundingClientRect().bottom + scrollY + 16")
            picture = ROOT / f"docs/howto/web-{scheme}.png"
            page.screenshot(picture, height)
            subprocess.run(["pngquant", "--force", "--skip-if-larger", "--output", picture, "256", picture], check=True)
            check(picture.stat().st_size < MOST_BYTES, f"{picture} has {picture.stat().st_size} bytes")
    page.prefer("light")


def use(page, bed, docs):
    page.size(1440, 1000)
    page.open(URL)
    shows_the_state(page, bed)
    changes_colours(page)
    contrast(page)
    page.wait(WARM_UP_OF_DOCS_S if docs else WARM_UP_S)
    draws_the_topology(page, bed)
    draws_charts(page)
    lists_reasons(page, bed)
    lists_events(page, bed)
    explains(page, bed)
    lists_tables(page, bed)
    walks_through(page)
    no_errors(page)
    pictures(page, docs)
    rests_when_hidden(page)
    shows_what_is_not_fast(page, bed)
    outlives_the_daemon(page, bed)
    foreign = [url for url in page.requests if not url.startswith(URL)]
    check(not foreign, f"the page asks others: {foreign}")
    asked = {url.removeprefix(URL).split("?")[0] for url in page.requests}
    check({"main.js", "style.css", "v1/status", "v1/cores", "v1/interfaces", "v1/events", "v1/explain"} <= asked, f"{asked}")
    no_errors(page)


def main():
    docs = sys.argv[1:] == ["--docs"]
    if sys.argv[1:] and not docs:
        sys.exit(__doc__)
    if os.geteuid() != 0:
        sys.exit("this needs root: it makes network namespaces")
    shutil.rmtree(OUT, ignore_errors=True)
    profile = OUT / "profile"
    profile.mkdir(parents=True)
    bed = browser = None
    try:
        bed = Bed(OUT, docs)
        bed.build()
        bed.send()
        bed.start()
        browser = devtools.Browser(bed.enter(bed.box), BROWSER, profile)
        page = browser.page()
        try:
            use(page, bed, docs)
        except (AssertionError, RuntimeError):
            page.screenshot(OUT / "failed.png")
            raise
        large_setups_stay_usable(browser)
        old_sections_are_marked(browser)
        other_origins_get_nothing(browser, bed)
    except (AssertionError, RuntimeError) as error:
        sys.exit(f"FAILED: {error}; see {OUT}")
    finally:
        if browser:
            browser.close()
        if bed:
            bed.close()
        shutil.rmtree(profile, ignore_errors=True)
    print(f"The web page works. Pictures are in {OUT}.")


main()
