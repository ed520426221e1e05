"""Experiments of somebody else's, written into a real MLflow database by MLflow's own client."""

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

import numpy as np
from mlflow import MlflowClient

SEEDS, ARMS = 5, (1, 2, 4)
OTHER_STATUSES = {(1, 2): "FAILED", (2, 4): "KILLED", (3, 1): "RUNNING"}  # by seed and k
NOT_FINITE, DELETED = (3, 2), (4, 4)


def write_foreign(uri: str, name: str = "their lm") -> dict[tuple[int, int], float]:
    """An experiment with a parent run and a child a seed and k; the value of each by seed and k. Not all of them are finished."""
    client = MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment(name)
    client.set_terminated(client.create_run(experiment, run_name="search").info.run_id)
    noise = np.random.default_rng(0).normal(0, 1e-3, (SEEDS, len(ARMS)))
    values = {}
    for seed in range(SEEDS):
        for place, k in enumerate(ARMS):
            run = client.create_run(experiment, run_name=f"s{seed}-k{k}", tags={"loss": "cross entropy"}).info.run_id
            for key, value in {"grad_accum": k, "seed": seed, "lr": "1e-3" if seed % 2 else "0.001"}.items():
                client.log_param(run, key, value)
            values[seed, k] = 2.5 + 0.03 * seed + noise[seed, place]
            client.log_metric(run, "loss", 9.0, step=0)
            client.log_metric(run, "loss", float("nan") if (seed, k) == NOT_FINITE else values[seed, k], step=1)
            status = OTHER_STATUSES.get((seed, k), "FINISHED")
            if status != "RUNNING":
                client.set_terminated(run, status)
            if (seed, k) == DELETED:
                client.delete_run(run)
    return values


@contextlib.contextmanager
def server(folder: Path, database: str) -> Iterator[str]:
    """A real ``mlflow server`` on the loopback interface; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", database, "--artifacts-destination", str(folder / "artifacts")]
    with (folder / "server.log").open("wb") as log:
        # A session of its own, because the server has processes of its own.
        process = subprocess.Popen(
            command, stdout=log, stderr=log, cwd=folder, start_new_session=True, env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
        )
    try:
        _wait(f"http://127.0.0.1:{port}/health", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait(address: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=2):
            return
        assert process.poll() is None, "the server ended"
        time.sleep(0.2)
    raise AssertionError("the server did not start")
