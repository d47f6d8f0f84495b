"""What the import package has elsewhere and not here: an error that says what to use instead."""

from __future__ import annotations

__all__ = ["absent"]


def absent(what: str, instead: str) -> ModuleNotFoundError:
    """Return the error to raise for something that is not built.

    Args:
        what: Its name, as it is imported.
        instead: What there is.
    """
    # Of the name `mooncake`: an import system that is told the module's own takes it for a
    # submodule that may be missing, and hides the reason.
    return ModuleNotFoundError(
        f"mooncake-store-compat has no {what}: {instead} "
        "(docs/migrating-from-mooncake.md, The other modules)",
        name="mooncake",
    )
