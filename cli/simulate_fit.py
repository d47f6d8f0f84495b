"""`mooncake-store sim fit`: the cost model of one's own engine, from what was measured of it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mooncake_store.cli.exit_codes import ExitCode
from mooncake_store.cli.options import output_options
from mooncake_store.cli.output import Output, printable
from mooncake_store.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from mooncake_store.conductor.decode_time import DecodeFit
    from mooncake_store.conductor.prefill_time import PrefillFit

__all__ = ["fit"]

_FORM_ERROR = 0.15  # an engine that is further from the form than this does not have it
_FEW = 6
_HINT = "docs/scheduling.md, `Fit it to your engine`, tells what to measure"


@click.command()
@output_options
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE..."
)
@click.option(
    "--degree",
    type=click.IntRange(1, 2),
    default=2,
    show_default=True,
    help="of a prefill's polynomial; 1: attention does not grow with the square (c2 = 0)",
)
def fit(output: Output, files: tuple[Path, ...], degree: int) -> int:
    """Fit the cost model to measurements of an engine: a [model] table for --cluster.

    Each FILE is CSV; its first line says of what: prompt_tokens,cached_tokens,seconds (a prefill a
    line) or batch,context_tokens,seconds (an iteration of decoding a line, the context of all its
    requests together).

    \b
    mooncake-store sim fit prefill.csv decode.csv > cluster.toml
    mooncake-store sim run --cluster cluster.toml
    """
    from mooncake_store.conductor.decode_time import DecodeSample, fit_decode_time
    from mooncake_store.conductor.prefill_time import PrefillSample, fit_prefill_time
    from mooncake_store.conductor.samples import read_samples

    prefill: list[PrefillSample] = []
    decode: list[DecodeSample] = []
    for file in files:
        for sample in read_samples(file):
            if isinstance(sample, PrefillSample):
                prefill.append(sample)
            else:
                decode.append(sample)
    named = " ".join(str(file) for file in files)
    if not prefill and not decode:
        raise ConfigError(f"{named}: there are no samples, only the names of columns", hint=_HINT)
    try:
        prefill_fit = fit_prefill_time(prefill, degree=degree) if prefill else None
        decode_fit = fit_decode_time(decode) if decode else None
    except RequestError as error:
        raise ConfigError(f"{named}: {error.message}", cause=error, hint=_HINT) from error
    fits = (("prefill", prefill_fit), ("decode", decode_fit))
    parts = [_part(of, found) for of, found in fits if found is not None]
    for part in parts:
        _judge(output, part)
    document = {
        part["of"]: {"samples": part["samples"], "relative_error": part["error"],
                     "coefficients": part["coefficients"]}
        for part in parts
    }  # fmt: skip
    document["model"] = {name: value for part in parts for name, value, _ in part["settings"]}
    output.result(document, _toml(named, parts))
    return ExitCode.OK


_FORMS = {
    "prefill": "c0 + c1 (n - p) + c2 (n^2 - p^2), n tokens of which p cached",
    "decode": "t0 + kb b + kc c, batch b, c tokens of context in all of it",
}
_TERMS = {
    "prefill": (
        ("c0", "base_s", "prefill_base", 1, "seconds a prefill"),
        ("c1", "per_token_s", "prefill_token_us", 1e6, "microseconds a computed token"),
        ("c2", "per_token_pair_s", "prefill_pair_ns", 1e9, "nanoseconds per n^2 - p^2"),
    ),
    "decode": (
        ("t0", "base_s", "decode_base", 1, "seconds an iteration"),
        ("kb", "per_request_s", "decode_request_us", 1e6, "microseconds a request"),
        ("kc", "per_context_token_s", "decode_token_ns", 1e9, "nanoseconds a token of context"),
    ),
}
"""Of each coefficient: name, field of the model, setting, its units in a second, meaning."""


def _part(of: str, fitted: PrefillFit | DecodeFit) -> dict[str, Any]:
    """Return what was fitted as the settings that it is of `[model]`, with what each stands for."""
    terms = [
        (name, getattr(fitted.model, field), setting, per_second, meaning)
        for name, field, setting, per_second, meaning in _TERMS[of]
    ]
    return {
        "of": of,
        "form": _FORMS[of],
        "samples": fitted.num_samples,
        "error": asdict(fitted.error),
        "coefficients": {f"{name}_seconds": value for name, value, *_ in terms},
        "settings": _settings(
            [
                (setting, value * per_second, f"{name}: {meaning}")
                for name, value, setting, per_second, meaning in terms
            ]
        ),
    }


def _settings(values: list[tuple[str, float, str]]) -> list[tuple[str, str | float, str]]:
    """Return the values as a cluster file has them.

    Raises:
        ConfigError: A cluster file does not take one.
    """
    from mooncake_store.conductor.sim_config import ModelConfig
    from mooncake_store.config import settings_of

    known = {item.name: item for item in settings_of(ModelConfig, "model")}
    found: list[tuple[str, str | float, str]] = []
    for name, value, meaning in values:
        item = known[name]
        written = item.format(value) if item.unit else float(f"{value:.6g}")
        item.parse(written)
        found.append((name, written, meaning))
    return found


def _judge(output: Output, part: dict[str, Any]) -> None:
    """Say where the fit is not to be believed."""
    if part["samples"] < _FEW:
        output.note(
            f"{part['of']}: {part['samples']} samples are few: the error says little, measure more"
        )
    if part["error"]["max"] > _FORM_ERROR:
        output.note(
            f"{part['of']}: off by up to {part['error']['max']:.0%}: the engine's time does not "
            "have this form (batching, preemption, a busy node), or a sample is wrong"
        )


def _toml(named: str, parts: list[dict[str, Any]]) -> str:
    lines = [f"# Made by `mooncake-store sim fit {printable(named)}`.", "", "[model]"]
    for part in parts:
        error = part["error"]
        lines += [
            "",
            f"# {part['of']}: {part['form']}",
            f"# {part['samples']} samples; relative error: median {error['median']:.2%}, "
            f"max {error['max']:.2%}",
        ]
        for name, value, meaning in part["settings"]:
            shown = f'"{value}"' if isinstance(value, str) else repr(value)
            lines.append(f"{f'{name} = {shown}':<32} # {meaning}")
    return "\n".join(lines)
