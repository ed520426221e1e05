"""``subject=command``: any program as a training. It reads a JSON file and appends lines to the file named there.

The JSON file (its path replaces ``{spec}``) holds all configuration keys, nested, and

    micro_batch      samples of one forward and backward pass: global_batch / (ranks * accum)
    metrics_path     where the program appends one line a value: {"step": int, "key": str, "value": float}
    checkpoint_dir   a folder that all attempts of the run share, for what the program needs to continue
    attempt, resume  number of this attempt; whether checkpoint_dir holds anything

Steps grow within each key; the last step needs a value of ``eval_loss``; a line with the key ``checkpoint`` says that the
program could continue after that step. Values of earlier attempts count up to the first step that this one reports.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.parts import CommandHook
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.record.files import write_text
from accum_sweeps.record.metrics import EVAL_LOSS, StepRecord, is_divergence
from accum_sweeps.record.store import RunDir
from accum_sweeps.subjects import guard
from accum_sweeps.subjects.identify import SPEC_WORD, require_unchanged, resolve_program, search_path
from accum_sweeps.subjects.metric_lines import MetricLines, earlier_values
from accum_sweeps.subjects.sources import code_folder

CHECKPOINT = "checkpoint"
POLL_S = 0.1
GRACE_S = 20.0
LOG_LINES = 15


class ProgramError(UserError):
    """The program failed; the message says how and quotes its last lines."""


def session(spec: RunSpec, folder: Path, attempt: int) -> "CommandSession":
    """The run of the user's program, in the current folder. UserError when its files changed since the sweep was planned."""
    part = spec.setup.subject
    assert isinstance(part, CommandHook)
    if part.code_hash:
        require_unchanged(part, code_folder())
    return CommandSession(spec, part.argv, RunDir(folder), attempt)


