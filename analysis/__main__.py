"""The command ``python -m accum_sweeps.analysis``: any table of runs, judged."""

import sys

from accum_sweeps.analysis.command import main

if __name__ == "__main__":
    sys.exit(main())
