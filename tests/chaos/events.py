"""What happens to a sweep in the campaign: each strikes somewhere at random, and ``heal`` makes good what an administrator would."""

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from accum_sweeps.jobs.journal import JournalReader
from accum_sweeps.record.state import is_alive
from tests.slurm.cluster import Cluster, ClusterError, wait_for
from tests.tracking.conftest import TrackingServer


@dataclass
class Scene:
    """Where things happen: the cluster, the server, and the sweep's folder."""

    cluster: Cluster
    server: TrackingServer
    sweep: Path
    rng: random.Random

    def processes(self, *kinds: str) -> list[int]:
        """Living supervisors ("job") or workers ("worker") of the sweep."""
        events = [event for path in self.sweep.glob("workers/*.jsonl") for event in JournalReader(path).read()]
        return sorted({e["pid"] for e in events if e["event"] in kinds and is_alive(e["pid"], e["pid_start"])})

    def running(self) -> list[str]:
        """The sweep's running array tasks."""
        return [job for job, state in self.cluster.jobs().items() if state == "RUNNING"]

    def kill(self, number: signal.Signals, *kinds: str) -> None:
        """Send a signal to one of the sweep's processes, if there is one."""
        if found := self.processes(*kinds):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.rng.choice(found), number)

    def one_job(self, *command: str) -> None:
        """Do something to a running job, if there is one; it may end at this moment."""
        if jobs := self.running():
            with contextlib.suppress(ClusterError):
                self.cluster.run(*command, self.rng.choice(jobs))

    def node(self) -> str:
        return self.rng.choice(["n1", "n2"])


Heal = Callable[[], None]


def nothing() -> None:
    """There is nothing to make good."""


def term_worker(scene: Scene) -> Heal:
    scene.kill(signal.SIGTERM, "job", "worker")
    return nothing


def kill_worker(scene: Scene) -> Heal:
    scene.kill(signal.SIGKILL, "worker")
    return nothing


def kill_supervisor(scene: Scene) -> Heal:
    scene.kill(signal.SIGKILL, "job")
    return nothing


def scancel(scene: Scene) -> Heal:
    scene.one_job("scancel")
    return nothing


def requeue(scene: Scene) -> Heal:
    scene.one_job("scontrol", "requeue")
    return nothing


def preempt(scene: Scene) -> Heal:
    scene.cluster.run("sbatch", "--partition=high", "--exclusive", f"--nodelist={scene.node()}", "--output=/dev/null", "--wrap=sleep 2")
    return nothing


def node_down(scene: Scene) -> Heal:
    node = scene.node()
    scene.cluster.set_down(node)
    return lambda: scene.cluster.set_up(node)


def node_dies(scene: Scene) -> Heal:
    node = scene.node()
    scene.cluster.kill_node(node)
    return lambda: scene.cluster.start_node(node)


def controller_restart(scene: Scene) -> Heal:
    """In order: one that is killed may lose what it had not saved, and then drains nodes and holds jobs until an administrator comes."""
    scene.cluster.stop_controller()
    return lambda: scene.cluster.start_controller(clean=False)


def server_down(scene: Scene) -> Heal:
    scene.server.stop()

    def heal() -> None:
        scene.server.start()

    return heal


def database_crash(scene: Scene) -> Heal:
    scene.server.crash_database()
    return nothing


def disk_full(scene: Scene) -> Heal:
    """The file system of the root has no byte left."""
    filler = scene.sweep.parents[2] / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 20))
    with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
        while file.write(bytes(512)):
            pass
    return filler.unlink


def paused_worker(scene: Scene) -> Heal:
    """A worker sleeps longer than its claim is believed, wakes and goes on writing."""
    found = scene.processes("worker")
    if not found:
        return nothing
    pid = scene.rng.choice(found)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)

    def heal() -> None:
        time.sleep(4)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    return heal


def clock_skew(scene: Scene) -> Heal:
    """The nodes' clocks differ by minutes anyway in every second round (see campaign.SKEW); here only time passes."""
    return nothing


EVENTS = (
    *(term_worker, kill_worker, kill_supervisor, scancel, requeue, preempt, node_down, node_dies, controller_restart),
    *(server_down, database_crash, disk_full, paused_worker, clock_skew),
)


def until_something_computes(scene: Scene, limit_s: float = 40.0) -> None:
    """Until a worker is there; it may all be over before."""
    with contextlib.suppress(ClusterError):
        wait_for(lambda: bool(scene.processes("worker")), "no worker", limit_s)
