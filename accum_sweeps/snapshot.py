"""The code as it was when a sweep was submitted, kept in the sweep's folder: jobs that wait run it, whatever is edited meanwhile.

A copy of this package and of the user's own source files, under the hash of their contents: the same code is kept once. Workers find it
by two environment variables, PYTHONPATH and CODE_VARIABLE. Data are not copied; their hash is part of a run's identity.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accum_sweeps.plan.config import Config
from accum_sweeps.plan.errors import ConfigError
from accum_sweeps.plan.parts import CommandHook, PythonHook
from accum_sweeps.plan.setting import read, setting
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.record.files import own_folder
from accum_sweeps.record.sweep import SweepDir
from accum_sweeps.subjects.sources import CODE_VARIABLE, PACKAGE, file_digest, source_files

MOST_MB = 200
LEFT_OUT = ("__pycache__", "pictures")


@dataclass(frozen=True, kw_only=True)
class SnapshotSettings:
    """The configuration's ``snapshot``."""

    enabled: bool | None = setting("true | false; null = with launcher=slurm, whose jobs may wait", default=None)
    paths: tuple[str, ...] = setting("files and folders of yours that import statements do not show, from the current folder", default=())

    def is_wanted(self, launcher: str) -> bool:
        """Whether jobs of this kind of launcher get one."""
        return launcher == "slurm" if self.enabled is None else self.enabled and launcher != "inline"


def read_settings(values: Mapping[str, Any]) -> SnapshotSettings:
    """The settings of the configuration's ``snapshot`` mapping. Raises ConfigError."""
    return read(SnapshotSettings, values, "snapshot.")


@dataclass(frozen=True)
class Snapshot:
    """``files``: what is kept, by its place in ``folder``."""

    root: Path
    folder: Path
    files: Mapping[str, Path]

    @property
    def name(self) -> str:
        """The hash of its contents."""
        return self.folder.name

    @property
    def environment(self) -> dict[str, str]:
        """What a job is started with."""
        places = [str(self.folder / name) for name in ("package", "here", "modules")]
        before = os.environ.get("PYTHONPATH", "")
        return {"PYTHONPATH": os.pathsep.join([*places, *([before] if before else [])]), CODE_VARIABLE: places[1]}

    def write(self) -> None:
        """Copy everything, unless it is there already; whole or not at all. Raises UserError where somebody else could write there."""
        own_folder(self.folder.parent, self.root)
        if self.folder.exists():
            return
        part = Path(tempfile.mkdtemp(dir=self.folder.parent, prefix=f".{self.name}."))
        try:
            (part / "here").mkdir()
            for name, path in self.files.items():
                (part / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, part / name)
                shutil.copymode(path, part / name)
            part.rename(self.folder)
        except OSError:
            if not self.folder.exists():  # another command was not quicker either
                raise
        finally:
            shutil.rmtree(part, ignore_errors=True)


def snapshot(sweep: SweepDir, parts: Iterable[object], cwd: Path, settings: SnapshotSettings) -> Snapshot:
    """The snapshot of this package and of what the subjects ``parts`` of a sweep run, as they are now; nothing is written yet.

    Raises ConfigError for a path of the settings that is not there, and for more than MOST_MB.
    """
    files = {f"package/{PACKAGE.name}/{name}": path for name, path in _files(PACKAGE).items()}
    for part in parts:
        if isinstance(part, PythonHook | CommandHook):
            files |= dict(_place(name, path, cwd) for name, path in source_files(part, cwd).items())
    for entry in settings.paths:
        files |= _declared(entry, cwd)
    _check_size(files)
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        digest.update(f"{name}\0{file_digest(path)}\0".encode())
    root = sweep.root.path.absolute()
    return Snapshot(root, root / sweep.path.relative_to(sweep.root.path) / "code" / digest.hexdigest()[:16], files)


def kept_code(config: Config, sweep: SweepDir, specs: Iterable[RunSpec], cwd: Path, launcher: str) -> Snapshot | None:
    """The snapshot that the configuration asks for, written; None without one."""
    settings = read_settings(config.snapshot)
    if not settings.is_wanted(launcher):
        return None
    kept = snapshot(sweep, {id(spec.setup): spec.setup.subject for spec in specs}.values(), cwd, settings)
    kept.write()
    return kept


def _files(folder: Path) -> dict[str, Path]:
    """All files below ``folder``, links followed, by their place in it."""
    found: dict[str, Path] = {}
    for place, folders, names in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if name not in LEFT_OUT)
        found |= {(Path(place) / name).relative_to(folder).as_posix(): Path(place) / name for name in names}
    return found


def _place(name: str, path: Path, cwd: Path) -> tuple[str, Path]:
    """Where a source file goes: files of the current folder keep their place, modules from elsewhere get one by their name."""
    if path.absolute().is_relative_to(cwd):
        return f"here/{path.absolute().relative_to(cwd).as_posix()}", path
    parts = name.split(".")
    return f"modules/{'/'.join([*parts, '__init__.py'] if path.name == '__init__.py' else [*parts[:-1], path.name])}", path


def _declared(entry: str, cwd: Path) -> dict[str, Path]:
    path = Path(os.path.abspath(cwd / entry))  # noqa: PTH100 (removes .. without following links)
    if not path.exists() or not path.is_relative_to(cwd):
        raise ConfigError("snapshot.paths", entry, f"must be a file or a folder in the current one, {cwd}")
    place = path.relative_to(cwd).as_posix()
    return {f"here/{place}": path} if path.is_file() else {f"here/{place}/{name}": file for name, file in _files(path).items()}


def _check_size(files: Mapping[str, Path]) -> None:
    sizes = {name: path.stat().st_size for name, path in files.items()}
    if sum(sizes.values()) > MOST_MB * 1e6:
        largest = max(sizes, key=lambda name: sizes[name])
        words = f"hold {sum(sizes.values()) / 1e6:.0f} MB with the code, above {MOST_MB}; the largest is {files[largest]}"
        raise ConfigError("snapshot.paths", "", words, "Name code, not data: a run's data are not copied.")
