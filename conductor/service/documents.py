"""The JSON that the API takes and gives; every mistake in it is told with its place."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mooncake_store.conductor.service.block_names import BlockNames, Blocks
from mooncake_store.conductor.service.decision import Decision, Refusal, Request
from mooncake_store.conductor.service.instances import Instance, LoadReport, Role
from mooncake_store.conductor.service.transfer_fit import Fetched
from mooncake_store.errors import RequestError, StoreError

__all__ = [
    "Registration",
    "Report",
    "decision_document",
    "error_document",
    "instance_document",
    "parse",
    "read_heartbeat",
    "read_registration",
    "read_report",
    "read_request",
    "refusal_document",
    "shown",
]

_MISSING = object()
_NUMBER_MAX = 1e18  # no number of ours is larger; a double knows no whole one of 400 digits
_SHOWN_MAX = 80  # of what somebody sent, in a message
REQUEST_ID_BYTES_MAX = 256


def parse(body: bytes) -> dict[str, Any]:
    """Return a JSON object.

    Raises:
        RequestError: It is none.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is no JSON: {error}", cause=error) from error
    if not isinstance(document, dict):
        raise RequestError(f"the body is a JSON object, not {shown(document)}")
    return document


def _number(
    document: Mapping[str, Any], name: str, default: Any = _MISSING, *, whole: bool = False
) -> Any:
    value = document.get(name, default)
    if value is _MISSING:
        raise RequestError(f"{name} is missing")
    if value is default or value is None:
        return value
    kinds = (int,) if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not abs(value) < _NUMBER_MAX:
        raise RequestError(f"{name} is a {'whole ' if whole else ''}number, not {shown(value)}")
    return value


def _shown(value: object) -> str:
    return repr(value)[:_SHOWN_MAX]


def shown(value: object) -> str:
    """Return what somebody sent, for a message: not all of it."""
    return repr(value)[:_SHOWN_MAX]


def _text(document: Mapping[str, Any], name: str, default: Any = _MISSING) -> Any:
    value = document.get(name, default)
    if value is _MISSING:
        raise RequestError(f"{name} is missing")
    if not isinstance(value, str):
        raise RequestError(f"{name} is a text, not {shown(value)}")
    return value


def _known(document: Mapping[str, Any], names: frozenset[str]) -> None:
    unknown = sorted(set(document) - names)
    if unknown:
        raise RequestError(f"there is no field {shown(unknown[0])}: {', '.join(sorted(names))}")


_REQUEST = frozenset(
    {
        "request_id",
        "token_ids",
        "block_keys",
        "num_tokens",
        "expected_output_tokens",
        "slo",
        "track",
    }
)


