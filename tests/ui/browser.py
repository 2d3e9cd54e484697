"""Runs the app and drives it with a real browser."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from ui.parts.navigation import PARENTS, STEPS

ROOT = Path(__file__).parent.parent.parent
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_UP_WITHIN_SECONDS = 150.0
START_SECONDS = 90.0
# The page is at rest if no request was sent or answered for so long: longer than its own delays
# before a request, 150 ms for a form and 300 ms for a menu.
_QUIET_MILLISECONDS = 450
# A folder for screenshots, for a person to review.
_SHOTS = os.environ.get("STUDIO_TEST_SHOTS", "")
# Gradio's client ends its session when the page is left, and logs as an error what that aborts and
# what the page still asks until the next one is there.
_LEAVING = (
    "AbortError: signal is aborted",
    "Unexpected error Connection errored out",
    "Unexpected error 404: Not Found",
    "Failed to load resource: net::ERR_INCOMPLETE_CHUNKED_ENCODING",
    "TypeError: network error",
)


def find_chromium() -> str:
    """Returns the path of Chromium; skips the test with instructions if there is none."""
    pytest.importorskip("playwright", reason="needs Playwright: pip install playwright")
    candidates = [os.environ.get("STUDIO_TEST_CHROMIUM"), *map(shutil.which, _NAMES)]
    found = next(filter(None, candidates), None) or _playwright_chromium()
    if not found:
        pytest.skip(
            "needs a Chromium: `playwright install chromium`, the system's package, or its path "
            "in STUDIO_TEST_CHROMIUM"
        )
    return found


def _playwright_chromium() -> str | None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).exists() else None


def panel_of(tab: str) -> str:
    """Returns the element id of a tab's panel."""
    return f"tab-{_id_of(tab)}"


def _id_of(tab: str) -> str:
    name = tab.lower().replace("-", "")
    return {"data": "corpus"}.get(name, name)


