"""The notebooks as a reader meets them: in JupyterLab, in a real browser, one control after another moved."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 120.0  # seconds until something counts as hanging
WIDGET = ".minillama-explore"

# What a widget's controls look like in ipywidgets 8. A group of toggle buttons is one control.
CONTROLS = {
    "slider": ".noUi-handle",
    "dropdown": ".widget-dropdown select",
    "toggle buttons": ".widget-toggle-buttons",
    "toggle button": ".widget-toggle-button:not(.widget-toggle-buttons *)",
    "checkbox": ".widget-checkbox input",
    "play": ".widget-play",
    "button": ".widget-button:not(.widget-toggle-buttons *):not(.widget-play *)",
}
ANY_CONTROL = "input, select, textarea, button, .noUi-handle"


class NoBrowser(Exception):
    """There is nothing here to open a notebook in; the message says what is missing."""


def find_browser() -> str:
    """The path of a Chromium, if there is one and playwright to drive it; else NoBrowser."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        raise NoBrowser("playwright is not installed (it comes with the extra dev)") from None
    named = os.environ.get("MINILLAMA_BROWSER")
    if named:
        path = shutil.which(named)
        if path is None:  # a mistake in the setting: skipping would hide it
            raise FileNotFoundError(f"MINILLAMA_BROWSER is {named}, which cannot be run")
        return path
    for name in ("chromium", "chromium-browser", "google-chrome"):
        path = shutil.which(name)
        if path is not None:
            return path
    raise NoBrowser("no chromium, chromium-browser or google-chrome on PATH, and MINILLAMA_BROWSER names none")


@contextmanager
def browser() -> Iterator[Browser]:
    """A Chromium without a window."""
    path = find_browser()
    from playwright.sync_api import sync_playwright

    # Containers run as root, where Chromium's sandbox does not start; all it opens is our own server.
    flags = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    flags += " --disable-component-update --disable-sync"
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=flags.split())
        try:
            yield opened
        finally:
            opened.close()


