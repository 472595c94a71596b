"""The table of methods: what each certifies, its parameters, where its formula comes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from kcverify.rl.certified import certified
from kcverify.rl.divergence import dppo
from kcverify.rl.region import prefix_budget, stopped_prefix, trust_region
from kcverify.rl.report import Report
from kcverify.rl.weights import icepop, truncated, windowed


@dataclass(frozen=True)
class Method:
    """One row: `function(trainer_logprobs, rollout_logprobs, mask, **fixed, …) -> (weights, report)`.

    `weights`: `ratio` or `mask`. `certifies`: `reject` (a dropped token exceeds the limit for sure, a kept one may too),
    `accept` (a kept one is inside for sure, given what the statement names), `bias`, `detector` (neither), `nothing`.
    """

    name: str
    function: Callable[..., tuple[Tensor, Report]]
    weights: str
    certifies: str
    statement: str
    parameters: tuple[str, ...]
    source: str
    fixed: tuple[tuple[str, object], ...] = ()

    def __call__(self, *arguments: Tensor, **options: object) -> tuple[Tensor, Report]:
        """The function with the row's fixed options."""
        return self.function(*arguments, **(dict(self.fixed) | options))


_IMPORTANCE = "truncated importance sampling, as verl's rollout correction and slime's `tis` have it"
_DPPO = "Qi et al. 2026, Rethinking the trust region in LLM reinforcement learning (arXiv 2602.04879)"
_TRM = "Li et al. 2025, Trust region masking (arXiv 2512.23075)"

METHODS: tuple[Method, ...] = (
    Method(
        "tis_token", truncated, "ratio", "nothing", "min(w_t, cap); says nothing about whole responses",
        ("cap", "low"), _IMPORTANCE, (("level", "token"),),
    ),
    Method(
        "tis_sequence", truncated, "ratio", "bias", "min(prod w_t, cap) leaves at most A G sum (p - cap q)_+",
        ("cap", "low"), _IMPORTANCE, (("level", "sequence"),),
    ),
    Method(
        "tis_geometric", truncated, "ratio", "nothing", "min((prod w_t)^(1/n), cap); no importance weight of anything",
        ("cap", "low"), _IMPORTANCE, (("level", "geometric"),),
    ),
    Method(
        "icepop", icepop, "ratio", "reject", "w_t inside [low, high], 0 outside", ("low", "high"),
        "IcePop, Ring team 2025, and slime's `icepop`",
    ),
    Method(
        "reject_sequence", windowed, "mask", "reject", "1 where prod w_t is inside [low, high]", ("low", "high"),
        "rejection sampling of verl's rollout correction, sum of k1", (("level", "sequence"), ("weigh", False)),
    ),
    Method(
        "reject_geometric", windowed, "mask", "reject", "1 where (prod w_t)^(1/n) is inside [low, high]",
        ("low", "high"), "rejection sampling of verl's rollout correction, mean of k1",
        (("level", "geometric"), ("weigh", False)),
    ),
    Method(
        "dppo_tv", dppo, "mask", "reject", "outward and |p_a - q_a| > delta is dropped", ("advantages", "delta"), _DPPO,
        (("kind", "tv"),),
    ),
    Method(
        "dppo_kl", dppo, "mask", "reject", "outward and binary KL(rollout || trainer) > delta is dropped",
        ("advantages", "delta"), _DPPO, (("kind", "kl"),),
    ),
    Method(
        "dppo_top_tv", dppo, "mask", "reject", "as dppo_tv on a list and one cell for the rest",
        ("advantages", "delta", "top"), _DPPO, (("kind", "tv"),),
    ),
    Method(
        "dppo_top_kl", dppo, "mask", "reject", "as dppo_kl on a list and one cell for the rest",
        ("advantages", "delta", "top"), _DPPO, (("kind", "kl"),),
    ),
    Method(
        "c_dppo", certified, "mask", "accept and reject",
        "kept: TV of the whole row <= delta; dropped: above it, or undecided with the longest list",
        ("top", "delta", "advantages", "start", "error"), "DPPO's rule on the certificates of `streams.partial`",
    ),
    Method(
        "trm_max", trust_region, "mask", "accept", "max_t KL_t <= max_kl; needs KL of whole rows, else a detector",
        ("max_kl", "divergence"), _TRM,
    ),
    Method(
        "trm_mean", trust_region, "mask", "accept", "mean_t KL_t <= mean_kl; needs KL of whole rows, else a detector",
        ("mean_kl", "divergence"), _TRM,
    ),
    Method(
        "trm_length", trust_region, "mask", "detector", "|mean_t d_t| <= mean_log_ratio", ("mean_log_ratio",),
        "length-normalised ratio, as in geometric rejection",
    ),
    Method(
        "cppo", prefix_budget, "mask", "reject", "Z_t <= min(delta, delta + b W - S), or inward",
        ("advantages", "delta", "budget", "weight_min", "adaptive", "divergence"),
        "Mao et al. 2026, Beyond uniform token-level trust region (arXiv 2606.10968), equations 8 to 11 and 22",
    ),
    Method(
        "stopped_prefix", stopped_prefix, "mask", "accept",
        "before the stop; TV_H <= budget if bounds depend on the prefix only and the policy reverts at the stop",
        ("upper", "budget", "prefix_only"), "optional stopping of the coupling bound TV_H <= E sum U_t",
    ),
)  # fmt: skip
BY_NAME: dict[str, Method] = {row.name: row for row in METHODS}


def page() -> str:
    """The table as the Markdown page `docs/masks.md`."""
    lines = [
        "# Masks and importance weights (`kcverify.rl`)",
        "",
        "Every method is `(trainer_logprobs, rollout_logprobs, mask, *, ...) -> (weights, report)`: natural",
        "log-probabilities of the sampled tokens `[batch, tokens]`, both at the sampler's temperature, and a 0/1 mask.",
        "`w = e^d`, `d = trainer - rollout`; `p` is the trainer, `q` the rollout. Weights are 0 outside the mask; a token",
        "without a ratio (NaN, plus infinity) is counted, stays in every denominator and is never kept. The report has the",
        "ratios before any clip, the kept share and the effective sample share; `mask_hides_failure` is set when the kept",
        "share is below its floor. `policy_loss` divides by the whole batch, dropped tokens included.",
        "",
        "What a row certifies: `reject` (a dropped token exceeds the limit for sure, a kept one may too), `accept` (a kept",
        "one is inside for sure), `bias` (what is left of the gradient's bias), `detector` (neither), `nothing`.",
        "",
        "| method | weights | certifies | what it does | parameters | source |",
        "|---|---|---|---|---|---|",
    ]
    for row in METHODS:
        parameters = ", ".join(f"`{name}`" for name in row.parameters)
        statement = row.statement.replace("|", "\\|")
        lines.append(f"| `{row.name}` | {row.weights} | {row.certifies} | {statement} | {parameters} | {row.source} |")
    lines += [
        "",
        "A contract compiles to masks of its own: `kcverify compile CONTRACT -o monitor.py --rl rl_masks.py`, or in Python",
        "`kcverify.rl.contract.masks_of(contract)`. Its clauses on ratios and on the clip become windows of log ratios,",
        "`tv` a limit on certified upper bounds, claims on reward and gradient a budget of them on each prefix. Clauses",
        "that no mask can enforce are listed with the reason, and a clause that lost more than it excepts sets",
        "`mask_hides_failure`.",
    ]
    return "\n".join(lines) + "\n"
