"""MLflow beside a sweep: prepared before it, fed by a process of its own while it runs, its lag told in words."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from accum_sweeps.plan.tracking import without_password
from accum_sweeps.plan.words import counted
from accum_sweeps.record import mlflow_sync
from accum_sweeps.record.mlflow_sync import Follower, SyncReport
from accum_sweeps.record.sweep import SweepDir

MOST_LINES = 10


def prepare(tracking: Mapping[str, Any]) -> None:
    """Have database and experiment ready before anything starts; says so if a server cannot be reached now.

    Raises UserError for what the user has to correct.
    """
    if tracking["kind"] == "none":
        return
    prepared = mlflow_sync.prepare(tracking["uri"], tracking["experiment"])
    if prepared.warning:
        print(f"warning: {prepared.warning}", file=sys.stderr)


class Replay:
    """Feeds MLflow while a sweep runs; at its end ``report`` says what arrived (None: no tracking)."""

    def __init__(self, sweep: SweepDir, tracking: Mapping[str, Any]) -> None:
        self.sweep, self.tracking = sweep, tracking
        self.report: SyncReport | None = None
        self.files: Sequence[Path] = ()
        self.verdict = ""

    def __enter__(self) -> Self:
        self._follower = None
        if self.tracking["kind"] != "none":
            self._follower = Follower(self.sweep.root.path, self.sweep.name, self.tracking["uri"], self.tracking["experiment"])
        return self

    def keep(self, files: Sequence[Path], verdict: str) -> None:
        """Artifacts and note of the sweep's own run, sent with the rest."""
        self.files, self.verdict = files, verdict

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._follower is not None:
            self.report = self._follower.stop(files=self.files, verdict=self.verdict)


def replay_once(sweep: SweepDir, tracking: Mapping[str, Any], files: Sequence[Path], verdict: str) -> SyncReport | None:
    """Bring everything of the sweep into MLflow, now and in this process."""
    if tracking["kind"] == "none":
        return None
    return mlflow_sync.sync(sweep.root.path, sweep.name, tracking["uri"], tracking["experiment"], files=files, verdict=verdict)


def report_text(report: SyncReport | None, tracking: Mapping[str, Any]) -> str:
    """What arrived in MLflow, what was altered on the way, and how to look at it."""
    if report is None:
        return "MLflow is off (tracking=none)."
    lines = _some("altered for MLflow", [_first(text) for text in report.altered]) + _some("damaged, not in MLflow", report.damaged)
    if report.warning:
        lines.append(f"MLflow lags behind: {report.warning}\n  Later: action=sync")
    if report.is_busy:
        lines.append("MLflow lags behind: another replay of this sweep is at work.\n  Later: action=sync")
    return "\n".join([*lines, view_text(tracking["uri"])])


def _first(text: str) -> str:
    """The first of many values of a run that MLflow holds in another form; the run's tag names them all."""
    first, *rest = text.split("; ")
    return f"{first}; and {len(rest)} more (its tag 'altered' lists them)" if rest else first


def _some(label: str, texts: Sequence[str]) -> list[str]:
    more = [f"and {len(texts) - MOST_LINES} more"] if len(texts) > MOST_LINES else []
    return [f"{label}: {text}" for text in texts[:MOST_LINES]] + more


def view_text(uri: str) -> str:
    """The command that shows the runs, or where the server's page is."""
    if uri.startswith("http"):
        return f"MLflow       {without_password(uri)}"
    program = Path(sys.executable).parent / "mlflow"
    return f"MLflow       {shlex.join([str(program), 'ui', '--backend-store-uri', without_password(uri)])}"


def lag_text(sweep: SweepDir, tracking: Mapping[str, Any]) -> str:
    """How far MLflow is behind the run directories; asks no server."""
    if tracking["kind"] == "none":
        return "MLflow is off (tracking=none)."
    behind = mlflow_sync.lag(sweep.root.path, sweep.name, tracking["uri"], tracking["experiment"])
    if not behind.runs:
        return "MLflow has everything that is to be there now"
    about = "about " if behind.is_estimate else ""
    return f"MLflow is behind by {about}{counted(behind.samples, 'point')} of {counted(behind.runs, 'run')}; action=sync brings them"
