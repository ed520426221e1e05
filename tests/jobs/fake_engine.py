"""An engine without torch: execution is the real one, the training is scripted. Workers import it by name.

The environment variable FAKE holds JSON: ``env_id``, ``step_s`` (seconds a step), ``trace`` (a file that gets a line for
each session), ``by_seed`` (seed -> what its runs do: raise, exit, segfault, hang, diverge, full, or once-<one of these>
for the first attempt only), at ``trouble_step`` (2 if not given).
"""

import errno
import json
import math
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from accum_sweeps import execute as execute_module
from accum_sweeps.execute import Limits
from accum_sweeps.execute import execute as real_execute
from accum_sweeps.jobs.order import Group
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.record.metrics import StepRecord


def script() -> dict[str, Any]:
    return dict(json.loads(os.environ.get("FAKE", "{}")))


class Scripted:
    """Loss 1/step; trouble, if any, comes at one step."""

    keeps_own_checkpoints = False

    def __init__(self, spec: RunSpec, folder: Path, attempt: int) -> None:
        self.spec, self.position, self.script = spec, 0, script()
        what = self.script.get("by_seed", {}).get(str(spec.seed), "")
        self.trouble = what.removeprefix("once-") if attempt == 1 or not what.startswith("once-") else ""
        self.began = time.monotonic()

    def steps(self) -> Iterator[StepRecord]:
        for step in range(self.position + 1, self.spec.setup.steps + 1):
            if step == self.script.get("trouble_step", 2) and self.trouble:
                self.misbehave()
            time.sleep(self.script.get("step_s", 0))
            self.position = step
            yield StepRecord(step=step, values={"train_loss": 1 / step, "eval_loss": 2 / step}, is_diverged=self.trouble == "diverge")
        self.write_trace()

    def misbehave(self) -> None:
        if self.trouble == "raise":
            raise ValueError("scripted trouble")
        if self.trouble == "exit":
            os._exit(7)
        if self.trouble == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.trouble == "full":
            raise OSError(errno.ENOSPC, "No space left on device")
        while self.trouble == "hang":
            time.sleep(0.1)

    def write_trace(self) -> None:
        if "trace" in self.script:
            cores = sorted(os.sched_getaffinity(0))
            facts = {"run": self.spec.run_id, "pid": os.getpid(), "cores": cores, "gpu": os.environ.get("CUDA_VISIBLE_DEVICES")}
            facts |= {"threads": os.environ["OMP_NUM_THREADS"], "from": self.began, "to": time.monotonic()}
            with Path(self.script["trace"]).open("a") as file:
                file.write(json.dumps(facts) + "\n")

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self.position))

    def load(self, path: Path) -> int:
        self.position = int(json.loads(path.read_text()))
        return self.position


def start(group: Group) -> tuple[str, dict[str, Any]]:
    execute_module.make_session = Scripted  # type: ignore[assignment,attr-defined]
    return script().get("env_id", "e" * 12), {"device": group.device}


def limits(run_limit_s: float | None, **settings: Any) -> Limits:
    return Limits(run_limit_s=math.inf if run_limit_s is None else run_limit_s, **settings)


execute = real_execute


def end() -> None:
    pass
