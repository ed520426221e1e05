import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from accum_sweeps.plan.errors import ConfigError, UserError
from accum_sweeps.plan.parts import CommandHook, LanguageModel, PythonHook
from accum_sweeps.subjects.identify import identify, require_unchanged
from tests.specs import make_spec

REPOSITORY = Path(__file__).parents[2]
METHODS = "    def build(self, config, seeds): ...\n    def batch(self, step, seed): ...\n    def loss(self, model, samples): ...\n"
GOOD = "class Setup:\n" + METHODS


def hook(target: str = "setup:Setup", **changes: object) -> PythonHook:
    return PythonHook(name="", target=target, **changes)  # type: ignore[arg-type]


def message(part: PythonHook | CommandHook, project: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        identify(part, project)
    return str(caught.value)


def test_editing_the_hooks_file_makes_new_runs(project: Path) -> None:
    def run_id() -> str:
        part = identify(hook(), project)
        subject = {"kind": "python", "name": "python", "target": part.target, "code_hash": part.code_hash}
        return make_spec(subject=subject, model={"kind": "none", "name": ""}, data={"kind": "none", "name": ""}).run_id

    (project / "setup.py").write_text(GOOD)
    first = run_id()
    assert run_id() == first
    (project / "setup.py").write_text(GOOD + "# another thought\n")
    assert run_id() != first


def test_a_class_is_imported_once_for_each_state_of_its_files(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def imports(state: str) -> int:
        (project / "setup.py").write_text(f"open('imports', 'a').write('x')  # {state}\n" + GOOD)
        program = (
            "import sys, pathlib; from accum_sweeps.subjects.identify import identify; from accum_sweeps.plan.parts import PythonHook\n"
        )
        program += "identify(PythonHook(name='', target='setup:Setup'), pathlib.Path.cwd())"
        subprocess.run([sys.executable, "-c", program], cwd=project, check=True, env={**os.environ, "PYTHONPATH": str(REPOSITORY)})
        return len((project / "imports").read_text())

    assert [imports("first"), imports("first"), imports("second"), imports("first")] == [1, 1, 2, 2]
    monkeypatch.setenv("XDG_CACHE_HOME", str(project / "imports"))  # a file: nothing can be kept
    assert imports("first") == 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ranks": 2}, "has the method step, which would see only the micro-batches of its own rank of 2"),
        ({"dtype": "amp_fp16"}, "has the method step, which would not know the loss scale"),
        ({"accumulator": "fp32"}, "has the method step, which accumulates by itself: accumulator=fp32 would have no effect"),
    ],
)
def test_settings_that_an_own_step_would_miss_are_refused(changes: dict[str, Any], words: str, project: Path) -> None:
    (project / "setup.py").write_text(GOOD + "    def step(self, model, optimizer, micro_batches): ...\n")
    assert identify(hook(), project, make_spec().setup).code_hash
    with pytest.raises(ConfigError) as caught:
        identify(hook(), project, make_spec(**changes).setup)
    assert str(caught.value).startswith(f"subject.target='setup:Setup': {words}")


def test_a_class_that_was_refused_is_looked_at_again(project: Path) -> None:
    (project / "setup.py").write_text("import other\n" + GOOD)
    assert "No module named 'other'" in message(hook(), project)
    (project / "other.py").write_text("")
    assert identify(hook(), project).code_hash


def test_a_built_in_subject_needs_nothing() -> None:
    part = LanguageModel(name="lm")
    assert identify(part, Path()) is part


def test_planning_imports_no_torch() -> None:
    program = "import sys, accum_sweeps.subjects.identify; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_what_a_module_prints_does_not_disturb(project: Path) -> None:
    (project / "setup.py").write_text("print('{}')\nimport os; os.system('echo hello')\n" + GOOD)
    assert len(identify(hook(), project).code_hash) == 20


def test_class_and_static_methods_are_usable(project: Path) -> None:
    text = "class Setup:\n  @staticmethod\n  def build(config, seeds): ...\n  @classmethod\n  def batch(cls, step, seed): ...\n"
    (project / "setup.py").write_text(text + "  def loss(self, *args): ...\n")
    assert identify(hook(), project).code_hash


