"""A real SLURM on this machine: munge, a controller and two nodes on loopback, with accounting if wanted, all in one folder.

Needs root and Debian's packages in PROGRAMS. Nothing of the system's own munge or SLURM is touched: every daemon has its own port, key,
socket and folder, and is stopped by its own process id.
"""

import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PACKAGES = "slurmctld slurmd slurm-client munge slurmdbd mariadb-server"
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged", "slurmdbd", "mariadbd")
NODES = ("n1", "n2")
START_S = 60.0
STOP_S = 20.0


def missing() -> list[str]:
    """The programs that a cluster needs and this machine has not."""
    return [name for name in PROGRAMS if shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None]


class ClusterError(Exception):
    """The cluster does not do what it was asked to; with the end of the daemons' logs."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """``gpus`` are pretended ones of each node; after ``silent_s`` seconds without a sign of life a node counts as down."""

    max_array_size: int = 1001
    accounting: bool = False
    gpus: int = 0
    cpus: int = 2
    memory_mb: int = 8000
    silent_s: int = 10


def free_ports(number: int) -> list[int]:
    """Ports of loopback that nobody uses now."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(number)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def wait_for(is_so: Callable[[], bool], what: str, limit_s: float = START_S, every_s: float = 0.1) -> None:
    """Wait until ``is_so()``; ClusterError after ``limit_s`` seconds."""
    until = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() > until:
            raise ClusterError(f"after {limit_s:g} s: {what}")
        time.sleep(every_s)


