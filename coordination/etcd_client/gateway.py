"""Reading keys of etcd with the standard library, for processes that must not import gRPC.

Every member of etcd has a JSON gateway on its client port: a POST of what gRPC would be asked. It
is used for single questions, so nothing is kept but the token.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
from typing import Any

from mooncake_store.coordination.etcd_client.address import EtcdAddress
from mooncake_store.coordination.etcd_client.store import prefix_end
from mooncake_store.errors import AccessRefusedError, ConfigError, UnavailableError

__all__ = ["Gateway"]

_ATTEMPT_TIMEOUT_S = 1.0
_ANSWER_BYTES_MAX = 1 << 20
_UNAUTHENTICATED, _PERMISSION_DENIED, _INVALID_ARGUMENT, _FAILED_PRECONDITION = 16, 7, 3, 9


class _Refused(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Gateway:
    """The key-value service of an etcd cluster. Not for several threads at once.

    Args:
        address: Of the cluster.
    """

    def __init__(self, address: EtcdAddress) -> None:
        self._address = address
        self._at = 0  # the member in use
        self._token = ""
        self._tls = None if address.tls is None else _tls_context(address)

    def read(self, key: bytes, timeout_s: float) -> bytes | None:
        """Return a key's value; None: there is no such key.

        Raises:
            UnavailableError: No member has answered in time.
            AccessRefusedError: The user may not read it, or the password is wrong.
        """
        found = self._read({"key": _coded(key)}, timeout_s)
        return found[0] if found else None

    def read_all(self, prefix: bytes, timeout_s: float) -> list[bytes]:
        """Return the values of all keys that begin so; it raises what `read` does."""
        return self._read(
            {"key": _coded(prefix), "range_end": _coded(prefix_end(prefix))}, timeout_s
        )

    def _read(self, request: dict[str, str], timeout_s: float) -> list[bytes]:
        end_s = time.monotonic() + timeout_s
        failure: Exception | None = None
        for _ in self._address.endpoints:
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                break
            endpoint = self._address.endpoints[self._at]
            try:
                return self._ask(endpoint, request, min(left_s, _ATTEMPT_TIMEOUT_S))
            except (OSError, http.client.HTTPException) as error:
                failure = error
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                failure = error  # what answers there is no etcd
            except _Refused as error:
                if error.code in (_UNAUTHENTICATED, _PERMISSION_DENIED, _INVALID_ARGUMENT):
                    raise AccessRefusedError(
                        f"etcd refuses: {error}", node=f"etcd {endpoint}", cause=error
                    ) from error
                failure = error
            self._at = (self._at + 1) % len(self._address.endpoints)
        raise UnavailableError(
            f"no answer from {self._address}: {failure or 'no time left'}", cause=failure
        ) from failure

    def _ask(self, endpoint: str, request: dict[str, str], timeout_s: float) -> list[bytes]:
        if self._address.user and not self._token:
            self._authenticate(endpoint, timeout_s)
        try:
            answer = self._post(endpoint, "/v3/kv/range", request, timeout_s)
        except _Refused as error:
            if not self._token or error.code != _UNAUTHENTICATED:
                raise
            self._authenticate(endpoint, timeout_s)  # tokens are forgotten after some minutes
            answer = self._post(endpoint, "/v3/kv/range", request, timeout_s)
        return [
            base64.b64decode(entry.get("value", ""), validate=True)
            for entry in answer.get("kvs") or []
        ]

    def _authenticate(self, endpoint: str, timeout_s: float) -> None:
        login = {"name": self._address.user, "password": self._address.password}
        self._token = ""
        try:
            answer = self._post(endpoint, "/v3/auth/authenticate", login, timeout_s)
        except _Refused as error:
            if error.code != _FAILED_PRECONDITION:  # else passwords are not asked for
                raise
            return
        self._token = str(answer["token"])

    def _post(
        self, endpoint: str, path: str, document: dict[str, str], timeout_s: float
    ) -> dict[str, Any]:
        connection: http.client.HTTPConnection
        if self._tls is None:
            connection = http.client.HTTPConnection(endpoint, timeout=timeout_s)
        else:
            connection = http.client.HTTPSConnection(endpoint, timeout=timeout_s, context=self._tls)
        try:
            headers = {"Content-Type": "application/json"}
            if self._token:
                headers["Authorization"] = self._token
            connection.request("POST", path, json.dumps(document), headers)
            response = connection.getresponse()
            answer = json.loads(response.read(_ANSWER_BYTES_MAX))
            if not isinstance(answer, dict):
                raise ValueError("what answers there is no etcd")
            if response.status != 200:
                text = str(answer.get("message") or answer.get("error") or response.reason)
                raise _Refused(int(answer.get("code", 0)), text)
            return answer
        finally:
            connection.close()


def _coded(key: bytes) -> str:
    return base64.b64encode(key).decode()


def _tls_context(address: EtcdAddress) -> ssl.SSLContext:
    assert address.tls is not None
    try:
        context = ssl.create_default_context(cafile=address.tls.ca or None)
        if address.tls.cert:
            context.load_cert_chain(address.tls.cert, address.tls.key)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the TLS files of {address} cannot be used: {error}") from error
    return context
