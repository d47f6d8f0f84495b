"""What `mooncake-store help TOPIC` tells, and the pages that are made from the same words."""

from __future__ import annotations

from collections.abc import Callable

from mooncake_store.cli.exit_codes import MEANINGS
from mooncake_store.errors import ERROR_CODES, ErrorCode

__all__ = ["TOPICS", "text_of_code", "text_of_topic"]


def text_of_code(row: ErrorCode) -> str:
    """Return what is known of one error code."""
    return "\n".join([
        f"{row.code}  {row.exception}",
        f"  means  {row.meaning}",
        f"  retry  {'can help' if row.retryable else 'does not help'}",
        f"  next   {row.hint}",
    ])  # fmt: skip


def _config() -> str:
    from mooncake_store.config import default_path

    return f"""\
Settings come from four places; the first that has one counts:

  flag          mooncake-store server --pool-size 4GiB
  environment   MOONCAKE_STORE_SERVER_POOL_SIZE=4GiB
  file          [server]
                pool_size = "4GiB"
  default

The file is {default_path()},
or --config FILE, or $MOONCAKE_STORE_CONFIG.  Its tables are [master], [server],
[client] and [context.NAME].  A name that nobody knows is an error.

  mooncake-store config example          a file with every setting, commented
  mooncake-store config check FILE       can it be used as it is?
  mooncake-store config show --origin    what is in force here, and from where"""


def _contexts() -> str:
    from mooncake_store.cli.contexts import TARGET_ORDER

    lines = "\n".join(f"  {number}. {text}" for number, text in enumerate(TARGET_ORDER, 1))
    return f"""\
A command that needs a master takes the first of these that is there:

{lines}

A context is a name for a master, in the configuration file:

  [context.lab]
  master = "10.0.0.1:7700"

  mooncake-store status --context lab

`mooncake-store up` keeps the context `local` for as long as it runs.
Addresses: host:port, [ip6]:port, unix:///path; or a cluster, of which whoever leads is found and
followed: etcd://host,host/prefix, local:/folder."""


def _errors() -> str:
    rows = "\n".join(f"  {row.code}  {row.meaning}" for row in ERROR_CODES.values())
    return f"""\
Every error has a code that never changes its meaning; `error.code` in the SDK.

{rows}

10xx the object, 11xx the caller, 12xx a peer, 13xx moving bytes, 14xx room, 15xx a defect.

  mooncake-store help MS-1203            one of them in full
  mooncake-store COMMAND -vv             with a traceback"""


def _exit_codes() -> str:
    rows = "\n".join(f"  {int(code):3}  {meaning}" for code, meaning in MEANINGS.items())
    return f"A command's exit status says how it ended:\n\n{rows}"


def _json() -> str:
    return """\
Every command takes --json: its result is one JSON document on one line of standard
output, or one line each for what streams (ls, cat, status --watch, top).  Errors,
hints and progress go to standard error; with --json an error is a document too.

Names are snake_case with their unit last: _bytes, _seconds, _ratio.  Text is ASCII
with \\u escapes, whatever a key has in it."""


def _sizes() -> str:
    return """\
Sizes: bytes, or KiB MiB GiB TiB (powers of 1024), or KB MB GB TB (powers of 1000).
A bare letter (4G) is refused, because people read it in both ways.
Durations: us ms s m h d, as 500ms, 2s, 5m."""


TOPICS: dict[str, tuple[str, Callable[[], str]]] = {
    "config": ("settings: flags, environment, file, defaults", _config),
    "contexts": ("which master a command talks to", _contexts),
    "errors": ("error codes; help CODE explains one", _errors),
    "exit-codes": ("what the exit status means", _exit_codes),
    "json": ("output for programs", _json),
    "sizes": ("how sizes and durations are written", _sizes),
}
"""Name -> what it is about, and the function that makes its text."""


def text_of_topic(name: str) -> str:
    """Return a topic's text."""
    return TOPICS[name][1]()
