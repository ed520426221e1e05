"""The short training alone, run after run, its points written to a file: python -m tests.benchmarks.peers.bare_loops FILE RUNS."""

import json
import sys
from pathlib import Path

from tests.benchmarks.peers.busy import train

if __name__ == "__main__":
    for run in range(int(sys.argv[2])):
        with Path(f"{sys.argv[1]}.{run}").open("w") as file:
            for step, loss in train():
                file.write(json.dumps({"step": step, "loss": loss}) + "\n")
