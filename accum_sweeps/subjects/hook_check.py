"""Loading the class of ``subject=python`` and checking that it can be used.

While a sweep is planned, :func:`main` does it in a process of its own.
"""

import difflib
import importlib
import inspect
import json
import os
import traceback
from collections.abc import Mapping, Sequence
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
    "train": "train(self, model, optimizer, scheduler, micro_batches, accum) -> list of losses or None",
    "state": "state(self) -> dict",
    "restore": "restore(self, state) -> None",
}


# A constructor's parameters in JSON: name, kind as inspect.Parameter spells it, whether there is a default.
Parameters = Sequence[tuple[str, str, bool]]


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


def check_class(kind: type) -> None:
    """Raise HookError unless ``kind`` has the methods of a training."""
    for name, form in {**REQUIRED, **OPTIONAL}.items():
        if name in REQUIRED and not callable(getattr(kind, name, None)):
            raise HookError(f"class {kind.__name__} has no method {name}", f"It must look like: def {form}")
        if callable(getattr(kind, name, None)) and not _accepts(kind, name, form.partition(")")[0].count(",")):
            given = f"{name}{inspect.signature(getattr(kind, name))}"
            raise HookError(f"method {given} of class {kind.__name__} cannot be called as needed", f"It must look like: def {form}")
    if callable(getattr(kind, "train", None)) and callable(getattr(kind, "step", None)):
        hint = "An audit looks into train, a sweep makes its steps by step: derive one class from the other, with train in one of them."
        raise HookError(f"class {kind.__name__} has both train and step", hint)
    for name, other in (("state", "restore"), ("restore", "state")):
        if callable(getattr(kind, name, None)) and not callable(getattr(kind, other, None)):
            raise HookError(f"class {kind.__name__} has the method {name} but not {other}", f"It must look like: def {OPTIONAL[other]}")


def check_arguments(parameters: Parameters, arguments: Mapping[str, Any]) -> None:
    """Raise HookError unless a class with these constructor parameters can be made with these keyword arguments."""
    takes = [inspect.Parameter(name, getattr(inspect.Parameter, kind)) for name, kind, _ in parameters]
    defaults = [None if has_default else inspect.Parameter.empty for _, _, has_default in parameters]
    try:
        inspect.Signature([p.replace(default=default) for p, default in zip(takes, defaults, strict=True)]).bind(**arguments)
    except TypeError as error:
        problem = f"the class cannot be made with subject.args={dict(arguments)}: {error}"
        raise HookError(problem, f"It takes ({', '.join(map(str, takes))}); give values like this: subject.args.NAME=VALUE") from None


def parameters_of(kind: type) -> Parameters:
    """What the constructor of ``kind`` takes."""
    return [(p.name, p.kind.name, p.default is not p.empty) for p in inspect.signature(kind).parameters.values()]


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


def main(target: str) -> None:
    """Write JSON to standard output: ``problem`` and ``hint``, or the class's ``parameters``, its ``optional`` methods and ``files``."""
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)  # what the user's module prints must not mix with the answer
        try:
            kind = load_class(target)
            check_class(kind)
            result: dict[str, Any] = {"parameters": parameters_of(kind), "files": [str(path) for path in loaded_files()]}
            result["optional"] = [name for name in OPTIONAL if callable(getattr(kind, name, None))]
        except HookError as error:
            result = {"problem": error.problem, "hint": error.hint}
        json.dump(result, answer)
