"""Seeded faults in the certificates: random rows must show each of them, or the property tests would prove little."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import numpy as np
import pytest

from kcverify.streams import partial

SOURCE = Path(partial.__file__).read_text(encoding="utf-8")
FAULTS = (
    ("the smaller tail forgotten", "_bounds(least, least + rest, bad", "_bounds(least, least, bad"),
    ("upper bound from the partition", "upper = np.clip(1.0 - least + spare", "upper = np.clip(1.0 - most + spare"),
    ("no margin", "margin = of_p * np.maximum(1.0, mass_p) + of_q * np.maximum(1.0, mass_q)", "margin = 0.0 * mass_p"),
    ("margin of one side", "margin = of_p * np.maximum(1.0, mass_p) + of_q", "margin = 0.0 * of_p * mass_p + of_q"),
    ("half a margin", "-np.expm1(-self.p)) * _UP, float(-np.expm1(-self.q))", "-np.expm1(-self.p / 2)) * _UP, float(-np.expm1(-self.q / 2))"),
    ("caps of the other list", "np.minimum(cap_q[:, None], in_p)", "np.minimum(cap_p[:, None], in_p)"),
    ("no room outside both lists", "+ np.minimum(q_r - u, p_r - v)", "+ 0.0"),
    ("a list's own mass for both", "np.minimum(q_r, only_p), np.minimum(p_r, only_q)", "np.minimum(p_r, only_p) * 0.5, np.minimum(q_r, only_q) * 0.5"),
    ("the cap filled on the likeliest", "tail = np.sort(tail, axis=1)", "tail = np.sort(tail, axis=1)[:, ::-1]"),
    ("the remainder forgotten", "remainder = np.clip(rest - whole * cap, 0.0, cap)", "remainder = 2 * np.clip(rest - whole * cap, 0.0, cap) + cap"),
    ("no cap below the full side", "np.where(np.isfinite(prob), np.minimum(a, prob), 0.0)", "np.where(np.isfinite(prob), 0.5 * np.minimum(a, prob), 0.0)"),
    ("the cap of the list with the sampled token", "    cap = _cap(p, error.growth[1])\n    if sampled is not None:\n        own, p = appended(own, p, sampled[0], sampled[1])\n", "    if sampled is not None:\n        own, p = appended(own, p, sampled[0], sampled[1])\n    cap = _cap(p, error.growth[1])\n"),
)  # fmt: skip


def load(source: str) -> types.ModuleType:
    module = types.ModuleType("faulty_partial")
    sys.modules["faulty_partial"] = module  # dataclasses look their module up
    exec(compile(source, "faulty_partial", "exec"), module.__dict__)
    return module


def violated(module: types.ModuleType) -> bool:
    """Whether some certificate misses the true total variation on random rows, with and without errors."""
    rng = np.random.default_rng(0)
    for round_ in range(60):
        width = int(rng.integers(4, 12))
        z = rng.choice([0.3, 1.0, 3.0]) * rng.standard_normal((40, width))
        shift = rng.choice([0.05, 0.5, 3.0]) * rng.standard_normal(z.shape)
        p, q = (x - np.log(np.exp(x).sum(1, keepdims=True)) for x in (z, z + shift))
        if round_ % 3 == 0:  # nothing in common but the first tokens
            q = q[:, ::-1]
        truth = np.abs(np.exp(p) - np.exp(q)).sum(1) / 2
        k, m = (int(x) for x in rng.integers(1, 4, 2))
        eta = float(rng.choice([0.0, 0.2]))
        error = module.Error(eta, eta)
        shown_p, shown_q = p, q
        if eta:
            shown_p = np.minimum(0.0, p + eta * np.where(p > q, -1.0, 1.0))
            shown_q = np.minimum(0.0, q + eta * np.where(p > q, 1.0, -1.0))
            if round_ % 2:
                shown_p, shown_q = 2 * p - shown_p, 2 * q - shown_q
        ids_p, ids_q = (np.argsort(-x, axis=1, kind="stable")[:, :n] for x, n in ((shown_p, k), (shown_q, m)))
        on_p, on_q = np.take_along_axis(shown_p, ids_p, 1), np.take_along_axis(shown_q, ids_q, 1)
        a = np.argmin(p, axis=1)
        at = np.take_along_axis(shown_p, a[:, None], 1)[:, 0]
        for found in (
            module.common(on_p, np.take_along_axis(shown_q, ids_p, 1), ids_p, error=error),
            module.both_top(ids_p, on_p, ids_q, on_q, error=error),
            module.full_against_top(q, ids_p, on_p, error=module.Error(0.0, eta)),
            module.full_against_top(q, ids_p, on_p, error=module.Error(0.0, eta), sampled=(a, at)),
        ):
            fine = found.valid
            if ((found.low > truth + 1e-12) | (truth > found.high + 1e-12))[fine].any():
                return True
    return False


def test_the_certificates_themselves_pass():
    assert not violated(load(SOURCE))


@pytest.mark.parametrize(("old", "new"), [f[1:] for f in FAULTS], ids=[f[0] for f in FAULTS])
def test_a_seeded_fault_is_found(old, new):
    assert SOURCE.count(old) == 1, "the fault no longer matches the source"
    assert violated(load(SOURCE.replace(old, new)))
