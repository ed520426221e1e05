"""The identity of a user's own training, found while a sweep is planned: is it usable, and what is its code?

The dispatcher imports no torch and none of the user's code: a process of its own loads and checks a hook.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from accum_sweeps.plan.errors import ConfigError, UserError
from accum_sweeps.plan.parts import CommandHook, Contrastive, LanguageModel, PythonHook, Subject
from accum_sweeps.plan.spec import Setup, canonical
from accum_sweeps.record.files import cache_folder, write_text
from accum_sweeps.subjects import hook_check, sources
from accum_sweeps.subjects.hook_check import HookError, check_arguments
from accum_sweeps.subjects.sources import PACKAGE, code_hash, source_files

Part = TypeVar("Part", bound=Subject)
BUILT_IN = (LanguageModel.kind, Contrastive.kind)
SPEC_WORD = "{spec}"
IMPORT_LIMIT_S = 300.0


def identify(part: Part, cwd: Path, setup: Setup | None = None) -> Part:
    """``part`` with the ``code_hash`` of its files as they are now; ``cwd`` is where the command was typed.

    Raises ConfigError when the hook cannot be loaded, lacks a method or has one that the rest of ``setup`` rules out, the program is
    not found, or a file is missing.
    """
    if isinstance(part, LanguageModel | Contrastive):
        return part
    if isinstance(part, CommandHook):
        _check_command(part.argv, cwd)
    files = source_files(part, cwd)
    found = dataclasses.replace(part, code_hash=code_hash(files))
    if isinstance(found, PythonHook):
        _check_hook(found, files, cwd, setup)
    return found


def require_unchanged(part: PythonHook | CommandHook, cwd: Path) -> None:
    """Raise UserError when the files of ``part`` are no longer those that the sweep was planned with."""
    if code_hash(source_files(part, cwd)) != part.code_hash:
        name = part.target if isinstance(part, PythonHook) else " ".join(part.argv)
        raise UserError(f"the source files of {name} changed since the sweep was planned; type the command again to plan it anew")


def search_path() -> str:
    """Where programs are looked for: beside the Python of a virtual environment, active or not, then on PATH."""
    path, beside = os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)
    return os.pathsep.join([beside, path] if sys.prefix != sys.base_prefix else [path, beside])


def _check_hook(part: PythonHook, files: dict[str, Path], cwd: Path, setup: Setup | None) -> None:
    loaded = _load(part.target, cwd, part.code_hash)
    try:
        if "problem" in loaded:
            raise HookError(loaded["problem"], loaded["hint"])
        check_arguments(loaded["parameters"], part.args)
        if setup is not None and "step" in loaded["optional"]:
            _check_own_step(setup)
        if setup is not None and "train" in loaded["optional"]:
            _check_train(setup)
    except HookError as error:
        raise ConfigError("subject.target", part.target, error.problem, error.hint) from None
    _require_all_found(part, [Path(name) for name in loaded["files"]], files, cwd)


def _check_own_step(setup: Setup) -> None:
    """HookError for settings that the service carries out within its own step, and that a step of the user's would silently miss."""
    hint = "or leave the step to build, batch and loss."
    if setup.ranks > 1:
        problem = f"has the method step, which would see only the micro-batches of its own rank of {setup.ranks}"
        raise HookError(problem, f"Leave ranks=1, {hint}")
    if setup.dtype == "amp_fp16":
        raise HookError("has the method step, which would not know the loss scale of dtype=amp_fp16", f"Take another dtype, {hint}")
    if setup.accumulator != "param":
        problem = f"has the method step, which accumulates by itself: accumulator={setup.accumulator} would have no effect"
        raise HookError(problem, f"Leave accumulator=param, {hint}")


def _check_train(setup: Setup) -> None:
    """HookError for a sweep, and for settings that a trainer of the user's would silently miss."""
    if setup.measure != "ladder":
        problem = "has the method train, which is for audits; a sweep makes step after step and needs step, or neither of them"
        raise HookError(problem, "Audit it with +grid=audit, or leave train to a class of its own that derives from this one.")
    missed = {f"ranks={setup.ranks}": setup.ranks > 1, "dtype=amp_fp16": setup.dtype == "amp_fp16", f"ema={setup.ema}": bool(setup.ema)}
    missed[f"accumulator={setup.accumulator}"] = setup.accumulator != "param"
    for name, is_set in missed.items():
        if is_set:
            raise HookError(f"has the method train, on which {name} would have no effect", "Leave it out.")