@dataclass
class Lab:
    """A running JupyterLab."""

    url: str
    token: str
    folder: Path

    def ask(self, path: str, method: str = "GET") -> Any:
        """What the server's REST interface answers."""
        headers = {"Authorization": f"token {self.token}"}
        request = urllib.request.Request(self.url + path, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def stop_kernels(self) -> None:
        for session in self.ask("api/sessions"):
            self.ask(f"api/sessions/{session['id']}", "DELETE")


def copy_course(folder: Path) -> Path:
    """A copy of what the notebooks use: JupyterLab saves by itself, and must not save over the stored ones."""
    for name in ("notebooks", "assets"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    return folder


@contextmanager
def jupyterlab(course: Path, scratch: Path) -> Iterator[Lab]:
    """JupyterLab on the folder `course`, with the checkout's minillama and none of the user's own settings.

    scratch: an empty folder for its settings and its log.
    """
    # By default a cell out of view is not in the page, and what is not in the page cannot be found or photographed.
    settings = {
        "notebook-extension/tracker": {"windowingMode": "none", "scrollPastEnd": False},
        "apputils-extension/notification": {"fetchNews": "false"},  # or a question about news covers a corner
    }
    for plugin, chosen in settings.items():
        path = scratch / "config" / "lab" / "user-settings" / "@jupyterlab" / f"{plugin}.jupyterlab-settings"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(chosen))
    token = secrets.token_hex(16)
    env = {key: value for key, value in os.environ.items() if key not in ("JUPYTER_PATH", "JUPYTER_CONFIG_PATH")}
    env |= {f"JUPYTER_{kind.upper()}_DIR": str(scratch / kind) for kind in ("config", "data", "runtime")}
    env |= {"JUPYTER_TOKEN": token, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--expose-app-in-browser"]
    command += ["--ServerApp.ip=127.0.0.1", f"--ServerApp.root_dir={course}"]
    command += ["--LabApp.news_url=None", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    log = scratch / "log"
    with log.open("w") as stream:
        server = subprocess.Popen(
            command, cwd=course, env=env, stdout=stream, stderr=stream, stdin=subprocess.DEVNULL, start_new_session=True
        )
    try:
        # Which port was free is known when the server has bound it, and then it stands in this file.
        info = scratch / "runtime" / f"jpserver-{server.pid}.json"
        lab = None
        deadline = time.monotonic() + PATIENCE
        while lab is None:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()[-3000:]}")
            time.sleep(0.2)
            try:
                lab = Lab(json.loads(info.read_text())["url"], token, course)
                lab.ask("api/status")
            except (OSError, ValueError):  # not there yet, half written, not listening yet
                lab = None
        yield lab
        lab.stop_kernels()
    finally:
        server.terminate()  # it ends its kernels, too
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def open_notebook(page: Page, lab: Lab, name: str) -> None:
    """Opens notebooks/NAME as it is stored, and waits for its kernel."""
    page.set_default_timeout(PATIENCE * 1000)
    page.goto(f"{lab.url}lab/tree/notebooks/{name}?reset&token={lab.token}")
    wait_until_idle(page)


def wait_until_idle(page: Page) -> None:
    # The round indicator says idle before there is a kernel, and then cells that are run are only emptied.
    page.wait_for_function(
        """() => {
            const context = window.jupyterapp?.shell.currentWidget?.sessionContext;
            return context?.isReady && context.session?.kernel?.connectionStatus === "connected"
                && context.kernelDisplayStatus === "idle";
        }"""
    )


def run_all(page: Page) -> None:
    """Run, Run All Cells, up to the last cell or the first error."""
    page.evaluate(
        """() => {
            window.runAll = "running";
            const done = () => { window.runAll = "done"; };
            window.jupyterapp.commands.execute("notebook:run-all-cells").then(done, done);
        }"""
    )
    page.wait_for_function("window.runAll === 'done'")
    wait_until_idle(page)


def errors(page: Page) -> list[str]:
    """What cells raised or wrote to stderr, and which code cells have not run."""
    # JupyterLab shows a traceback as one more text on stderr.
    red = page.locator('.jp-OutputArea-output[data-mime-type="application/vnd.jupyter.stderr"]')
    found = [text.strip()[-1000:] for text in red.all_inner_texts()]
    for cell in page.locator(".jp-Notebook .jp-CodeCell").all():
        prompt = cell.locator(".jp-InputPrompt").inner_text()
        if not any(c.isdigit() for c in prompt):
            source = cell.locator(".cm-content").inner_text()
            if source.strip():
                found.append(f"not run: {source[:200]}")
    return found


def widgets(page: Page) -> list[Locator]:
    return page.locator(WIDGET).all()


def controls(widget: Locator) -> list[tuple[str, Locator]]:
    """Everything in a widget that a reader can move, with its kind; "unknown" for what nothing here can move."""
    found = [(kind, one) for kind, selector in CONTROLS.items() for one in widget.locator(selector).all()]
    known = ", ".join(f"{selector}, :is({selector}) *" for selector in CONTROLS.values())
    strange = [one for one in widget.locator(ANY_CONTROL).all() if not one.evaluate("(e, s) => e.matches(s)", known)]
    return found + [("unknown", one) for one in strange]


def label(kind: str, control: Locator) -> str:
    """The control's kind, and the text that stands beside it or on it."""
    text = control.evaluate(
        r"""control => {
            const start = control.matches("select") ? control.parentElement : control;
            for (let row = start; row && !row.matches(".widget-box"); row = row.parentElement) {
                const labels = Array.from(row.querySelectorAll(".widget-label, .widget-label-basic"));
                const texts = [...labels, row].map(e => e.textContent.replace(/[\u200b\s]+/g, " ").trim());
                const text = texts.find(Boolean);
                if (text) return text;
            }
            return "";
        }"""
    )
    return f"{kind} “{text[:40]}”" if text else kind


def view(widget: Locator) -> str:
    """What the widget shows: a digest of its picture, or its HTML."""
    return str(
        widget.evaluate(
            """async widget => {
                const marked = widget.querySelector(".minillama-view");
                const view = marked || widget.querySelector("img.widget-image, .widget-image img");
                if (!view) return "";
                const image = view.matches("img") ? view : view.querySelector("img.widget-image, .widget-image img");
                if (!image) return view.innerHTML;
                // The address is new each time; a picture that was drawn again and came out the same is no answer.
                try {
                    const bytes = await (await fetch(image.src)).arrayBuffer();
                    const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
                    return Array.from(digest, byte => byte.toString(16)).join(" ");
                } catch (error) {
                    return "";  // the picture was replaced meanwhile
                }
            }"""
        )
    )


def settled_view(page: Page, widget: Locator) -> str:
    """What the widget shows once nothing is on its way any more."""
    deadline = time.monotonic() + PATIENCE
    seen = view(widget)
    while time.monotonic() < deadline:
        page.wait_for_timeout(400)
        wait_until_idle(page)
        now = view(widget)
        if now and now == seen:
            return now
        seen = now
    return ""


def move(page: Page, kind: str, control: Locator) -> None:
    """Moves a control by one step, to its next choice, or presses it."""
    control.scroll_into_view_if_needed()
    if kind == "slider":
        now, highest = (float(control.get_attribute(f"aria-value{which}") or 0) for which in ("now", "max"))
        control.focus()
        page.keyboard.press("ArrowRight" if now < highest else "ArrowLeft")
    elif kind == "dropdown":
        chosen, choices = control.evaluate("select => [select.selectedIndex, select.options.length]")
        control.select_option(index=(chosen + 1) % choices)
    elif kind == "toggle buttons":
        control.locator("button:not(.mod-active)").first.click()
    elif kind == "play":
        control.locator("button").first.click()
    else:
        control.click()


def response(page: Page, widget: Locator, kind: str, control: Locator, patience: float = 60.0) -> bool:
    """Moves a control of a widget: does what the widget shows change?"""
    before = settled_view(page, widget)
    move(page, kind, control)
    deadline = time.monotonic() + patience
    changed = False
    while not changed and time.monotonic() < deadline:
        page.wait_for_timeout(100)
        changed = view(widget) not in ("", before)
    if kind == "play":  # the same button stops it
        control.locator("button").first.click()
    return changed


def photograph(page: Page, folder: Path) -> None:
    """The notebook in slices as high as the window, each picture, and each widget, as PNGs in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    pane = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-WindowedPanel-outer")
    height, step = pane.evaluate("pane => [pane.scrollHeight, pane.clientHeight]")
    for i in range(-(-height // step)):
        pane.evaluate("(pane, top) => { pane.scrollTop = top; }", i * step)
        page.wait_for_timeout(100)
        page.screenshot(path=folder / f"page-{i:02}.png")
    pictures = page.locator(f".jp-OutputArea-output img:not({WIDGET} *)").all()
    for name, elements in (("picture", pictures), ("widget", widgets(page))):
        for i, element in enumerate(elements):
            element.screenshot(path=folder / f"{name}-{i:02}.png")
