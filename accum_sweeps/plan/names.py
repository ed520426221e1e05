"""What configuration, records and jobs have to agree on: the names that a sweep
can have, the studies, the rules of reuse.
"""

import re

from accum_sweeps.plan.errors import ConfigError

PAGES = ("open_lm", "gradcache")  # studies that a page can be written for
REUSE = ("strict", "warn", "any")  # whether runs that were done in another environment are done again or taken
LONGEST_NAME = 80
_SWEEP = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST_NAME - 1}}}")


def check_sweep_name(name: str) -> str:
    """``name`` if it can be a sweep's, which is a folder's; ConfigError otherwise."""
    if not _SWEEP.fullmatch(name):
        allowed = f"must be a folder name: 1 to {LONGEST_NAME} letters, digits, '.', '_' or '-', the first a letter or digit"
        raise ConfigError("sweep", name, allowed)
    return name
