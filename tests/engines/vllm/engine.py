"""A vLLM engine on the CPU, in its own environment: questions in, answers out, a line each.

engine.py make FOLDER [KIND]            a tiny model with seeded weights: llama; gemma, which has
                                        sliding windows; deep, whose caches are large for what it
                                        computes
engine.py serve FOLDER [CONFIG] [MORE]  with a --kv-transfer-config, and more arguments of LLM

A question has `prompts`, lists of token ids that run together; with `one_by_one` each waits for the
one before it.  `transfers` are their kv_transfer_params, `max_tokens` what each generates, and
`reset` empties the prefix caches, the connector's too.  The answer has for each prompt its tokens,
how many of the prompt were loaded, why it ended, the seconds until its last token, and with
`margins` by how much the likeliest token led at the closest one (natural logarithm).  With
`times` the answer is what calls took since the last time it was asked, in seconds, by name: those
of the connector and of `mooncake.store`, whoever's package that is; it needs the argument `timed`.

All of the engine is in this process, which starts three times as fast as vLLM's own default, unless
VLLM_ENABLE_V1_MULTIPROCESSING is 1.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from typing import Any

BLOCK_SIZE = 32  # what vLLM's CPU attention wants a multiple of


def make(folder: str, kind: str = "llama") -> None:
    import torch
    import transformers

    torch.manual_seed(5)
    common: dict[str, Any] = {
        "vocab_size": 200, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "max_position_embeddings": 512, "initializer_range": 0.5, "bos_token_id": 1,
        "eos_token_id": 2,
    }  # fmt: skip
    if kind == "deep":
        common.update(
            num_hidden_layers=16, num_attention_heads=8, num_key_value_heads=8, head_dim=64,
            max_position_embeddings=2048,
        )  # fmt: skip
    if kind in ("llama", "deep"):
        config = transformers.LlamaConfig(**common, torch_dtype="float32")
        model: Any = transformers.LlamaForCausalLM(config)
    else:  # every second layer sees 64 tokens only
        # Not tied and small: else what a token's own embedding says drowns what it attends to.
        common.update(initializer_range=0.1, tie_word_embeddings=False)
        config = transformers.Gemma3TextConfig(
            **common, torch_dtype="float32", sliding_window=64, query_pre_attn_scalar=32,
            layer_types=["sliding_attention", "full_attention"] * 2,
        )  # fmt: skip
        model = transformers.Gemma3ForCausalLM(config)
    model.save_pretrained(folder)


CONNECTOR_CALLS = (
    "get_num_new_matched_tokens", "update_state_after_alloc", "build_connector_meta",
    "update_connector_output", "request_finished", "request_finished_all_groups", "start_load_kv",
    "wait_for_layer_load", "save_kv_layer", "wait_for_save", "get_finished",
    "get_transfer_results", "get_block_ids_with_load_errors",
)  # fmt: skip
STORE_CALLS = (
    "batch_is_exist", "batch_get_into_multi_buffers", "batch_put_from_multi_buffers",
)  # fmt: skip


class Stopwatch:
    """What calls take."""

    def __init__(self) -> None:
        self._seconds: dict[str, list[float]] = {}

    def watch(self, of: Any, names: tuple[str, ...], prefix: str) -> None:
        """Time the calls of a class or an object by these names, as far as it has them."""
        for name in names:
            call = getattr(of, name, None)
            if call is not None:
                setattr(of, name, self._timed(call, f"{prefix}.{name}"))

    def _timed(self, call: Any, name: str) -> Any:
        @functools.wraps(call)
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self._seconds.setdefault(name, []).append(time.perf_counter() - began)

        return timed

    def take(self) -> dict[str, list[float]]:
        """Return all, and begin anew."""
        taken, self._seconds = self._seconds, {}
        return taken


def margin(logprobs: Any) -> float | None:
    """Return by how much the likeliest token led where it led least."""
    if not logprobs:
        return None
    leads = []
    for step in logprobs:
        first, second = sorted((each.logprob for each in step.values()), reverse=True)[:2]
        leads.append(first - second)
    return float(min(leads))


def name_a_device() -> None:
    """Let torch name device 0, as it does wherever there is one: MooncakeConnector asks for it."""
    import torch

    torch.accelerator.current_device_index = lambda: 0


class Served:
    """The engine, and what it is asked."""

    def __init__(self, folder: str, transfer: str, more: str) -> None:
        arguments: dict[str, Any] = json.loads(more) if more else {}
        timed = arguments.pop("timed", False)
        self.stopwatch = Stopwatch()
        if arguments.pop("names_a_device", False):
            name_a_device()
        if timed:
            import mooncake.store

            store = mooncake.store.MooncakeDistributedStore
            self.stopwatch.watch(store, STORE_CALLS, "store")
        from vllm import LLM

        if transfer:
            arguments["kv_transfer_config"] = json.loads(transfer)
        settings: dict[str, Any] = {
            "max_model_len": 256, "block_size": BLOCK_SIZE, "enforce_eager": True,
            "max_num_seqs": 4, "enable_prefix_caching": False, "skip_tokenizer_init": True,
            "seed": 0, **arguments,
        }  # fmt: skip
        self._llm = LLM(folder, **settings)
        self._asked = 0
        if timed and transfer:
            from vllm.distributed.kv_transfer import get_kv_transfer_group

            core = self._llm.llm_engine.engine_core.engine_core
            for connector in (core.scheduler.connector, get_kv_transfer_group()):
                self.stopwatch.watch(connector, CONNECTOR_CALLS, "connector")

    def answer(self, question: dict[str, Any]) -> Any:
        if question.get("times"):
            return self.stopwatch.take()
        if question.get("reset"):
            self._llm.reset_prefix_cache(reset_connector=True)
            return True
        prompts = question["prompts"]
        transfers = question.get("transfers") or [None] * len(prompts)
        asked = list(zip(prompts, transfers, strict=True))
        how = {"max_tokens": question.get("max_tokens", 12)}
        if question.get("margins"):
            how["logprobs"] = 2
        if question.get("one_by_one"):
            return [self._run([one], how)[0] for one in asked]
        return self._run(asked, how)

    def _run(self, asked: list[tuple[list[int], Any]], how: dict[str, int]) -> list[dict[str, Any]]:
        from vllm import SamplingParams

        engine = self._llm.llm_engine
        began: dict[str, float] = {}
        answers: dict[str, dict[str, Any]] = {}
        for prompt, transfer in asked:
            sampling = SamplingParams(
                temperature=0, detokenize=False, ignore_eos=True, **how,
                extra_args={"kv_transfer_params": transfer} if transfer else None,
            )  # fmt: skip
            name = str(self._asked)
            self._asked += 1
            began[name] = time.monotonic()
            engine.add_request(name, {"prompt_token_ids": prompt}, sampling)
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.finished:
                    answers[output.request_id] = {
                        "tokens": list(output.outputs[0].token_ids),
                        "loaded": output.num_cached_tokens,
                        "finish": output.outputs[0].finish_reason,
                        "seconds": time.monotonic() - began[output.request_id],
                        "margin": margin(output.outputs[0].logprobs),
                    }
        if any(transfer for _, transfer in asked):
            engine.step()  # an engine in this process sends what is finished in a step of its own
        return [answers[name] for name in began]


def serve(folder: str, transfer: str = "", more: str = "") -> None:
    served = Served(folder, transfer, more)
    print("READY", flush=True)
    for line in sys.stdin:
        print("ANSWER " + json.dumps(served.answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    {"make": make, "serve": serve}[sys.argv[1]](*sys.argv[2:])
