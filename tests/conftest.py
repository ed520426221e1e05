"""What holds for every test: one thread, no network chatter, and no silent skips in continuous integration."""

import os
from collections.abc import Generator
from typing import Any

import pytest

# Before torch or mlflow is imported by any test: results do not depend on the number of cores, and nothing is sent anywhere.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["DO_NOT_TRACK"] = "true"
for name in ("MLFLOW_TRACKING_URI", "ACCUM_SWEEPS_ROOT"):
    os.environ.pop(name, None)

# Whose fixtures take long: with several workers (--dist loadgroup) each of these files is run by one of them. The mark xdist_group, which
# would say so in the file itself, reaches xdist 3.8 no more since pytest 9.2.
WHOLE_FILES = ("house/test_wheel.py", "product/test_report_page.py", "product/test_sweep.py")

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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """A scheduler that keeps WHOLE_FILES together; xdist's own one for any other way of sharing the tests out."""
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling  # type: ignore[import-untyped]  # ships no types

    class WholeFiles(LoadGroupScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return file if file.endswith(WHOLE_FILES) else str(super()._split_scope(nodeid))

    return WholeFiles(config, log)


def _has_cuda() -> bool:
    import torch  # here, so that only GPU tests pay for it

    return torch.cuda.is_available()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None and not _has_cuda():
        pytest.skip("no CUDA device")
