"""These tests need the guest's NICs: elsewhere they are not collected (docs/rdma.md)."""

from __future__ import annotations

import os

collect_ignore_glob = [] if "RDMA_GUEST_NICS" in os.environ else ["test_*.py"]
