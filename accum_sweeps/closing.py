"""What follows a sweep's last run where no command waits for it: tables, report, MLflow.

python -m accum_sweeps.closing     reads JSON: root, sweep, tracking, asked (keys of analysis that the command gave)

The job that ends last runs it, as a process of its own.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accum_sweeps.plan.errors import UserError
from accum_sweeps.record.store import open_root
from accum_sweeps.record.sweep import open_sweep
from accum_sweeps.reporting import report
from accum_sweeps.tracking import replay_once, report_text

FAILED = 1


def close(facts: Mapping[str, Any]) -> None:
    """Bring tables, report and MLflow up to date, and print what they say. Raises UserError where one of them cannot be."""
    sweep = open_sweep(open_root(Path(facts["root"])), facts["sweep"])
    made = report(sweep, facts["asked"])
    made.print()
    arrived = replay_once(sweep, facts["tracking"], made.paths, made.note)
    print(report_text(arrived, facts["tracking"]))


if __name__ == "__main__":
    try:
        close(json.load(sys.stdin))
    except UserError as error:
        print(f"error: {error}\n  Later: action=report, action=sync", file=sys.stderr)
        sys.exit(FAILED)
