"""`mooncake-store demo`: the main job, on real input, in front of your eyes.

A master and two store servers of its own; two client processes replay the first requests of a real
trace together, one over shared memory, one over TCP.  Each request asks for its longest stored
prefix, reads those blocks, checks every byte, and stores the blocks that a prefill would have
computed.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import IO, Any

import click

from mooncake_store.cli.exit_codes import ExitCode
from mooncake_store.cli.interrupts import raise_if_interrupted
from mooncake_store.cli.options import SIZE, output_options
from mooncake_store.cli.output import Output, approximate_size
from mooncake_store.cli.processes import end_with_parent
from mooncake_store.config import KIB, MIB, format_size
from mooncake_store.errors import InternalError, LimitError
from mooncake_store.interpreter import module_command

PATHS = ("local host", "TCP")
POOL_BYTES = 256 * MIB


@dataclass
class _Worker:
    """One client process and what it has reported so far."""

    path: str
    process: subprocess.Popen[str]
    requests: int = 0
    report: dict[str, Any] = field(default_factory=dict)
    failed: str = ""

    def follow(self) -> None:
        """Read its JSON lines until it ends: progress, then the report."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            told = json.loads(line)
            self.requests = told.get("requests", self.requests)
            self.report = told.get("report", self.report)
            self.failed = told.get("failed", self.failed)


def _start(master: str, number: int, requests: int, block_bytes: int) -> _Worker:
    arguments = [master, str(number), str(len(PATHS)), str(requests), str(block_bytes)]
    process = subprocess.Popen(
        module_command("mooncake_store.cli.demo_worker", arguments),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        preexec_fn=functools.partial(end_with_parent, os.getpid()), start_new_session=True,
    )  # fmt: skip
    return _Worker(PATHS[number], process)


def _watch(workers: list[_Worker], total: int, output: Output) -> None:
    """Show how far they are until they have ended."""
    threads = [threading.Thread(target=worker.follow, daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    stream: IO[str] = sys.stderr
    if output.is_quiet or not stream.isatty():
        last = time.monotonic()
        while any(thread.is_alive() for thread in threads):
            raise_if_interrupted()
            threads[0].join(0.2) if threads[0].is_alive() else threads[-1].join(0.2)
            if time.monotonic() - last >= 10:
                last = time.monotonic()
                output.note(f"{sum(worker.requests for worker in workers)} of {total} requests")
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True, no_color=not output.has_color(stream))
    columns = (TextColumn("requests"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("requests", total=total)
        while any(thread.is_alive() for thread in threads):
            raise_if_interrupted()
            progress.update(task, completed=sum(worker.requests for worker in workers))
            time.sleep(0.1)
        progress.update(task, completed=sum(worker.requests for worker in workers))


def _summary(workers: list[_Worker], elapsed_s: float, block_bytes: int) -> dict[str, Any]:
    reports = [worker.report for worker in workers]
    asked = sum(report["blocks"] for report in reports)
    hits = sum(report["hits"] for report in reports)
    moved = sum(report["bytes_read"] + report["bytes_stored"] for report in reports)
    return {
        "requests": sum(report["requests"] for report in reports),
        "block_bytes": block_bytes,
        "blocks": asked,
        "hit_ratio": hits / asked if asked else 0.0,
        "bytes_checked": sum(report["bytes_read"] for report in reports),
        "wrong_bytes": 0,
        "elapsed_seconds": elapsed_s,
        "moved_bytes": moved,
        "paths": {worker.path: worker.report for worker in workers},
    }


def _text(document: dict[str, Any]) -> str:
    lines = [
        f"{document['requests']} requests of a real trace, {document['blocks']} blocks of "
        f"{format_size(document['block_bytes'])}, in {document['elapsed_seconds']:.1f} s",
        f"hit ratio {document['hit_ratio']:.1%}; "
        f"{approximate_size(document['bytes_checked'])} read back, every byte right",
        "",
        f"{'':12}{'read':>12}{'store':>12}{'read a block':>24}{'store a block':>24}",
    ]
    for path, report in document["paths"].items():
        cells = [
            f"{report['read_bytes_per_second'] / 1e9:.2f} GB/s",
            f"{report['store_bytes_per_second'] / 1e9:.2f} GB/s",
            *(
                f"{report[f'{call}_p50_seconds'] * 1e6:.0f} us, "
                f"p99 {report[f'{call}_p99_seconds'] * 1e6:.0f}"
                for call in ("read", "store")
            ),
        ]
        lines.append(f"{path:12}{cells[0]:>12}{cells[1]:>12}{cells[2]:>24}{cells[3]:>24}")
    return "\n".join(lines)


def _pool_bytes(block_bytes: int) -> int:
    """The memory of each of the two servers; as much again is left for views and everybody else."""
    free = shutil.disk_usage("/dev/shm").free
    pool_bytes = min(POOL_BYTES, free // 6 // MIB * MIB)
    if block_bytes < 4 * KIB:
        raise click.UsageError("--block-bytes is at least 4KiB")
    if pool_bytes < max(8 * MIB, 16 * block_bytes):
        raise LimitError(
            f"/dev/shm has {approximate_size(free)} free: too little for two pools that hold 16 "
            f"blocks of {format_size(block_bytes)} each",
            code="MS-1402", hint="make room there (docker: --shm-size=1g), or take smaller blocks",
        )  # fmt: skip
    return pool_bytes


@click.command("demo")
@click.option(
    "--requests", type=click.IntRange(2, 1000), default=400, show_default=True, metavar="N",
    help="how many of the trace, 2 to 1000",
)  # fmt: skip
@click.option(
    "--block-bytes", type=SIZE, default=64 * KIB, metavar="SIZE", help="bytes of a block (64KiB)"
)
@output_options
def command(output: Output, requests: int, block_bytes: int) -> int:
    """Replay a real trace against a store of its own, checking every byte.

    \b
    mooncake-store demo
    mooncake-store demo --requests 1000 --block-bytes 256KiB
    """
    from mooncake_store.cli.bench.cluster import Cluster

    pool_bytes = _pool_bytes(block_bytes)
    output.note("starting a master and two store servers")
    with Cluster(pool_size_bytes=pool_bytes, servers=2) as cluster:
        output.note(f"replaying {requests} requests from two client processes")
        started = time.perf_counter()
        workers: list[_Worker] = []
        try:
            for number in range(len(PATHS)):
                workers.append(_start(cluster.address, number, requests, block_bytes))
            _watch(workers, requests, output)
        finally:
            for worker in workers:
                if worker.process.poll() is None:
                    worker.process.terminate()
        elapsed_s = time.perf_counter() - started
        for worker in workers:
            status = worker.process.wait(10)
            if status != 0 or not worker.report:
                why = worker.failed or f"ended with exit code {status}"
                raise InternalError(f"the client over {worker.path}: {why}")
    document = _summary(workers, elapsed_s, block_bytes)
    output.result(document, _text(document))
    output.note("nothing is left behind; next: mooncake-store up")
    return ExitCode.OK
