"""Run directories damaged by hand: said by name and set aside, so that the rest goes on and nothing is deleted."""

import json
from pathlib import Path

from accum_sweeps.plan.words import counted
from accum_sweeps.record.store import DamagedRunError, RunDir


def set_aside_if_damaged(run_dir: RunDir, *, is_thorough: bool) -> str:
    """Rename the directory to ``<name>.damaged-<n>`` if it cannot be read; returns what is wrong, or an empty text.

    A thorough look reads everything; the other one only whether spec.json and env.json are JSON, fit for 20,000 runs. Missing
    files are no damage: a crash leaves them missing.
    """
    what = _damage(run_dir) if is_thorough else _damage_at_a_glance(run_dir.path)
    return f"{what}; set aside as {set_aside(run_dir.path).name}" if what else ""


def _damage(run_dir: RunDir) -> str:
    path = run_dir.path
    if not path.exists():
        return ""
    if not path.is_dir():
        return f"{path}: is not a folder"
    try:
        if (path / "spec.json").exists():
            run_dir.read_spec()
        if (path / "env.json").exists():
            run_dir.read_environment()
        attempts = run_dir.history().attempts
    except DamagedRunError as error:
        return str(error)
    except OSError as error:
        return f"{path}: {error.strerror}"
    lines = sum(attempt.damaged_lines for attempt in attempts.values())
    return f"{path}: {counted(lines, 'line')} of its events cannot be read" if lines else ""


def _damage_at_a_glance(path: Path) -> str:
    for name in ("spec.json", "env.json"):
        try:
            with open(f"{path}/{name}", "rb") as file:  # noqa: PTH123 (half the cost of pathlib, and this is for every run)
                json.loads(file.read())
        except FileNotFoundError:
            continue
        except NotADirectoryError:
            return f"{path}: is not a folder"
        except (OSError, ValueError) as error:
            return f"{path}: {name} cannot be read ({error})"
    return ""


def set_aside(path: Path) -> Path:
    """Rename ``path`` to the first free ``<name>.damaged-<n>``; returns the new path."""
    number = 1
    while (target := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    return path.rename(target)
