"""`mooncake-store config cluster`."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import click

from mooncake_store.cli.contexts import read_document
from mooncake_store.cli.exit_codes import ExitCode
from mooncake_store.cli.options import output_options
from mooncake_store.cli.output import Output
from mooncake_store.config import Setting, load, without_password
from mooncake_store.errors import ConfigError

if TYPE_CHECKING:
    from mooncake_store.coordination import Coordinator

_TIMEOUT_S = 10.0


@click.group("cluster")
def command() -> None:
    """Settings that hold for all masters of a cluster: they beat each master's own.

    They are kept at the coordinator. A master that leads takes a change up at once where it can,
    and its log says so; for the others it says that they wait for the next start of a leader.
    """


def _coordinator_options(function: Callable[..., Any]) -> Callable[..., Any]:
    @click.option(
        "--coordinator", metavar="URI", help="as of `master`: etcd://HOST,HOST/PREFIX, local:FOLDER"
    )
    @click.option("--port", type=int, help="of the master, with the coordinator `local`")
    @click.option("--config", metavar="FILE", type=click.Path(), help="configuration file")
    @output_options
    @functools.wraps(function)
    def wrapped(
        output: Output, *args: Any, coordinator: str | None, port: int | None, config: str | None,
        **kwargs: Any,
    ) -> int:  # fmt: skip
        from mooncake_store.master.config import MasterConfig

        document, path = read_document(config)
        flags = {"coordinator": coordinator, "port": port}
        found = load(MasterConfig, "master", flags=flags, document=document, path=path).values
        output.target = _place_name(found.coordinator, found.port)
        return int(function(output, (found.coordinator, found.port), *args, **kwargs))

    return wrapped


def _place_name(uri: str, port: int) -> str:
    """Return the coordinator's name for answers: a setting kept at another one counts nowhere."""
    return f"local, port {port}" if uri == "local" else without_password(uri)


def _ask(
    place: tuple[str, int], question: Callable[[Coordinator], Coroutine[Any, Any, Any]]
) -> Any:
    from mooncake_store.coordination import open_coordinator
    from mooncake_store.errors import UnavailableError

    uri, port = place
    if uri == "local" and port == 0:
        raise ConfigError("a master on any port keeps no settings: say --coordinator or --port")

    async def ask() -> Any:
        coordinator = open_coordinator(uri, port=port)
        try:
            return await asyncio.wait_for(question(coordinator), _TIMEOUT_S)
        except asyncio.TimeoutError as error:
            raise UnavailableError(
                f"{coordinator.name} did not answer for {_TIMEOUT_S:g} s", cause=error
            ) from error
        finally:
            await coordinator.close()

    return asyncio.run(ask())


def _setting(name: str) -> Setting:
    from mooncake_store.master.cluster import cluster_settings

    known = cluster_settings()
    if name not in known:
        raise click.UsageError(f"{name!r} is no setting of all masters: {', '.join(known)}")
    return known[name]


@command.command("show")
@_coordinator_options
def show(output: Output, place: tuple[str, int]) -> int:
    """Print the settings that can be the same for all masters, and those that are.

    \b
    mooncake-store config cluster show --coordinator etcd://10.0.0.7/prod
    """
    from mooncake_store.master.cluster import CLUSTER_FIELDS, cluster_settings

    told = _ask(place, lambda coordinator: coordinator.cluster_settings())
    known = cluster_settings()
    shown = {name: told.get(name) for name in known}
    shown |= {name: text for name, text in told.items() if name not in known}
    if output.is_json:
        output.document({"settings": shown})
        return ExitCode.OK
    rows = []
    for name, text in shown.items():
        takes_up = name in known and CLUSTER_FIELDS[known[name].field]
        means = "at once" if takes_up else "with the next leader" if name in known else "unknown"
        rows.append([name, text or "(each master's own)", means])
    output.table(rows, ["SETTING", "VALUE", "A CHANGE COUNTS"])
    output.note(f"kept at {output.target}")
    return ExitCode.OK


@command.command("set")
@click.argument("name")
@click.argument("value")
@_coordinator_options
def change(output: Output, place: tuple[str, int], name: str, value: str) -> int:
    """Let NAME be VALUE for all masters.

    \b
    mooncake-store config cluster set member_grace 30s --coordinator etcd://10.0.0.7/prod
    """
    from mooncake_store.master.cluster import CLUSTER_FIELDS, apply
    from mooncake_store.master.config import MasterConfig

    item = _setting(name)
    text = item.format(item.parse(value))

    async def ask(coordinator: Coordinator) -> None:
        told = {**await coordinator.cluster_settings(), name: text}
        # As a master with defaults would see them: two that contradict each other are refused here.
        found = apply(MasterConfig(), told)
        if name in found.ignored:
            raise ConfigError(found.ignored[name])
        await coordinator.set_cluster_setting(name, text)

    _ask(place, ask)
    output.result({"setting": name, "value": text}, "")
    when = "at once" if CLUSTER_FIELDS[item.field] else "with the next start of a leader"
    output.note(f"{name} is {text} for all masters, {when}; kept at {output.target}")
    return ExitCode.OK


@command.command("unset")
@click.argument("name")
@_coordinator_options
def unset(output: Output, place: tuple[str, int], name: str) -> int:
    """Let each master go by its own NAME again.

    \b
    mooncake-store config cluster unset member_grace --coordinator etcd://10.0.0.7/prod
    """

    async def ask(coordinator: Coordinator) -> None:
        if name not in await coordinator.cluster_settings():
            _setting(name)  # what a newer version left there can go, what nobody knows is a mistake
        await coordinator.set_cluster_setting(name, None)

    _ask(place, ask)
    output.result({"setting": name, "value": None}, "")
    output.note(f"each master of {output.target} goes by its own {name}")
    return ExitCode.OK