class Cluster:
    """Two nodes, partitions main (jobs may be preempted, and are requeued then), high (preempts them) and small (one node, 30 minutes)."""

    def __init__(self, folder: Path, settings: Settings = Settings()) -> None:
        self.folder, self.settings = folder, settings
        self.ports = dict(zip(("controller", *NODES, "database", "dbd"), free_ports(5), strict=True))
        self.conf = folder / "slurm.conf"
        self._database: subprocess.Popen[bytes] | None = None

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> "Cluster":
        """Bring everything up; returns once both nodes are idle."""
        for name in ("state", "log", "munge", *(f"spool/{node}" for node in NODES)):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "munge").chmod(0o711)
        self._write_configuration()
        try:
            self._start_munge()
            if self.settings.accounting:
                self._start_accounting()
            self.start_controller()
            for node in NODES:
                self.start_node(node)
            self.wait_idle()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Cancel all jobs and stop every daemon; nothing of the cluster is left running."""
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            if self._pid("slurmctld"):
                subprocess.run(["scancel", "--user=root"], env=self.environment, capture_output=True, timeout=10, check=False)
                wait_for(lambda: not self.jobs(), "jobs stay", limit_s=10)
        for name in (*(f"slurmd-{node}" for node in NODES), "slurmctld", "slurmdbd", "mariadbd", "munged"):
            with contextlib.suppress(ClusterError):
                self._stop(name)
        if self._database is not None:
            self._database.wait(STOP_S)
        self._end_left_over_steps()

    def _end_left_over_steps(self) -> None:
        """Steps of jobs outlive a killed slurmd; they are told by the configuration that they were started with."""
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes()
                if b"slurmstepd" in command and f"SLURM_CONF={self.conf}".encode() in (entry / "environ").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)

    # --- what a user does ---------------------------------------------------------------------------------------------

    @property
    def environment(self) -> dict[str, str]:
        """For commands on a login node of this cluster."""
        own = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "SBATCH_"))}
        return own | {"SLURM_CONF": str(self.conf), "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin"}

    def run(self, *command: str, check: bool = True, limit_s: float = 60.0) -> str:
        """What a command on the login node prints. Raises ClusterError where it fails and ``check`` is asked for."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=limit_s, check=False)
        if check and done.returncode:
            raise ClusterError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def jobs(self) -> dict[str, str]:
        """The state of each job and array task in the queue, by id."""
        lines = self.run("squeue", "--noheader", "--array", "--format=%i %T").splitlines()
        return dict(line.split() for line in lines if line.strip())

    def job(self, job_id: str) -> dict[str, str]:
        """What the controller knows of a job, those included that have ended within the last minutes."""
        words = self.run("scontrol", "--oneliner", "show", "job", job_id).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def nodes(self) -> dict[str, str]:
        """The state of each node, in lower case; * = it does not answer."""
        return dict(line.split() for line in self.run("sinfo", "--noheader", "--Node", "--format=%N %T").splitlines())

    # --- what breaks --------------------------------------------------------------------------------------------------

    def start_controller(self, *, clean: bool = True) -> None:
        """Start the controller; with ``clean`` it forgets what was, without it the queue is kept."""
        self._daemon("slurmctld", ["slurmctld", *(["-c"] if clean else [])])

    def kill_controller(self) -> None:
        """The controller dies without a word."""
        self._kill("slurmctld")

    def stop_controller(self) -> None:
        """The controller is away for a while; it has saved the queue."""
        self._stop("slurmctld")

    def restart_controller(self) -> None:
        """Stop and start the controller; the queue is kept."""
        self.stop_controller()
        self.start_controller(clean=False)

    def start_node(self, node: str) -> None:
        """Start a node's daemon."""
        self._daemon(f"slurmd-{node}", ["slurmd", "-N", node, "-c"])

    def kill_node(self, node: str) -> None:
        """The node loses power: its daemon and all jobs on it die without a word."""
        self._kill(f"slurmd-{node}")
        for pid in self._of_node(node):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _of_node(self, node: str) -> list[int]:
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                environment = (entry / "environ").read_bytes()
                is_ours = f"SLURM_CONF={self.conf}".encode() in environment
                if is_ours and (
                    f"SLURMD_NODENAME={node}".encode() in environment or f"[{node}".encode() in (entry / "cmdline").read_bytes()
                ):
                    found.append(int(entry.name))
        return found

    def set_down(self, node: str) -> None:
        """An administrator takes the node away, its jobs with it."""
        self.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")

    def set_up(self, node: str) -> None:
        """And gives it back, if its daemon has not come back to the controller by itself, which SLURM then takes for a mistake."""
        self.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)
        wait_for(lambda: not self.nodes()[node].startswith("down"), f"{node} stays down")

    def wait_idle(self) -> None:
        """Until no node has a job and all are there."""
        wait_for(lambda: list(self.nodes().values()) == ["idle"] * len(NODES), f"nodes are not idle\n{self.logs()}")

    # --- daemons ------------------------------------------------------------------------------------------------------

    def logs(self) -> str:
        """The end of every daemon's log."""
        ends = {path.name: path.read_text(errors="replace").splitlines()[-15:] for path in sorted((self.folder / "log").glob("*.log"))}
        return "\n".join(line for name, lines in ends.items() for line in [f"--- {name}", *lines])

    def _daemon(self, name: str, command: Sequence[str]) -> None:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=30, check=False)
        if done.returncode:
            raise ClusterError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}\n{self.logs()}")
        wait_for(lambda: self._pid(name) > 0, f"{name} did not start\n{self.logs()}")

    def _pid(self, name: str) -> int:
        """The id of a living daemon of this cluster, 0 = there is none."""
        with contextlib.suppress(OSError, ValueError):
            pid = int((self.folder / f"{name}.pid").read_text())
            if name.split("-", maxsplit=1)[0] in Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace"):
                return pid
        return 0

    def _stop(self, name: str) -> None:
        pid = self._pid(name)
        if not pid:
            return
        os.kill(pid, signal.SIGTERM)
        try:
            wait_for(lambda: not Path(f"/proc/{pid}").exists() or _is_zombie(pid), f"{name} does not stop", limit_s=STOP_S)
        except ClusterError:
            self._kill(name)

    def _kill(self, name: str) -> None:
        if pid := self._pid(name):
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda: not Path(f"/proc/{pid}").exists() or _is_zombie(pid), f"{name} does not die", limit_s=STOP_S)

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        files = {"socket": self._munge_socket, "key-file": key, "pid-file": self.folder / "munged.pid"}
        files |= {"log-file": self.folder / "log/munged.log", "seed-file": self.folder / "munge.seed"}
        self._daemon("munged", ["munged", "--force", *(f"--{name}={path}" for name, path in files.items())])

    @property
    def _munge_socket(self) -> Path:
        return self.folder / "munge/socket"

    def _start_accounting(self) -> None:
        """MariaDB and slurmdbd, and the cluster and its user in them."""
        data = self.folder / "db"
        install = ["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--auth-root-authentication-method=normal", "--skip-test-db"]
        subprocess.run(install, capture_output=True, check=True, timeout=120)
        sock, log = self.folder / "db.sock", (self.folder / "log/mariadbd.log").open("wb")
        with log:
            server = ["mariadbd", "--no-defaults", "--user=root", f"--datadir={data}", f"--socket={sock}", "--bind-address=127.0.0.1"]
            server += [f"--port={self.ports['database']}", f"--pid-file={self.folder / 'mariadbd.pid'}"]
            self._database = subprocess.Popen(server, stdout=log, stderr=log, start_new_session=True)
        wait_for(sock.exists, f"MariaDB does not start\n{self.logs()}")
        sql = (
            "CREATE DATABASE slurm; CREATE USER slurm@localhost IDENTIFIED BY 'slurm'; CREATE USER slurm@'127.0.0.1' IDENTIFIED BY 'slurm';"
        )
        sql += "GRANT ALL ON slurm.* TO slurm@localhost; GRANT ALL ON slurm.* TO slurm@'127.0.0.1';"
        subprocess.run(["mariadb", "--no-defaults", f"--socket={sock}", "--user=root"], input=sql.encode(), check=True, timeout=30)
        self._daemon("slurmdbd", ["slurmdbd"])
        wait_for(lambda: "Cluster" in self.run("sacctmgr", "--parsable2", "show", "cluster", check=False), f"no accounting\n{self.logs()}")
        for words in ("cluster ci", "account lab cluster=ci", "user root account=lab defaultaccount=lab"):
            self.run("sacctmgr", "--immediate", "add", *words.split())

    # --- files --------------------------------------------------------------------------------------------------------

    def _write_configuration(self) -> None:
        self.conf.write_text("\n".join(self._lines()) + "\n")
        if self.settings.gpus:
            devices = [self.folder / f"gpu{number}" for number in range(self.settings.gpus)]
            for device in devices:
                os.mknod(device, stat.S_IFCHR | 0o600, os.makedev(1, 3))  # another name of /dev/null: a plain file is no device
            lines = [f"NodeName={node} Name=gpu File={device}" for node in NODES for device in devices]
            (self.folder / "gres.conf").write_text("\n".join(lines) + "\n")
        dbd = self.folder / "slurmdbd.conf"
        dbd.write_text("\n".join(self._dbd_lines()) + "\n")
        dbd.chmod(0o600)

    def _lines(self) -> Iterator[str]:
        host, here, settings = socket.gethostname(), self.folder, self.settings
        yield from ("ClusterName=ci", f"SlurmctldHost={host}(127.0.0.1)", "SlurmUser=root", "SlurmdUser=root", "AuthType=auth/munge")
        # A job that is put back into the queue waits until its credential has expired: two minutes if nothing is said.
        yield from (f"AuthInfo=socket={self._munge_socket},cred_expire=5", f"SlurmctldPort={self.ports['controller']}")
        yield from (f"StateSaveLocation={here}/state", f"SlurmdSpoolDir={here}/spool/%n")
        yield from (f"SlurmctldPidFile={here}/slurmctld.pid", f"SlurmdPidFile={here}/slurmd-%n.pid")
        yield from (f"SlurmctldLogFile={here}/log/slurmctld.log", f"SlurmdLogFile={here}/log/slurmd-%n.log")
        yield from ("ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none", "SwitchType=switch/none", "MpiDefault=none")
        yield from ("SelectType=select/cons_tres", "SelectTypeParameters=CR_Core_Memory", "JobAcctGatherType=jobacct_gather/none")
        yield from ("SchedulerType=sched/backfill", "SchedulerParameters=sched_min_interval=0,defer_batch,bf_interval=2")
        yield from ("ReturnToService=2", "KillWait=5", f"SlurmdTimeout={settings.silent_s}", "BatchStartTimeout=30", "InactiveLimit=0")
        yield from ("PreemptType=preempt/partition_prio", "PreemptMode=REQUEUE", f"MaxArraySize={settings.max_array_size}")
        yield from ("MinJobAge=300", f"DefMemPerCPU={settings.memory_mb // settings.cpus // 2}")
        if settings.accounting:
            yield from ("AccountingStorageType=accounting_storage/slurmdbd", "AccountingStorageHost=127.0.0.1")
            yield from (f"AccountingStoragePort={self.ports['dbd']}", "AccountingStorageEnforce=associations")
            yield f"AccountingStoragePass={self._munge_socket}"  # so is munge's socket called there
        else:
            yield "AccountingStorageType=accounting_storage/none"
        gres = f" Gres=gpu:{settings.gpus}" if settings.gpus else ""
        if gres:
            yield "GresTypes=gpu"
        for node in NODES:
            yield (
                f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={self.ports[node]} CPUs={settings.cpus} "
                f"RealMemory={settings.memory_mb}{gres} State=UNKNOWN"
            )
        yield "PartitionName=main Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE"
        yield "PartitionName=high Nodes=n[1-2] MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF"
        yield "PartitionName=small Nodes=n2 MaxTime=30 State=UP PriorityTier=1 PreemptMode=REQUEUE"

    def _dbd_lines(self) -> Iterator[str]:
        here = self.folder
        yield from (f"DbdHost={socket.gethostname()}", "DbdAddr=127.0.0.1", f"DbdPort={self.ports['dbd']}", "SlurmUser=root")
        yield from ("AuthType=auth/munge", f"AuthInfo=socket={self._munge_socket}", f"PidFile={here}/slurmdbd.pid")
        yield from (f"LogFile={here}/log/slurmdbd.log", "StorageType=accounting_storage/mysql", "StorageHost=127.0.0.1")
        yield from (f"StoragePort={self.ports['database']}", "StorageUser=slurm", "StoragePass=slurm", "StorageLoc=slurm")


def _is_zombie(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    return True
