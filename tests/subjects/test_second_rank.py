"""Two ranks in two processes: the same numbers as one rank, equal weights, one outcome, and nothing left behind."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from accum_sweeps import subjects
from accum_sweeps.plan.parts import PythonHook, StandardLibrary
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.record.metrics import StepRecord
from accum_sweeps.subjects import second_rank
from accum_sweeps.subjects.sources import code_hash, source_files
from accum_sweeps.training.data import corpus
from accum_sweeps.training.loop import TrainingSession
from accum_sweeps.training.ranks import RankError
from tests.specs import make_spec

SMALL = {"model.width": 16, "model.heads": 2, "model.ffn_width": 32, "data.seq_len": 32, "data.eval_rows": 4}
EXACT = 1e-12  # relative; a few hundred times the rounding of sums of 10^4 terms in float64
HOOK = """
import os, sys
import torch

class Setup:
    def __init__(self, trouble=""):
        self.trouble = trouble if "accum_sweeps.subjects.rank_process" in sys.modules else ""

    def build(self, config, seeds):
        model = torch.nn.Linear(3, 1)
        if self.trouble == "other weights":
            torch.nn.init.ones_(model.weight)
        return model

    def batch(self, step, seed):
        return torch.randn(8, 3, generator=torch.Generator().manual_seed(1000 * seed + step))

    def loss(self, model, samples):
        print("rank 1 was here" if "accum_sweeps.subjects.rank_process" in sys.modules else "rank 0")
        if self.trouble == "error":
            raise ValueError("only there")
        if self.trouble == "exit":
            os._exit(7)
        return (model(samples) ** 2).sum(), len(samples)
