"""Whether a cluster can give what is asked for, said before anything is submitted."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from accum_sweeps.jobs.order import Group
from accum_sweeps.jobs.slurm_ask import Cluster
from accum_sweeps.jobs.slurm_chunks import Chunk
from accum_sweeps.jobs.slurm_settings import SlurmSettings
from accum_sweeps.jobs.slurm_text import parameters
from accum_sweeps.plan.errors import ConfigError, UserError, one_of

CLOSED = ("DRAIN", "INACTIVE")
Facts = Mapping[str, str]


def check_root(root: Path) -> None:
    """UserError for a path that SLURM would read in another way."""
    if found := [letter for letter in "%\\" if letter in str(root)]:
        raise UserError(f"root={root}: SLURM reads {found[0]} in the paths of logs in its own way.\n  Give a root without it: root=FOLDER")


def check_cluster(cluster: Cluster, settings: SlurmSettings, groups: Iterable[Group]) -> None:
    """ConfigError for a partition, feature, amount or time that no node of the cluster has."""
    partition, facts = _partition(cluster, settings.partition)
    nodes = [node for node in cluster.nodes.values() if partition in node.get("Partitions", "").split(",")]
    if not nodes:
        return  # nodes that the cluster makes when they are needed
    _check_time(settings, partition, facts)
    _check_constraint(settings, partition, nodes)
    where = f"no node of partition {partition} has so much; the largest has"
    if settings.mem_gb is not None:
        most = max(int(node.get("RealMemory", 0)) for node in nodes)
        if settings.mem_gb * 1024 > most:
            raise ConfigError("launcher.mem_gb", settings.mem_gb, f"{where} {most / 1024:.4g} GB")
    if settings.nodes > len(nodes):
        raise ConfigError("launcher.nodes", settings.nodes, f"partition {partition} has {len(nodes)}")
    for group in groups:
        asked = parameters(settings, group, "", Chunk(1), None)
        _check_amount("launcher.cpus_per_run", asked["cpus_per_task"], max(int(node.get("CPUTot", 0)) for node in nodes), where)
        _check_amount("launcher.gpus_per_run", asked["gpus_per_node"] or 0, max(_gpus(node) for node in nodes), where)


def _partition(cluster: Cluster, wanted: str | None) -> tuple[str, Facts]:
    """The first partition asked for that there is (several may be named), or the cluster's default."""
    if wanted is None:
        default = [name for name, facts in cluster.partitions.items() if facts.get("Default") == "YES"]
        return (default[0], cluster.partitions[default[0]]) if default else ("", {})
    for name in wanted.split(","):
        if name not in cluster.partitions:
            raise ConfigError("launcher.partition", wanted, one_of(name, cluster.partitions))
        state = cluster.partitions[name].get("State", "UP")
        if state in CLOSED:
            raise ConfigError("launcher.partition", wanted, f"takes no jobs now (its state is {state})")
    first = wanted.split(",")[0]
    return first, cluster.partitions[first]


def _check_time(settings: SlurmSettings, partition: str, facts: Facts) -> None:
    most = minutes(facts.get("MaxTime", "UNLIMITED"))
    if settings.time_min is not None and most is not None and settings.time_min > most:
        hint = "A job that reaches its limit goes back into the queue and on from where it was."
        raise ConfigError("launcher.time_min", settings.time_min, f"must be at most {most:g}, the limit of partition {partition}", hint)


def minutes(text: str) -> float | None:
    """A time of SLURM's ([days-]hours:minutes:seconds) in minutes; None for UNLIMITED and what else is no time."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", text)
    if match is None:
        return None
    days, hours, mins, seconds = (int(number or 0) for number in match.groups())
    return 1440 * days + 60 * hours + mins + seconds / 60


def _check_constraint(settings: SlurmSettings, partition: str, nodes: list[Facts]) -> None:
    wanted = settings.constraint
    if wanted is None or not re.fullmatch(r"[\w.-]+", wanted):  # an expression is left to SLURM
        return
    features = {name for node in nodes for name in node.get("AvailableFeatures", "").split(",") if name not in ("", "(null)")}
    if wanted not in features:
        words = one_of(wanted, features) if features else "no node names any feature"
        raise ConfigError("launcher.constraint", wanted, f"{words} (partition {partition})")


def _check_amount(key: str, asked: int, most: int, where: str) -> None:
    if asked > most:
        raise ConfigError(key, asked, f"{where} {most}")


def _gpus(node: Facts) -> int:
    return sum(int(number) for number in re.findall(r"\bgpu(?::[^:,()]+)?:(\d+)", node.get("Gres", "")))
