"""A small real sweep's report, opened in a real browser: as a file, and from MLflow as an artifact of the sweep's run."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from tests.product.browser import CHROMIUM, Browser
from tests.product.commands import Place, mlflow_rows

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium (on Debian: apt-get install chromium)")
SWEEP = ("+grid=smoke", "steps=4", "eval_every=2", "axes={accum:[1,2,4],seed:{range:3}}", "design.control=auto")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place(tmp_path_factory.mktemp("report"))
    place.type(*SWEEP)
    return place


@pytest.fixture(scope="module")
def page(done: Place) -> Path:
    return done.root.path / "sweeps/smoke/report.html"


@pytest.fixture
def browser() -> Iterator[Browser]:
    with Browser(1100, 900) as opened:
        yield opened


def colours(picture: Image.Image) -> set[tuple[int, int, int]]:
    """Colours of more than 20 pixels, as a picture of text alone has none but shades between its two."""
    found = picture.getcolors(picture.width * picture.height) or []
    return {colour for number, colour in found if number > 20 and isinstance(colour, tuple) and len(colour) == 3}


def is_coloured(colour: tuple[int, ...]) -> bool:
    return max(colour) - min(colour) > 60


def test_the_page_opens_with_the_verdict_and_fetches_nothing(page: Path, browser: Browser) -> None:
    browser.open(page.as_uri())
    opening, *rest = browser.text().split("All setups")
    assert "These runs do not decide whether accumulation changes eval_loss_final in lm-tiny adamw fp32." in opening
    assert "The largest shift that the 95 % intervals" in opening and "unfinished" not in opening
    for words in (
        "Training loss",
        "Evaluation loss",
        "Distance of the weights",
        "Components of variance",
        "Error rates of the rules",
        "torch",
    ):
        assert words in rest[0], words
    assert browser.requests == [page.as_uri()] and browser.problems == []


def test_pictures_are_drawn_in_colour_on_a_light_and_on_a_dark_ground(page: Path, browser: Browser) -> None:
    browser.open(page.as_uri())
    assert browser.run("document.querySelectorAll('figure.picture svg').length") == 5
    grounds = {}
    for scheme in ("light", "dark"):
        browser.prefer(scheme=scheme)
        picture = browser.picture(of="figure.picture")
        grounds[scheme] = sum(picture.getpixel((2, 2)))  # type: ignore[arg-type]
        assert len([colour for colour in colours(picture) if is_coloured(colour)]) >= 2
    assert grounds["light"] == 3 * 255 and grounds["dark"] < 3 * 40
    browser.prefer(scheme="dark", media="print")
    assert sum(browser.picture(of="figure.picture").getpixel((2, 2))) == 3 * 255  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [1100, 700])
def test_nothing_sticks_out_of_the_page_or_out_of_a_picture(page: Path, width: int) -> None:
    with Browser(width, 900) as browser:
        browser.open(page.as_uri())
        assert browser.run("document.documentElement.scrollWidth <= window.innerWidth")
        outside = """[...document.querySelectorAll('figure.picture svg')].flatMap(svg => {
            const r = svg.getBoundingClientRect();
            return [...svg.querySelectorAll('text')].filter(t => { const b = t.getBoundingClientRect();
                return b.left < r.left - 1 || b.right > r.right + 1 || b.top < r.top - 1 || b.bottom > r.bottom + 1
            }).map(t => t.textContent)})"""
        assert browser.run(outside) == []


def test_labels_of_an_axis_do_not_overlap(page: Path, browser: Browser) -> None:
    browser.open(page.as_uri())
    overlapping = """[...document.querySelectorAll('figure.picture svg')].flatMap(svg => {
        const boxes = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
        return boxes.flatMap(([a, r], i) => boxes.slice(i + 1).filter(([b, s]) =>
            Math.min(r.right, s.right) - Math.max(r.left, s.left) > 1 && Math.min(r.bottom, s.bottom) - Math.max(r.top, s.top) > 3
        ).map(([b, s]) => a + ' | ' + b))})"""
    assert browser.run(overlapping) == []


@pytest.fixture(scope="module")
def server(done: Place) -> Iterator[str]:
    """MLflow's page over the sweep's own database."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    uri = f"sqlite:///{done.root.path / 'mlflow.db'}"
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "ui",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--workers",
        "1",
        "--backend-store-uri",
        uri,
    ]
    with (done.folder / "ui.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, start_new_session=True, env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
        )
    try:
        _wait_for(f"http://127.0.0.1:{port}/health", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


def _wait_for(address: str, process: subprocess.Popen[bytes], limit_s: float = 120.0) -> None:
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(address, timeout=2):
                return
        except OSError:
            assert process.poll() is None, "the server has ended"
            time.sleep(0.2)
    raise AssertionError("the server did not start")


def test_the_report_is_an_artifact_of_the_sweeps_run_and_opens_inside_mlflow(
    done: Place, page: Path, server: str, browser: Browser
) -> None:
    query = "SELECT r.run_uuid, r.experiment_id FROM runs r JOIN tags t USING (run_uuid) WHERE t.key = 'kind' AND t.value = 'sweep'"
    [(run_id, experiment)] = mlflow_rows(done.root, query)
    with urllib.request.urlopen(f"{server}/get-artifact?run_uuid={run_id}&path=report.html", timeout=30) as answer:
        assert answer.read() == page.read_bytes()
    browser.open(f"{server}/#/experiments/{experiment}/runs/{run_id}/artifacts/report.html")
    browser.wait("!!document.querySelector('iframe')")
    until, found = time.monotonic() + 60, 0
    while found < 4 and time.monotonic() < until:
        with contextlib.suppress(LookupError):  # the page puts the frame anew while it loads
            found = len(colours(browser.picture(of="iframe")))
        time.sleep(0.5)
    assert found >= 4  # ground, text, links, ...
