"""What the store needs of a machine: each check looks at one thing and says what to do about it.

A check that can be judged from numbers takes them as arguments, so that every verdict can be tested
on a machine where it is fine; `machine_checks` brings the numbers.
"""

from mooncake_store.cli.checks.check import FAIL, OK, WARN, Check
from mooncake_store.cli.checks.machine import machine_checks
from mooncake_store.cli.checks.master import master_check

__all__ = ["FAIL", "OK", "WARN", "Check", "machine_checks", "master_check"]
