"""What a check of doctor says."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FAIL", "OK", "WARN", "Check"]

OK, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    Attributes:
        verdict: ok, warn (it works, but not as well as it could) or fail.
        why: What was found, and what it matters for.
        fix: A command or a setting; empty when nothing is to be done.
    """

    name: str
    verdict: str
    why: str
    fix: str = ""