@pytest.mark.parametrize(
    ("source", "changes", "words"),
    [
        (GOOD, {"target": "setup"}, ["subject.target='setup'", "must be module:Class", "my_training:Setup"]),
        (GOOD, {"target": "setpu:Setup"}, ["there is no module setpu", "did you mean setup?"]),
        (GOOD, {"target": "setup:Stup"}, ["Stup is not there in", "setup.py", "did you mean Setup?"]),
        ("Setup = 3\n", {}, ["Setup is no class in", "It has no class."]),
        (GOOD.replace("def loss", "def lost"), {}, ["class Setup has no method loss", "def loss(self, model, samples) -> (sum, count)"]),
        (GOOD.replace("step, seed", "step"), {}, ["batch(self, step)", "cannot be called as needed", "def batch(self, step, seed)"]),
        (GOOD + "    def evaluate(self): ...\n", {}, ["evaluate(self)", "def evaluate(self, model) -> eval_loss"]),
        (
            GOOD + "    def state(self): ...\n",
            {},
            ["class Setup has the method state but not restore", "def restore(self, state) -> None"],
        ),
        (
            GOOD,
            {"args": {"width": 3}},
            ["cannot be made with subject.args={'width': 3}: got an unexpected keyword argument 'width'", "It takes ()"],
        ),
        (
            GOOD + "    def __init__(self, width): ...\n",
            {},
            ["missing a required argument: 'width'", "It takes (width); give values like this: subject.args.NAME=VALUE"],
        ),
        ("class Setup:\n  def build(\n", {}, ["importing setup fails: SyntaxError: '(' was never closed", "setup.py, line 2"]),
        ("import nowhere\n" + GOOD, {}, ["No module named 'nowhere'", "setup.py, line 1"]),
        ("import broken\n" + GOOD, {}, ["ZeroDivisionError: division by zero", "broken.py, line 2"]),
        ("import sys\nsys.exit('bye')\n", {}, ["importing setup fails: SystemExit: bye", "setup.py, line 2"]),
        ("import os\nos._exit(5)\n", {}, ["importing it ends the process: exit code 5"]),
    ],
)
def test_a_hook_that_cannot_be_used_is_refused_with_what_to_do(
    project: Path, source: str, changes: dict[str, object], words: list[str]
) -> None:
    (project / "setup.py").write_text(source)
    (project / "broken.py").write_text("x = 0\n1 / x\n")
    text = message(hook(**{"target": "setup:Setup", **changes}), project)  # type: ignore[arg-type]
    assert [word for word in words if word not in text] == []


def test_one_import_serves_all_arguments(project: Path) -> None:
    (project / "setup.py").write_text("open('imports', 'a').write('x')\n" + GOOD + "    def __init__(self, width=1, **others): ...\n")
    hashes = {identify(hook(args={"width": width, "depth": 2}), project).code_hash for width in range(5)}
    assert len(hashes) == 1 and (project / "imports").read_text() == "x"


def test_a_file_that_import_statements_do_not_show_must_be_declared(project: Path) -> None:
    (project / "setup.py").write_text("import importlib\nimportlib.import_module('hid' + 'den')\n" + GOOD)
    (project / "hidden.py").write_text("")
    assert "setup:Setup also loads hidden.py" in message(hook(), project)
    assert "'subject.files=[hidden.py]'" in message(hook(), project)
    assert identify(hook(files=("hidden.py",)), project).code_hash


def test_a_worker_notices_that_files_changed_since_planning(project: Path) -> None:
    (project / "setup.py").write_text(GOOD)
    part = identify(hook(), project)
    require_unchanged(part, project)
    (project / "setup.py").write_text(GOOD + "\n")
    with pytest.raises(UserError, match="source files of setup:Setup changed since the sweep was planned; type the command again"):
        require_unchanged(part, project)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ((), ["must name a program"]),
        (("python", "train.py"), ["must hold {spec}", "'subject.argv=[python,train.py,\"{spec}\"]'"]),
        (("no-such-program", "{spec}"), ["subject.argv='no-such-program'", "there is no such program on PATH"]),
        (("./train.py", "{spec}"), ["there is no such program in", "or it cannot be executed"]),
        (("python", "tarin.py", "{spec}"), ["subject.argv='tarin.py': there is no such file"]),
    ],
)
def test_a_command_that_cannot_be_used_is_refused_with_what_to_do(project: Path, argv: tuple[str, ...], words: list[str]) -> None:
    (project / "train.py").write_text("")
    text = message(CommandHook(name="", argv=argv), project)
    assert [word for word in words if word not in text] == []


def test_editing_a_commands_script_changes_its_identity(project: Path) -> None:
    part = CommandHook(name="", argv=("python", "train.py", "{spec}"))
    (project / "train.py").write_text("a = 1\n")
    first = identify(part, project)
    (project / "train.py").write_text("a = 22\n")
    assert identify(part, project).code_hash != first.code_hash
