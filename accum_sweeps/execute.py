"""RunSpec -> run directory: drives a subject's session step by step and records what it gives. Knows no scheduler."""

import contextlib
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.record.files import is_disk_full
from accum_sweeps.record.metrics import StepRecord
from accum_sweeps.record.recorder import Recorder
from accum_sweeps.record.store import RunDir
from accum_sweeps.subjects import session as make_session
from accum_sweeps.subjects.protocol import Session


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What bounds an execution without changing its numbers."""

    stop: Callable[[], str | None] = lambda: None
    checkpoint_every: int = 0
    run_limit_s: float = math.inf
    on_step: Callable[[StepRecord], None] = lambda record: None


class RunLimitError(Exception):
    """The run took longer than launcher.run_limit_min."""


def execute(spec: RunSpec, run_dir: RunDir, attempt: int, environment: dict[str, Any], limits: Limits, **facts: Any) -> str:
    """Run ``spec`` as ``attempt`` in ``run_dir`` until it ends, fails or ``limits.stop()`` gives a reason to stop.

    Continues from the newest checkpoint of this environment. Returns finished, diverged, failed or released; what a person
    needs to know of it is in the attempt's event file and log. Raises only OSError of a full disk: then nobody can record
    anything, and the attempt is to be continued later. ``facts`` go into the start event.
    """
    run_dir.create(spec, {**environment, **_origin(facts)})
    with run_dir.writer(attempt) as writer, output_to(run_dir.log_path(attempt)):
        recorder = Recorder(writer=writer, run_dir=run_dir, history=run_dir.history(), facts=facts)
        try:
            session = recorder.begin(lambda: _session(spec, run_dir, attempt))
            outcome = _drive(session, recorder, limits)
        except Exception as error:
            if is_disk_full(error):
                raise
            if isinstance(error, UserError):
                print(error, file=sys.stderr)
            else:
                traceback.print_exc()
            writer.failed(recorder.step, str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}")
            return "failed"
    return outcome


def _session(spec: RunSpec, run_dir: RunDir, attempt: int) -> Session:
    if spec.setup.measure == "training":
        return make_session(spec, run_dir.path, attempt)
    if spec.setup.measure == "ladder":
        from accum_sweeps.ladder.session import LadderSession  # here: it imports torch

        return LadderSession(spec, run_dir.ladder_path(attempt))
    from accum_sweeps.ladder.one_step import OneStepSession

    return OneStepSession(spec)


def _drive(session: Session, recorder: Recorder, limits: Limits) -> str:
    started, unsaved = time.monotonic(), 0
    with contextlib.closing(session.steps()) as steps:
        for record in steps:
            recorder.add(record)
            limits.on_step(record)
            unsaved += bool(record.values)
            if record.is_diverged:
                return recorder.end("diverged")
            if reason := limits.stop():
                recorder.save(session)
                break
            if time.monotonic() - started > limits.run_limit_s:
                recorder.save(session)
                raise RunLimitError(f"step {recorder.step}: the run's time limit of {limits.run_limit_s / 60:g} min is over")
            if limits.checkpoint_every and unsaved >= limits.checkpoint_every:
                recorder.save(session)
                unsaved = 0
        else:
            return recorder.end("finished")
    # Said only now that a program has ended: whoever continues the run must not meet it.
    recorder.writer.released(recorder.step, reason)
    return "released"


def _origin(facts: dict[str, Any]) -> dict[str, Any]:
    """What env.json tells besides the fingerprint: by which release, from which command and code, on which machine."""
    return {
        "accum_sweeps": metadata.version("accum_sweeps"),
        **{key: facts[key] for key in ("command", "git_commit", "host") if key in facts},
    }


@contextlib.contextmanager
def output_to(path: Path) -> Iterator[None]:
    """Send what this process and its children print into ``path``: Python's streams and the file descriptors below them."""
    _flush()
    saved = [os.dup(1), os.dup(2)]
    try:
        with path.open("a", buffering=1) as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            yield
            _flush()
    finally:
        for descriptor, copy in zip((1, 2), saved, strict=True):
            os.dup2(copy, descriptor)
            os.close(copy)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
