"""Tenants as name spaces: the keys of one begin with its name, those of `default` with nothing.

No right is checked: who reaches the master may name any tenant.
"""

from __future__ import annotations

__all__ = ["DEFAULT_TENANT", "OF_DEFAULT", "SEPARATOR", "key_prefix"]

DEFAULT_TENANT = "default"
SEPARATOR = "\x1f"  # no key of an engine begins with it, and no name has it
OF_DEFAULT = f"^[^{SEPARATOR}]"  # an expression for what is no other tenant's
_BYTES_MAX = 128


def key_prefix(tenant: str) -> str:
    """Return what the keys of a tenant begin with in the store.

    Raises:
        ValueError: That can be no name.
    """
    if tenant == DEFAULT_TENANT:
        return ""
    if not 0 < len(tenant.encode()) <= _BYTES_MAX or SEPARATOR in tenant:
        raise ValueError(
            f"tenant_id: 1 to {_BYTES_MAX} bytes without the unit separator, not {tenant!r}"
        )
    return f"{SEPARATOR}{tenant}{SEPARATOR}"
