"""What `tests/engines/install` excuses, and what not: with real pip, and wheels made here."""

from __future__ import annotations

import http.server
import os
import shutil
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

INSTALL = Path(__file__).parents[1] / "engines/install"
pytestmark = pytest.mark.timeout(300)


def wheel(folder: Path, name: str, version: str, code: str = "") -> Path:
    """Make a wheel with one module."""
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(f"{name}.py", code)
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return made


@dataclass
class Run:
    """The script, in a folder with requirements of its own, and wheels that pip finds."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.wheels = self.folder / "wheels"
        self.environments = self.folder / "environments"
        (self.folder / "scripts").mkdir(parents=True)
        shutil.copy(INSTALL, self.folder / "scripts/install")
        self.ask("torch", "torch==2.13.0+cpu")
        self.ask("requirements", "shared==1.0")
        wheel(self.wheels, "torch", "2.13.0+cpu")
        wheel(self.wheels, "shared", "1.0")

    def ask(self, name: str, requirement: str) -> None:
        (self.folder / f"scripts/{name}.txt").write_text(requirement + "\n")

    def __call__(self, *engines: str, **variables: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
        return subprocess.run(
            [self.folder / "scripts/install", self.environments, *engines],
            capture_output=True, text=True, check=False, timeout=200,
            env={
                **kept, "PYTHON": sys.executable, "PIP_CONFIG_FILE": os.devnull,
                "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels), "PIP_RETRIES": "0",
                "NO_PROXY": "*", "no_proxy": "*",  # the indexes are on loopback
                **self.variables, **variables,
            },
        )  # fmt: skip

    def has(self, engine: str) -> bool:
        return (self.environments / f"python/.installed/requirements-{engine}").is_file()

    def missing(self, engine: str) -> str | None:
        """Return the reason for which an engine's tests are skipped; None: they run."""
        reason = self.environments / f"{engine}.missing"
        return reason.read_text().strip() if reason.exists() else None


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One environment, with what engines share, for all tests here."""
    run = Run(tmp_path_factory.mktemp("engines"))
    run.ask("requirements-good", "good==1.0")
    wheel(run.wheels, "good", "1.0")
    done = run("good")
    assert done.returncode == 0, done.stderr
    return run


@pytest.fixture
def index() -> Iterator[tuple[str, list[int]]]:
    """An index that answers every question with a status, which the test may change."""
    status = [404]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(status[0])

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/simple", status
        server.shutdown()


def test_what_there_is_is_installed_once(run: Run) -> None:
    assert run.has("good")
    again = run("good")
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")


def test_an_engine_without_a_wheel_is_excused_and_counted(run: Run) -> None:
    run.ask("requirements-future", "future==9.9")
    (run.wheels / "future-9.9.tar.gz").write_bytes(b"")  # would have to be compiled
    wheel(run.wheels, "future", "9.8")
    done = run("good", "future")
    assert done.returncode == 0
    assert run.missing("future") == "No matching distribution found for future==9.9"
    assert "future cannot be had here, its tests will be skipped: No matching" in done.stderr
    assert "cannot be had here: 1 of 2 engines (future)" in done.stderr
    assert (run.missing("good"), run.has("good"), run.has("future")) == (None, True, False)

    wheel(run.wheels, "future", "9.9")
    assert run("future").returncode == 0
    assert (run.missing("future"), run.has("future")) == (None, True)


def test_a_broken_wheel_fails(run: Run) -> None:
    run.ask("requirements-broken", "broken==1.0")
    whole = wheel(run.wheels, "broken", "1.0").read_bytes()
    (run.wheels / "broken-1.0-py3-none-any.whl").write_bytes(whole[:100])
    done = run("broken")
    assert done.returncode == 1
    assert "broken could not be installed, for another reason" in done.stderr
    assert "ERROR: Wheel 'broken' located at" in done.stderr
    assert str(run.environments / "install.log") in done.stderr
    assert run.missing("broken") is None


def test_the_reason_of_an_attempt_before_excuses_nothing(run: Run) -> None:
    run.ask("requirements-absent", "absent==1.0")
    run.ask("requirements-later", "later==1.0")
    wheel(run.wheels, "later", "1.0").write_bytes(b"no archive")
    done = run("absent", "later")
    assert done.returncode == 1
    assert run.missing("absent") is not None
    assert run.missing("later") is None
    assert "absent" not in (run.environments / "install.log").read_text()


def test_no_time_left_fails(run: Run) -> None:
    run.ask("requirements-slow", "slow==1.0")
    wheel(run.wheels, "slow", "1.0")
    done = run("slow", INSTALL_SECONDS="0.01")
    assert done.returncode == 1
    assert "ERROR: not installed within 0.01 s" in done.stderr
    assert run.missing("slow") is None


def test_an_index_that_has_none_excuses_and_one_that_is_ill_does_not(
    run: Run, index: tuple[str, list[int]]
) -> None:
    url, status = index
    run.ask("requirements-there", "there==1.0")
    variables = {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": url, "http_proxy": "http://127.0.0.1:9"}
    assert run("there", **variables).returncode == 0
    assert run.missing("there") is not None
    status[0] = 403
    done = run("there", **variables)
    assert done.returncode == 1
    assert run.missing("there") is None


def test_an_index_that_does_not_answer_fails(run: Run) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        run.ask("requirements-away", "away==1.0")
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/simple"
        done = run("away", PIP_NO_INDEX="0", PIP_INDEX_URL=url)
    assert done.returncode == 1
    assert run.missing("away") is None


def test_torch_comes_from_its_own_index_where_there_is_none_else(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    (run.wheels / "torch-2.13.0+cpu-py3-none-any.whl").unlink()
    wheel(run.wheels, "torch", "2.13.0", "raise ImportError('libcudart.so')")  # the one with CUDA
    run.ask("requirements-good", "good==1.0")
    wheel(run.wheels, "good", "1.0")
    own = tmp_path / "index"
    (own / "torch").mkdir(parents=True)
    variables = {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": own.as_uri(), "TORCH_INDEX": own.as_uri()}
    done = run("good", **variables)
    assert done.returncode == 0
    assert run.missing("good") == "No matching distribution found for torch==2.13.0+cpu"
    assert "cannot be had here: 1 of 1 engines (good)" in done.stderr

    made = wheel(own / "torch", "torch", "2.13.0+cpu")
    (own / "torch/index.html").write_text(f'<a href="{made.name}">{made.name}</a>')
    done = run("good", **variables | {"PIP_INDEX_URL": (tmp_path / "nothing").as_uri()})
    assert done.returncode == 0, done.stderr
    assert (run.missing("good"), run.has("good")) == (None, True)


def test_a_torch_that_cannot_be_imported_fails(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    wheel(run.wheels, "torch", "2.13.0+cpu", "raise ImportError('libgomp.so.1: cannot open')")
    done = run()
    assert done.returncode == 1
    assert "libgomp.so.1: cannot open" in done.stderr
    assert "requirements could not be installed" in done.stderr


def test_an_interpreter_that_cannot_make_an_environment_fails(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    done = run("good", PYTHON="/bin/false")
    assert done.returncode == 1
    assert "an environment of /bin/false could not be installed" in done.stderr
    assert run.missing("good") is None