def read_request(
    document: Mapping[str, Any], names: BlockNames, request_id: str
) -> tuple[Request, bool]:
    """Return a request to be scheduled, and whether its progress will be reported.

    Args:
        document: `token_ids`, or `num_tokens` with `block_keys` (none: nothing is known of it).
        names: How blocks are called.
        request_id: Its name if it has none.

    Raises:
        RequestError: Something is missing, or makes no sense.
    """
    _known(document, _REQUEST)
    token_ids, keys = document.get("token_ids"), document.get("block_keys")
    if token_ids is not None:
        if keys is not None:
            raise RequestError("token_ids or block_keys, not both")
        if not isinstance(token_ids, list) or not token_ids:
            raise RequestError(
                f"token_ids is a list of at least one number, not {shown(token_ids)}"
            )
        blocks, num_tokens = names.of_tokens(token_ids), len(token_ids)
        if _number(document, "num_tokens", num_tokens, whole=True) != num_tokens:
            raise RequestError(f"num_tokens is not the number of token_ids, {num_tokens}")
    else:
        if keys is not None and not isinstance(keys, list):
            raise RequestError(f"block_keys is a list, not {shown(keys)}")
        blocks = names.of_keys(keys) if keys else Blocks((), b"")
        if "num_tokens" not in document:
            raise RequestError("num_tokens is missing (with block_keys, if known), or token_ids")
        num_tokens = _number(document, "num_tokens", whole=True)
        if num_tokens is None or num_tokens < 1:
            raise RequestError(f"num_tokens is at least 1, not {shown(num_tokens)}")
    slo = document.get("slo") or {}
    if not isinstance(slo, dict):
        raise RequestError(f"slo is an object with ttft_s and tbt_s, not {shown(slo)}")
    _known(slo, frozenset({"ttft_s", "tbt_s"}))
    for name in ("ttft_s", "tbt_s"):
        wanted = _number(slo, name, None)
        if wanted is not None and wanted <= 0:
            raise RequestError(f"{name} of slo is above 0, not {wanted}")
    output = _number(document, "expected_output_tokens", None)
    if output is not None and not 0 < output < 1e9:
        raise RequestError(f"expected_output_tokens is above 0 and below 1e9, not {output}")
    name = _text(document, "request_id", request_id)
    if not 0 < len(name.encode(errors="replace")) <= REQUEST_ID_BYTES_MAX:
        raise RequestError(f"request_id has 1 to {REQUEST_ID_BYTES_MAX} bytes")
    request = Request(
        request_id=name,
        num_tokens=num_tokens,
        blocks=blocks,
        expected_output=output,
        ttft_slo_s=slo.get("ttft_s"),
        tbt_slo_s=slo.get("tbt_s"),
    )
    track = document.get("track", False)
    if not isinstance(track, bool):
        raise RequestError(f"track is true or false, not {shown(track)}")
    return request, track


class Registration:
    """Who wants to be an instance."""

    __slots__ = ("incarnation", "name", "role", "server", "url")

    def __init__(self, name: str, role: Role, url: str, server: str, incarnation: int) -> None:
        self.name, self.role, self.url = name, role, url
        self.server, self.incarnation = server, incarnation


def read_registration(document: Mapping[str, Any]) -> Registration:
    """Return who registers.

    Raises:
        RequestError: Something is missing, or makes no sense.
    """
    _known(document, frozenset({"name", "role", "url", "server", "incarnation"}))
    role = _text(document, "role")
    if role not in {one.value for one in Role}:
        raise RequestError(f"role is prefill, decode or both, not {shown(role)}")
    url = _text(document, "url", "")
    if url and not url.startswith(("http://", "https://")):
        raise RequestError(f"url begins with http:// or https://, not {url[:20]!r}")
    incarnation = _number(document, "incarnation", 0, whole=True)
    if incarnation is None or incarnation < 0:
        raise RequestError("incarnation is 0 or more")
    return Registration(
        _text(document, "name"),
        Role(role),
        url.rstrip("/"),
        _text(document, "server", ""),
        incarnation,
    )


_LOAD = frozenset(LoadReport.__slots__)


def read_heartbeat(document: Mapping[str, Any]) -> tuple[int, LoadReport | None]:
    """Return a heartbeat's number and its load report, if there is one.

    Raises:
        RequestError: Something is missing, or makes no sense.
    """
    _known(document, frozenset({"sequence", "load"}))
    sequence = _number(document, "sequence", whole=True)
    if sequence is None or sequence < 0:
        raise RequestError(f"sequence is 0 or more, and grows, not {shown(sequence)}")
    load = document.get("load")
    if load is None:
        return sequence, None
    if not isinstance(load, dict):
        raise RequestError(f"load is an object, not {shown(load)}")
    _known(load, _LOAD)
    return sequence, LoadReport(
        **{name: _number(load, name, None, whole=name != "queue_s") for name in load}
    )


