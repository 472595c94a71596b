"""Masks and weights: hand-computed values, projects' formulas, gradients, nothing that poisons or overflows."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kcverify.rl import BY_NAME, METHODS, binary_kl, binary_tv, k3, policy_loss, top_k
from kcverify.rl.table import page

torch.set_num_threads(1)
INF, NAN = math.inf, math.nan
SOURCES = {"ratio", "mask"}


def row(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


def ones(like: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(like, dtype=torch.int64)


def options(name: str, trainer: torch.Tensor) -> dict:
    """Arguments that a row needs beyond the three."""
    batch, length = trainer.shape
    given = {
        "advantages": torch.ones(batch),
        "max_kl": 0.5, "mean_kl": 0.5, "mean_log_ratio": 0.5, "budget": 0.5, "prefix_only": True,
        "upper": torch.full((batch, length), 0.1, dtype=torch.float64),
    }  # fmt: skip
    wanted = BY_NAME[name].parameters
    out = {key: given[key] for key in wanted if key in given and key != "divergence"}
    if "top" in wanted:
        p, q = (torch.full((batch, length, 2), math.log(x), dtype=torch.float64) for x in (0.3, 0.25))
        ids = torch.arange(2).expand(batch, length, 2)
        out["top"] = (ids, p, q) if name == "c_dppo" else (p, q)
    if name == "cppo":
        out.pop("budget")
    return out


def call(name: str, trainer: torch.Tensor, rollout: torch.Tensor, mask: torch.Tensor, **more: object):
    return BY_NAME[name](trainer, rollout, mask, **(options(name, trainer) | more))


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_every_row_runs_and_reports(method):
    torch.manual_seed(0)
    rollout = -torch.rand(3, 5, dtype=torch.float64) - 0.5
    trainer = (rollout + 0.01 * torch.randn(3, 5, dtype=torch.float64)).requires_grad_()
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]])
    weights, report = call(method.name, trainer, rollout, mask)
    assert weights.shape == (3, 5) and not weights.requires_grad
    assert (weights[mask == 0] == 0).all() and torch.isfinite(weights).all()
    assert report.tokens == 7 and report.sequences == 2
    assert 0 <= report.kept_share <= 1 and 0 < report.ess <= 1
    assert report.broken == 0 and method.weights in SOURCES
    assert (
        method.statement
        and method.source
        and report.certifies
        == {
            "trm_max": "detector",
            "trm_mean": "detector",
            "c_dppo": "accept and reject of outward updates",
        }.get(method.name, method.certifies)
    )  # without rows, and with advantages
    assert set(report.data()) >= {"kept_share", "ess", "mask_hides_failure", "findings", "log_ratio_max"}
    if method.weights == "mask":
        assert set(weights.unique().tolist()) <= {0.0, 1.0}


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
@pytest.mark.parametrize("poison", [NAN, INF, -INF, 1e300])
def test_masked_tokens_poison_nothing(method, poison):
    """Values and gradients are bit for bit those of a batch without the masked tokens' rubbish."""
    clean = row(-0.7, -1.2, -0.4, -2.0)
    mask = torch.tensor([[1, 1, 0, 1]])
    out = []
    for value in (-0.4, poison):
        trainer, rollout = clean.clone(), clean + 0.02
        trainer[0, 2] = value
        rollout[0, 2] = -value if value == 1e300 else value
        trainer.requires_grad_()
        more = options(method.name, trainer)
        if "top" in more:
            more["top"][-1][0, 2], more["top"][-2][0, 2] = value, NAN
        if "upper" in more:
            more["upper"][0, 2] = value
        if method.name in ("trm_max", "trm_mean", "cppo"):
            more["divergence"] = row(0.01, 0.01, value, 0.01)
        if method.weights == "ratio":
            more["detach"] = False
        weights, report = method(trainer, rollout, mask, **more)
        loss = policy_loss(trainer, torch.tensor([2.0], dtype=torch.float64), weights, mask)
        loss.backward()
        plain = report.data()
        plain.pop("details")
        out.append((weights.detach(), loss.detach(), trainer.grad, plain))
    for first, second in zip(out[0][:3], out[1][:3], strict=True):
        assert torch.equal(first, second) and torch.isfinite(first).all()
    assert out[0][3] == out[1][3]


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [89.0, 1000.0, INF])
def test_no_overflow_of_any_ratio(method, dtype, size):
    trainer = torch.tensor([[-0.5, -0.5], [-size, -0.5], [-0.5, -0.5]], dtype=dtype).requires_grad_()
    rollout = torch.tensor([[-size, -0.5], [-0.5, -0.5], [-0.5, -0.5]], dtype=dtype)
    more = options(method.name, trainer) | ({"detach": False} if method.weights == "ratio" else {})
    weights, report = method(trainer, rollout, torch.ones(3, 2), **more)
    assert torch.isfinite(weights).all() and weights.dtype == torch.float32
    policy_loss(trainer.float(), torch.ones(3), weights, torch.ones(3, 2)).backward()
    assert torch.isfinite(trainer.grad).all()
    assert report.impossible == (1 if size == INF else 0)
    assert report.broken == 0 and report.log_ratio_max >= 44 and report.log_ratio_min <= -44
    assert 0 < report.ess <= 1 and not math.isnan(report.mean_ratio)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_broken_tokens_are_counted_never_kept_and_stay_in_the_denominator(method):
    trainer, rollout = row(-0.5, NAN, -0.5, -0.5), row(-0.5, -0.5, INF, -0.5)
    weights, report = call(method.name, trainer, rollout, ones(trainer))
    assert report.tokens == 4 and report.broken == 2 and report.kept_tokens <= 2
    assert weights[0, 1] == 0 == weights[0, 2] and not report.ok
    assert any("2 tokens have no log ratio" in text for text in report.findings)


