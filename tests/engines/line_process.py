"""A process with an engine in its own environment: JSON lines in, JSON lines out."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.engines.environments import variables

__all__ = ["TEST_S", "LineProcess", "opened"]

START_S = 900.0  # a hang guard: a first start compiles; a machine may be busy
ANSWER_S = 300.0  # a hang guard: the machine may be busy
TEST_S = START_S + 2 * ANSWER_S  # of a test: who waits in vain says so before it is ended


class LineProcess:
    """Runs a script that prints `READY`, and for each line that it reads `ANSWER` and JSON.

    This tree and its package `mooncake` are on the script's path; what else it prints is logged.

    Args:
        command: Interpreter, script, arguments.
        log: File for what it prints.
        environment: Variables beside this process's own.
        start_s: How long it may take to get ready.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        log: Path,
        environment: Mapping[str, str] | None = None,
        *,
        start_s: float = START_S,
    ) -> None:
        self.log = log
        self._log = log.open("a")
        self._process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            env={**os.environ, **variables(), **(environment or {})},
        )  # fmt: skip
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self._expect("READY", start_s)
        except BaseException:
            self.end(0)
            raise

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._log:  # until nobody has its output: a child of a killed process still may
            for line in self._process.stdout:
                if line.startswith(("READY", "ANSWER")):
                    self._lines.put(line)
                else:
                    self._log.write(line)
                    self._log.flush()
        self._lines.put(None)

    def _expect(self, word: str, seconds: float) -> str:
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            raise AssertionError(f"no {word} within {seconds:.0f} s: see {self.log}") from None
        tail = "".join(self.log.read_text(errors="replace").splitlines(keepends=True)[-30:])
        assert line is not None, f"the engine has ended: see {self.log}\n{tail}"
        assert line.startswith(word), line
        return line.removeprefix(word)

    def send(self, question: Any) -> None:
        """Ask, without waiting for the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()

    def receive(self, seconds: float = ANSWER_S) -> Any:
        """Return the next answer."""
        return json.loads(self._expect("ANSWER", seconds))

    def ask(self, question: Any, seconds: float = ANSWER_S) -> Any:
        """Return the answer to a question."""
        self.send(question)
        return self.receive(seconds)

    def has_answered(self) -> bool:
        """Whether there is an answer that was not received yet."""
        return not self._lines.empty()

    def kill(self) -> None:
        """End it as a crash does."""
        self._process.kill()
        self._process.wait()

    def end(self, seconds: float = 60.0) -> int:
        """Close its input, wait, and kill it if it has not ended by then; return its exit code."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(5)
        return self._process.returncode

    def __enter__(self) -> LineProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


@contextlib.contextmanager
def opened(process: LineProcess, **given: Any) -> Iterator[LineProcess]:
    """Have a process make its engine anew: processes are few, as what they import takes seconds."""
    process.ask({"do": "open", **given})
    try:
        yield process
    finally:
        process.ask({"do": "close"})
