"""SLURM's own programs: what the cluster has, which jobs are queued, and ending them. No other file starts them but the submission."""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ANSWER_S = 60.0
KEPT = ("SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS", "SLURM_BITSTR_LEN")
WORKING = ("CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "RESIZING", "SIGNALING", "STOPPED")
ACTIVE = (*WORKING, "PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "STAGE_OUT")
_ROW = "%F|%K|%T|%r|%N|%P"


class NoAnswerError(Exception):
    """SLURM's programs are missing, or did not answer; the message says which and what it said."""


@dataclass(frozen=True)
class JobRow:
    """Tasks of one job array that are in the same state, as ``squeue`` tells it; ``reason`` says why tasks wait, or how they ended."""

    job: str
    tasks: tuple[int, ...]
    state: str
    reason: str = ""
    node: str = ""
    partition: str = ""

    @property
    def is_active(self) -> bool:
        """Whether the tasks are queued or running."""
        return self.state in ACTIVE

    @property
    def is_working(self) -> bool:
        """Whether the tasks have a node."""
        return self.state in WORKING


def ask(*arguments: str) -> str:
    """What a program of SLURM answers; NoAnswerError where it cannot."""
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=ANSWER_S, check=False, env=submission_environment(()))
    except FileNotFoundError:
        raise NoAnswerError(f"{arguments[0]} is not on this machine") from None
    except subprocess.TimeoutExpired:
        raise NoAnswerError(f"{arguments[0]} did not answer within {ANSWER_S:g} s") from None
    if done.returncode:
        said = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise NoAnswerError(said if said.startswith(arguments[0]) else f"{arguments[0]}: {said}")
    return done.stdout


def submission_environment(options: Sequence[str], environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without what would reach into a job submitted from it.

    Inside a job SLURM_* describe that job, and sbatch and srun would take them for wishes. SBATCH_* win over a script: those
    whose option the script sets (``options``) are left out.
    """
    found = dict(os.environ if environment is None else environment)
    for name in list(found):
        is_leak = name.startswith(("SLURM_", "SLURMD_")) and name not in KEPT
        option = name.removeprefix("SBATCH_").lower().replace("_", "-")
        if is_leak or (name.startswith("SBATCH_") and (option in options or option not in FOR_USERS)):
            del found[name]
    found["SLURM_BITSTR_LEN"] = "0"  # squeue cuts long lists of array tasks short otherwise
    return found


FOR_USERS = ("account", "partition", "qos", "constraint", "reservation", "clusters", "wckey")


def squeue(name: str) -> list[JobRow]:
    """This user's jobs with this name, those that ended a moment ago included. NoAnswerError if SLURM does not answer."""
    text = ask("squeue", "--noheader", "--user", str(os.getuid()), "--name", name, "--states", "all", "--format", _ROW)
    return [row for line in text.splitlines() if (row := _row(line))]


def _row(line: str) -> JobRow | None:
    cells = line.strip().split("|")
    if len(cells) != 6 or not cells[0].isdigit():
        return None
    reason = "" if cells[3] in ("None", "(null)") else cells[3]
    return JobRow(cells[0], tuple(task_numbers(cells[1])), cells[2], reason, cells[4], cells[5])


def task_numbers(text: str) -> list[int]:
    """The array indices of ``1``, ``0-4,7%2`` or ``0-9:3``; of a job without an array task 0."""
    if text == "N/A":
        return [0]
    found: list[int] = []
    for part in text.partition("%")[0].split(","):
        if match := re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part):
            first, last, step = match.groups()
            found += range(int(first), int(last or first) + 1, int(step or 1))
    return found


def scancel(name: str, *, pending_only: bool) -> None:
    """End this user's jobs with this name. NoAnswerError if SLURM does not answer."""
    ask("scancel", "--user", str(os.getuid()), "--name", name, *(["--state=PENDING"] if pending_only else []))


def key_values(text: str) -> dict[str, str]:
    """The ``Key=value`` pairs of one line of ``scontrol --oneliner``."""
    return dict(re.findall(r"(\S+?)=(.*?)(?=\s+[A-Za-z][\w:/]*=|\s*$)", text))


@dataclass(frozen=True)
class Cluster:
    """What the controller says it has: array limit, partitions and nodes by name, as ``scontrol`` words them."""

    longest_array: int
    partitions: Mapping[str, Mapping[str, str]]
    nodes: Mapping[str, Mapping[str, str]]
    has_accounting: bool


def ask_cluster() -> Cluster:
    """The cluster of this machine. NoAnswerError if there is none."""
    config = dict(re.findall(r"^(\w+)\s*=\s*(.*?)\s*$", ask("scontrol", "show", "config"), re.MULTILINE))
    return Cluster(
        longest_array=max(int(config.get("MaxArraySize", "1001")), 1),
        partitions=_named("partition", "PartitionName"),
        nodes=_named("node", "NodeName"),
        has_accounting=config.get("AccountingStorageType", "").endswith("slurmdbd"),
    )


def _named(kind: str, key: str) -> dict[str, Any]:
    lines = map(key_values, ask("scontrol", "--oneliner", "--all", "show", kind).splitlines())
    return {facts[key]: facts for facts in lines if key in facts}


def longest_array() -> int:
    """How many tasks an array may have: the controller's limit is on the index. As SLURM ships it where it does not answer."""
    try:
        return ask_cluster().longest_array
    except NoAnswerError:
        return 1001
