"""What the sbatch script of a worker array holds. Every value is quoted; only launcher.setup is read by a shell, as it says."""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accum_sweeps.jobs.order import Group
from accum_sweeps.jobs.slurm_chunks import Chunk
from accum_sweeps.jobs.slurm_settings import SlurmSettings
from accum_sweeps.jobs.worker import THREAD_VARIABLES

REQUEUE_CODE = 75  # exit code of a worker that left runs to go on with
NO_ROOT_CODE, NO_PYTHON_CODE = 66, 67


def parameters(settings: SlurmSettings, group: Group, name: str, chunk: Chunk, after: str | None) -> dict[str, Any]:
    """The array's parameters as submitit names them; ``after`` is the array that has to end before this one begins."""
    cpus = settings.cpus_per_run or group.threads * group.ranks
    gpus = settings.gpus_per_run
    if gpus is None:
        gpus = group.ranks if group.device == "cuda" and settings.gres is None else 0
    more = {"nodes": settings.nodes, "ntasks-per-node": 1, "open-mode": "append", **(settings.options or {})}
    return {
        "job_name": name,
        "partition": settings.partition,
        "account": settings.account,
        "qos": settings.qos,
        "constraint": settings.constraint,
        "gres": settings.gres,
        "gpus_per_node": gpus or None,
        "cpus_per_task": cpus,
        "mem": None if settings.mem_gb is None else f"{max(round(1024 * settings.mem_gb), 1)}M",
        "time": settings.time_min,
        "signal_delay_s": settings.lead_s,
        "dependency": after,
        "wckey": None,
        "stderr_to_stdout": True,
        "array_parallelism": chunk.parallel or chunk.tasks,
        # srun of SLURM 22.05 and later gives a step one CPU, whatever the job has
        "srun_args": ["--open-mode=append", "--nodes=1", "--ntasks=1", f"--cpus-per-task={cpus}", "--input=none"],
        "additional_parameters": {"requeue" if settings.requeue else "no-requeue": True, **more},
    }


def setup(settings: SlurmSettings, root: str, token: Path, pickle: Path, folder: Path, environment: Mapping[str, str]) -> list[str]:
    """The script's lines before the worker: is this the root that the sweep was submitted from, is there Python, what is to be done."""
    python = interpreter(settings)
    variables = dict.fromkeys(THREAD_VARIABLES, "1") | dict(environment)
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    lines += [
        'node="${SLURMD_NODENAME:-$(hostname)}"',
        _unless(
            f'[ "$(cat {shlex.quote(str(token))} 2>/dev/null)" = {token.read_text().strip() if token.exists() else "TOKEN"} ]',
            f"root={root}: is not on node ",
            ", or is another folder there. The root must be a folder that all nodes share.",
            NO_ROOT_CODE,
        ),
    ]
    if not settings.container_words:
        lines.append(
            _unless(
                f"command -v {python} >/dev/null",
                f"launcher.python={python}: is not on node ",
                ". Name an interpreter that all nodes have, with accum_sweeps installed.",
                NO_PYTHON_CODE,
            )
        )
    job = f'{shlex.quote(str(folder))}/"${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}"'
    # One file for all tasks: submitit wants one each. A job killed while it wrote its result leaves a part that submitit stumbles over.
    lines += [f"ln -sf {shlex.quote(str(pickle))} {job}_submitted.pkl", f"rm -f {job}_0_result.pkl.save_tmp"]
    return [*lines, *settings.setup]


def _unless(test: str, before: str, after: str, code: int) -> str:
    return f'{test} || {{ echo {shlex.quote(before)}"$node"{shlex.quote(after)}; exit {code}; }}'


def teardown(settings: SlurmSettings) -> list[str]:
    """The script's lines after the worker: back into the queue if it left runs, and the worker's exit code."""
    again = f'if [ "$code" = {REQUEUE_CODE} ]; then scontrol requeue "$SLURM_JOB_ID" && sleep 60; fi'
    return ["code=$?", *([again] if settings.requeue else []), 'exit "$code"']


def interpreter(settings: SlurmSettings) -> str:
    """The quoted interpreter on the nodes."""
    return shlex.quote(settings.python or sys.executable)


def command(settings: SlurmSettings, folder: Path) -> str:
    """What srun starts."""
    words = [*map(shlex.quote, settings.container_words), interpreter(settings), "-u", "-m", "submitit.core._submit"]
    return " ".join([*words, shlex.quote(str(folder))])


def given(parameters: Mapping[str, Any]) -> list[str]:
    """Names of sbatch's options that a script with these parameters sets."""
    own = [key.replace("_", "-") for key, value in parameters.items() if value is not None]
    return [*own, *parameters["additional_parameters"]]
