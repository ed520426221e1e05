"""measure=ladder: the whole ladder on this run's configuration, as one record of metrics, an answer in words, and a file with all of it."""

import json
import math
import time
from collections.abc import Generator
from pathlib import Path

from accum_sweeps.ladder.audit import Audit, audit
from accum_sweeps.ladder.bench import Bench
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.record.files import write_text
from accum_sweeps.record.metrics import LADDER_RUNGS, StepRecord
from accum_sweeps.training import checkpoint


class LadderSession:
    """A ``subjects.protocol.Session`` that climbs once; ``spec.setup.steps`` is only what its schedule is made for."""

    keeps_own_checkpoints = False

    def __init__(self, spec: RunSpec, path: Path) -> None:
        self._spec, self._path = spec, path
        self.position = 0
        self._file, self._texts = "", dict[str, str]()

    def steps(self) -> Generator[StepRecord]:
        """A sign of life, then the record. Raises UserError where the subject shows no step."""
        if self.position:
            # An earlier attempt was stopped between the record and the end of the run: its answer is this one's.
            write_text(self._path, self._file)
            yield StepRecord(step=self.position, texts=self._texts)
            return
        yield StepRecord(step=0)
        began = time.monotonic()
        found = audit(Bench(self._spec), _label(self._spec))
        self._file, self._texts = json.dumps(found.to_dict(), indent=1), {"diagnosis": found.answer, "diagnosis_detail": _detail(found)}
        write_text(self._path, self._file)
        self.position = 1
        print(_line(found))
        yield StepRecord(step=1, values=metrics(found) | {"ladder_seconds": time.monotonic() - began}, texts=self._texts)

    def save(self, path: Path) -> None:
        """What was found, if it is done; of a ladder in between nothing is kept."""
        state = {"file": self._file, "texts": self._texts}
        checkpoint.save(path, run_id=self._spec.run_id, step=self.position, state=state)

    def load(self, path: Path) -> int:
        """Take back what :meth:`save` wrote."""
        self.position, state = checkpoint.load(path, run_id=self._spec.run_id, device=self._spec.setup.device)
        self._file, self._texts = state["file"], state["texts"]
        return self.position


def metrics(found: Audit) -> dict[str, float]:
    """The rungs' figures by the names of ``record.metrics.LADDER_UNITS``; what is not observable is missing."""
    values = {}
    for rung, name in zip(found.rungs, LADDER_RUNGS, strict=False):
        for key, value in ((f"ladder_{name}", rung.value), (f"ladder_{name}_floor", rung.floor)):
            if value is not None and not math.isnan(value):
                values[key] = float(value)
    if found.amplified is not None and not math.isnan(found.amplified.gain):
        values["ladder_gain"] = found.amplified.gain
    return values | ({"ladder_resolution": found.resolution} if found.resolution is not None else {})


def _line(found: Audit) -> str:
    """For the run's log: the answer, what it is concluded from, and what could not be asked."""
    words = [each.words for each in found.diagnosis.findings] if found.diagnosis is not None else []
    reasons = "; ".join([*words, *([found.remark] if found.remark else [])])
    return f"{found.answer}: {reasons}" if reasons else found.answer


def _detail(found: Audit) -> str:
    if found.diagnosis is not None and found.diagnosis.kind:
        return found.diagnosis.kind
    return found.amplified.mechanism if found.amplified is not None else ""


def _label(spec: RunSpec) -> str:
    setup = spec.setup
    parts = [setup.subject.name, setup.model.name, setup.optimizer.name, *([f"fault={setup.fault}"] if setup.fault != "none" else [])]
    return " ".join(part for part in parts if part != "none")
