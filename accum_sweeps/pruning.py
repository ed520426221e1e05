"""``action=prune``: shows what a root could do without, then deletes it if the answer is yes."""

import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from accum_sweeps.record.state import run_state
from accum_sweeps.record.store import RootDir
from accum_sweeps.record.sweep import open_sweep, sweep_names
from accum_sweeps.texts import aligned, size_text


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
    for item in found:
        shutil.rmtree(item.path) if item.path.is_dir() else item.path.unlink(missing_ok=True)
    print(f"deleted {len(found)}")
    return 0


def leftovers(root: RootDir) -> Iterator[Leftover]:
    """Runs that no sweep's newest plan holds; checkpoints of finished runs; what was set aside as damaged."""
    planned = {run.run_id for name in sweep_names(root) for run in open_sweep(root, name).read_plan().runs}
    for folder in sorted(root.path.glob("runs/*/*")):
        if ".damaged-" in folder.name:
            yield Leftover(folder, "set aside as damaged")
            continue
        state = run_state(root, folder.name)
        if state.status == "running":
            continue
        if folder.name not in planned:
            yield Leftover(folder, "runs that no sweep's newest plan holds")
            continue
        yield from (Leftover(path, "set aside as damaged") for path in sorted(folder.glob("*.damaged-*")))
        if state.is_done:
            yield from (Leftover(path, "checkpoints of finished runs") for path in sorted(folder.glob("*/checkpoint.*.pt")))
