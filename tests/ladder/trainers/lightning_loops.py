"""The small classification trained by Lightning's Trainer, as its manual says."""

import logging
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

from tests.ladder.trainers.hooks import Equal, Ragged

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Module(LightningModule):
    def __init__(self, setup: Any, model: Any, optimizer: Any, scheduler: Any) -> None:
        super().__init__()
        self.setup_of, self.model, self.pair = setup, model, (optimizer, scheduler)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        total, count = self.setup_of.loss(self.model, batch)
        return total / count

    def configure_optimizers(self) -> Any:
        optimizer, scheduler = self.pair
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


class RaggedByLightning(Ragged):
    """Rows of different lengths."""

    clip: float | None = None

    def train(self, model: Any, optimizer: Any, scheduler: Any, micro_batches: Any, accum: int) -> None:
        trainer = Trainer(
            max_epochs=1,
            accumulate_grad_batches=accum,
            gradient_clip_val=self.clip,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Module(self, model, optimizer, scheduler), DataLoader(micro_batches, batch_size=None))


class EqualByLightning(Equal, RaggedByLightning):
    """Rows of one length, an epoch whose last window may be short."""


class EqualAndFullByLightning(EqualByLightning):
    """The same with epochs that end with a full window."""

    last_window = "full"


class ClippedByLightning(EqualAndFullByLightning):
    clip = 0.01


class RaggedAndFullByLightning(RaggedByLightning):
    last_window = "full"
