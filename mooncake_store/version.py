"""The version of this package, apart from everything that imports something.

(The rooms take it from here: the package itself names the SDK, which they may not reach.)
"""

import re

__version__ = "0.1.0"


def version_number() -> int:
    """Return the version as the number that a master tells: 1_002_003 for 1.2.3."""
    # What follows the three numbers ("rc1") is not told.
    major, minor, patch = (int(part) for part in re.findall(r"\d+", __version__)[:3])
    return major * 1_000_000 + minor * 1_000 + patch


def version_text(number: int) -> str:
    """Return `1.2.3` for 1_002_003."""
    return f"{number // 1_000_000}.{number // 1_000 % 1_000}.{number % 1_000}"
