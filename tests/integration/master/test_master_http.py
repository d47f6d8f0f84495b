"""Health, version and metrics of a real master process."""

from __future__ import annotations

import json
import re
import signal
import urllib.error
import urllib.request
from typing import Any

import pytest


def get(master: Any, path: str) -> tuple[int, str]:
    url = f"http://127.0.0.1:{master.endpoints.http_port}{path}"
    try:
        with urllib.request.urlopen(url, timeout=10.0) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.fixture
def master(bench: Any) -> Any:
    return bench.master(http=True)


def test_health_endpoints_answer_probes(master: Any) -> None:
    for path in ("/livez", "/readyz", "/health"):
        assert get(master, path) == (200, "ok\n")
    status, text = get(master, "/nothing")
    assert status == 404
    assert json.loads(text)["error"] == {
        "type": "invalid_request", "code": "unknown_path", "message": "there is no /nothing",
        "hint": "there are /livez, /readyz, /health, /version, /metrics",
    }  # fmt: skip


def test_verbose_readiness_gives_reasons(bench: Any, master: Any) -> None:
    status, text = get(master, "/readyz?verbose")
    checks = {check["name"]: check for check in json.loads(text)["checks"]}
    assert status == 200
    assert checks["leading"]["reason"] == "epoch 1"
    assert checks["store_servers"]["reason"] == "0 of 0 are ready"
    bench.ready_server(master, bench.client(master))
    text = get(master, "/readyz?verbose")[1]
    assert "1 of 1 are ready" in text


def test_version_names_the_protocol_and_the_epoch(master: Any) -> None:
    document = json.loads(get(master, "/version")[1])
    assert document["wire_version"] == 1
    assert document["epoch"] == 1
    assert document["cluster"] == master.endpoints.cluster
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", document["version"])


def samples_of(text: str) -> dict[str, float]:
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line and not line.startswith("#")
    }


def test_metrics_tell_what_happened(bench: Any, master: Any) -> None:
    client = bench.client(master)
    bench.ready_server(master, client)
    client.put(b"key")
    client.exists(b"key")
    text = get(master, "/metrics")[1]
    samples = samples_of(text)
    assert samples['mooncake_store_server_up{node="node-1"}'] == 1
    assert samples["mooncake_store_sessions"] == 1
    assert samples['mooncake_store_master_requests_total{op="put_end",outcome="ok"}'] == 1
    name = "mooncake_store_master_request_duration_seconds"
    assert samples[f'{name}_count{{op="exists"}}'] == 1
    assert samples[f'{name}_bucket{{le="+Inf",op="exists"}}'] == 1
    assert any(line.startswith("mooncake_store_build_info{") for line in text.splitlines())


def test_metric_names_keep_the_rules(master: Any) -> None:
    text = get(master, "/metrics")[1]
    allowed = {"node", "tier", "tenant", "op", "outcome", "reason", "rail", "le"}
    allowed |= {"version", "wire_version", "python", "epoch"}  # build_info
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
    helps = dict(re.findall(r"^# HELP (\S+) (.+)$", text, re.M))
    assert kinds
    for name, kind in kinds.items():
        assert re.fullmatch(r"mooncake_store_[a-z0-9_]+", name)
        assert (kind == "counter") == name.endswith("_total"), name
        assert helps.get(name, "").endswith("."), f"{name} has no sentence"
        assert not re.search(r"_(ms|us|kb|mb|percent|count)(_total)?$", name), name
    for labels in re.findall(r"^\w+\{(.*)\} ", text, re.M):
        assert set(re.findall(r'(\w+)="', labels)) <= allowed, labels


def test_a_frozen_master_answers_nothing_and_lives_again_when_it_thaws(master: Any) -> None:
    master.process.send_signal(signal.SIGSTOP)
    try:
        url = f"http://127.0.0.1:{master.endpoints.http_port}/livez"
        with pytest.raises((TimeoutError, urllib.error.URLError)):
            urllib.request.urlopen(url, timeout=0.5)
    finally:
        master.process.send_signal(signal.SIGCONT)
    assert get(master, "/livez")[0] in (200, 503)
