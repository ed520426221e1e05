"""What holds for every test: one thread, no network chatter, and no silent skips in continuous integration."""

import os
import shutil
from collections.abc import Generator

import pytest

# Before torch or mlflow is imported by any test: results do not depend on the number of cores, and nothing is sent anywhere.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["DO_NOT_TRACK"] = "true"
for name in ("MLFLOW_TRACKING_URI", "ACCUM_SWEEPS_ROOT"):
    os.environ.pop(name, None)

SKIPPED_IN_CI = "skipped with CI=true; only a test marked gpu may be skipped there"


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    report.outcome = "failed"
    report.longrepr = f"{SKIPPED_IN_CI}: {report.longrepr}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    expected = hasattr(report, "wasxfail") or item.get_closest_marker("gpu") is not None
    if os.environ.get("CI") == "true" and report.skipped and not expected:
        _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if os.environ.get("CI") == "true" and report.skipped:
        _refuse_skip(report)
    return report


def _has_cuda() -> bool:
    import torch  # here, so that only GPU tests pay for it

    return torch.cuda.is_available()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None and not _has_cuda():
        pytest.skip("no CUDA device")
    if item.get_closest_marker("slurm") is not None and shutil.which("sbatch") is None:
        pytest.skip("no SLURM: sbatch is not on the PATH")
