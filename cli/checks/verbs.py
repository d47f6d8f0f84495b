"""Do the RDMA devices open, and how much do they take?  Asked by pyverbs, the extra `rdma`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mooncake_store.cli.checks.check import FAIL, OK, WARN, Check

__all__ = ["VerbsDevice", "open_devices", "verbs_check"]

_INSTALL = "pip install 'mooncake-store[rdma]', or apt-get install python3-pyverbs"
_QUEUE_PAIRS_MIN = 1024  # 4 rails and 4 endpoints for each of 64 clients


@dataclass(frozen=True, slots=True)
class VerbsDevice:
    """One device: its limits when it was opened, else why it was not."""

    name: str
    problem: str = ""
    queue_pairs_max: int = 0
    region_bytes_max: int = 0


def open_devices() -> list[VerbsDevice] | None:
    """Open each device once; None: pyverbs is not installed, or does not load."""
    try:
        from pyverbs import device as verbs  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return None
    found = []
    for listed in verbs.get_device_list():
        name = listed.name.decode()
        try:
            with verbs.Context(name=name) as context:
                limits = context.query_device()
                found.append(VerbsDevice(name, "", limits.max_qp, limits.max_mr_size))
        except Exception as error:  # PyverbsRDMAError, which cannot be named without pyverbs
            found.append(VerbsDevice(name, str(error)))
    return found


def verbs_check(devices: Sequence[VerbsDevice] | None) -> Check:
    """Judge what was found on a machine that has RDMA devices."""
    if devices is None:
        return Check("verbs", OK, f"the devices were not opened: that needs pyverbs ({_INSTALL})")
    broken = [device for device in devices if device.problem]
    if broken or not devices:
        why = "; ".join(f"{device.name}: {device.problem}" for device in broken)
        return Check(
            "verbs", FAIL, f"no device opens: {why or 'libibverbs lists none'}"
            if len(broken) == len(devices) else f"does not open: {why}",
            "install the driver's provider (apt-get install ibverbs-providers), and let this user "
            "open /dev/infiniband/uverbs*",
        )  # fmt: skip
    text = ", ".join(
        f"{device.name}: {device.queue_pairs_max} queue pairs, "
        f"{device.region_bytes_max >> 20} MiB a registration"
        for device in devices
    )
    least = min(device.queue_pairs_max for device in devices)
    if least < _QUEUE_PAIRS_MIN:
        return Check(
            "verbs", WARN, f"{text}: few queue pairs",
            "with many clients the later ones go over TCP: lower "
            "MOONCAKE_STORE_RDMA_ENDPOINTS_PER_PEER",
        )  # fmt: skip
    return Check("verbs", OK, text)
