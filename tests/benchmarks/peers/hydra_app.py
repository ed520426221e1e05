"""The short training as a Hydra app that reports to MLflow, as users of Hydra write it."""

import hydra
import mlflow
from omegaconf import DictConfig

from tests.benchmarks.peers.busy import train


@hydra.main(version_base="1.3", config_path=None)
def main(config: DictConfig) -> None:
    """One run."""
    mlflow.set_experiment(config.experiment)
    with mlflow.start_run():
        mlflow.log_params({"seed": config.seed, "accum": config.accum})
        for step, loss in train():
            mlflow.log_metric("loss", loss, step=step)


if __name__ == "__main__":
    main()
