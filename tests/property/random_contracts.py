"""Random contracts whose claims sit next to the best bound that the prover finds, and ways to rewrite one without changing it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction as F
from random import Random

from kcverify.driver import load_source
from kcverify.elaborate.contract import Contract
from kcverify.exact import decimal_down, decimal_up
from kcverify.prove import corner
from kcverify.prove.obligations import narrowed, obligations
from kcverify.source import Source


def contract_of(text: str) -> Contract:
    """The only contract of a text that has no fault."""
    loaded = load_source(Source("t", text))
    assert not loaded.report.errors, [d.message for d in loaded.report.errors]
    (contract,) = loaded.contracts
    return contract


@dataclass(frozen=True)
class Line:
    """One clause or claim: statistic and metric, limit, modifiers."""

    name: str
    metric: str
    limit: str
    modifiers: str = ""

    def text(self, severity: str) -> str:
        """As the language writes it."""
        return f"  {self.name}: {self.metric} {self.limit}{self.modifiers}{severity}"


@dataclass(frozen=True)
class Draft:
    """The parts of a contract's text."""

    low: F = F(3, 5)
    high: F = F(1)
    horizon: int = 1
    clauses: tuple[Line, ...] = ()
    claims: tuple[Line, ...] = ()
    sampler: str = "full_softmax"

    def text(self) -> str:
        """The contract."""
        assume = (
            f"temperature in [{decimal_up(self.low, 12)}, {decimal_up(self.high, 12)}]; sampler = {self.sampler}; "
            f"horizon <= {self.horizon} tokens; reward in [0, 1]; advantage in [-2, 2]; score_norm <= 0.5"
        )
        slices = 'slice long = prompt_tokens >= 4096\nslice code = tag("code")'
        clauses = "\n".join(c.text(" -> L1") for c in self.clauses)
        claims = "\n".join(c.text("") for c in self.claims)
        numerical = f"numerical {{\n{clauses}\n}}\n" if clauses else ""
        guarantee = f"guarantee {{\n{claims}\n}}\n" if claims else ""
        return f"contract random\nassume {{ {assume} }}\n{slices}\n{numerical}{guarantee}"


KL = ("kl(reference || candidate)", "kl(candidate || reference)")


def _number(rng: Random, low: float, high: float) -> str:
    return f"{low * (high / low) ** rng.random():.3g}"


def _limit(rng: Random, metric: str) -> str:
    if metric == "importance_ratio":
        a, b = 1 - float(_number(rng, 0.01, 0.2)), 1 + float(_number(rng, 0.01, 0.2))
        return rng.choice((f"in [{a:.4f}, {b:.4f}]", f"<= {b:.4f}", f">= {a:.4f}"))
    if metric.startswith("logit"):
        number = _number(rng, 0.01, 0.3)
        return f"<= {number}" + rng.choice(("", "", " * temperature"))
    low, high, unit = (1e-5, 1e-2, " nats") if "kl" in metric else (0.01, 0.2, "")
    return f"<= {_number(rng, low, high)}{unit}"


def _modifiers(rng: Random, metric: str, *, claim: bool) -> str:
    out = ""
    if not metric.startswith("mean"):
        out += rng.choice(("", "", " except 1%", " except 0.1%", " except 2%"))
    out += rng.choice(("", "", "", " on long", " on code", " on long, code"))
    if rng.random() < (0.15 if claim else 0.3):
        out += rng.choice(
            (" when temperature in [0.6, 0.8)", " when temperature in [0.8, 1.0]", " when temperature in [0.7, 0.9)")
        )
    return out


METRICS = ("logit_drift", "logit_span", "tv", *KL, "log_ratio", "importance_ratio", "mean tv", f"mean {KL[1]}")
CLAIMS = (
    "tv",
    "mean tv",
    "log_ratio",
    *KL,
    "reward_drift",
    "pass_rate_drift",
    "clip_share(clip = 0.2)",
    "importance_ratio",
)


def draft(rng: Random) -> Draft:
    """Clauses of any kind, and claims whose limits are still to be set."""
    clauses = []
    for i in range(rng.randint(1, 6)):
        metric = rng.choice(METRICS)
        clauses.append(Line(f"c{i}", metric, _limit(rng, metric), _modifiers(rng, metric, claim=False)))
    claims = []
    for i in range(4):
        metric = rng.choice(CLAIMS)
        sequence = metric.endswith("_drift")
        limit = (
            "in [0.999999, 1.000001]"
            if metric == "importance_ratio"
            else "<= 1e-9" + (" nats" if "kl" in metric else "")
        )
        modifiers = "" if sequence else _modifiers(rng, "mean" if metric.startswith("mean") else metric, claim=True)
        claims.append(Line(f"g{i}", metric, limit, modifiers))
    return Draft(clauses=tuple(clauses), claims=tuple(claims))


def near_tight(rng: Random) -> Draft:
    """A draft whose claims ask for just a little more or less than the best bound of each."""
    first = draft(rng)
    gaps: dict[str, F] = {}
    whole = contract_of(first.text())
    for o in obligations(whole):
        contract = narrowed(whole, o.claim)
        routes = corner.best_routes(contract, o) if contract is not None else []
        if len(routes) == 1 and routes[0] is not None:
            gaps[o.claim.name] = max(gaps.get(o.claim.name, F(0)), routes[0].fact.value)
    claims = []
    for claim in first.claims:
        gap = gaps.get(claim.name)
        unit = " nats" if "kl" in claim.metric else ""
        if claim.metric == "importance_ratio":
            w = F(rng.randint(1, 250), 1000)
            claims.append(replace(claim, limit=f"in [{decimal_down(max(1 - w, F(0)), 6)}, {decimal_up(1 + w, 6)}]"))
        elif gap is not None and 0 < gap < F(9, 10):
            side = rng.random() < 0.75
            number = decimal_up(gap, 9) if side else decimal_down(gap * F(rng.choice((999, 990, 900)), 1000), 9)
            claims.append(replace(claim, limit=f"<= {number}{unit}"))
    return replace(first, claims=tuple(claims))
