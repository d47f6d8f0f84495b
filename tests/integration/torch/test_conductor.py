"""A real engine behind the conductor's proxy: a small Llama whose halves meet in the store."""

from __future__ import annotations

import http.client
import json
import threading
import time
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from mooncake_store import Client
from mooncake_store.cli.bench.cluster import Cluster
from mooncake_store.cli.processes import Child
from mooncake_store.torch import cache_identity, load_longest_prefix, save_prefix

pytestmark = pytest.mark.timeout(240)  # the first import of a model's code takes its time
BLOCK = 16
ANSWER_TOKENS = 6


class Engine:
    """A server in OpenAI's form: goes on from what the store has, stores what it computed.

    Attributes:
        loaded: Tokens of each prompt that came from the store.
    """

    def __init__(self, model: Any, name: str, store: Client) -> None:
        self.loaded: list[int] = []
        self.limits: list[int] = []
        engine, lock = self, threading.Lock()

        def generate(prompt: list[int], count: int) -> list[int]:
            found = load_longest_prefix(
                store, prompt, config=model.config, model=name, block_size=BLOCK
            )
            engine.loaded.append(found.num_tokens)
            output = model.generate(
                torch.tensor([prompt]), past_key_values=found.cache, max_new_tokens=count,
                do_sample=False, return_dict_in_generate=True, pad_token_id=0,
                attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            )  # fmt: skip
            tokens: list[int] = output.sequences[0].tolist()
            save_prefix(store, output.past_key_values, tokens[:-1], model=name, block_size=BLOCK)
            return tokens[len(prompt) :]

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
                engine.limits.append(asked["max_tokens"])
                with lock:
                    tokens = generate(asked["prompt"], asked["max_tokens"])
                document = {
                    "choices": [{"text": " ".join(map(str, tokens)), "finish_reason": "length"}],
                    "usage": {"completion_tokens": len(tokens)},
                }
                if not asked.get("stream"):
                    self.send(json.dumps(document).encode(), "application/json")
                    return
                events = [{"choices": [{"text": f"{token} "}]} for token in tokens]
                parts = [f"data: {json.dumps(event)}\n\n" for event in events]
                self.send("".join([*parts, "data: [DONE]\n\n"]).encode(), "text/event-stream")

            def send(self, data: bytes, kind: str) -> None:
                self.send_response(200)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(5)
    config = transformers.LlamaConfig(
        vocab_size=200, hidden_size=64, intermediate_size=96, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
        initializer_range=0.5, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


class Served:
    """A conductor with its proxy, a prefill and a decode engine, on a store."""

    def __init__(self, model: Any, cluster: Cluster) -> None:
        self.name = f"llama/{uuid.uuid4().hex}"
        identity = cache_identity(model.config, model=self.name, block_size=BLOCK)
        self._stores = [Client(cluster.address, strict=True) for _ in range(2)]
        self.engines = [Engine(model, self.name, store) for store in self._stores]
        self._child = Child(
            ["conductor", "--http-port", "0", "--proxy", "--proxy-port", "0", "--log-level",
             "error", "--master", cluster.address, "--block-tokens", str(BLOCK), "--chain-start",
             identity.digest.hex(), "--key-prefixes", identity.prefix, "--heartbeat-timeout",
             "100s", "--forget-after", "100s"]
        )  # fmt: skip
        self._ports = self._child.wait_ready(60)
        members = sorted(self._stores[0].members(), key=lambda one: one.name)
        for engine, role, member in zip(self.engines, ("prefill", "decode"), members, strict=True):
            self.ask("http", "POST", "/v1/instances", {
                "name": role, "role": role, "url": engine.url, "server": member.name,
            })  # fmt: skip

    def ask(self, port: str, method: str, path: str, body: Any = None) -> tuple[str, str]:
        """Return an answer's text, and the request's name."""
        connection = http.client.HTTPConnection(
            "127.0.0.1", self._ports[f"{port}_port"], timeout=60
        )
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            text = answer.read().decode()
            assert answer.status == 200, text
            return text, answer.headers.get("x-request-id", "")
        finally:
            connection.close()

    def close(self) -> None:
        self._child.end()
        for closing in (*self.engines, *self._stores):
            closing.close()


@pytest.fixture(scope="module")
def served(model: Any, shared_cluster: Cluster) -> Iterator[Served]:
    found = Served(model, shared_cluster)
    yield found
    found.close()


def expected(model: Any, prompt: list[int]) -> list[int]:
    output = model.generate(
        torch.tensor([prompt]), max_new_tokens=ANSWER_TOKENS, do_sample=False, pad_token_id=0,
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
    )  # fmt: skip
    tokens: list[int] = output[0, len(prompt) :].tolist()
    return tokens


def test_answers_are_those_of_one_engine_and_turns_find_their_prefix(
    model: Any, served: Served
) -> None:
    prefill, decode = served.engines
    prompt = [(7 * at + 3) % 199 for at in range(75)]
    known = 0  # full blocks of the conversation so far, in tokens
    asked = 0  # the same of the last prompt
    for turn in range(3):
        body = {"prompt": prompt, "max_tokens": ANSWER_TOKENS, "stream": turn == 1}
        text, name = served.ask("proxy", "POST", "/v1/completions", body)
        if turn == 1:
            events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
            assert events[-1] == "[DONE]"
            words = "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1])
        else:
            words = json.loads(text)["choices"][0]["text"]
        answer = [int(word) for word in words.split()]
        assert answer == expected(model, prompt)
        # The prompt's half was one token, and the answer's half found all that it had computed.
        assert (prefill.limits[-1], decode.limits[-1]) == (1, ANSWER_TOKENS)
        assert prefill.loaded[-1] == known
        assert decode.loaded[-1] == (len(prompt) - 1) // BLOCK * BLOCK
        why = json.loads(served.ask("http", "GET", f"/v1/decisions/{name}")[0])
        assert (why["decision"]["prefill"], why["decision"]["decode"]) == ("prefill", "decode")
        assert why["num_blocks"] == len(prompt) // BLOCK
        # The conductor names blocks as the engines do: it knew what is in the store. Of the
        # answer's last blocks, which are put when it ends, it may not have heard yet.
        assert why["decision"]["prefix_tokens"] >= asked
        asked = len(prompt) // BLOCK * BLOCK
        known = (len(prompt) + len(answer) - 1) // BLOCK * BLOCK
        prompt = [*prompt, *answer, *range(turn * 20, turn * 20 + 19)]
        time.sleep(1.0)  # the store's events follow its puts; nobody asks on that fast


def test_what_was_stored_decides_what_is_generated(model: Any, served: Served) -> None:
    """The engines really go on from the store: with other bytes there come other tokens."""
    prompt = [(11 * at + 5) % 199 for at in range(70)]
    body = {"prompt": prompt, "max_tokens": ANSWER_TOKENS}
    first, _ = served.ask("proxy", "POST", "/v1/completions", body)
    identity = cache_identity(model.config, model=served.name, block_size=BLOCK)
    store = served._stores[0]
    for key in identity.prefix_keys(prompt):
        data = torch.frombuffer(bytearray(store.get(key) or b""), dtype=torch.float32)
        store.upsert(key, (-data).numpy())
    second, _ = served.ask("proxy", "POST", "/v1/completions", body)
    texts = [json.loads(text)["choices"][0]["text"] for text in (first, second)]
    assert texts[0] != texts[1]
