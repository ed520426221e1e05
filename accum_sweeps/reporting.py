"""Tables and closing text of a sweep; as a process of its own for the dispatcher, whose memory pandas would double.

python -m accum_sweeps.reporting ROOT SWEEP [ASKED]     ASKED: what is asked for besides the plan's analysis keys, as JSON
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from accum_sweeps.plan.errors import UserError
from accum_sweeps.record.files import write_text
from accum_sweeps.record.store import open_root
from accum_sweeps.record.sweep import SweepDir, open_sweep

STUDY = "study.md"


class ReportError(Exception):
    """The tables could not be written; the message says why, for a person."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """``text`` for the terminal, the tables' ``files`` by what they hold, and what is damaged (``problems``, one sentence each).

    ``faults`` are the classes of faults that ladders found without anybody having varied them on purpose.
    """

    text: str
    files: dict[str, str]
    problems: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()

    @property
    def paths(self) -> list[Path]:
        """The tables' files."""
        return [Path(name) for name in self.files.values()]

    @property
    def note(self) -> str:
        """The text as Markdown."""
        return f"```\n{self.text}\n```"

    def print(self) -> None:
        """Problems to stderr; text and where the tables are to stdout."""
        for problem in self.problems:
            print(f"warning: {problem}", file=sys.stderr)
        print(f"\n{self.text}\n")
        for label, path in self.files.items():
            print(f"{label:<13}{path}")


def report(sweep: SweepDir, asked: Mapping[str, Any]) -> Report:
    """Bring the sweep's tables up to date, judge them, write the page and say what they show. Raises UserError if it was never planned.

    ``asked``: keys of ``analysis`` that this command gives, in place of those that the plan holds.
    """
    # Imported here: whoever only starts the process of its own needs no pandas.
    from accum_sweeps.analysis.audit_html import AUDIT, write_audits
    from accum_sweeps.analysis.export import write_tables
    from accum_sweeps.analysis.ladders import audits, faults_found, is_ladder, render_first_fault, render_ladders
    from accum_sweeps.analysis.one_step import is_one_step, render_steps
    from accum_sweeps.analysis.pair_tables import pair_tables, render_pairs, write_pair_tables
    from accum_sweeps.analysis.report import REPORT, write_sweep_report
    from accum_sweeps.analysis.studies import PAGES
    from accum_sweeps.analysis.summary import of_newest_plan, render
    from accum_sweeps.judging import judge_sweep

    tables, header = write_tables(sweep), sweep.read_plan().header
    steps, climbed = is_one_step(tables.results), is_ladder(tables.results)
    trainings, newest = tables.results[~steps & ~climbed], of_newest_plan(tables.results)
    texts, files = [], {}
    if len(trainings):
        judged = judge_sweep(sweep, of_newest_plan(tables.results[~steps]), asked)
        older = trainings["setup_id"].nunique() - judged.results["setup_id"].nunique()
        texts.append(render(judged, older))
        files["report"] = sweep.path / REPORT
        write_sweep_report(files["report"], sweep, judged, tables.trajectories_path, older)
    texts += [render_steps(tables.results)] if steps.any() else []
    if climbed.any():
        # Beside verdicts, which tell of each setup's ladder, only a fault is told of at length.
        texts += [render_first_fault(sweep.root.path, newest)] if len(trainings) else [render_ladders(sweep.root.path, newest)]
        files["audit"] = sweep.path / AUDIT
        write_audits(files["audit"], f"accum_sweeps: {sweep.name}", audits(sweep.root.path, newest))
    files |= {"results": tables.results_path, "  as CSV": tables.csv_path, "trajectories": tables.trajectories_path}
    compared, page = header.get("compare") or (), header.get("page")
    pairs = pair_tables(sweep.root.path, newest[~is_ladder(newest)], compared)
    if compared:
        texts.append(render_pairs(pairs))
        files |= write_pair_tables(sweep.path, pairs)
    if page in PAGES:
        write_text(sweep.path / STUDY, PAGES[page](newest, pairs))
        files["study"] = sweep.path / STUDY
    return Report(
        text="\n\n".join(text for text in texts if text),
        files={label: str(path) for label, path in files.items()},
        problems=tables.problems,
        faults=tuple(faults_found(newest)),
    )


def report_apart(sweep: SweepDir, asked: Mapping[str, Any]) -> Report:
    """:func:`report`, made in a process of its own. Raises ReportError if that process failed, with what it said last."""
    arguments = [str(sweep.root.path), sweep.name, json.dumps(dict(asked))]
    command = [sys.executable, "-m", "accum_sweeps.reporting", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip() or f"exit code {done.returncode}"
        said = said.splitlines()[-1] if "Traceback" in said else said
        raise ReportError(f"the report could not be made: {said}\n  The runs are kept. Later: action=report sweep={sweep.name}")
    return Report(**json.loads(done.stdout))


if __name__ == "__main__":
    _, root, name, *rest = sys.argv
    try:
        made = report(open_sweep(open_root(Path(root)), name), json.loads(rest[0]) if rest else {})
    except UserError as error:
        sys.exit(str(error))
    print(json.dumps(asdict(made)))
