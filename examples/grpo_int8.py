"""GRPO on the demo model with rollouts from an int8 kernel: without masks, and with those of a contract.

    python examples/grpo_int8.py --steps 6

The float32 model trains, its int8 copy (packed anew at every step) samples. The monitor of `grpo_int8.kc` watches
both runs; the second also drops what the contract's masks reject and weighs the rest by truncated importance ratios.
"""

import argparse
from pathlib import Path

import torch

import kcverify
from kcverify.measure.kernels import BY_NAME, multiply
from kcverify.measure.model import Model, forward, load_safetensors
from kcverify.resources import data_path
from kcverify.rl import policy_loss, truncated
from kcverify.rl.contract import masks_of

HERE = Path(__file__).parent
CONTEXT = 24


def prompts(count):
    """`[count, CONTEXT]` bytes of the held-out text."""
    text = data_path("heldout.txt").read_bytes()
    step = len(text) // count
    return torch.tensor([list(text[i * step : i * step + CONTEXT]) for i in range(count)])


@torch.no_grad()
def roll_out(model, kernel, start, length):
    """Sampled tokens `[batch, length]` and the logits that they were drawn from, by the kernel's own products."""
    packed = {name: kernel.pack(model.tensors[name].detach()) for name in model.matrices}
    tokens, rows = start, []
    for _ in range(length):
        rows.append(forward(model, lambda name, x: multiply(kernel, x, packed[name]), tokens, torch.float32)[:, -1])
        tokens = torch.cat((tokens, torch.multinomial(rows[-1].softmax(-1), 1)), 1)
    return tokens[:, start.shape[1] :], torch.stack(rows, 1)


def score(tokens):
    """Reward in [0, 1]: the share of vowels."""
    return torch.isin(tokens, torch.tensor(list(b"aeiou"))).float().mean(1)


def contract_monitor(contract):
    """The contract's monitor; `kcverify compile` writes the same class as a module."""
    scope = {}
    exec(kcverify.emit_monitor(contract), scope)
    return scope["ContractMonitor"](1.0)


def train(contract, given, masked):
    """One run from the same weights and seed; prints a line a step, returns the last rewards and the monitor's report."""
    torch.manual_seed(given.seed)
    loaded = load_safetensors(data_path("tinylm.safetensors"))
    parameters = {name: tensor.clone().requires_grad_() for name, tensor in loaded.tensors.items()}
    model = Model(loaded.architecture, parameters)
    optimizer = torch.optim.Adam(parameters.values(), lr=given.rate)
    monitor, masks, kernel = contract_monitor(contract), masks_of(contract), BY_NAME[given.kernel]
    start = prompts(given.prompts).repeat_interleave(given.group, 0)
    rewards = []
    for step in range(given.steps):
        tokens, rollout = roll_out(model, kernel, start, given.tokens)
        whole = torch.cat((start, tokens), 1)[:, :-1]
        logits = forward(model, lambda name, x: torch.nn.functional.linear(x, parameters[name]), whole, torch.float32)
        rows = logits[:, CONTEXT - 1 :].log_softmax(-1)
        ours, theirs = (x.gather(-1, tokens[..., None])[..., 0] for x in (rows, rollout.log_softmax(-1)))

        names = [f"{step}-{i}" for i in range(len(tokens))]
        monitor.update(
            rows.detach().flatten(0, 1),
            rollout.flatten(0, 1),
            request_ids=[name for name in names for _ in range(given.tokens)],
            sampled_ids=tokens.flatten(),
        )
        monitor.close(names)

        reward = score(tokens)
        groups = reward.view(given.prompts, given.group)
        advantages = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).flatten()
        every = torch.ones_like(tokens)
        weights, found = torch.ones_like(ours), None
        if masked:
            distance = (rows.exp() - rollout.softmax(-1)).abs().sum(-1) / 2  # whole rows: the total variation itself
            keep, found = masks(ours, theirs, every, upper=distance, prefix_only=True)
            weights = keep * truncated(ours, theirs, every, cap=2.0)[0]
        loss = policy_loss(ours, advantages, weights, every)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rewards.append(float(reward.mean()))
        line = f"  step {step}: reward {rewards[-1]:.3f}, mean |log ratio| {float((ours - theirs).abs().mean().detach()):.4f}"
        if found is not None:
            line += f", kept {found.kept_share:.3f}, ess {found.ess:.4f}"
            line += "".join(f"\n    {text}" for text in found.findings)
        print(line, flush=True)
    return rewards, monitor.report()


def main():
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--steps", type=int, default=6)
    arguments.add_argument("--prompts", type=int, default=4)
    arguments.add_argument("--group", type=int, default=8)
    arguments.add_argument("--tokens", type=int, default=16)
    arguments.add_argument("--rate", type=float, default=3e-4)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--kernel", default="int8_bf16", help="a format of `kcverify measure --list`")
    given = arguments.parse_args()
    torch.set_num_threads(1)
    (contract,) = kcverify.load(HERE / "grpo_int8.kc")
    made = masks_of(contract)
    print("".join(f"mask: {rule.text} ({rule.level})\n" for rule in made.rules), end="")
    print("".join(f"no mask: {name}, {why}\n" for name, why in made.not_enforced), end="")
    for masked in (False, True):
        print("with masks" if masked else "without masks")
        rewards, report = train(contract, given, masked)
        half = max(1, len(rewards) // 2)
        first, last = (sum(part) / len(part) for part in (rewards[:half], rewards[-half:]))
        print(f"  reward {first:.3f} in the first half, {last:.3f} in the second; {report['requests']} responses")
        for clause in report["clauses"]:
            print(f"  {clause['verdict']:12} {clause['text']}; worst {clause['max']['value']:.4g}")


if __name__ == "__main__":
    main()
