"""The files of a user's own training, found by following import statements, and the hash of their contents.

Nothing is imported or run here, so the dispatcher and a worker find the same files in milliseconds. A module is the user's
when it lies neither in the standard library nor among installed packages nor in this package. What import statements do not
show (data, settings files, modules loaded by name) is declared in ``subject.files``.
"""

import ast
import functools
import hashlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

from accum_sweeps.plan.errors import ConfigError
from accum_sweeps.plan.parts import CommandHook, PythonHook
from accum_sweeps.plan.spec import canonical

PACKAGE = Path(__file__).resolve().parents[1]
CODE_VARIABLE = "ACCUM_SWEEPS_CODE"  # the folder of a snapshot that stands for the current folder, where code is concerned
INSTALLED = ("site-packages", "dist-packages")
STANDARD_LIBRARY = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))


def code_folder() -> Path:
    """Where the user's code is looked for: in the snapshot that this worker was started with, else in the current folder."""
    return Path(os.environ.get(CODE_VARIABLE) or Path.cwd())


def code_hash(files: dict[str, Path]) -> str:
    """Twenty hex digits over the names and contents of ``files``; where they lie does not count."""
    contents = [[name, file_digest(path)] for name, path in sorted(files.items())]
    return hashlib.sha256(canonical(contents).encode()).hexdigest()[:20]


def source_files(part: PythonHook | CommandHook, cwd: Path) -> dict[str, Path]:
    """The files that decide the numbers of ``part``, by a name that does not depend on where the project lies.

    Modules are named as in an import statement, other files as in ``subject.argv`` and ``subject.files``.
    Raises ConfigError for a declared file that is not there.
    """
    declared = {name: path for entry in part.files for name, path in _declared(entry, cwd)}
    if isinstance(part, PythonHook):
        return {**hook_modules(part.target.partition(":")[0], cwd), **declared}
    return {**_command_files(part.argv, cwd), **declared}


def hook_modules(module: str, cwd: Path) -> dict[str, Path]:
    """The hook's module, its packages and the user's modules that they import, at any depth."""
    return _follow(dict(_locate(module, [cwd], own=module)), [cwd], own=module)


def is_users(path: Path) -> bool:
    """Whether a module's file belongs to a user's project."""
    resolved = path.resolve()
    outside = not any(part in INSTALLED for part in (*path.parts, *resolved.parts))
    return outside and not any(resolved.is_relative_to(folder) for folder in (*STANDARD_LIBRARY, PACKAGE))


def _declared(entry: str, cwd: Path) -> Iterator[tuple[str, Path]]:
    path = cwd / entry
    if path.is_file():
        yield entry, path
    elif path.is_dir():
        inside = (file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
        yield from ((f"{entry.rstrip('/')}/{file.relative_to(path).as_posix()}", file) for file in inside)
    else:
        raise ConfigError("subject.files", entry, "there is no such file or folder", f"It is looked for in {cwd}.")


def _command_files(argv: Sequence[str], cwd: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for position, word in enumerate(argv):
        if position and argv[position - 1] == "-m":
            found |= hook_modules(word, cwd)
            continue
        name = word.rpartition("=")[2]
        path = cwd / name
        if name and path.is_file() and (position or _is_own_program(name, cwd)):
            found |= _follow({name: path}, [path.parent, cwd], own="")
    return found


def _is_own_program(name: str, cwd: Path) -> bool:
    """Whether argv[0] is a file of the project, not an interpreter of a virtual environment in it."""
    path = cwd / name
    in_environment = any((folder / "pyvenv.cfg").is_file() for folder in path.parents)
    return "/" in name and path.resolve().is_relative_to(cwd.resolve()) and not in_environment


def _follow(start: dict[str, Path], folders: Sequence[Path], own: str) -> dict[str, Path]:
    found: dict[str, Path] = {}
    waiting = dict(start)
    while waiting:
        name, path = waiting.popitem()
        found[name] = path
        for imported in _imported_names(name, path):
            waiting |= {other: file for other, file in _locate(imported, folders, own) if other not in found}
    return found


def _locate(module: str, folders: Sequence[Path], own: str) -> Iterator[tuple[str, Path]]:
    """The user's files that ``import module`` runs: its packages' and its own, as far as there are any."""
    parts = module.split(".")
    folder = _folder_of(parts[0], folders, own.partition(".")[0])
    if folder is not None:
        for length in range(1, len(parts) + 1):
            file = _module_file(folder, parts[:length])
            if file is not None:
                yield ".".join(parts[:length]), file


def _folder_of(top: str, folders: Sequence[Path], own: str) -> Path | None:
    """The folder that top-level module ``top`` is imported from, if it is the user's; ``own`` always is."""
    if top == PACKAGE.name:
        return None
    for folder in folders:
        if _module_file(folder, [top]):
            return folder
    installed = _installed_folder(top)
    if installed is not None and (top == own or is_users(installed / top)):
        return installed
    return next((folder for folder in folders if (folder / top).is_dir()), None)


def _installed_folder(top: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).parent
    return Path(spec.origin).parent if spec.has_location and spec.origin else None


def _module_file(folder: Path, parts: Sequence[str]) -> Path | None:
    base = folder.joinpath(*parts)
    return next((file for file in (base / "__init__.py", base.with_name(base.name + ".py")) if file.is_file()), None)


def _imported_names(name: str, path: Path) -> Iterator[str]:
    """Dotted names that may be modules, for all import statements of a file, also those inside functions."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for level, module, names in _import_statements(path):
        parents = package[: len(package) - level + 1] if level else []
        base = ".".join([*parents, *([module] if module else [])])
        if base:
            yield base
        yield from (f"{base}.{name}" if base else name for name in names)


def _import_statements(path: Path) -> tuple[tuple[int, str, tuple[str, ...]], ...]:
    if path.suffix != ".py":
        return ()
    status = path.stat()
    return _parsed(path, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=4096)
def _parsed(path: Path, _mtime_ns: int, _size: int) -> tuple[tuple[int, str, tuple[str, ...]], ...]:
    """(level, module, names) of each import statement; none for a file that this Python cannot parse."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return ()
    found: list[tuple[int, str, tuple[str, ...]]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(0, alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append((node.level, node.module or "", tuple(alias.name for alias in node.names if alias.name != "*")))
    return tuple(found)


def file_digest(path: Path) -> str:
    """The SHA-256 of a file's contents, read once for each state of it."""
    status = path.stat()
    return _hashed(path, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=4096)
def _hashed(path: Path, _mtime_ns: int, _size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def loaded_files() -> list[Path]:
    """The user's files among the modules loaded in this process."""
    origins = [getattr(module, "__file__", None) for name, module in list(sys.modules.items()) if name != "__main__"]
    paths = [Path(origin) for origin in origins if origin]
    # Some libraries invent modules whose file is only a name (torch.ops).
    return sorted({path.resolve() for path in paths if path.is_absolute() and is_users(path) and path.is_file()})