"""


@pytest.fixture(scope="module", autouse=True)
def nothing_left() -> Iterator[None]:
    """The process of rank 1 is shared by the tests of this file, as by the runs of a worker."""
    yield
    kept = [process._process for process in second_rank._kept]
    second_rank.end()
    assert all(process.returncode is not None for process in kept)


@pytest.fixture(scope="module")
def data_hash() -> str:
    made = corpus.identify(StandardLibrary(name="stdlib", seq_len=32, lengths="documents", eval_rows=4))
    return made.hash  # type: ignore[union-attr]


@pytest.fixture(name="spec")
def make(data_hash: str) -> Any:
    return lambda **changes: make_spec(**{"data.hash": data_hash, "steps": 4, "eval_every": 2, "dtype": "fp64", **SMALL, **changes})


def begun(spec: RunSpec) -> TrainingSession:
    session = subjects.session(spec, Path(), 1)
    assert isinstance(session, TrainingSession)
    return session


def trained(spec: RunSpec, to: int = 99) -> tuple[list[StepRecord], list[torch.Tensor], torch.Tensor]:
    """Records, the gradient of each step, the last weights."""
    session, records, gradients = begun(spec), [], []
    for record in session.steps():
        records.append(record)
        gradients.append(flat([p.grad for p in session.training.parameters if p.grad is not None]))
    return records, gradients, flat(session.training.parameters)


def flat(tensors: Any) -> torch.Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def distance(first: torch.Tensor, second: torch.Tensor) -> float:
    return float((first - second).norm() / second.norm())


def rank_1() -> int:
    return second_rank._kept[0]._process.pid


@pytest.mark.parametrize("accumulator", ["param", "fp32"])
def test_two_ranks_with_k_micro_batches_equal_one_rank_with_2k_on_ragged_rows(spec: Any, accumulator: str) -> None:
    # In a float32 buffer the rounding of its sums remains: 2^-24 a sum, at most four of them.
    bound = EXACT if accumulator == "param" else 4 * 2.0**-24
    two, gradients, weights = trained(spec(ranks=2, accum=2, accumulator=accumulator))
    one, expected, last = trained(spec(ranks=1, accum=4, accumulator=accumulator))
    assert len({record.values["tokens"] / record.step for record in two}) > 1, "the rows must be ragged"
    assert all(distance(*pair) <= bound for pair in zip(gradients, expected, strict=True))
    if accumulator == "param":
        assert distance(weights, last) <= EXACT
    for here, there in zip(two, one, strict=True):
        assert here.values.keys() == there.values.keys() >= {"train_loss", "grad_norm", "tokens", "lr"}
        assert here.values["tokens"] == there.values["tokens"]
        assert all(here.values[key] == pytest.approx(there.values[key], rel=4 * bound) for key in here.values)


@pytest.mark.parametrize("dtype", ["fp64", "amp_fp16"])
def test_a_short_last_window_that_leaves_rank_1_without_rows_gives_the_same_bits(spec: Any, dtype: str) -> None:
    changes = {"dtype": dtype, "global_batch": 8, "data.epoch_rows": 3, "data.last_window": "short", "eval_every": 0}
    two, gradients, weights = trained(spec(ranks=2, accum=2, **changes))
    one, expected, last = trained(spec(ranks=1, accum=4, **changes))
    assert all(torch.equal(*pair) for pair in zip([*gradients, weights], [*expected, last], strict=True))
    assert [record.values for record in two] == [record.values for record in one]


def test_one_micro_batch_a_rank_is_bitwise_what_one_rank_does_with_two(spec: Any) -> None:
    changes = {"dtype": "fp32", "probe_steps": [1, 2, 3]}
    two, one = (trained(spec(ranks=ranks, accum=accum, **changes))[0] for ranks, accum in ((2, 1), (1, 2)))
    assert [record.weights_hash for record in two] == [record.weights_hash for record in one]


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "amp_fp16"])
def test_both_ranks_hold_the_same_weights_after_every_step(spec: Any, dtype: str) -> None:
    # Rank 1 compares the hash of its weights at each probe step and fails the run where it is another one.
    records, _, _ = trained(spec(ranks=2, accum=2, dtype=dtype, accumulator="param", probe_steps=[1, 2, 3]))
    assert len({record.weights_hash for record in records}) == 4


def test_weights_that_differ_are_found(spec: Any) -> None:
    session = begun(spec(ranks=2, probe_steps=[1, 2]))
    steps = session.steps()
    next(steps)
    with torch.no_grad():
        session.training.parameters[0][0] += 1e-9
    with pytest.raises(RankError, match="rank 1: after optimizer step 2 its weights are not those of rank 0"):
        list(steps)


def test_a_resumed_run_is_bitwise_equal_with_dropout_and_running_statistics(spec: Any, tmp_path: Path) -> None:
    changed = {"model.norm": "batchnorm", "model.dropout": 0.2, "ema": 0.9, "dtype": "fp32"}
    long = spec(ranks=2, accum=2, steps=6, probe_steps=[1, 2, 3, 4, 5], **changed)
    whole = [(record.values, record.weights_hash) for record in begun(long).steps()]
    first, records = begun(long), []
    for record in first.steps():
        records.append((record.values, record.weights_hash))
        if record.step == 3:
            break
    first.save(tmp_path / "c.pt")
    second = begun(long)
    assert second.load(tmp_path / "c.pt") == 3
    assert records + [(record.values, record.weights_hash) for record in second.steps()] == whole


def test_the_same_process_serves_one_run_after_the_other_and_those_that_stop_early(spec: Any) -> None:
    steps = begun(spec(ranks=2)).steps()
    next(steps)
    pid = rank_1()
    steps.close()
    trained(spec(ranks=2, seed=1))
    assert rank_1() == pid


def test_a_loss_that_is_not_finite_ends_both(spec: Any) -> None:
    trained(spec(ranks=2))
    pid = rank_1()
    records, _, _ = trained(spec(ranks=2, dtype="fp32", **{"optimizer.lr": 1e30, "optimizer.max_norm": None}))
    assert [record.is_diverged for record in records] == [False, True]
    trained(spec(ranks=2, seed=1))
    assert rank_1() == pid


def test_the_ranks_listen_on_the_loopback_interface_only(spec: Any) -> None:
    steps = begun(spec(ranks=2)).steps()
    next(steps)
    addresses = listening(os.getpid()) + listening(rank_1())
    steps.close()
    assert addresses and set(addresses) == {"0100007F"}, "127.0.0.1 in the kernel's words"


def listening(pid: int) -> list[str]:
    """Addresses on which the process accepts connections."""
    sockets = {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]]
    return [line[1].partition(":")[0] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in sockets]


def test_a_killed_rank_1_fails_the_run_at_once_and_the_next_run_gets_another(spec: Any) -> None:
    steps = begun(spec(ranks=2, steps=50)).steps()
    next(steps)
    pid = rank_1()
    os.kill(pid, signal.SIGTERM)  # not its business: rank 0 decides when a run is stopped
    next(steps)
    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(RankError, match="rank 1, the second process of the run, was killed by SIGKILL"):
        list(steps)
    assert time.monotonic() - began < 30
    assert len(trained(spec(ranks=2))[0]) == 4
    assert rank_1() != pid


def test_a_failing_rank_0_leaves_no_rank_1_behind(spec: Any) -> None:
    trained(spec(ranks=2))
    second_rank._kept[0]._process.kill()  # between two runs it is missed by nobody
    os.waitid(os.P_PID, rank_1(), os.WEXITED | os.WNOWAIT)
    session = begun(spec(ranks=2))
    steps = session.steps()
    next(steps)
    process = second_rank._kept[0]._process

    def broken(_: Any) -> Any:
        raise ValueError("here")

    session.training.loss = broken
    with pytest.raises(ValueError, match="here"):
        next(steps)
    assert process.returncode is not None  # killed, unless the broken connection ended it first


def hook_spec(project: Path, **arguments: Any) -> RunSpec:
    module = "_".join(["ranks", *"".join(arguments.values()).split()])  # rank 1 keeps what it imported
    (project / f"{module}.py").write_text(HOOK)
    part = PythonHook(name="", target=f"{module}:Setup", args=arguments)
    files = code_hash(source_files(part, project))
    subject = {"kind": "python", "name": "python", "target": part.target, "code_hash": files, "args": arguments}
    none = {"kind": "none", "name": ""}
    return make_spec(subject=subject, model=none, data=none, global_batch=8, ranks=2, accum=2, steps=3, eval_every=0)


@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        ("error", "rank 1: ValueError: only there"),
        ("exit", "rank 1, the second process of the run, ended with exit code 7"),
        ("other weights", "rank 1: after optimizer step 0 its weights are not those of rank 0"),
    ],
)
def test_what_goes_wrong_in_rank_1_only_is_said(project: Path, trouble: str, message: str) -> None:
    with pytest.raises(RankError, match=message):
        list(begun(hook_spec(project, trouble=trouble)).steps())


def test_a_users_class_is_trained_by_two_ranks_which_print_to_the_same_place(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    records = list(begun(hook_spec(project)).steps())
    assert [record.values["tokens"] for record in records] == [8, 16, 24]
    printed = capfd.readouterr().out  # not by lines: each may be interrupted before its end by the other rank's
    assert (printed.count("rank 1 was here"), printed.count("rank 0")) == (6, 6)
