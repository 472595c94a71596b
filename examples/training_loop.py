"""A plain torch training loop whose rollouts come from an int8 kernel, with a monitor fed at every step.

    python examples/training_loop.py --steps 40 --state state.pt

Policy, optimiser, random numbers and monitor are saved in one file, in one instant, after each step: kill the run, start
it again, and it ends with the same report.
"""

import argparse
from pathlib import Path

import torch

import kcverify

HERE = Path(__file__).parent
VOCABULARY, WIDTH, HORIZON, BATCH = 32, 48, 16, 24


class Policy(torch.nn.Module):
    """Logits of the next token from the last token and the position; `linear` is the kernel of the products."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY + HORIZON, WIDTH)
        self.hidden = torch.nn.Linear(WIDTH, WIDTH)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, last, position, linear=torch.nn.functional.linear):
        x = torch.tanh(self.embed(last) + self.embed(VOCABULARY + position))
        x = torch.tanh(linear(x, self.hidden.weight, self.hidden.bias))
        return linear(x, self.head.weight, self.head.bias)


def int8_linear(x, weight, bias):
    """Products of 8-bit integers, summed as integers, one scale a row on both sides."""
    scales = [t.abs().amax(-1, keepdim=True).clamp_min(1e-8) / 127 for t in (x, weight)]
    left, right = (torch.round(t / s).to(torch.int32) for t, s in zip((x, weight), scales, strict=True))
    return (left @ right.T).float() * scales[0] * scales[1].T + bias


@torch.no_grad()
def roll_out(policy):
    """Sampled tokens and the int8 logits that they were drawn from: `[batch, horizon]`, `[batch, horizon, vocabulary]`."""
    last, tokens, logits = torch.zeros(BATCH, dtype=torch.int64), [], []
    for step in range(HORIZON):
        logits.append(policy(last, torch.full_like(last, step), int8_linear))
        last = torch.multinomial(logits[-1].softmax(-1), 1)[:, 0]
        tokens.append(last)
    return torch.stack(tokens, 1), torch.stack(logits, 1)


def contract_monitor(path, temperature=1.0):
    """The monitor of the contract in a file; `kcverify compile` writes the same class as a module."""
    (contract,) = kcverify.load(path)
    scope = {}
    exec(kcverify.emit_monitor(contract), scope)
    return scope["ContractMonitor"](temperature)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--steps", type=int, default=40)
    arguments.add_argument("--state", type=Path, default=Path("training_state.pt"))
    given = arguments.parse_args()
    torch.manual_seed(0)
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
    monitor = contract_monitor(HERE / "int8_rollout.kc")
    done = 0
    if given.state.exists():
        progress = monitor.load(given.state)
        done = progress["step"]
        policy.load_state_dict(progress["policy"])
        optimizer.load_state_dict(progress["optimizer"])
        torch.set_rng_state(progress["random"])

    for step in range(done, given.steps):
        tokens, rollout = roll_out(policy)
        before = torch.cat((torch.zeros(BATCH, 1, dtype=torch.int64), tokens[:, :-1]), 1)
        trainer = policy(before, torch.arange(HORIZON).expand(BATCH, -1))

        names = [f"{step}-{row}" for row in range(BATCH)]
        monitor.update(
            trainer.detach().flatten(0, 1),
            rollout.flatten(0, 1),
            request_ids=[name for name in names for _ in range(HORIZON)],
            sampled_ids=tokens.flatten(),
        )
        monitor.close(names)

        reward = (tokens % 2 == 0).float().mean(1)  # even tokens please
        chosen = trainer.log_softmax(-1).gather(-1, tokens[..., None])[..., 0].sum(1)
        loss = -((reward - reward.mean()) * chosen).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress = {"step": step + 1, "policy": policy.state_dict(), "optimizer": optimizer.state_dict()}
        monitor.save(given.state, progress | {"random": torch.get_rng_state()})

    report = monitor.report()
    print(f"{report['requests']} responses, {report['rows']['total']} tokens, after step {max(done, given.steps)}")
    for clause in report["clauses"]:
        worst = clause["max"]
        print(f"  {clause['verdict']:12} {clause['text']}; worst {worst['value']:.4g} in response {worst['request']}")


if __name__ == "__main__":
    main()
