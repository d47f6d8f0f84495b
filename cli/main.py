"""Entry of the `mooncake-store` command, light: `--version` must answer at once."""

from __future__ import annotations

import sys

from mooncake_store import __version__

__all__ = ["main"]


def main() -> None:
    """Run the command that the arguments name, and exit with its code."""
    arguments = sys.argv[1:]
    if arguments in (["--version"], ["-V"]):
        print(f"mooncake-store {__version__}")
        return
    from mooncake_store.cli.app import run

    sys.exit(run(arguments))


if __name__ == "__main__":
    main()