@contextmanager
def running_app(
    workspace: Path, *options: str, root: Path = ROOT, **environment: str
) -> Iterator[str]:
    """Runs the app on a free port and yields its URL.

    Args:
        workspace: The workspace; the app's log goes beside it.
        *options: Command-line options of the app.
        root: The folder with `app.py`.
        **environment: Additional environment variables.
    """
    port = free_port()
    command = [sys.executable, "app.py", "--port", str(port), "--workspace", str(workspace)]
    log = workspace.parent / f"app-{port}.log"
    with log.open("wb") as output:
        app = subprocess.Popen(
            [*command, *options],
            cwd=root,
            env={**os.environ, **environment},
            stdout=output,
            stderr=output,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_up(url, app, log)
            yield url
        finally:
            app.terminate()
            app.wait(timeout=20)


def _wait_until_up(url: str, app: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _UP_WITHIN_SECONDS
    while time.monotonic() < deadline:
        assert app.poll() is None, log.read_text()
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except urllib.error.HTTPError as error:
            assert error.code == 401, "asked for a password"
            return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            time.sleep(0.2)
    raise AssertionError(f"the app isn't up: {log.read_text()}")


# Tracks Gradio's unanswered requests. A request joins an event to the queue and is answered with
# the event's id; a stream delivers the answers to all events. An open stream proves nothing:
# Gradio opens one too many if an event is done before it is known to have been joined.
# The script runs before the web app's own, so that it sees every stream.
_WATCH_REQUESTS = """
(() => {
  const original = window.fetch;
  const done = new Set();
  window.requests = { awaited: new Map(), changed: performance.now() };
  const note = (change, ...all) => {
    requests.awaited[change](...all);
    requests.changed = performance.now();
  };
  const joined = async (answer, asked) => {
    const { event_id: id } = await answer.json();
    if (id && !done.has(id)) note("set", id, asked);
  };
  const follow = async (answer) => {
    let rest = "";
    for await (const text of answer.body.pipeThrough(new TextDecoderStream())) {
      const lines = (rest + text).split("\\n");
      rest = lines.pop();
      for (const line of lines.filter((one) => one.startsWith("data:"))) {
        const { msg, event_id: id } = JSON.parse(line.slice(5));
        if (msg === "process_completed") { done.add(id); note("delete", id); }
      }
    }
  };
  window.fetch = async (...all) => {
    const url = String(all[0]?.url ?? all[0]);
    if (url.includes("/queue/data")) {
      const answer = await original(...all);
      follow(answer.clone()).catch(() => {});
      return answer;
    }
    if (!url.includes("/queue/join")) return original(...all);
    const key = Symbol(), asked = String(all[1]?.body ?? "");
    note("set", key, asked);
    try {
      const answer = await original(...all);
      await joined(answer.clone(), asked);
      return answer;
    } finally {
      note("delete", key);
    }
  };
})();
"""
_IS_QUIET = """
(quiet) => !requests.awaited.size && performance.now() - requests.changed > quiet
"""


class Visitor:
    """A browser tab with the web app.

    Attributes:
        page: The Playwright page.
        outside: URLs requested from other machines.
        errors: Script errors and the console's error messages.
    """

    def __init__(self, context: Any, url: str, ready: str = ".ps-strip b, .ps-strip-text") -> None:
        self.page = context.new_page()
        self.page.add_init_script(_WATCH_REQUESTS)
        self.outside: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", self._see_request)
        self.page.on("console", self._see_message)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.goto(url)
        self.page.wait_for_selector(ready)

    def _see_message(self, message: Any) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def _see_request(self, request: Any) -> None:
        if not re.match(r"(http://127\.0\.0\.1:|data:|blob:)", request.url):
            self.outside.append(request.url)

    def reload(self) -> None:
        """Reloads the page; ignores the errors that leaving the old one causes."""
        seen = len(self.errors)
        self.page.reload()
        said = self.errors[seen:]
        self.errors[seen:] = [one for one in said if not one.startswith(_LEAVING)]

    def go(self, place: str, width: int = 1280, height: int = 900) -> None:
        """Follows a link to a place in the page, such as `runs/train-1`."""
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.evaluate("place => { location.hash = place }", place)

    def open(self, tab: str) -> None:
        """Opens a tab by clicking on its link; the tab or menu that holds the link opens first."""
        name = _id_of(tab)
        link = self.page.locator(f'[data-go="{name}"]:visible').first
        if not link.count():
            if around := PARENTS.get(name):
                self.open(around)
            elif name in STEPS and name != "train":
                self.open("Train")  # On a phone, it shows the steps before it.
            else:
                self.page.locator(".ps-menu > summary:visible").last.click()
        link.click()
        self.page.locator(f"#tab-{name}").wait_for(state="visible")

    def field(self, id: str) -> Any:
        """Returns a form's field by its id."""
        return self.page.locator(f"#{id}").locator("input, textarea").first

    def type(self, id: str, text: str) -> None:
        """Types into a form's field."""
        self.field(id).fill(text)

    def pick(self, id: str, choice: str) -> None:
        """Chooses a radio button by its label."""
        self.page.locator(f"#{id}").get_by_label(choice, exact=True).check()

    def choose(self, id: str, choice: str) -> None:
        """Chooses from a menu."""
        self.field(id).click()
        self.page.get_by_role("option", name=choice, exact=True).click()

    def show_all_settings(self, form: str) -> None:
        """Switches a form to its advanced view and opens its groups."""
        self.page.locator(f"#{form}-view").get_by_text("Advanced", exact=True).click()
        self.page.locator(f"#{form}").get_by_role("button", name="Open all groups").click()

    def expand(self, section: str) -> None:
        """Opens a closed section."""
        self.page.locator(f"#{section} > button").click()

    def start(self, stage: str) -> str:
        """Presses a stage's start button and returns the id of the run."""
        # The checks of earlier values would disable the button while it is pressed.
        self.settle(START_SECONDS)
        self.page.locator(f"#{stage}-start").click()
        answers = self.page.locator(f"#tab-{stage} .ps-started code")
        self.wait_for(answers.count, START_SECONDS, f"the {stage} run is queued")
        return str(answers.first.inner_text())

    def see(self, place: Any, *texts: str) -> None:
        """Waits until a place shows all texts; raises AssertionError if it doesn't."""
        from playwright.sync_api import expect

        for text in texts:
            expect(place).to_contain_text(text, timeout=30_000, use_inner_text=True)

    def settle(self, seconds: float) -> list[str]:
        """Waits until the page is at rest; returns the requests that are still unanswered."""
        from playwright.sync_api import TimeoutError

        try:
            self.page.wait_for_function(_IS_QUIET, arg=_QUIET_MILLISECONDS, timeout=seconds * 1000)
        except TimeoutError:
            return list(self.page.evaluate("[...requests.awaited.values(), 'a short while ago']"))
        return []

    def shoot(self, name: str) -> None:
        """Saves a screenshot of the whole page if `STUDIO_TEST_SHOTS` names a folder."""
        if _SHOTS:
            self.page.screenshot(path=Path(_SHOTS, f"{name}.png"), full_page=True)

    def wait_for(self, condition: Callable[[], Any], seconds: float, what: str) -> Any:
        """Waits for a condition while the browser keeps running; returns its value."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if found := condition():
                return found
            self.page.wait_for_timeout(200)
        raise AssertionError(f"within {seconds} s: {what}\n{self.page.inner_text('body')}")


_browsers: list[Any] = []


@contextmanager
def running_browser() -> Iterator[Any]:
    """Starts a browser, or yields the one that an outer `with` has started."""
    if _browsers:
        yield _browsers[0]
        return
    chromium = find_chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(_FLAGS))
        _browsers.append(browser)
        try:
            yield browser
        finally:
            _browsers.clear()
            browser.close()


@contextmanager
def visiting(
    url: str,
    *,
    width: int = 1280,
    height: int = 900,
    dark: bool = False,
    touch: bool = False,
) -> Iterator[Any]:
    """Yields a function that opens the web app in a new tab of a browser without memories."""
    with running_browser() as browser:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
            has_touch=touch,
            is_mobile=touch,
        )
        context.set_default_timeout(60_000)
        yield lambda place="", **options: Visitor(context, url + place, **options)
        context.close()
