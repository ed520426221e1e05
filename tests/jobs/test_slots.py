"""Slots: how many there are, and that nobody shares one."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from accum_sweeps.jobs import slots as slots_module
from accum_sweeps.jobs.resources import read_resources
from accum_sweeps.jobs.slots import Slot, SlotPool, slot_folder, slot_pool, usable_cores, visible_gpus
from accum_sweeps.plan.errors import ConfigError, UserError
from tests.jobs.sweeps import REPOSITORY

PAIR = SlotPool("gpu", ("0", "1"), 1, 2)


@pytest.mark.parametrize(("cores", "threads", "count", "width"), [(8, 1, 8, 1), (8, 3, 2, 3), (2, 4, 1, 2)])
def test_threads_decide_how_many_core_slots_there_are(
    monkeypatch: pytest.MonkeyPatch, cores: int, threads: int, count: int, width: int
) -> None:
    monkeypatch.setattr(slots_module, "usable_cores", lambda: tuple(map(str, range(cores))))
    pool = slot_pool(read_resources({}), "cpu", threads)
    assert (pool.count, pool.width, len(pool.ids)) == (count, width, cores)


def test_a_number_of_slots_is_taken_and_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "usable_cores", lambda: ("0", "1", "2", "3"))
    assert slot_pool(read_resources({"slots": 2}), "cpu", 1).count == 2
    with pytest.raises(ConfigError, match=r"launcher\.slots=3: must be at most 2 here \(4 cores, 2 threads a run\)"):
        slot_pool(read_resources({"slots": 3}), "cpu", 2)
    assert slot_pool(read_resources({"slots": [3, 1]}), "cpu", 1).ids == ("3", "1")
    with pytest.raises(ConfigError, match="core 9 is not usable here"):
        slot_pool(read_resources({"slots": [9]}), "cpu", 1)


@pytest.mark.parametrize(("cores", "threads", "slots", "count", "width"), [(8, 1, "auto", 4, 2), (8, 2, 3, 1, 4), (5, 1, [4, 2, 0], 1, 2)])
def test_a_run_with_two_ranks_takes_two_slots(
    monkeypatch: pytest.MonkeyPatch, cores: int, threads: int, slots: object, count: int, width: int
) -> None:
    monkeypatch.setattr(slots_module, "usable_cores", lambda: tuple(map(str, range(cores))))
    pool = slot_pool(read_resources({"slots": slots}), "cpu", threads, ranks=2)
    assert (pool.count, pool.width, pool.ranks) == (count, width, 2)


@pytest.mark.parametrize(
    ("cores", "threads", "slots", "words"),
    [
        (1, 1, "auto", r"ranks=2: takes 2 slots, each 1 core; here is 1 \(1 core, 1 thread a run\)"),
        (3, 2, "auto", r"ranks=2: takes 2 slots, each 2 cores; here is 1 \(3 cores, 2 threads a run\)"),
        (4, 1, 1, r"ranks=2: takes 2 slots, each 1 core; here is 1 \(launcher\.slots=1\)"),
        (4, 1, [3], r"ranks=2: takes 2 slots, each 1 core; here is 1 \(1 core, 1 thread a run\)"),
    ],
)
def test_two_ranks_are_refused_with_the_numbers_where_there_is_one_slot(
    monkeypatch: pytest.MonkeyPatch, cores: int, threads: int, slots: object, words: str
) -> None:
    monkeypatch.setattr(slots_module, "usable_cores", lambda: tuple(map(str, range(cores))))
    with pytest.raises(ConfigError, match=words):
        slot_pool(read_resources({"slots": slots}), "cpu", threads, ranks=2)


def test_two_ranks_take_two_gpus_and_one_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7,8")
    pool = slot_pool(read_resources({}), "cuda", 1, ranks=2)
    assert (pool.ids, pool.width, pool.count) == (("4", "5", "6", "7", "8"), 2, 2)
    with pytest.raises(ConfigError, match=r"ranks=2: takes 2 slots, each a GPU, for nccl; here is 1 \(launcher\.slots=\['6'\]\)"):
        slot_pool(read_resources({"slots": [6]}), "cuda", 1, ranks=2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4")
    with pytest.raises(ConfigError, match=r"each a GPU, for nccl; here is 1 \(1 GPUs are visible\)"):
        slot_pool(read_resources({}), "cuda", 1, ranks=2)


def test_cores_are_those_of_this_process() -> None:
    assert set(usable_cores()) <= {str(core) for core in os.sched_getaffinity(0)}


@pytest.mark.parametrize(
    ("value", "ids"), [("2,3", ("2", "3")), ("", ()), ("-1", ()), ("0,-1,1", ("0",)), ("GPU-a, GPU-b", ("GPU-a", "GPU-b"))]
)
def test_gpus_are_those_that_cuda_would_show(value: str, ids: tuple[str, ...]) -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": value}) == ids


def test_without_the_variable_nvidia_smi_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nprintf '0\\n1\\n2\\n'\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert slot_pool(read_resources({}), "cuda", 4).ids == ("0", "1", "2")
    assert slot_pool(read_resources({"slots": 2}), "cuda", 4).count == 2
    program.write_text("#!/bin/sh\nexit 9\n")
    with pytest.raises(UserError, match="device=cuda: no GPU found"):
        slot_pool(read_resources({}), "cuda", 1)


def test_named_gpus_are_believed_unless_cuda_hides_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0,GPU-a")
    assert slot_pool(read_resources({"slots": [0, "GPU-a"]}), "cuda", 1).ids == ("0", "GPU-a")
    with pytest.raises(ConfigError, match=r"launcher\.slots=\['0', '2'\]: GPU 2 is .* CUDA_VISIBLE_DEVICES shows 1, 0, GPU-a"):
        slot_pool(read_resources({"slots": [0, 2]}), "cuda", 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ConfigError, match="shows no GPU"):
        slot_pool(read_resources({"slots": [0]}), "cuda", 1)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert slot_pool(read_resources({"slots": [0, 1]}), "cuda", 1) == PAIR


def test_a_slot_belongs_to_one_and_is_free_after_release() -> None:
    first, second, third = Slot(PAIR), Slot(PAIR), Slot(PAIR)
    assert first.try_acquire() and second.try_acquire()
    assert (first.label, second.label) == ("gpu 0", "gpu 1")
    assert not third.try_acquire()
    second.release()
    assert third.try_acquire() and third.ids == ("1",)
    assert not second.try_acquire(), "a worker gets back its own slot or none"


def test_a_wide_slot_is_taken_whole_or_not_at_all() -> None:
    narrow, wide = Slot(SlotPool("core", ("0", "1", "2"), 1, 3)), Slot(SlotPool("core", ("0", "1", "2"), 3, 1))
    assert narrow.try_acquire() and not wide.try_acquire()
    others = [Slot(SlotPool("core", ("1", "2"), 1, 2)) for _ in range(2)]
    assert all(other.try_acquire() for other in others), "the failed attempt kept nothing"
    for slot in (narrow, *others):
        slot.release()
    assert wide.try_acquire() and wide.ids == ("0", "1", "2")


def test_a_killed_holder_frees_its_slot() -> None:
    code = (
        "from accum_sweeps.jobs.slots import *; import time\n"
        "slot = Slot(SlotPool('gpu', ('0',), 1, 1)); print(slot.try_acquire(), flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "True\n"
    mine = Slot(SlotPool("gpu", ("0",), 1, 1))
    assert not mine.try_acquire()
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    assert mine.try_acquire()


def test_the_folder_of_locks_is_private_and_a_foreign_one_is_refused(tmp_path: Path) -> None:
    folder = slot_folder()
    assert folder.parent == tmp_path and stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o777)
    with pytest.raises(UserError, match="mode 0700"):
        slot_folder()
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(UserError, match="mode 0700"):
        slot_folder()


def test_pinning_confines_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.sched_getaffinity(0)
    core = str(min(before))
    try:
        slot = Slot(SlotPool("core", (core,), 1, 1))
        assert slot.try_acquire()
        slot.pin()
        assert os.sched_getaffinity(0) == {int(core)}
    finally:
        os.sched_setaffinity(0, before)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    gpu = Slot(PAIR)
    assert gpu.try_acquire()
    gpu.pin()
    assert (os.environ["CUDA_VISIBLE_DEVICES"], os.environ["CUDA_DEVICE_ORDER"]) == ("0", "PCI_BUS_ID")
    monkeypatch.delenv("CUDA_DEVICE_ORDER")
