"""What a process of these tests has that imports `mooncake`, and nothing installed."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMPAT = ROOT / "compat"
PYTHONPATH = f"{ROOT}:{COMPAT}"
ENVIRONMENT = {**os.environ, "PYTHONPATH": PYTHONPATH}