class CommandSession:
    """A ``subjects.protocol.Session`` around a program, which keeps its own checkpoints."""

    keeps_own_checkpoints = True

    def __init__(self, spec: RunSpec, argv: Sequence[str], run_dir: RunDir, attempt: int) -> None:
        self._spec, self._argv, self._run_dir, self._attempt = spec, argv, run_dir, attempt
        self._position = 0
        self._last: dict[str, int] = {}  # metric -> last step with a value

    @property
    def position(self) -> int:
        """The last optimizer step that the program reported."""
        return self._position

    def steps(self) -> Generator[StepRecord]:
        """A record for each step that the program reports, and signs of life in between.

        Closing the iterator ends the program with all its descendants; so does the death of this process. Raises
        ProgramError for an exit code other than 0, and without ``eval_loss`` at the last step.
        """
        folder = self._run_dir.path
        lines = MetricLines(folder / metrics_name(self._attempt))
        earlier = earlier_values([folder / metrics_name(number) for number in range(1, self._attempt)])
        with self._running() as process:
            while True:
                ended = process.poll() is not None  # asked first: what it wrote before its end is read below
                for step, values in lines.read(to_end=ended):
                    yield from self._missing(earlier, until=step)
                    yield self._record(step, {**earlier.pop(step, {}), CHECKPOINT: 0, **values})
                    earlier = {}
                # Also after its end: whoever asked this worker to stop may have asked the program too.
                yield StepRecord(step=self._position)
                if ended:
                    break
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_S)
        self._require_success(process.returncode)
        yield from self._already_done(earlier)
        self._require_eval_loss()

    def save(self, path: Path) -> None:
        """Nothing: the program keeps its own checkpoints."""

    def load(self, path: Path) -> int:
        """Nothing: the program continues by itself."""
        return self._position

    def _record(self, step: int, values: dict[str, float]) -> StepRecord:
        self._position = max(self._position, step)
        is_checkpoint = values.pop(CHECKPOINT, 0) != 0
        self._last |= dict.fromkeys(values, step)
        return StepRecord(step=step, values=values, is_checkpoint=is_checkpoint, is_diverged=is_divergence(values))

    def _missing(self, earlier: dict[int, dict[str, float]], until: int) -> Iterator[StepRecord]:
        """Steps before ``until`` that an earlier attempt's program reported, but whose worker died before it recorded them."""
        if earlier:
            recorded = max((point.step for point in self._run_dir.history().points() if point.step < until), default=-1)
            for step in sorted(earlier):
                record = self._record(step, earlier[step]) if step < until else None
                if record and step > recorded:
                    yield record

    def _already_done(self, earlier: dict[int, dict[str, float]]) -> Iterator[StepRecord]:
        """When this attempt reported nothing because an earlier one had done it all: its last step, as the place to continue at."""
        if earlier:
            last = max(earlier)
            yield from self._missing(earlier, until=last)
            yield self._record(last, earlier[last])

    @contextlib.contextmanager
    def _running(self) -> Iterator[subprocess.Popen[bytes]]:
        """The program under its guard, which ends it when the pipe to it closes."""
        argv = [_of_snapshot(word).replace(SPEC_WORD, str(self._write_spec())) for word in self._argv]
        argv[0] = resolve_program(argv[0], Path.cwd()) or argv[0]
        threads = str(self._spec.setup.threads)
        environment = {**os.environ, "PATH": search_path(), "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        command = [sys.executable, "-I", "-S", guard.__file__, str(GRACE_S), *argv]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, start_new_session=True)
        assert process.stdin is not None
        try:
            yield process
        finally:
            with contextlib.suppress(BrokenPipeError):  # the program has ended by itself
                process.stdin.write(guard.REQUEST)
                process.stdin.close()
            process.wait()
            if process.returncode < 0:  # somebody killed the guard
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def _write_spec(self) -> Path:
        folder = self._run_dir.path.resolve()
        checkpoints = folder / "checkpoints"
        checkpoints.mkdir(exist_ok=True)
        more: dict[str, Any] = {
            "run_id": self._spec.run_id,
            "micro_batch": self._spec.micro_batch,
            "metrics_path": str(folder / metrics_name(self._attempt)),
            "checkpoint_dir": str(checkpoints),
            "attempt": self._attempt,
            "resume": any(checkpoints.iterdir()),
        }
        path = folder / f"program.{self._attempt}.json"
        write_text(path, json.dumps({**self._spec.to_dict(), **more}, indent=2) + "\n")
        return path

    def _require_success(self, code: int) -> None:
        if code == 0:
            return
        how = f"was ended by {signal.Signals(code - 128).name}" if code - 128 in set(signal.Signals) else f"ended with exit code {code}"
        log = self._run_dir.log_path(self._attempt)
        last = log.read_bytes()[-4000:].decode(errors="replace").splitlines()[-LOG_LINES:] if log.exists() else []
        raise ProgramError("\n  ".join([f"{' '.join(self._argv)} {how}" + ("; its last lines:" if last else ""), *last]))

    def _require_eval_loss(self) -> None:
        last = max(self._last.values(), default=0)
        if self._last.get(EVAL_LOSS, -1) >= last:
            return
        found = f"its last one is of step {self._last[EVAL_LOSS]}" if EVAL_LOSS in self._last else "it gave none"
        line = f'{{"step": {last}, "key": "{EVAL_LOSS}", "value": ...}}'
        hint = f"Before it ends it must append {line} to metrics_path."
        raise ProgramError(f"{' '.join(self._argv)} ended without {EVAL_LOSS} at its last step {last}: {found}.\n  {hint}")


def metrics_name(attempt: int) -> str:
    """Name of the file that the program of this attempt appends to."""
    return f"metrics.{attempt}.jsonl"


def _of_snapshot(word: str) -> str:
    """``word``, with a file of the current folder that it names (also as in key=file) by its place in the snapshot, if there is one."""
    before, equals, name = word.rpartition("=")
    kept = code_folder() / name
    is_kept = name and code_folder() != Path.cwd() and not Path(name).is_absolute() and kept.is_file()
    return f"{before}{equals}{kept}" if is_kept else word