@dataclass(frozen=True, slots=True)
class Report:
    """What became of a request.

    Attributes:
        event: `prefilled`, `finished` or `failed`.
        output_tokens: Of the answer, with `finished`; None: not known.
        transfer: How its fetch went, with `prefilled`; None: there was none, or nobody measured it.
    """

    event: str
    output_tokens: int | None = None
    transfer: Fetched | None = None


def read_report(document: Mapping[str, Any]) -> Report:
    """Return what became of a request.

    Raises:
        RequestError: Something is missing, or makes no sense.
    """
    _known(document, frozenset({"event", "output_tokens", "transfer"}))
    event = document.get("event")
    if event not in ("prefilled", "finished", "failed"):
        raise RequestError(f"event is prefilled, finished or failed, not {shown(event)}")
    tokens = _number(document, "output_tokens", None, whole=True)
    if tokens is not None and not 0 <= tokens < 1e9:
        raise RequestError(f"output_tokens is 0 or more, not {tokens}")
    transfer = document.get("transfer")
    if transfer is None:
        return Report(event, tokens)
    if not isinstance(transfer, dict):
        raise RequestError("transfer is an object with bytes and seconds")
    _known(transfer, frozenset({"bytes", "seconds"}))
    size, time_s = _number(transfer, "bytes"), _number(transfer, "seconds")
    if size is None or time_s is None:
        raise RequestError("transfer has bytes and seconds")
    return Report(event, tokens, Fetched(size, time_s))


# ---- answers -------------------------------------------------------------------------------------


def decision_document(decision: Decision, names: BlockNames) -> dict[str, Any]:
    """Return what an accepted request is told."""
    return {
        "request_id": decision.request_id,
        "prefill": {"instance": decision.prefill, "url": decision.prefill_url},
        "decode": {"instance": decision.decode, "url": decision.decode_url},
        "prefix_tokens": decision.prefix_tokens,
        "transfer": {
            "source": decision.source,
            "tokens": decision.transfer_tokens,
            "bytes": decision.transfer_bytes,
            "blocks": [names.prefixes[0] + digest for digest in decision.move],
        },
        "predicted": {
            "ttft_s": decision.ttft_s,
            "tbt_s": decision.tbt_s,
            "queue_s": decision.queue_s,
            "ready_s": decision.ready_s,
            "transfer_s": decision.transfer_s,
            "prefill_s": decision.prefill_s,
        },
    }


def refusal_document(refusal: Refusal) -> dict[str, Any]:
    """Return what a refused request is told: an error as OpenAI's API has it."""
    kind = "overloaded" if refusal.status == 429 else "unavailable"
    return {
        "request_id": refusal.request_id,
        "error": {
            "type": kind,
            "code": refusal.reason,
            "message": refusal.message,
            "retry_after_s": refusal.retry_after_s,
            "predicted": {"ttft_s": refusal.ttft_s, "tbt_s": refusal.tbt_s},
        },
    }


def error_document(error: StoreError) -> dict[str, Any]:
    """Return a failure in the same form."""
    return {
        "error": {
            "type": "invalid_request" if isinstance(error, RequestError) else "failed",
            "code": error.code,
            "message": error.message,
            "hint": error.hint,
        }
    }


def instance_document(
    one: Instance, *, now_s: float, queue_s: float, queued: int, decode: tuple[float, float, float]
) -> dict[str, Any]:
    """Return what is known of an instance."""
    batch, context, reserved = decode
    return {
        "name": one.name,
        "role": one.role.value,
        "url": one.url,
        "server": one.server,
        "state": one.state.value,
        "incarnation": one.incarnation,
        "heard_s_ago": max(now_s - one.heard_s, 0.0),
        "report_s_ago": None if one.report is None else max(now_s - one.report_s, 0.0),
        "stale_reports": one.stale_reports,
        "prefill": {"queue_s": queue_s, "requests": queued} if one.role.prefills else None,
        "decode": {
            "batch": batch, "context_tokens": context, "reserved_tokens": reserved
        } if one.role.decodes else None,
    }  # fmt: skip
