"""`MooncakeConfig`: settings of a client from a JSON file or the environment."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, fields
from typing import Any

from mooncake._store.settings import parse_size

__all__ = ["MooncakeConfig"]

DEFAULT_GLOBAL_SEGMENT_SIZE = 3355443200
DEFAULT_LOCAL_BUFFER_SIZE = 1073741824
_NEEDED = ("local_hostname", "metadata_server", "master_server_address")
_TRUE, _FALSE = ("true", "1", "yes", "on", "enable"), ("false", "0", "no", "off", "disable", "")
_VARIABLES = {
    "local_hostname": "LOCAL_HOSTNAME",
    "metadata_server": "MOONCAKE_TE_META_DATA_SERVER",
    "global_segment_size": "MOONCAKE_GLOBAL_SEGMENT_SIZE",
    "local_buffer_size": "MOONCAKE_LOCAL_BUFFER_SIZE",
    "protocol": "MOONCAKE_PROTOCOL",
    "device_name": "MOONCAKE_DEVICE",
    "master_server_address": "MOONCAKE_MASTER",
    "enable_ssd_offload": "MOONCAKE_ENABLE_SSD_OFFLOAD",
    "ssd_offload_path": "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH",
    "tenant_id": "MOONCAKE_TENANT_ID",
    "enable_client_http_server": "MOONCAKE_ENABLE_CLIENT_HTTP_SERVER",
    "client_http_port": "MOONCAKE_CLIENT_HTTP_PORT",
}


def _boolean(value: Any) -> bool:
    if isinstance(value, bool | int | float) or value is None:
        return bool(value)
    text = str(value).strip().lower()
    if text not in _TRUE and text not in _FALSE:
        raise ValueError(f"{value!r} is neither true nor false")
    return text in _TRUE


@dataclass
class MooncakeConfig:
    """Settings of a client.

    Attributes:
        global_segment_size: Bytes that the client adds to the pool.
        local_buffer_size: Taken, and without effect: clients have no buffer of their own.
    """

    local_hostname: str
    metadata_server: str
    global_segment_size: int
    local_buffer_size: int
    protocol: str
    device_name: str | None
    master_server_address: str
    enable_ssd_offload: bool = False
    ssd_offload_path: str = ""
    tenant_id: str = "default"
    enable_client_http_server: bool = False
    client_http_port: int = 9300

    def __post_init__(self) -> None:
        """Check what cannot be.

        Raises:
            ValueError: Something cannot; the message names it.
        """
        if not isinstance(self.protocol, str) or not self.protocol.strip():
            raise ValueError(f"protocol is a word like tcp, not {self.protocol!r}")
        self.protocol = self.protocol.strip().lower()
        for name in ("global_segment_size", "local_buffer_size"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is not negative, as {getattr(self, name)} is")
        for name in _NEEDED:
            if not getattr(self, name):
                raise ValueError(f"{name} is needed")

    @staticmethod
    def from_file(file_path: str) -> MooncakeConfig:
        """Return what a JSON file says; names that are not known are left out.

        Raises:
            ValueError: It lacks something, or has what cannot be.
            OSError: It cannot be read.
        """
        with open(file_path, encoding="utf-8") as file:
            return _from(json.load(file), f"the file {file_path}")

    @staticmethod
    def load_from_env() -> MooncakeConfig:
        """Return what $MOONCAKE_CONFIG_PATH names, else what $MOONCAKE_MASTER and others say.

        Raises:
            ValueError: Neither is set, or something cannot be.
        """
        path = os.environ.get("MOONCAKE_CONFIG_PATH")
        if path:
            return MooncakeConfig.from_file(path)
        if not os.environ.get("MOONCAKE_MASTER"):
            raise ValueError("set MOONCAKE_CONFIG_PATH to a JSON file, or MOONCAKE_MASTER")
        given = {name: os.environ[of] for name, of in _VARIABLES.items() if of in os.environ}
        if "MOONCAKE_LOCAL_HOSTNAME" in os.environ:
            given["local_hostname"] = os.environ["MOONCAKE_LOCAL_HOSTNAME"]
        given = {"local_hostname": "localhost", "metadata_server": "P2PHANDSHAKE", **given}
        return _from(given, "the environment")


def _from(given: Any, where: str) -> MooncakeConfig:
    if not isinstance(given, dict):
        raise ValueError(f"{where} has no JSON object")
    known = {field.name for field in fields(MooncakeConfig)}
    values = {
        "global_segment_size": DEFAULT_GLOBAL_SEGMENT_SIZE,
        "local_buffer_size": DEFAULT_LOCAL_BUFFER_SIZE,
        "protocol": "tcp",
        "device_name": "",
        **{name: value for name, value in given.items() if name in known},
    }
    for name in _NEEDED:
        if not values.get(name):
            raise ValueError(f"{where} does not name {name}, which is needed")
    for name in ("global_segment_size", "local_buffer_size"):
        values[name] = parse_size(values[name])
    for name in ("enable_ssd_offload", "enable_client_http_server"):
        values[name] = _boolean(values.get(name, False))
    values["client_http_port"] = int(values.get("client_http_port", 9300))
    return MooncakeConfig(**values)
