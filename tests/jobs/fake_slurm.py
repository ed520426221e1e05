"""SLURM's programs as short scripts in a folder of their own: they keep what they were asked, and answer what the test says."""

import json
from pathlib import Path
from typing import Any

import pytest

CONFIG = "Configuration data as of now\nMaxArraySize            = {longest}\nAccountingStorageType   = accounting_storage/none\n"
NODE = "NodeName=n{number} CPUTot=4 AvailableFeatures=a100,ib RealMemory=8000 Gres={gres} State=IDLE Partitions=main,high"
PARTITIONS = (
    "PartitionName=main Default=YES MaxTime=UNLIMITED State=UP",
    "PartitionName=high Default=NO MaxTime=1-02:00:00 State=UP",
    "PartitionName=old Default=NO MaxTime=UNLIMITED State=DRAIN",
)
PROGRAM = """#!/usr/bin/python3
import json, os, sys
from pathlib import Path
folder = Path(__file__).parent
name = Path(__file__).name
with (folder / "calls.jsonl").open("a") as file:
    environment = {key: value for key, value in os.environ.items() if key.startswith(("SLURM", "SBATCH", "OMP"))}
    file.write(json.dumps({"program": name, "arguments": sys.argv[1:], "environment": environment}) + "\\n")
answers = json.loads((folder / "answers.json").read_text())
if name == "sbatch":
    number = len(list(folder.glob("script.*"))) + 1
    if number > answers["most"]:
        sys.exit("sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified")
    (folder / f"script.{number}").write_text(Path(sys.argv[-1]).read_text())
    print(100 + number)
elif name == "scontrol":
    print(answers[sys.argv[-1]])
elif name == "squeue":
    if answers["squeue"] is None:
        sys.exit("squeue: error: slurm_load_jobs: Unable to contact slurm controller")
    print("\\n".join(answers["squeue"]))
"""


class FakeSlurm:
    """The programs in ``folder``, which has to be on the PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name in ("sbatch", "scontrol", "squeue", "scancel"):
            (folder / name).write_text(PROGRAM)
            (folder / name).chmod(0o755)
        self.answers: dict[str, Any] = {"squeue": [], "most": 1000}
        self.set_cluster()

    def set_cluster(self, longest: int = 1001, gres: str = "(null)") -> None:
        """Two nodes in two partitions, and a third partition that is drained."""
        nodes = "\n".join(NODE.format(number=number, gres=gres) for number in (1, 2))
        self.set(config=CONFIG.format(longest=longest), partition="\n".join(PARTITIONS), node=nodes)

    def set(self, **answers: Any) -> None:
        """What the programs answer from now on."""
        self.answers |= answers
        (self.folder / "answers.json").write_text(json.dumps(self.answers))

    def calls(self, program: str) -> list[dict[str, Any]]:
        """Calls of one program, in order."""
        path = self.folder / "calls.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [call for line in lines if (call := json.loads(line))["program"] == program]

    def scripts(self) -> list[str]:
        """The sbatch scripts that were handed over."""
        return [(self.folder / f"script.{number}").read_text() for number in range(1, len(list(self.folder.glob("script.*"))) + 1)]

    def options(self) -> list[dict[str, str]]:
        """The options of each script."""
        lines = [[line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH")] for text in self.scripts()]
        return [dict(line.partition("=")[::2] for line in option) for option in lines]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    fake = FakeSlurm(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{fake.folder}:/usr/bin:/bin")
    return fake
