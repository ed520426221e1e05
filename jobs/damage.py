"""Run directories damaged by hand: said by name and set aside, so that the rest goes on and nothing is deleted."""

from pathlib import Path

from accum_sweeps.record.store import DamagedRunError, RunDir


def set_aside_if_damaged(run_dir: RunDir, *, events_too: bool) -> str:
    """Rename the directory to ``<name>.damaged-<n>`` if it cannot be read; returns what is wrong, or an empty text.

    ``events_too`` reads all event files as well, which takes long for long runs.
    """
    what = _damage(run_dir, events_too)
    return f"{what}; set aside as {set_aside(run_dir.path).name}" if what else ""


def _damage(run_dir: RunDir, events_too: bool) -> str:
    """What is wrong, in words. Missing files are no damage: a crash leaves them missing."""
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
        attempts = run_dir.history().attempts if events_too else {}
    except DamagedRunError as error:
        return str(error)
    except OSError as error:
        return f"{path}: {error.strerror}"
    lines = sum(attempt.damaged_lines for attempt in attempts.values())
    return f"{path}: {lines} lines of its events cannot be read" if lines else ""


def set_aside(path: Path) -> Path:
    """Rename ``path`` to the first free ``<name>.damaged-<n>``; returns the new path."""
    number = 1
    while (target := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    return path.rename(target)
