"""What holds for every Python test: bounded time, counted skips, properties that repeat."""

from __future__ import annotations

import os
import signal
from collections import Counter

import hypothesis
import pytest

from tests.engines.environments import CANNOT_BE_HAD

# In CI everything that tests need is installed, so a skip there is a hole: it fails the run.  The
# exception are engines that have no wheel for this Python or machine; they are counted below.
NO_SKIP = os.environ.get("MOONCAKE_STORE_NO_SKIP") == "1"

# A shell that starts something in the background lets it ignore interrupts, and its children too:
# those that tests interrupt are to hear them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.settings.register_profile("default", deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    is_hole = report.skipped and not hasattr(report, "wasxfail")
    if NO_SKIP and is_hole and CANNOT_BE_HAD not in str(report.longrepr):
        report.outcome = "failed"
        report.longrepr = f"skipped, which MOONCAKE_STORE_NO_SKIP forbids: {report.longrepr}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name what was left out, and why, with counts."""
    reasons: Counter[str] = Counter()
    for report in terminalreporter.getreports("skipped"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        reasons[str(reason).removeprefix("Skipped: ")] += 1
    if reasons:
        terminalreporter.section(f"skipped: {reasons.total()}")
        for reason, count in sorted(reasons.items()):
            terminalreporter.line(f"{count:4} {reason}")
