from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_store import config
from mooncake_store.config import (
    GIB,
    MIB,
    TIB,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
    setting,
    without_password,
)
from mooncake_store.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    pool_size_bytes: int = setting(GIB, "memory that the store uses", minimum=MIB, maximum=TIB)
    session_timeout_ms: int = setting(10_000, "silence after which a session ends")
    call_timeout_s: float = setting(5.0, "deadline of a call")
    policy: str = setting("lru", "who leaves first", choices=("lru", "lfu"))
    is_checked: bool = setting(True, "verify checksums")
    workers: int | None = setting(None, "threads; empty: by the number of cores")
    addresses: tuple[str, ...] = setting((), "where to listen")
    ratio: float = setting(0.5, "a plain number")
    bandwidth_bytes_per_s: int = setting(MIB, "bytes a second", maximum=GIB)


def load(**kwargs: object) -> config.Loaded[ServerConfig]:
    return config.load(ServerConfig, "server", environment={}, **{"path": "f.toml", **kwargs})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("4096", 4096),
        (4096, 4096),
        ("0", 0),
        ("64KiB", 65536),
        ("64 KiB", 65536),
        ("1.5GiB", 3 * GIB // 2),
        ("2GB", 2 * 10**9),
        ("1TB", 10**12),
        ("12B", 12),
        ("9007199254740993", 2**53 + 1),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


def test_a_bare_letter_is_refused_with_both_readings() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_size("1G")
    assert "1GiB (1,073,741,824 bytes)" in str(caught.value)
    assert "1GB (1,000,000,000 bytes)" in str(caught.value)


@pytest.mark.parametrize("text", ["", "-1", "1.5", "GiB", "1 PiB", "1xyz", "1e9", "0.3KiB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_size(text)


def test_a_unit_in_another_case_is_answered_with_the_right_one() -> None:
    with pytest.raises(ConfigError, match="did you mean 'KiB'"):
        parse_size("1kiB")
    with pytest.raises(ConfigError, match="did you mean 'MiB'"):
        parse_size("1Mib")


@pytest.mark.parametrize(
    ("text", "duration_s"),
    [("500ms", 0.5), ("2s", 2), ("5m", 300), ("1.5h", 5400), ("0", 0), (0, 0), ("20us", 2e-5)],
)
def test_durations_are_read_with_their_unit(text: str, duration_s: float) -> None:
    assert parse_duration(text) == pytest.approx(duration_s)


def test_a_duration_without_unit_is_refused_with_both_readings() -> None:
    with pytest.raises(ConfigError, match="write 5s or 5ms"):
        parse_duration("5")


@pytest.mark.parametrize("text", ["9" * 400 + "d", "9" * 400 + "us"])
def test_a_duration_that_no_number_holds_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="400 digits is too long"):
        parse_duration(text)


def test_a_bandwidth_is_a_size_and_no_duration() -> None:
    assert load(flags={"bandwidth": "64MiB"}).values.bandwidth_bytes_per_s == 64 * MIB
    with pytest.raises(ConfigError, match="bandwidth is at most 1GiB, not 2GiB"):
        load(flags={"bandwidth": "2GiB"})
    with pytest.raises(ConfigError, match="unknown unit 's'"):
        load(flags={"bandwidth": "100s"})


@given(st.integers(0, 2**60))
def test_a_formatted_size_reads_back_exactly(size_bytes: int) -> None:
    assert parse_size(format_size(size_bytes)) == size_bytes


@given(st.integers(0, 10**9))
def test_a_formatted_duration_reads_back(duration_ms: int) -> None:
    text = format_duration(duration_ms / 1e3)
    assert parse_duration(text) == pytest.approx(duration_ms / 1e3, rel=1e-5)


def test_flag_beats_environment_beats_file_beats_default() -> None:
    document = {"server": {"pool_size": "2GiB", "call_timeout": "3s", "policy": "lfu"}}
    environment = {
        "MOONCAKE_STORE_SERVER_POOL_SIZE": "3GiB",
        "MOONCAKE_STORE_SERVER_CALL_TIMEOUT": "4s",
    }
    loaded = config.load(
        ServerConfig,
        "server",
        flags={"pool_size": "4GiB", "policy": None},
        environment=environment,
        document=document,
        path="f.toml",
    )
    assert loaded.values == ServerConfig(
        pool_size_bytes=4 * GIB, call_timeout_s=4.0, policy="lfu", session_timeout_ms=10_000
    )
    assert loaded.origins["pool_size_bytes"] == "flag --pool-size"
    assert loaded.origins["call_timeout_s"] == "environment MOONCAKE_STORE_SERVER_CALL_TIMEOUT"
    assert loaded.origins["policy"] == "file f.toml"
    assert loaded.origins["session_timeout_ms"] == "default"


def test_values_take_the_unit_of_their_field() -> None:
    document = {
        "server": {
            "session_timeout": "2s",
            "call_timeout": "250ms",
            "is_checked": False,
            "workers": 3,
            "addresses": ["127.0.0.1:0", "[::1]:0"],
            "ratio": 1,
        }
    }
    values = load(document=document).values
    assert values.session_timeout_ms == 2000
    assert values.call_timeout_s == 0.25
    assert values.is_checked is False
    assert values.workers == 3
    assert values.addresses == ("127.0.0.1:0", "[::1]:0")
    assert values.ratio == 1.0
    from_flags = load(flags={"addresses": "a:1, b:2", "is-checked": "no", "workers": ""}).values
    assert from_flags.addresses == ("a:1", "b:2")
    assert from_flags.is_checked is False
    assert from_flags.workers is None


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"document": {"server": {"pool_sise": 1}}}, "f.toml: .server.: .*'pool_size'"),
        ({"flags": {"polcy": "lru"}}, "unknown flag 'polcy': did you mean 'policy'"),
        ({"environment": {"MOONCAKE_STORE_SERVER_POLCY": "lru"}}, "_SERVER_POLICY'"),
        ({"flags": {"policy": "lrv"}}, "flag --policy: .*did you mean 'lru'"),
        ({"flags": {"pool_size": "1KiB"}}, "pool_size is at least 1MiB, not 1KiB"),
        ({"flags": {"pool_size": "2TiB"}}, "at most 1TiB"),
        ({"flags": {"call_timeout": "5"}}, "flag --call-timeout: .*no unit"),
        ({"flags": {"workers": "many"}}, "workers is a whole number"),
        (
            {"flags": {"ratio": "nan"}},
            "flag --ratio: ratio is a number, not nan",
        ),
        (
            {"document": {"server": {"ratio": float("inf")}}},
            "file f.toml: ratio is a number, not inf",
        ),
        ({"document": {"server": {"workers": float("inf")}}}, "workers is a whole number"),
        ({"document": {"server": {"is_checked": "perhaps"}}}, "true or false"),
        ({"document": {"server": {"policy": 3}}}, "policy is a text"),
        ({"document": {"server": {"workers": True}}}, "workers is a whole number"),
        ({"document": {"server": {"addresses": 7}}}, "addresses is a list"),
    ],
)
def test_a_wrong_setting_says_where_and_what_next(kwargs: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config.load(ServerConfig, "server", **{"environment": {}, "path": "f.toml", **kwargs})  # type: ignore[arg-type]


def test_the_example_file_is_the_defaults_when_uncommented(tmp_path: Path) -> None:
    text = config.example({"server": ServerConfig})
    path = tmp_path / "config.toml"
    path.write_text(text)
    assert config.read_file(path, ["server"]) == {"server": {}}
    lines = [
        line[1:] if line[:1] == "#" and line[:2] != "# " else line for line in text.splitlines()
    ]
    path.write_text("\n".join(lines))
    document = config.read_file(path, ["server"])
    assert len(document["server"]) == len(config.settings_of(ServerConfig, "server"))
    assert load(document=document).values == ServerConfig()


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    assert config.read_file(path, [], must_exist=False) == {}
    with pytest.raises(ConfigError, match="does not exist"):
        config.read_file(path, [])
    path.write_text("[server")
    with pytest.raises(ConfigError, match="is not TOML"):
        config.read_file(path, ["server"])
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not TOML"):
        config.read_file(path, ["server"])
    path.write_text("[sever]")
    with pytest.raises(ConfigError, match="unknown table 'sever': did you mean 'server'"):
        config.read_file(path, ["server"])
    path.write_text("server = 1")
    with pytest.raises(ConfigError, match="is a table"):
        config.read_file(path, ["server"])
    with pytest.raises(ConfigError, match="cannot be read"):
        config.read_file(tmp_path, ["server"])


def test_the_default_file_follows_the_environment() -> None:
    named = {"MOONCAKE_STORE_CONFIG": "/etc/m.toml", "XDG_CONFIG_HOME": "/x"}
    assert config.default_path(named) == Path("/etc/m.toml")
    assert config.default_path({"XDG_CONFIG_HOME": "/x"}) == Path("/x/mooncake-store/config.toml")
    assert config.default_path({}).parts[-3:] == (".config", "mooncake-store", "config.toml")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("etcd://user:secret@a,b/x", "etcd://user:***@a,b/x"),
        ("etcd://user:s%40:t@a", "etcd://user:***@a"),
        ("etcd://user@a:1,b:2/x", "etcd://user@a:1,b:2/x"),
        ("127.0.0.1:7700", "127.0.0.1:7700"),
        ("local:/some/where", "local:/some/where"),
    ],
)
def test_an_address_is_shown_without_its_password(text: str, shown: str) -> None:
    assert without_password(text) == shown
