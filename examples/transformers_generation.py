"""A monitor attached to `generate` of transformers: int8 weights sample, the float32 model scores the same tokens.

    python examples/transformers_generation.py --prompts 64

The model is tiny and random, built from a config: nothing is downloaded. Put your own two models in its place.
"""

import argparse
import copy
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, LogitsProcessor, LogitsProcessorList

import kcverify

HERE = Path(__file__).parent
PROMPT, NEW = 8, 16


class Watch(LogitsProcessor):
    """Feeds a monitor while a candidate generates; the reference runs beside it with a cache of its own.

    The token of a step is known at the next one, so each pair of rows waits for a call; `finish` gives it the last one.
    The scores are passed on as they are. Prompts are of one length here: with padding, give the reference its mask too.
    """

    def __init__(self, monitor, reference, request_ids, end=None):
        self.monitor, self.reference, self.request_ids, self.end = monitor, reference, request_ids, end
        self.cache, self.seen, self.waiting = None, 0, None
        self.alive = torch.ones(len(request_ids), dtype=torch.bool)

    def __call__(self, input_ids, scores):
        self.settle(input_ids[:, -1])
        with torch.no_grad():
            out = self.reference(input_ids[:, self.seen :], cache=self.cache, use_cache=True)
        self.cache, self.seen = out.cache, input_ids.shape[1]
        self.waiting = out.logits[:, -1], scores.clone()
        return scores

    def settle(self, sampled):
        """Measure the rows of the last step, of the responses that had not ended before it."""
        if self.waiting is None or not self.alive.any():
            return
        reference, candidate = self.waiting
        names = [name for name, alive in zip(self.request_ids, self.alive.tolist(), strict=True) if alive]
        self.monitor.update(
            reference[self.alive], candidate[self.alive], request_ids=names, sampled_ids=sampled[self.alive]
        )
        if self.end is not None:
            self.alive &= sampled != self.end

    def finish(self, sequences):
        """The last step, and no more rows for these requests; `sequences` is what `generate` returned."""
        self.settle(sequences[:, -1])
        self.monitor.close(self.request_ids)


def int8_weights(model):
    """A copy whose matrices went through int8, one scale a row."""
    out = copy.deepcopy(model)
    for module in out.modules():
        if isinstance(module, torch.nn.Linear):
            scale = module.weight.detach().abs().amax(1, keepdim=True).clamp_min(1e-8) / 127
            module.weight.data = torch.round(module.weight.data / scale).to(torch.int8).float() * scale
    return out


def contract_monitor(path, temperature=1.0):
    """The monitor of the contract in a file; `kcverify compile` writes the same class as a module."""
    (contract,) = kcverify.load(path)
    scope = {}
    exec(kcverify.emit_monitor(contract), scope)
    return scope["ContractMonitor"](temperature)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--prompts", type=int, default=64)
    arguments.add_argument("--batch", type=int, default=16)
    given = arguments.parse_args()
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=256, num_key_value_heads=2, eos_token_id=1, pad_token_id=0, **sizes)
    reference = LlamaForCausalLM(config).eval()
    candidate = int8_weights(reference)
    monitor = contract_monitor(HERE / "int8_rollout.kc")

    for start in range(0, given.prompts, given.batch):
        count = min(given.batch, given.prompts - start)
        prompts = torch.randint(2, 256, (count, PROMPT))
        watch = Watch(monitor, reference, [f"prompt-{start + i}" for i in range(count)], end=config.eos_token_id)
        sequences = candidate.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=True,
            top_k=0,
            max_new_tokens=NEW,
            logits_processor=LogitsProcessorList([watch]),
        )
        watch.finish(sequences)

    report = monitor.report()
    print(f"{report['requests']} responses, {report['rows']['total']} tokens")
    for clause in report["clauses"]:
        worst = clause["max"]
        print(f"  {clause['verdict']:12} {clause['text']}; worst {worst['value']:.4g} in response {worst['request']}")


if __name__ == "__main__":
    main()
