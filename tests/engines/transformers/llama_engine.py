"""A small Llama of transformers with seeded weights: goes on from what the store has of a prompt.

llama_engine.py MASTER

Lines in: a prompt, as a list of tokens.  Answers: the tokens that follow, and how many of the
prompt's came from the store; what was computed is stored.
"""

from __future__ import annotations

import json
import sys

import torch
import transformers

from mooncake_store import Client
from mooncake_store.torch import load_longest_prefix, save_prefix

BLOCK = 16


def main() -> None:
    torch.manual_seed(5)
    config = transformers.LlamaConfig(
        vocab_size=200, hidden_size=64, intermediate_size=96, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
        initializer_range=0.5, bos_token_id=1, eos_token_id=None,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    with Client(sys.argv[1]) as store:
        print("READY", flush=True)
        for line in sys.stdin:
            prompt = json.loads(line)
            loaded = load_longest_prefix(
                store, prompt, config=config, model="tiny-llama", block_size=BLOCK
            )
            output = model.generate(
                torch.tensor([prompt]), past_key_values=loaded.cache, max_new_tokens=12,
                do_sample=False, return_dict_in_generate=True,
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            )  # fmt: skip
            tokens = output.sequences[0].tolist()
            save_prefix(
                store, output.past_key_values, tokens[:-1], model="tiny-llama", block_size=BLOCK
            )
            answer = {"tokens": tokens[len(prompt) :], "loaded": loaded.num_tokens}
            print("ANSWER " + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
