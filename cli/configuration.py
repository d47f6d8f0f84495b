"""`mooncake-store config`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from mooncake_store.cli.cluster_settings import command as cluster
from mooncake_store.cli.config_files import findings_of
from mooncake_store.cli.contexts import TABLES, read_document
from mooncake_store.cli.exit_codes import ExitCode
from mooncake_store.cli.options import output_options
from mooncake_store.cli.output import Output, printable
from mooncake_store.config import example, load, read_file, without_password


def components() -> dict[str, type[Any]]:
    """The configuration dataclass of each component, by its table's name."""
    from mooncake_store.client.config import ClientConfig
    from mooncake_store.conductor.service.config import ConductorConfig
    from mooncake_store.master.config import MasterConfig
    from mooncake_store.store.config import StoreServerConfig

    return {
        "master": MasterConfig,
        "server": StoreServerConfig,
        "client": ClientConfig,
        "conductor": ConductorConfig,
    }


@click.group("config")
def command() -> None:
    """Show, check and explain settings."""


@command.command("show")
@click.argument("names", nargs=-1, metavar="[COMPONENT]...")
@click.option("--origin", is_flag=True, help="say where each value comes from")
@click.option("--config", metavar="FILE", help="configuration file")
@output_options
def show(output: Output, names: tuple[str, ...], origin: bool, config: str | None) -> int:
    """Print the settings as they are in force here.

    \b
    mooncake-store config show server --origin
    """
    known = components()
    unknown = [name for name in names if name not in known]
    if unknown:
        raise click.UsageError(f"no component {unknown[0]!r}: use {', '.join(known)}")
    document, path = read_document(config)
    shown: dict[str, Any] = {}
    rows = []
    for component in names or known:
        loaded = load(known[component], component, document=document, path=path)
        shown[component] = {}
        for item in loaded.settings:
            value = getattr(loaded.values, item.field)
            where = loaded.origins[item.field]
            text = without_password(item.format(value))
            shown[component][item.name] = {"value": text, "origin": where}
            row = [f"{component}.{item.name}", text or '""']
            rows.append([*row, where] if origin else row)
    if output.is_json:
        output.document(shown)
    else:
        output.table(rows, ["SETTING", "VALUE", "ORIGIN"] if origin else ["SETTING", "VALUE"])
    return ExitCode.OK


@command.command("check")
@click.argument("file")
@output_options
def check(output: Output, file: str) -> int:
    """Say whether FILE can be used as it is: on this host, by this user.

    The files and folders that it names are looked at too: certificates, keys, passwords of etcd,
    folders of masters and store servers. Exit code 2: one of them cannot be used.

    \b
    mooncake-store config check ~/.config/mooncake-store/config.toml
    """
    document = read_file(file, TABLES)
    loaded: dict[str, Any] = {}
    for component, config_class in components().items():
        values = load(config_class, component, document=document, path=file, environment={}).values
        if hasattr(values, "check"):
            values.check()
        loaded[component] = values
    findings = findings_of(loaded, document.get("context", {}))
    if output.is_json:
        told = [asdict(finding) for finding in findings]
        output.document({"file": file, "ok": not findings, "findings": told})
    for finding in findings:
        if not output.is_json:
            print(f"{finding.setting}: {printable(finding.path)}: {finding.problem}")
        output.note(f"hint: {finding.fix}")
    if findings:
        return ExitCode.USAGE
    output.note(f"{file} is fine")
    return ExitCode.OK


@command.command("example")
@output_options
def print_example(output: Output) -> int:
    """Print a commented TOML file with every setting at its default.

    \b
    mooncake-store config example > ~/.config/mooncake-store/config.toml
    """
    text = example(components())
    output.result({"toml": text}, text.rstrip("\n"))
    return ExitCode.OK


command.add_command(cluster)
