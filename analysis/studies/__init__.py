"""Studies: for each value of ``analysis.page`` a function that writes the page from the sweep's tables, as Markdown."""

from collections.abc import Callable

import pandas as pd

from accum_sweeps.analysis.pair_tables import PairTables
from accum_sweeps.analysis.studies import gradcache, open_lm

PAGES: dict[str, Callable[[pd.DataFrame, PairTables], str]] = {"gradcache": gradcache.page, "open_lm": open_lm.page}
