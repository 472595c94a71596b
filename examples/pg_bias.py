"""Policy-gradient bias of another kernel's samples, exact by enumeration, beside the bounds that kcverify proves.

    python examples/pg_bias.py --seeds 12

A tiny network is the policy: every response over a small vocabulary is listed with its probability under the reference
(float64) and under a kernel's logits, so that no sampling error hides a violation. Advantages are random, or chosen
against the bound. `proved` rests on the largest logit span over all contexts alone, through kcverify's lemmas.
"""

import argparse
from fractions import Fraction
from itertools import product

import torch

from kcverify.bounds.calculator import premises
from kcverify.bounds.graph import Parameters, best_for, propagate
from kcverify.catalog.model import Mode
from kcverify.measure.kernels import BY_NAME, multiply

WIDTH, CLIP, CAP = 32, Fraction(1, 5), Fraction(101, 100)
KERNELS = ("bfloat16", "int8", "fp8", "int4")


def up(x):
    """A fraction a little above a double."""
    return Fraction(x) * (1 + Fraction(1, 10**9))


def states(vocabulary, horizon):
    """Features `[n, F]` of every context, by (last two tokens, position); response r visits `visited[r, t]`."""
    known, rows, visited = {}, [], []
    for response in product(range(vocabulary), repeat=horizon):
        path = []
        for t in range(horizon):
            key = (*(vocabulary, vocabulary, *response[:t])[-2:], t)
            if key not in known:
                known[key] = len(rows)
                places = (key[0], vocabulary + 1 + key[1], 2 * vocabulary + 2 + t)
                rows.append([1.0 if i in places else 0.0 for i in range(2 * vocabulary + 2 + horizon)])
            path.append(known[key])
        visited.append(path)
    responses = torch.tensor(list(product(range(vocabulary), repeat=horizon)))
    return torch.tensor(rows, dtype=torch.float64), torch.tensor(visited), responses


def log_probability(logits, visited, responses):
    """`[states, V]` logits to the log-probability of each response, and of each of its tokens."""
    tokens = logits.log_softmax(-1)[visited, responses]
    return tokens.sum(1), tokens


def against(difference, scores, generator):
    """Advantages of size 1 that push the bias into one direction, by a few rounds of fixed point."""
    direction = torch.randn(scores.shape[1], generator=generator, dtype=torch.float64)
    for _ in range(8):
        advantages = torch.where(difference * (scores @ direction) >= 0, 1.0, -1.0).double()
        direction = (difference * advantages) @ scores
    return advantages


def experiment(seed, kernel, vocabulary, horizon, adversarial, scale=1.5):
    """Pairs `(measured, bound)` of one run; of the room that a clip leaves, `(guaranteed, measured)`."""
    generator = torch.Generator().manual_seed(seed)
    features, visited, responses = states(vocabulary, horizon)
    shapes = ((WIDTH, features.shape[1]), (vocabulary, WIDTH))
    sizes = [a * b for a, b in shapes]
    theta = torch.cat([scale * torch.randn(n, generator=generator, dtype=torch.float64) / 2 for n in sizes])

    def network(x, linear):
        first, second = (part.reshape(shape) for part, shape in zip(x.split(sizes), shapes, strict=True))
        return linear(torch.tanh(linear(features, first)), second)

    def reference(x):
        return network(x, torch.nn.functional.linear)

    def packed(x, weight):
        row = BY_NAME[kernel]
        return multiply(row, x.float(), row.pack(weight.float())).double()

    ours, theirs = reference(theta), network(theta, packed)
    log_p, tokens_p = log_probability(ours, visited, responses)
    log_q, tokens_q = log_probability(theirs, visited, responses)
    scores = torch.autograd.functional.jacobian(
        lambda x: log_probability(reference(x), visited, responses)[0], theta, vectorize=True
    )
    p, q = log_p.exp(), log_q.exp()
    difference = p - q
    advantages = torch.rand(len(p), generator=generator, dtype=torch.float64) * 2 - 1
    if adversarial:
        advantages = against(difference, scores, generator)
    largest, norm = float(advantages.abs().max()), float(scores.norm(dim=1).max())

    def size(weights):
        return float(((weights * advantages) @ scores).norm())

    error = theirs - ours
    span = up(float((error.amax(-1) - error.amin(-1)).max()))
    box = {"temperature": 1, "advantage": up(largest), "score_norm": up(norm), "clip": CLIP, "cap": CAP}
    parameters = Parameters(
        {k: (Fraction(v),) * 2 for k, v in box.items()} | {"horizon": (Fraction(1), Fraction(horizon))}
    )
    best = propagate(premises("logit_span", span, Fraction(0), parameters), parameters)

    def proved(quantity, mode=Mode.SEQUENCE):
        return float(best_for(best, quantity, mode, Fraction(0)).value)

    tv, cut = 0.5 * float(difference.abs().sum()), (p - float(CAP) * q).clamp_min(0)
    ratio, clip = (tokens_p - tokens_q).exp(), float(CLIP)
    return {
        "bias, its own TV": (size(difference), 2 * largest * norm * tv),
        "bias, proved": (size(difference), proved("pg_bias")),
        "TV of responses, proved": (tv, proved("tv_seq")),
        "truncated, its own mass": (size(cut), largest * norm * float(cut.sum())),
        "truncated, proved": (size(cut), proved("tis_bias")),
        "clip room above": (proved("clip_room_above", Mode.POINT), max(0.0, (1 + clip) / float(ratio.max()) - 1)),
        "clip room below": (proved("clip_room_below", Mode.POINT), max(0.0, 1 - (1 - clip) / float(ratio.min()))),
    }


def main():
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--seeds", type=int, default=12)
    arguments.add_argument("--vocabulary", type=int, default=4)
    arguments.add_argument("--horizon", type=int, default=5)
    given = arguments.parse_args()
    torch.set_num_threads(1)
    worst, runs, broken = {}, 0, 0
    for kernel, seed, adversarial in product(KERNELS, range(given.seeds), (False, True)):
        found = experiment(seed, kernel, given.vocabulary, given.horizon, adversarial)
        runs += 1
        for name, (low, high) in found.items():
            broken += low > high * (1 + 1e-9) + 1e-12
            share = low / high if high > 0 else 0.0
            if share >= worst.get((kernel, name), (0.0, 0.0, -1.0))[2]:
                worst[kernel, name] = low, high, share
    print(f"{runs} runs, {given.vocabulary}^{given.horizon} responses each: {broken} above their bound")
    print(f"{'worst: measured / bound':26}" + "".join(f"{kernel:>22}" for kernel in KERNELS))
    for name in dict.fromkeys(name for _, name in worst):
        cells = [worst.get((kernel, name), (0.0, 0.0, 0.0)) for kernel in KERNELS]
        print(f"{name:26}" + "".join(f"{low:8.2g} /{high:7.2g}{share:5.0%}" for low, high, share in cells))
    return int(broken > 0)


if __name__ == "__main__":
    raise SystemExit(main())
