"""A headless Chromium, by the Chrome DevTools Protocol over a pipe (https://chromedevtools.github.io/devtools-protocol/).

It records what the page asks for, and every error. Messages are JSON that ends with a zero byte; the browser reads them from its
descriptor 3, and writes them to 4.
"""

import base64
import json
import os
import select
import subprocess
import time

PATIENCE_S = 60
# As root, Chromium has no sandbox of its own. It loads only our page, in a network namespace without a way out.
FLAGS = [
    "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-extensions", "--hide-scrollbars", "--force-color-profile=srgb",
    "--disable-dev-shm-usage", "--font-render-hinting=none",
]


class Browser:
    def __init__(self, prefix, binary, profile):
        """Starts it. `prefix`: words before the command, such as those of nsenter."""
        to_read, self.to = os.pipe()
        self.from_browser, to_write = os.pipe()
        shell = f'exec "$@" 3<&{to_read} 4>&{to_write}'
        command = ["sh", "-c", shell, "sh", *prefix, binary, *FLAGS, f"--user-data-dir={profile}"]
        self.log = open(f"{profile}/chromium.log", "wb")
        self.process = subprocess.Popen(command, pass_fds=[to_read, to_write], stdin=subprocess.DEVNULL, stdout=self.log,
                                        stderr=self.log)
        os.close(to_read)
        os.close(to_write)
        self.buffer, self.last_id, self.answers, self.pages = b"", 0, {}, {}

    def close(self):
        try:
            self.call("Browser.close")
        except (OSError, RuntimeError):
            pass
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()

    def call(self, method, parameters=None, session=None):
        """The result of a method. Raises RuntimeError if the browser refuses it."""
        self.last_id += 1
        number = self.last_id
        message = {"id": number, "method": method, "params": parameters or {}}
        if session:
            message["sessionId"] = session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + PATIENCE_S
        while number not in self.answers:
            if time.monotonic() > end:
                raise RuntimeError(f"{method}: no answer in {PATIENCE_S} s")
            self.pump(0.1)
        answer = self.answers.pop(number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def pump(self, seconds):
        """Reads messages for at most this time, until some have come."""
        ready, _, _ = select.select([self.from_browser], [], [], seconds)
        if not ready:
            return
        piece = os.read(self.from_browser, 1 << 20)
        if not piece:
            raise RuntimeError("the browser has ended")
        *messages, self.buffer = (self.buffer + piece).split(b"\0")
        for text in messages:
            message = json.loads(text)
            if "id" in message:
                self.answers[message["id"]] = message
            elif message.get("sessionId") in self.pages:
                self.pages[message["sessionId"]].heard(message["method"], message["params"])

    def page(self):
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        return Page(self, session)


class Page:
    def __init__(self, browser, session):
        self.browser, self.session = browser, session
        self.requests, self.errors, self.fulfil = [], [], None
        browser.pages[session] = self
        for domain in ["Page", "Runtime", "Network", "Log"]:
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        return self.browser.call(method, parameters, self.session)

    def post(self, method, parameters):
        """Calls a method while messages are being read, and does not wait."""
        self.browser.last_id += 1
        message = {"id": self.browser.last_id, "method": method, "params": parameters, "sessionId": self.session}
        os.write(self.browser.to, json.dumps(message).encode() + b"\0")

    def heard(self, method, params):
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ["error", "warning", "assert"]:
            self.errors.append("console: " + " ".join(str(a.get("value", a.get("description"))) for a in params["args"]))
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append("exception: " + details.get("exception", {}).get("description", details["text"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ["error", "warning"]:
            self.errors.append(f"log: {params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Fetch.requestPaused":
            self.answer(params)

    def answer(self, params):
        answer = self.fulfil(params["request"]["url"]) if self.fulfil else None
        if answer is None:
            self.post("Fetch.continueRequest", {"requestId": params["requestId"]})
            return
        headers = [{"name": "content-type", "value": "application/json"}]
        body = base64.b64encode(json.dumps(answer).encode()).decode()
        code = answer if isinstance(answer, int) else 200
        self.post("Fetch.fulfillRequest", {"requestId": params["requestId"], "responseCode": code, "responseHeaders": headers, "body": body})

    def answer_requests(self, pattern, fulfil):
        """Answers requests in place of the server, by a function from the URL to JSON, or to the status of an error; None: the server answers."""
        self.fulfil = fulfil
        self.call("Fetch.enable", patterns=[{"urlPattern": pattern}])

    def open(self, url):
        answer = self.call("Page.navigate", url=url)
        if answer.get("errorText"):
            raise RuntimeError(f"{url}: {answer['errorText']}")
        self.until("document.readyState === 'complete'", f"{url} is loaded")

    def value(self, expression):
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails'].get('exception', {}).get('description')}")
        return answer["result"].get("value")

    def until(self, expression, what):
        """Waits until an expression is true, and returns its value."""
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                value = self.value(expression)
            except RuntimeError as error:
                value = None
                last = error
            else:
                last = value
            if value:
                return value
            if time.monotonic() > end:
                raise AssertionError(f"not in {PATIENCE_S} s: {what}: {expression} is {last}; errors: {self.errors[-5:]}")
            self.wait(0.1)

    def wait(self, seconds):
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.browser.pump(left)

    def text(self, selector):
        return self.value(f"document.querySelector({json.dumps(selector)}).textContent")

    def click(self, selector):
        """Clicks in the middle of an element, with the mouse."""
        box = self.value(f"""(async () => {{
            const element = document.querySelector({json.dumps(selector)});
            element.scrollIntoView({{ block: "center", behavior: "instant" }});
            await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
            const {{ left, top, width, height }} = element.getBoundingClientRect();
            const [x, y] = [left + width / 2, top + height / 2];
            const hit = document.elementFromPoint(x, y);
            return {{ x, y, isHit: element === hit || element.contains(hit) }};
        }})()""")
        if not box["isHit"]:
            raise AssertionError(f"{selector} is covered by something")
        for kind in ["mousePressed", "mouseReleased"]:
            self.call("Input.dispatchMouseEvent", type=kind, x=box["x"], y=box["y"], button="left", clickCount=1)

    def move(self, selector, part):
        """Moves the mouse over an element, to a part of its width."""
        box = self.value(f"""(() => {{ const element = document.querySelector({json.dumps(selector)});
            element.scrollIntoView({{ block: "center", behavior: "instant" }});
            const {{ left, top, width, height }} = element.getBoundingClientRect();
            return {{ left, top, width, height }}; }})()""")
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=box["left"] + part * box["width"], y=box["top"] + box["height"] / 2)

    def type(self, selector, text):
        """Replaces the text of a field."""
        self.click(selector)
        self.value(f"document.querySelector({json.dumps(selector)}).select?.()")
        if text:
            self.call("Input.insertText", text=text)
        else:
            self.key("Delete", 46)

    def key(self, key, code):
        for kind in ["keyDown", "keyUp"]:
            extra = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **extra)

    def choose(self, selector, value):
        """Chooses an option."""
        self.value(f"""(() => {{ const select = document.querySelector({json.dumps(selector)});
            select.value = {json.dumps(value)};
            select.dispatchEvent(new Event("input", {{ bubbles: true }}));
            select.dispatchEvent(new Event("change", {{ bubbles: true }})); }})()""")

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def prefer(self, scheme):
        """The colours that the system prefers."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, path, height=None):
        """A picture of the page from its beginning, this high or whole."""
        self.value("scrollTo({ top: 0, behavior: 'instant' })")
        width, whole = self.value("[document.documentElement.clientWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": width, "height": height or whole, "scale": 1}
        picture = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        with open(path, "wb") as file:
            file.write(base64.b64decode(picture["data"]))
