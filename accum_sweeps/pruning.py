"""``action=prune``: shows what a root could do without, then deletes it if the answer is yes."""

import contextlib
import secrets
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from accum_sweeps.record.state import run_state
from accum_sweeps.record.store import RootDir
from accum_sweeps.record.sweep import open_sweep, sweep_names
from accum_sweeps.texts import aligned, size_text

NOT_PLANNED = "runs that no sweep's newest plan holds"
DELETED = ".deleted-"


@dataclass(frozen=True)
class Leftover:
    """Something that could be deleted, and why."""

    path: Path
    why: str

    @property
    def size(self) -> int:
        """Bytes of the file, or of all files below the folder."""
        files = [self.path] if self.path.is_file() else self.path.rglob("*")
        return sum(file.stat().st_size for file in files if file.is_file())


def prune(root: RootDir) -> int:
    """Show what could be deleted, ask, delete on yes. Nothing that a planned run needs, nothing of a running one. Exit code 0."""
    found = list(leftovers(root))
    if not found:
        print(f"root {root.path}: nothing to delete")
        return 0
    rows = [("what", "number", "size")]
    for why in dict.fromkeys(item.why for item in found):
        same = [item for item in found if item.why == why]
        rows.append((why, str(len(same)), size_text(sum(item.size for item in same))))
    print(f"root {root.path}\n{aligned(rows)}")
    print("Delete all of this? [y/N] ", end="", flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        print("nothing was deleted")
        return 0
    deleted = _delete(root, found)
    kept = f"; kept {len(found) - deleted} that changed meanwhile" if deleted < len(found) else ""
    print(f"deleted {deleted}{kept}")
    return 0


def _delete(root: RootDir, shown: Sequence[Leftover]) -> int:
    """Delete what was shown and still is a leftover, as the answer may have taken its time; returns how much that was."""
    still = {item.path: item.why for item in leftovers(root)}
    deleted = 0
    for item in shown:
        if still.get(item.path) != item.why or (item.why == NOT_PLANNED and run_state(root, item.path.name).status == "running"):
            continue
        _remove(item.path)
        deleted += 1
    return deleted


def _remove(path: Path) -> None:
    """Out of its place at once, then away: nobody finds half a run, however the deletion ends."""
    if path.is_dir():
        with contextlib.suppress(FileNotFoundError):  # another command deletes the same
            shutil.rmtree(path.rename(path.with_name(f"{path.name}{DELETED}{secrets.token_hex(4)}")))
    else:
        path.unlink(missing_ok=True)


def leftovers(root: RootDir) -> Iterator[Leftover]:
    """Runs that no sweep's newest plan holds; checkpoints of finished runs; what was set aside as damaged.

    Checkpoints that a program of the user's own (subject=command) keeps in its runs' folders ``checkpoints`` stay: what is
    in them, and whether it is the program's only result, is not known here.
    """
    planned = {run.run_id for name in sweep_names(root) for run in open_sweep(root, name).read_plan().runs}
    for folder in sorted(root.path.glob("runs/*/*")):
        if ".damaged-" in folder.name:
            yield Leftover(folder, "set aside as damaged")
            continue
        if DELETED in folder.name:
            yield Leftover(folder, "left of a deletion that was interrupted")
            continue
        state = run_state(root, folder.name)
        if state.status == "running":
            continue
        if folder.name not in planned:
            yield Leftover(folder, NOT_PLANNED)
            continue
        yield from (Leftover(path, "set aside as damaged") for path in sorted(folder.glob("*.damaged-*")))
        if state.is_done:
            yield from (Leftover(path, "checkpoints of finished runs") for path in sorted(folder.glob("*/checkpoint.*.pt")))
