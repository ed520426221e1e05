"""The warm loop of a worker: get a slot, import torch once, then claim and execute run after run. Knows no scheduler."""

import contextlib
import importlib
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accum_sweeps.jobs.choice import Clock, Judgement, Queue, judge
from accum_sweeps.jobs.claims import Claim, mark_lost, process_facts, take
from accum_sweeps.jobs.damage import set_aside_if_damaged
from accum_sweeps.jobs.heartbeat import Heartbeat, Stop
from accum_sweeps.jobs.journal import Journal
from accum_sweeps.jobs.order import WorkOrder, groups
from accum_sweeps.jobs.slots import Slot
from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.words import counted
from accum_sweeps.record.events import DONE, read_tail
from accum_sweeps.record.files import is_disk_full
from accum_sweeps.record.store import open_root
from accum_sweeps.record.sweep import PlannedRun, open_sweep

# How a worker ends. "bound": it took as many runs as it may; "fatal": going on makes no sense, for anybody; "idle": others have the rest.
ENDS = ("done", "bound", "stopped", "fatal", "idle")
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 1.0
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True)
class WorkEnd:
    """How a worker ended, and a sentence for people where it did not end well."""

    kind: str
    message: str = ""


def work(order: WorkOrder, stop: Stop, *, parent: int | None = None, watch: Callable[[], None] = lambda: None) -> WorkEnd:
    """Do what is left of the order's runs, until nothing is, or until ``stop`` gives a reason.

    ``parent`` is the process whose death ends the work; ``watch`` is called now and then, between optimizer steps too.
    Raises nothing that a run did; exceptions of the worker itself pass.
    """
    sweep = open_sweep(open_root(Path(order.root)), order.sweep)
    journal = Journal(sweep.path / "workers" / f"{order.name}.jsonl")
    heartbeat = Heartbeat(stop, sweep, order.resources.heartbeat_s, parent)
    heartbeat.start()
    worker = _Worker(order, stop, journal, heartbeat, watch)
    try:
        journal.write("worker", owner=order.owner, job=order.job, log=order.log, **process_facts(os.getpid()))
        return worker.work()
    except UserError as error:
        return _fatal(journal, str(error))
    except OSError as error:
        if not is_disk_full(error):
            raise
        return _fatal(journal, disk_full(order.root))
    finally:
        worker.end()
        heartbeat.end()
        journal.close()


def _fatal(journal: Journal, message: str) -> WorkEnd:
    with contextlib.suppress(OSError):  # where the disk is full
        journal.write("fatal", message=message)
    return WorkEnd("fatal", message)


def disk_full(root: str) -> str:
    """What to say where nothing more can be written."""
    return f"root={root}: no space left to write.\n  Make room there, then type the same command: it goes on where it stopped."