def test_truncated_weights_by_hand():
    trainer, rollout = torch.log(row(0.6, 0.2, 0.1)), torch.log(row(0.2, 0.4, 0.1))
    weights, report = call("tis_token", trainer, rollout, ones(trainer))
    assert weights[0].tolist() == pytest.approx([2.0, 0.5, 1.0])
    assert report.clipped_share == pytest.approx(1 / 3) and report.kept_share == 1
    assert report.log_ratio_max == pytest.approx(math.log(3)), "before the clip"
    assert report.mean_ratio == pytest.approx(1.5) and report.ess == pytest.approx(4.5**2 / (3 * (9 + 0.25 + 1)))
    assert report.weight_ess == pytest.approx(3.5**2 / (3 * 5.25))
    whole, _ = call("tis_sequence", trainer, rollout, ones(trainer))
    assert whole[0].tolist() == pytest.approx([1.5] * 3)
    mean, _ = call("tis_geometric", trainer, rollout, ones(trainer))
    assert mean[0].tolist() == pytest.approx([1.5 ** (1 / 3)] * 3)
    floored, _ = call("tis_token", trainer, rollout, ones(trainer), low=0.8)
    assert floored[0].tolist() == pytest.approx([2.0, 0.8, 1.0]), "slime's lower bound"


def test_windows_by_hand():
    trainer, rollout = torch.log(row(0.6, 0.2, 0.05)), torch.log(row(0.1, 0.3, 0.2))
    weights, report = call("icepop", trainer, rollout, ones(trainer))
    assert weights[0].tolist() == pytest.approx([0.0, 2 / 3, 0.0])
    assert report.kept_share == pytest.approx(1 / 3) and report.mask_hides_failure
    assert "mask_hides_failure: window, token kept 0.3333 of the tokens" in report.findings[0]
    kept, _ = call("reject_sequence", trainer, rollout, ones(trainer), low=0.5, high=2.0)
    assert kept[0].tolist() == [1, 1, 1], "6 * 2/3 * 1/4 = 1"
    both = torch.cat((trainer, trainer)), torch.cat((rollout, rollout - 0.4))
    kept, report = call("reject_geometric", *both, torch.ones(2, 3), low=0.9, high=1.1)
    assert kept[:, 0].tolist() == [1, 0] and report.kept_sequences == 1 and report.unit == "sequence"