@functools.cache
def _load(target: str, cwd: Path, code_hash: str) -> dict[str, Any]:
    """What ``hook_check.main`` says of the class.

    Asked once for each state of its files and of the environment, as importing it may take seconds; a good answer is
    kept in the user's cache, for the next command.
    """
    installed = [Path(sysconfig.get_path(name)).stat().st_mtime_ns for name in ("purelib", "platlib")]
    state = [target, str(cwd), code_hash, sys.executable, sys.version, os.environ.get("PYTHONPATH", ""), installed, _own_state()]
    kept = cache_folder() / "hooks" / f"{hashlib.sha256(canonical(state).encode()).hexdigest()[:20]}.json"
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads(kept.read_text()))
    answer = _ask(target, cwd)
    if "problem" not in answer:
        with contextlib.suppress(OSError):
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_text(kept, json.dumps(answer))
    return answer


def _own_state() -> list[int]:
    """Of the files that do the checking."""
    return [path.stat().st_mtime_ns for path in (Path(hook_check.__file__), Path(sources.__file__))]


def _ask(target: str, cwd: Path) -> dict[str, Any]:
    # The folder first, as for `python script.py`; this package last, for a clone that is not installed.
    program = f"import sys; sys.path.insert(0, {str(cwd)!r}); sys.path.append({str(PACKAGE.parent)!r})\n"
    program += f"from accum_sweeps.subjects import hook_check; hook_check.main({target!r})"
    command = [sys.executable, "-P", "-B", "-c", program]
    try:
        answer = subprocess.run(
            command, cwd=cwd, stdin=subprocess.DEVNULL, text=True, capture_output=True, timeout=IMPORT_LIMIT_S, check=False
        )
        return dict(json.loads(answer.stdout))
    except subprocess.TimeoutExpired:
        hint = "Put what a module does when it is run, not imported, under: if __name__ == '__main__':"
        raise ConfigError("subject.target", target, f"importing it took longer than {IMPORT_LIMIT_S:.0f} s", hint) from None
    except json.JSONDecodeError:
        last = (answer.stderr.strip().splitlines() or [f"exit code {answer.returncode}"])[-1]
        raise ConfigError("subject.target", target, f"importing it ends the process: {last}") from None


def _require_all_found(part: PythonHook, loaded: Sequence[Path], files: dict[str, Path], cwd: Path) -> None:
    known = {path.resolve() for path in files.values()}
    unknown = [path for path in loaded if path not in known]
    if unknown:
        shown = [str(path.relative_to(cwd.resolve())) if path.is_relative_to(cwd.resolve()) else str(path) for path in unknown]
        raise ConfigError(
            "subject.files",
            list(part.files),
            f"{part.target} also loads {', '.join(shown)}, which its import statements do not show",
            f"Declare it, so that editing it makes new runs: 'subject.files=[{','.join([*part.files, *shown])}]'.",
        )


def _check_command(argv: Sequence[str], cwd: Path) -> None:
    if not argv:
        raise ConfigError("subject.argv", list(argv), "must name a program", "Example: 'subject.argv=[python,train.py,\"{spec}\"]'.")
    if not any(SPEC_WORD in word for word in argv):
        hint = "The program reads its settings from the JSON file whose path replaces {spec}: 'subject.argv=[python,train.py,\"{spec}\"]'."
        raise ConfigError("subject.argv", list(argv), "must hold {spec}", hint)
    if resolve_program(argv[0], cwd) is None:
        where = f"in {cwd}" if "/" in argv[0] else "on PATH"
        raise ConfigError("subject.argv", argv[0], f"there is no such program {where}, or it cannot be executed")
    if Path(argv[0]).name.startswith(("python", "torchrun")):
        script = next((word for word in argv[1:] if word.endswith(".py")), None)
        if script is not None and not (cwd / script).is_file():
            raise ConfigError("subject.argv", script, "there is no such file", f"It is looked for in {cwd}.")


def resolve_program(name: str, cwd: Path) -> str | None:
    """The program's path: relative to ``cwd`` when ``name`` has a slash, else as found by :func:`search_path`."""
    return shutil.which(str(cwd / name)) if "/" in name else shutil.which(name, path=search_path())
