"""Slots: the GPU or the cores that one worker has for itself, on this machine, among all commands of this user.

A slot is held by ``flock`` on files in a folder of the user's own, so it is free again the moment its holder dies,
however it dies.
"""

import fcntl
import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from accum_sweeps.jobs.resources import Resources
from accum_sweeps.plan.errors import ConfigError, UserError
from accum_sweeps.plan.words import counted


@dataclass(frozen=True)
class SlotPool:
    """The ids that the workers of one kind may use: ``width`` of them each, ``count`` workers at most at a time.

    A worker takes ``ranks`` slots, a GPU or the cores of a run's threads for each rank. Of kind "job" it has no ids: a cluster's
    scheduler has given the worker all that it may use.
    """

    kind: str  # "core", "gpu" or "job"
    ids: tuple[str, ...]
    width: int
    count: int
    ranks: int = 1


def slot_pool(resources: Resources, device: str, threads: int, ranks: int = 1) -> SlotPool:
    """The slots for runs on ``device`` with ``threads`` CPU threads for each of their ``ranks``.

    Raises UserError where no GPU is found, ConfigError where more slots are asked for than there are or a run takes more.
    """
    kind, ids, width, slots, where = _gpus(resources.slots) if device == "cuda" else _cores(resources.slots, threads)
    if slots < ranks:
        each = "a GPU, for nccl" if kind == "gpu" else f"{width} {'core' if width == 1 else 'cores'}"
        hint = f"ranks=1 takes one; launcher.slots and {'CUDA_VISIBLE_DEVICES' if kind == 'gpu' else 'threads'} decide how many there are."
        raise ConfigError("ranks", ranks, f"takes {ranks} slots, each {each}; here {'is' if slots == 1 else 'are'} {slots} ({where})", hint)
    return SlotPool(kind, ids, width * ranks, slots // ranks, ranks)


# Kind, ids, ids of a slot, number of slots, and what that number comes from.
_Found = tuple[str, tuple[str, ...], int, int, str]


def _gpus(slots: object) -> _Found:
    if isinstance(slots, tuple):
        _refuse_hidden(slots)
        return "gpu", slots, 1, len(slots), f"launcher.slots={list(slots)}"
    found = visible_gpus(os.environ)
    if not found:
        raise UserError(
            "device=cuda: no GPU found (CUDA_VISIBLE_DEVICES is empty or nvidia-smi lists none).\n"
            "  Use device=cpu, or unset CUDA_VISIBLE_DEVICES and name the ids: launcher.slots=[0,1]"
        )
    return "gpu", found, 1, *_count(slots, len(found), f"{len(found)} GPUs are visible")


def _refuse_hidden(slots: tuple[str, ...]) -> None:
    """ConfigError for ids that CUDA_VISIBLE_DEVICES, where it is set, leaves out: who set it gave the others away."""
    if "CUDA_VISIBLE_DEVICES" not in os.environ:
        return
    visible = visible_gpus(os.environ)
    if hidden := [item for item in slots if item not in visible]:
        shown = ", ".join(visible) or "no GPU"
        raise ConfigError("launcher.slots", list(slots), f"GPU {hidden[0]} is not usable here; CUDA_VISIBLE_DEVICES shows {shown}")


def _cores(slots: object, threads: int) -> _Found:
    cores = usable_cores()
    if isinstance(slots, tuple):
        if unknown := [core for core in slots if core not in cores]:
            raise ConfigError("launcher.slots", list(slots), f"core {unknown[0]} is not usable here; usable: {', '.join(cores)}")
        cores, slots = slots, "auto"
    width = min(threads, len(cores))  # more threads than cores still run, on all of them
    return "core", cores, width, *_count(slots, len(cores) // width, f"{counted(len(cores), 'core')}, {counted(threads, 'thread')} a run")


def _count(slots: object, most: int, why: str) -> tuple[int, str]:
    if slots == "auto":
        return most, why
    if not isinstance(slots, int) or slots > most:
        raise ConfigError("launcher.slots", slots, f"must be at most {most} here ({why})")
    return slots, f"launcher.slots={slots}"


def usable_cores() -> tuple[str, ...]:
    """Numbers of the CPU cores that this process may run on, cut to a container's CPU quota."""
    if not hasattr(os, "sched_getaffinity"):  # not Linux: cores cannot be pinned, only counted
        return tuple(str(core) for core in range(os.cpu_count() or 1))
    cores = sorted(os.sched_getaffinity(0))
    return tuple(str(core) for core in cores[: max(1, _cpu_quota() or len(cores))])


def _cpu_quota() -> int | None:
    """Whole CPUs of the control group's quota (cgroup v2), rounded up; None without one."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return -(-int(quota) // int(period))
    except (OSError, ValueError):
        return None


def visible_gpus(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Ids of the GPUs that a process with this environment sees, found without importing torch."""
    if "CUDA_VISIBLE_DEVICES" in environment:
        ids = [item.strip() for item in environment["CUDA_VISIBLE_DEVICES"].split(",")]
        stop = next((n for n, item in enumerate(ids) if item in ("", "-1", "NoDevFiles")), len(ids))
        return tuple(ids[:stop])  # CUDA itself ignores what follows an invalid id
    try:
        command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
        listed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in listed.splitlines() if line.strip().isdigit())


@dataclass
class Slot:
    """The slot of one worker. The ids are chosen once; released and taken again it stays the same slot.

    (A process cannot change its GPU, nor the cores of threads that run already.)
    """

    pool: SlotPool
    ids: tuple[str, ...] = ()
    _held: list[int] = field(default_factory=list)

    def try_acquire(self) -> bool:
        """Take the slot if it is free; a worker's first one may be any of the pool."""
        wanted, width = (self.ids, len(self.ids)) if self.ids else (self.pool.ids, self.pool.width)
        taken: dict[str, int] = {}
        for name in wanted:
            if len(taken) < width and (descriptor := _try_lock(self.pool.kind, name)) is not None:
                taken[name] = descriptor
        if len(taken) < width:  # all or nothing: two workers with half a slot each would wait for ever
            for descriptor in taken.values():
                os.close(descriptor)
            return False
        self.ids, self._held = tuple(taken), list(taken.values())
        return True

    def release(self) -> None:
        """Let others use it."""
        for descriptor in self._held:
            os.close(descriptor)
        self._held = []

    @property
    def label(self) -> str:
        """As in ``core 3`` or ``gpu 0``."""
        return f"{self.pool.kind} {','.join(self.ids)}" if self.ids else ""

    def pin(self) -> None:
        """Confine this process to the slot. Before torch is imported: CUDA and OpenMP look only once."""
        if self.pool.kind == "gpu":
            if "CUDA_VISIBLE_DEVICES" not in os.environ or not os.environ["CUDA_VISIBLE_DEVICES"]:
                os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # the numbering of nvidia-smi
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(self.ids)
        elif self.pool.kind == "core" and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {int(core) for core in self.ids})


def _try_lock(kind: str, name: str) -> int | None:
    safe = "".join(letter if letter.isalnum() or letter == "-" else "_" for letter in name)
    descriptor = os.open(slot_folder() / f"{kind}-{safe}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def slot_folder() -> Path:
    """The user's own folder of lock files on this machine, mode 0700.

    Raises UserError where somebody else owns the folder of that name.
    """
    folder = Path(tempfile.gettempdir()) / f"accum_sweeps-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    facts = folder.lstat()
    if facts.st_uid != os.getuid() or folder.is_symlink() or facts.st_mode & 0o077:
        raise UserError(f"{folder}: must be a folder of yours that nobody else can enter (mode 0700).\n  Remove it, or set TMPDIR.")
    return folder
