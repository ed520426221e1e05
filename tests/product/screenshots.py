"""Pictures of a finished sweep's report, of MLflow's list of its runs and of an audit, for the README.

    python tests/product/screenshots.py ROOT SWEEP AUDIT FOLDER

Writes report.png, mlflow.png and audit.png into FOLDER. The runs of SWEEP must be in the root's own MLflow database (action=sync brings
them there); AUDIT is a sweep by +grid=audit. Needs chromium.
"""

import contextlib
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.product.browser import Browser

CLOSE_ASSISTANT = "document.querySelector('[data-component-id=\"mlflow.assistant.chat_panel.close\"]')?.click()"
OPEN_SWEEP = "document.querySelector('[data-component-id*=\"runnamecellrenderer\"]')?.click()"

OPEN_COLUMNS = "[...document.querySelectorAll('button')].find(each => each.innerText.startsWith('Show more columns')).click()"
TOGGLE = """[...document.querySelectorAll('[class*=tree-treenode]')].find(each => each.innerText.trim() === NAME)
    ?.querySelector('[class*=tree-checkbox]')?.click()"""
COLUMNS = (
    "Dataset",
    "Source",
    "Models",
    "final/eval_loss_final",
    "final/train_loss_area",
    "final/wall_s",
)  # the first three are shown at first
CLOSE = "document.querySelector('h2, h1').dispatchEvent(new PointerEvent('pointerdown', {bubbles: true}))"
FIT = """[...document.querySelectorAll('.ag-header-cell-resize')].forEach(
    each => each.dispatchEvent(new MouseEvent('dblclick', {bubbles: true})))"""


def report(page: Path, to: Path, height: int = 1500) -> None:
    """The first ``height`` pixels of a page."""
    with Browser(1100, height) as browser:
        browser.open(page.resolve().as_uri())
        browser.picture().save(to, optimize=True)


def run_list(root: Path, to: Path) -> None:
    """The list of runs with the sweep's run opened."""
    database = root / "mlflow.db"
    with contextlib.closing(sqlite3.connect(database)) as connection:
        [(experiment,)] = connection.execute("SELECT DISTINCT experiment_id FROM runs").fetchall()
    with server(database) as address, Browser(1500, 1000) as browser:
        browser.open(f"{address}/#/experiments/{experiment}/runs")
        browser.wait(f"!!{OPEN_SWEEP.removesuffix('?.click()')}")
        browser.run(CLOSE_ASSISTANT)
        time.sleep(1)
        browser.run(OPEN_SWEEP)
        browser.wait("document.body.innerText.includes(' k=')")
        time.sleep(2)
        browser.run(OPEN_COLUMNS)
        time.sleep(1)
        for name in COLUMNS:
            browser.run(TOGGLE.replace("NAME", repr(name)))
            time.sleep(0.3)
        browser.run(CLOSE)
        time.sleep(2)
        browser.run(FIT)
        time.sleep(2)
        browser.picture().save(to, optimize=True)


@contextlib.contextmanager
def server(database: Path) -> Iterator[str]:
    """MLflow's page over ``database``."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "ui", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{database.resolve()}"]
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, env=environment)
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


if __name__ == "__main__":
    _, root, sweep, audit, folder = sys.argv
    report(Path(root) / "sweeps" / sweep / "report.html", Path(folder) / "report.png")
    report(Path(root) / "sweeps" / audit / "audit.html", Path(folder) / "audit.png", height=1000)
    run_list(Path(root), Path(folder) / "mlflow.png")