def test_divergences_by_hand():
    p, q = torch.log(row(0.6, 0.2, 1.0)), torch.log(row(0.5, 0.5, 1.0))
    assert binary_tv(p, q)[0].tolist() == pytest.approx([0.1, 0.3, 0.0])
    expected = [0.5 * math.log(0.5 / 0.6) + 0.5 * math.log(0.5 / 0.4), 0.5 * math.log(2.5) + 0.5 * math.log(0.5 / 0.8)]
    assert binary_kl(p, q)[0].tolist() == pytest.approx([*expected, 0.0])
    assert 16 < binary_kl(row(0.0), torch.log(row(0.5)))[0, 0] < INF, "the trainer leaves no more than a rounding"
    assert binary_kl(row(-INF), torch.log(row(0.5)))[0, 0] == INF
    lists = torch.log(torch.tensor([[[0.5, 0.2]]])), torch.log(torch.tensor([[[0.4, 0.4]]]))
    assert float(top_k(*lists)) == pytest.approx((0.1 + 0.2 + 0.1) / 2)
    kl = 0.4 * math.log(0.4 / 0.5) + 0.4 * math.log(2) + 0.2 * math.log(0.2 / 0.3)
    assert float(top_k(*lists, kind="kl")) == pytest.approx(kl, abs=1e-6), "float32"
    assert k3(row(0.1, -INF, INF))[0].tolist() == pytest.approx([math.expm1(0.1) - 0.1, INF, INF])