class _Worker:
    def __init__(self, order: WorkOrder, stop: Stop, journal: Journal, heartbeat: Heartbeat, watch: Callable[[], None]) -> None:
        self.order, self.stop, self.journal, self.heartbeat, self.watch = order, stop, journal, heartbeat, watch
        self.root = open_root(Path(order.root))
        self.slot, self.holds_slot = Slot(order.pool), False
        self.clock = Clock(self.root)
        self.taken: set[str] = set()
        self.watched = 0.0

    def work(self) -> WorkEnd:
        if not self._acquire():
            return self._stopped()
        self._import_engine()
        self.plan = open_sweep(self.root, self.order.sweep).read_plan(self.order.revision)
        queue = Queue.of(groups(self.plan)[self.order.group])
        self.clock.ask()
        wait_s, busy = FIRST_WAIT_S, time.monotonic()
        while not self.stop.worker:
            if self.order.runs_left is not None and len(self.taken) >= self.order.runs_left:
                return self._retry(queue)
            run = queue.pop()
            if run is None:
                if not queue.next_pass():
                    return WorkEnd("done")
                if time.monotonic() - busy > self.order.linger_s:
                    return WorkEnd("idle")
                self._wait(wait_s, len(queue.todo))
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)
            elif self._try(run, queue):
                wait_s, busy = FIRST_WAIT_S, time.monotonic()
        return self._stopped()

    def _retry(self, queue: Queue) -> WorkEnd:
        """It took as many runs as it may. Those of them that failed are tried again here: where each job has one run, nobody else would."""
        own = self.taken.union(self.order.taken)
        for run in [run for run in (*queue.later, *queue.todo) if run.run_id in own]:
            while not self.stop.worker and self._try(run, Queue([])):
                pass
        return self._stopped() if self.stop.worker else WorkEnd("bound")

    def end(self) -> None:
        """Leave nothing running, then let others use the slot."""
        if hasattr(self, "engine"):
            self.engine.end()
        self.slot.release()

    def _stopped(self) -> WorkEnd:
        return WorkEnd("stopped", self.stop.worker or "")

    def _acquire(self) -> bool:
        """Hold the slot; False if the worker is to stop before one is free."""
        said = False
        while not self.slot.try_acquire():
            if not said:
                self.journal.write("waiting", reason=f"no free {self.order.pool.kind}: other commands of yours use them")
                said = True
            if self.stop.worker:
                return False
            self._pause(0.2)
        self.holds_slot = True
        self.journal.write("slot", slot=self.slot.label)
        return True

    def _import_engine(self) -> None:
        self.slot.pin()
        os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(self.order.group.threads)))
        if self.order.group.deterministic and self.order.group.device == "cuda":
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is not reproducible without it
        sys.path += [entry for entry in self.order.sys_path if entry not in sys.path]
        self.engine = importlib.import_module(self.order.engine)
        self.env_id, self.environment = self.engine.start(self.order.group)
        self.journal.write("environment", env_id=self.env_id)

    def _wait(self, seconds: float, runs: int) -> None:
        """Others have what is left: leave them the slot and look again later, as a run of theirs may be lost."""
        if self.holds_slot:
            self.slot.release()
            self.holds_slot = False
            self.journal.write("waiting", reason=f"{counted(runs, 'run')} left, all taken by other workers")
        self._pause(seconds)
        self.clock.ask()

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self.stop.worker:
            self._watch()
            time.sleep(min(left, 0.1))

    def _watch(self) -> None:
        if time.monotonic() - self.watched > 0.1:
            self.watched = time.monotonic()
            self.watch()

    def _try(self, run: PlannedRun, queue: Queue) -> bool:
        """Look at a run and execute it if nobody else does; True if it was taken."""
        judgement = self._judge(run)
        if judgement.verdict == "reused":
            self.journal.write("reused", run=run.run_id, env_id=judgement.env_id)
        if judgement.verdict in ("done", "reused", "exhausted"):
            return False
        if judgement.verdict == "busy" or (queue.is_first_pass and judgement.state.status in ("failed", "lost")):
            queue.later.append(run)
            return False
        if not self.holds_slot and not self._acquire():
            return False
        claim = take(self.root, run.run_id, judgement.state.attempt, self._claim_content())
        if claim is None or self._ended_meanwhile(claim, judgement):
            queue.later.append(run)
            return False
        self.taken.add(run.run_id)
        if self._run(run, claim) not in DONE:
            queue.later.append(run)
        return True

    def _judge(self, run: PlannedRun) -> Judgement:
        order = self.order
        return judge(
            self.root,
            run.run_id,
            env_id=self.env_id,
            reuse=order.reuse,
            dispatch=order.dispatch,
            max_attempts=order.resources.max_attempts,
            now=self.clock.now,
        )

    def _claim_content(self) -> dict[str, Any]:
        order = self.order
        return {
            "owner": order.owner,
            "env_id": self.env_id,
            "dispatch": order.dispatch,
            "job": order.job,
            "launcher": order.resources.kind,
            "node": order.node,
            "expiry_s": order.resources.expiry_s,
            "sweep": order.sweep,
            "log": order.log,
        }

    def _ended_meanwhile(self, claim: Claim, judgement: Judgement) -> bool:
        """Whether the former owner, only slow, finished between the judgement and the claim; the claim is withdrawn then."""
        if judgement.state.status != "lost":
            return False
        former = self.root.run_dir(claim.run_id, judgement.state.env_id)
        if not former.events_path(judgement.state.attempt).exists() or not former.history().is_finished:
            return False
        claim.withdraw()
        return True

    def _run(self, run: PlannedRun, claim: Claim) -> str:
        self.heartbeat.hold(claim)
        self.journal.write("claimed", run=run.run_id, attempt=claim.attempt, env_id=self.env_id)
        try:
            status, error = self._execute(run, claim)
        except Exception as exception:
            if is_disk_full(exception):
                raise
            traceback.print_exc()
            status, error = "failed", f"{type(exception).__name__}: {exception}"
            mark_lost(self.root, run.run_id, claim.attempt, error)
        finally:
            self.heartbeat.hold(None)
        self.journal.write("ended", run=run.run_id, attempt=claim.attempt, status=status, error=error)
        self._watch()
        return status

    def _execute(self, run: PlannedRun, claim: Claim) -> tuple[str, str]:
        """The outcome, and the error where that is "failed"."""
        resources = self.order.resources
        run_dir = self.root.run_dir(run.run_id, self.env_id)
        if damage := set_aside_if_damaged(run_dir, is_thorough=True):
            self.journal.write("damaged", run=run.run_id, message=damage)
        limits = self.engine.limits(
            resources.run_limit_s, stop=self.stop, checkpoint_every=resources.checkpoint_every, on_step=lambda record: self._watch()
        )
        facts = {
            "host": self.order.node or os.uname().nodename,
            "pid": os.getpid(),
            "slot": self.slot.label,
            "sweep": self.order.sweep,
            **self.order.facts,
        }
        outcome = str(self.engine.execute(self.plan.spec(run), run_dir, claim.attempt, self.environment, limits, **facts))
        return outcome, read_tail(run_dir.events_path(claim.attempt), claim.attempt).message if outcome == "failed" else ""
