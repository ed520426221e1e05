"""The contrastive subject's model and data, found while a sweep is planned: are they there, do they fit, what is their content?"""

import dataclasses
from importlib.metadata import version
from pathlib import Path

from accum_sweeps.plan.parts import DualEncoder, Pairs
from accum_sweeps.training.data import pairs
from accum_sweeps.training.models.weight_files import content_hash


def identify(model: DualEncoder, data: Pairs, global_batch: int, cwd: Path) -> tuple[DualEncoder, Pairs]:
    """``model`` and ``data`` with the library's version, hashes of weights, images and captions, and absolute paths, seen from ``cwd``.

    Raises UserError where a package is missing, ConfigError for what cannot be read, is too small or does not fit together.
    """
    pairs.require({"transformers": "transformers"}, "subject=clip")
    data = pairs.identify(data, model, global_batch, cwd)
    model = dataclasses.replace(model, library=version("transformers"))
    if model.weights is None:
        return model, data
    path = cwd / Path(model.weights).expanduser()
    return dataclasses.replace(model, weights=str(path), weights_hash=content_hash(path)), data