def test_dppo_drops_outward_tokens_only():
    """`A > 0, w > 1` or `A < 0, w < 1`, and beyond the limit: six tokens with |p - q| = 0.3 or 0.05."""
    trainer = torch.log(row(0.6, 0.6, 0.3, 0.3, 0.35, 0.35))
    rollout = torch.log(row(0.3, 0.3, 0.6, 0.6, 0.3, 0.3))
    advantages = row(1, -1, 1, -1, 1, 0)
    weights, report = call("dppo_tv", trainer, rollout, ones(trainer), advantages=advantages, delta=0.15)
    assert weights[0].tolist() == [0, 1, 1, 0, 1, 1]
    assert report.details["largest"] == pytest.approx(0.3) and report.certifies == "reject"
    wide, _ = call("dppo_tv", trainer, rollout, ones(trainer), advantages=advantages, delta=(0.15, 0.35))
    assert wide[0].tolist() == [0, 1, 1, 1, 1, 1]
    by_kl, _ = call("dppo_kl", trainer, rollout, ones(trainer), advantages=advantages, delta=0.05)
    assert by_kl[0].tolist() == [0, 1, 1, 0, 1, 1]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_masks_on_lower_bounds_reject_for_sure(seed):
    """Whatever is dropped exceeds the limit in the whole row's divergence, and C-DPPO is right on both sides."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(4, 6, 12, generator=generator, dtype=torch.float64) * 2
    rows_p = torch.log_softmax(z, -1)
    rows_q = torch.log_softmax(z + 0.7 * torch.randn(z.shape, generator=generator, dtype=torch.float64), -1)
    tv = (rows_p.exp() - rows_q.exp()).abs().sum(-1) / 2
    kl = (rows_q.exp() * (rows_q - rows_p)).sum(-1)
    tokens = torch.multinomial(rows_q.exp().reshape(-1, 12), 1, generator=generator).reshape(4, 6, 1)
    p, q = (x.gather(-1, tokens)[..., 0] for x in (rows_p, rows_q))
    order = rows_q.argsort(-1, descending=True)
    lists = [x.gather(-1, order) for x in (rows_p, rows_q)]
    advantages, delta = torch.sign(p - q), 0.2
    common = {"advantages": advantages, "delta": delta}
    dropped = {}
    for name, truth, more in (
        ("dppo_tv", tv, {}), ("dppo_kl", kl, {}),
        ("dppo_top_tv", tv, {"top": tuple(x[..., :4] for x in lists)}),
        ("dppo_top_kl", kl, {"top": tuple(x[..., :4] for x in lists)}),
    ):  # fmt: skip
        weights, _ = BY_NAME[name](p, q, torch.ones(4, 6), **common, **more)
        dropped[name] = weights == 0
        assert (truth[weights == 0] > delta).all(), name
    top_tokens = (order[..., :4] == tokens).any(-1)
    assert (dropped["dppo_top_tv"] | ~dropped["dppo_tv"])[top_tokens].all(), "a list says no less than its token"
    for k in (2, 5, 12):
        top = (order[..., :k], *(x[..., :k] for x in lists))
        weights, report = BY_NAME["c_dppo"](p, q, torch.ones(4, 6), top=top, delta=delta, start=1)
        assert (tv[weights == 1] <= delta).all()
        assert (report.details["lower"] <= tv + 1e-12).all() and (tv <= report.details["upper"] + 1e-12).all()
        if k == 12:
            assert torch.equal(weights == 1, tv <= delta) and report.details["undecided"] == 0
        inward, _ = BY_NAME["c_dppo"](p, q, torch.ones(4, 6), top=top, delta=delta, advantages=-advantages)
        assert (inward == 1).all()


def test_trust_region_keeps_whole_responses_and_the_gradient_counts_all():
    d = torch.tensor([[0.1, -0.1, 0.0], [0.1, 2.0, 0.0], [0.3, 0.3, 9.9]], dtype=torch.float64)
    rollout = torch.full((3, 3), -3.0, dtype=torch.float64)
    trainer = (rollout + d).requires_grad_()
    mask = torch.tensor([[1, 1, 1], [1, 1, 1], [1, 1, 0]])
    kl = torch.tensor([[0.01, 0.02, 0.0], [0.01, 0.5, 0.0], [0.04, 0.04, NAN]])
    weights, report = call("trm_max", trainer, rollout, mask, max_kl=0.05, divergence=kl)
    assert weights.tolist() == [[1, 1, 1], [0, 0, 0], [1, 1, 0]]
    assert report.certifies == "accept" and report.kept_share == pytest.approx(2 / 3) and report.unit == "sequence"
    assert report.details["largest"]["max_kl"] == pytest.approx(0.5)
    averaged, _ = call("trm_mean", trainer, rollout, mask, mean_kl=0.03, divergence=kl)
    assert averaged[:, 0].tolist() == [1, 0, 0]
    length, found = call("trm_length", trainer, rollout, mask, mean_log_ratio=0.2)
    assert length[:, 0].tolist() == [1, 0, 0] and found.certifies == "detector"
    assert call("trm_max", trainer, rollout, mask, max_kl=0.05)[1].certifies == "detector", "k3 bounds nothing"
    policy_loss(trainer, torch.ones(3), weights, mask, by="token").backward()
    assert trainer.grad[0].tolist() == pytest.approx([-1 / 8] * 3), "8 tokens in the mask, 5 of them kept"
    trainer.grad = None
    policy_loss(trainer, torch.ones(3), weights, mask, by="sequence").backward()
    assert trainer.grad[2].tolist() == pytest.approx([-1 / 3, -1 / 3, 0])
    trainer.grad = None
    policy_loss(trainer, torch.ones(3), weights, mask, total=16).backward()
    assert trainer.grad[0, 0] == pytest.approx(-1 / 16)


def test_prefix_budget_by_hand():
    """D = (.1, .12, .02, .2): weights 1, .9, .8 after the hole, sums by hand; delta .15, b fixed at .02."""
    q = row(0.5, 0.5, 0.5, 0.5, 0.5)
    p = row(0.6, 0.62, 0.9, 0.52, 0.7)
    mask = torch.tensor([[1, 1, 0, 1, 1]])
    more = {"advantages": torch.ones(1), "delta": 0.15, "adaptive": False, "weight_min": 0.7}
    weights, report = BY_NAME["cppo"](p.log(), q.log(), mask, **more)
    # w = 1, .9, .8, .7; Z = .1, .108, .016, .14; room = .15, .15 + .02 - .1 = .07, .15 + .038 - .208 = -.02, ...
    assert weights[0].tolist() == [1, 0, 0, 0, 0] and report.kept_tokens == 1
    roomy, _ = BY_NAME["cppo"](p.log(), q.log(), mask, **(more | {"budget": 0.1}))
    # room = .15, .15, .15 + .19 - .208 = .132, .15 + .27 - .224 = .196 capped at .15
    assert roomy[0].tolist() == [1, 1, 0, 1, 1]
    inward, _ = BY_NAME["cppo"](p.log(), q.log(), mask, **(more | {"advantages": -torch.ones(1)}))
    assert inward[0].tolist() == [1, 1, 0, 1, 1]
    # the 90 % quantile of D is .12 + .7 * .08 = .176, within [.1, .2]: W = 1, 1.9, 2.7
    own, _ = BY_NAME["cppo"](p.log(), q.log(), mask, **(more | {"budget": 0.1, "adaptive": True}))
    assert own[0].tolist() == [1, 1, 0, 1, 1]
    single, _ = BY_NAME["cppo"](torch.log(row(0.66)), torch.log(row(0.5)), torch.ones(1, 1), **more)
    assert single.tolist() == [[0]], "one token has weight 1: .16 > .15"


def test_stopped_prefix_by_hand():
    lp = row(-1, -1, -1, -1)
    weights, report = call("stopped_prefix", lp, lp, ones(lp), upper=row(0.1, 0.2, 0.3, 0.0), budget=0.35)
    assert weights[0].tolist() == [1, 1, 0, 0] and report.details["spent"] == pytest.approx(0.3)
    assert report.certifies == "accept"
    sampled = call("stopped_prefix", lp, lp, ones(lp), upper=row(0.1, NAN, 0.0, 0.0), budget=0.35, prefix_only=False)
    assert sampled[0][0].tolist() == [1, 0, 0, 0] and sampled[1].certifies == "detector"


@pytest.mark.parametrize("name", ["tis_token", "tis_sequence", "tis_geometric", "icepop"])
def test_gradients_of_weights(name):
    """Away from the kinks the weight's gradient is the ratio's; where a bound binds it is 0."""
    torch.manual_seed(1)
    rollout = -torch.rand(2, 4, dtype=torch.float64) - 1
    trainer = (rollout + 0.2 * torch.randn(2, 4, dtype=torch.float64)).requires_grad_()
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])

    def weighted(x: torch.Tensor) -> torch.Tensor:
        weights, _ = call(name, x, rollout, mask, detach=False)
        return policy_loss(x, torch.tensor([1.0, -2.0], dtype=torch.float64), weights, mask)

    assert torch.autograd.gradcheck(weighted, (trainer,))
    far = (rollout + 3.0).requires_grad_()
    weights, _ = call(name, far, rollout, mask, detach=False)
    weights.sum().backward()
    assert (far.grad == 0).all()


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(*[st.sampled_from([-0.1, -2.0, -40.0, -1000.0, -INF, NAN, INF, 0.0])] * 2), min_size=1, max_size=6
    ),
    st.sampled_from([m.name for m in METHODS]),
)
def test_any_batch_gives_finite_weights_and_a_full_count(values, name):
    trainer, rollout = (row(*side) for side in zip(*values, strict=True))
    trainer.requires_grad_()
    more = {"detach": False} if BY_NAME[name].weights == "ratio" else {}
    weights, report = call(name, trainer, rollout, ones(trainer), **more)
    loss = policy_loss(trainer, torch.ones(1, dtype=torch.float64), weights, ones(trainer))
    loss.backward()
    assert torch.isfinite(weights).all() and torch.isfinite(loss) and torch.isfinite(trainer.grad).all()
    bad = sum(math.isnan(a - b) or INF in (a, b) for a, b in values)
    assert report.tokens == len(values) and report.broken == bad
    assert report.kept_tokens <= len(values) - bad and 0 <= report.ess <= 1


def test_the_formulas_of_the_projects_on_random_batches():
    """slime's and verl's clamps, TRL's and verl's divergence masks, a CPPO loop over tokens: written out again here."""
    torch.manual_seed(3)
    q = torch.rand(6, 9, dtype=torch.float64) * 0.9 + 0.05
    p = (q * torch.exp(0.8 * torch.randn(6, 9, dtype=torch.float64))).clamp(0.01, 0.99)
    advantages, every = torch.randn(6, 9, dtype=torch.float64), torch.ones(6, 9)
    lp, lq = p.log(), q.log()
    ratio = p / q
    assert torch.allclose(BY_NAME["tis_token"](lp, lq, every)[0], ratio.clamp(max=2.0))
    assert torch.allclose(BY_NAME["tis_token"](lp, lq, every, low=0.7, cap=1.3)[0], ratio.clamp(0.7, 1.3))
    assert torch.allclose(BY_NAME["tis_sequence"](lp, lq, every)[0][:, 0], ratio.prod(1).clamp(max=2.0))
    assert torch.allclose(BY_NAME["icepop"](lp, lq, every)[0], torch.where((ratio >= 0.5) & (ratio <= 5), ratio, 0))
    valid = torch.where(advantages > 0, p - q <= 0.1, p - q >= -0.2)
    found = BY_NAME["dppo_tv"](lp, lq, every, advantages=advantages, delta=(0.1, 0.2))[0]
    assert torch.equal(found != 0, valid)
    kl = q * (lq - lp) + (1 - q) * ((1 - q).log() - (1 - p).log())
    valid = torch.where(advantages > 0, ~((kl > 0.05) & (p > q)), ~((kl > 0.05) & (p < q)))
    assert torch.equal(BY_NAME["dppo_kl"](lp, lq, every, advantages=advantages, delta=0.05)[0] != 0, valid)
    kept = BY_NAME["cppo"](lp, lq, every, advantages=advantages, delta=0.15, budget=0.05)[0]
    for i in range(6):
        d = (p[i] - q[i]).abs()
        allowed = float(torch.quantile(d, 0.9).clamp(0.05, 0.1))
        spent = weighed = 0.0
        for t in range(9):
            w = 0.8 + 0.2 * (9 - (t + 1)) / 8
            limit = min(0.15, 0.15 + allowed * weighed - spent)
            inward = float(advantages[i, t] * (ratio[i, t] - 1)) <= 0
            assert bool(kept[i, t]) == (inward or float(w * d[t]) <= limit)
            spent, weighed = spent + w * float(d[t]), weighed + w


def test_the_page_is_the_table():
    """`python -c "from kcverify.rl.table import page; print(page(), end='')" > docs/masks.md` rewrites it."""
    assert (Path(__file__).resolve().parents[3] / "docs" / "masks.md").read_text(encoding="utf-8") == page()


def test_an_empty_mask_is_no_success():
    lp = row(-1, -1)
    for method in METHODS:
        weights, report = call(method.name, lp, lp, torch.zeros(1, 2))
        assert (weights == 0).all() and report.mask_hides_failure and not report.ok and report.kept_share == 0


def test_a_floor_of_one_means_that_nothing_may_be_dropped():
    trainer, rollout = torch.log(row(0.6, 0.2)), torch.log(row(0.5, 0.2))
    assert call("icepop", trainer, rollout, ones(trainer), kept_floor=1.0)[1].ok
    assert not call("icepop", trainer, rollout, ones(trainer), high=1.1, kept_floor=1.0)[1].ok


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        (lambda: call("tis_token", row(-1.0), row(-1.0, -1.0), row(1.0)), "expected"),
        (lambda: call("tis_token", row(-1.0), row(-1.0), row(1.0), cap=INF), "bounds"),
        (lambda: call("tis_token", row(-1.0), row(-1.0), row(1.0), level="word"), "level"),
        (lambda: call("tis_token", row(-1.0), row(-1.0), row(1.0), kept_floor=2.0), "floor"),
        (lambda: BY_NAME["trm_max"](row(-1.0), row(-1.0), row(1.0)), "at least one"),
        (lambda: call("trm_max", row(-1.0), row(-1.0), row(1.0), divergence=row(1, 2)), "divergences"),
        (lambda: call("dppo_tv", row(-1.0), row(-1.0), row(1.0), advantages=torch.ones(2)), "advantages"),
        (lambda: call("dppo_tv", row(-1.0), row(-1.0), row(1.0), kind="js"), "kind"),
        (lambda: call("c_dppo", row(-1.0), row(-1.0), row(1.0), top=(row(1), row(1), row(1))), "lists"),
        (lambda: call("cppo", row(-1.0), row(-1.0), row(1.0), weight_min=0.0), "weight_min"),
        (lambda: call("stopped_prefix", row(-1.0), row(-1.0), row(1.0), budget=NAN), "budget"),
        (lambda: policy_loss(row(-1.0), torch.ones(1), row(1.0), row(1.0), by="word"), "by"),
    ],
)
def test_wrong_arguments(wrong, match):
    with pytest.raises(ValueError, match=match):
        wrong()
