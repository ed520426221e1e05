"""Loading the class of ``subject=python`` and checking that it can be used.

``python -m accum_sweeps.subjects.hook_check`` does it in a process of its own while a sweep is planned: standard input
holds ``{"target", "args"}``, standard output gets ``{"problem", "hint"}`` or ``{"files": [loaded source files]}``.
"""

import difflib
import importlib
import inspect
import json
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accum_sweeps.plan.errors import UserError
from accum_sweeps.subjects.sources import loaded_files

REQUIRED = {
    "build": "build(self, config, seeds) -> model",
    "batch": "batch(self, step, seed) -> samples",
    "loss": "loss(self, model, samples) -> (sum, count)",
}
OPTIONAL = {
    "evaluate": "evaluate(self, model) -> eval_loss",
    "optimizer": "optimizer(self, model) -> optimizer",
    "step": "step(self, model, optimizer, micro_batches) -> (sum, count)",
}


class HookError(UserError):
    """The hook cannot be used: ``problem`` and what to do about it."""

    def __init__(self, problem: str, hint: str) -> None:
        self.problem, self.hint = problem, hint
        super().__init__(f"{problem}\n  {hint}")


def load_class(target: str) -> type:
    """The class ``module:Class``, imported. Raises HookError when there is none."""
    module_name, _, class_name = target.partition(":")
    if not class_name.isidentifier() or not all(part.isidentifier() for part in module_name.split(".")):
        raise HookError("must be module:Class", "For the class Setup in my_training.py write my_training:Setup.")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise _import_problem(module_name, error) from error
    found = getattr(module, class_name, None)
    if not inspect.isclass(found):
        classes = [name for name, value in vars(module).items() if inspect.isclass(value) and value.__module__ == module_name]
        what = "is no class" if found is not None else "is not there"
        near = difflib.get_close_matches(class_name, classes, n=1)
        has = (f"It has {', '.join(classes)}" if classes else "It has no class") + (f" (did you mean {near[0]}?)." if near else ".")
        raise HookError(f"{class_name} {what} in {module.__file__}", has)
    return found


def check_class(kind: type, arguments: Mapping[str, Any]) -> None:
    """Raise HookError unless ``kind`` can be made with ``arguments`` and has the methods of a training."""
    for name, form in {**REQUIRED, **OPTIONAL}.items():
        if name in REQUIRED and not callable(getattr(kind, name, None)):
            raise HookError(f"class {kind.__name__} has no method {name}", f"It must look like: def {form}")
        if hasattr(kind, name) and not _accepts(kind, name, form.partition(")")[0].count(",")):
            given = f"{name}{inspect.signature(getattr(kind, name))}"
            raise HookError(f"method {given} of class {kind.__name__} cannot be called as needed", f"It must look like: def {form}")
    try:
        inspect.signature(kind).bind(**arguments)
    except TypeError as error:
        raise HookError(
            f"class {kind.__name__}{inspect.signature(kind)} cannot be made with subject.args={dict(arguments)}: {error}",
            "Name its arguments like this: 'subject.args={width: 64}'.",
        ) from error


def _accepts(kind: type, name: str, count: int) -> bool:
    """Whether method ``name`` can be called with ``count`` positional arguments besides self."""
    is_plain = not isinstance(inspect.getattr_static(kind, name), staticmethod | classmethod)
    try:
        inspect.signature(getattr(kind, name)).bind(*[None] * (count + is_plain))
    except TypeError:
        return False
    return True


def _import_problem(module: str, error: BaseException) -> HookError:
    if isinstance(error, ModuleNotFoundError) and error.name and (module == error.name or module.startswith(f"{error.name}.")):
        beside = [path.stem for path in Path.cwd().glob("*.py")]
        near = difflib.get_close_matches(error.name, beside, n=1)
        hint = f"It is looked for in {Path.cwd()} and on PYTHONPATH" + (f" (did you mean {near[0]}?)." if near else ".")
        return HookError(f"there is no module {error.name}", hint)
    last_line = traceback.format_exception_only(error)[-1].strip()
    return HookError(f"importing {module} fails: {last_line}", f"in {_place(module, error)}")


def _place(module: str, error: BaseException) -> str:
    """Where an import failed: file and line, the innermost of the user's own."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "importlib" not in frame.filename and frame.filename != __file__]
    return f"{own[-1].filename}, line {own[-1].lineno}" if own else module


def _main() -> None:
    request = json.load(sys.stdin)
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)  # what the user's module prints must not mix with the answer
        try:
            check_class(load_class(request["target"]), request["args"])
            result: dict[str, Any] = {"files": [str(path) for path in loaded_files()]}
        except HookError as error:
            result = {"problem": error.problem, "hint": error.hint}
        json.dump(result, answer)


if __name__ == "__main__":
    _main()
