"""The seeded faults: each a replacement in one module that makes the prover unsound, and the checks that may catch it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """`old` occurs in `kcverify/<file>` and is replaced by `new`; one of `caught_by` (checks of the battery) must show it."""

    name: str
    file: str
    old: str
    new: str
    caught_by: tuple[str, ...]


FAULTS: tuple[Fault, ...] = (
    Fault("atanh rounded the other way", "prove/question/peel.py", "p.rounded(ball(c).atanh(), p.side(at_most))", "p.rounded(ball(c).atanh(), not p.side(at_most))", ("questions",)),
    Fault("log rounded the other way", "prove/question/peel.py", "p.rounded(ball(c).log(), p.side(at_most))", "p.rounded(ball(c).log(), not p.side(at_most))", ("questions",)),
    Fault("inverse of g rounded the other way", "prove/question/peel.py", "span_of_kl(c, up=p.side(at_most), bits=p.bits)", "span_of_kl(c, up=not p.side(at_most), bits=p.bits)", ("questions",)),
    Fault("root rounded the other way", "prove/question/peel.py", "return self.rounded((ball(c).log() * ball(power)).exp(), up)", "return self.rounded((ball(c).log() * ball(power)).exp(), not up)", ("questions",)),
    Fault("a leaked float", "prove/question/peel.py", "p.rounded(ball(c).atanh(), p.side(at_most))", "Fraction(round(float(ball(c).atanh()), 3))", ("questions",)),
    Fault("the domain guard of tanh removed", "prove/question/peel.py", "return z3.BoolVal((c > 0) is at_most)", "return z3.BoolVal(True)", ("questions",)),
    Fault("elimination flipped", "prove/question/linear.py", "            fixed[s] = box[s][1]\n", "            fixed[s] = box[s][0]\n", ("questions",)),
    Fault("weakened and strengthened swapped", "prove/question/peel.py", "return at_most is self.weaken", "return at_most is not self.weaken", ("questions",)),
    Fault("a closed negated goal", "prove/question/peel.py", "        if self.strict:\n            return left < right if at_most else left > right\n", "", ("questions",)),
    Fault("division by what may be negative", "prove/question/peel.py", "now = at_most if low > 0 else not at_most", "now = at_most", ("questions",)),
    Fault("rational rounds the other way", "enclosure.py", "m = -((-m) >> excess) if up else m >> excess", "m = m >> excess if up else -((-m) >> excess)", ("roundings",)),
    Fault("rational takes the middle", "enclosure.py", "(x.upper() if up else x.lower()).man_exp()", "x.mid().man_exp()", ("roundings",)),
    Fault("value_up rounds down", "enclosure.py", "return _directed(expr, env, up=True) if exact is None else exact", "return _directed(expr, env, up=False) if exact is None else exact", ("roundings",)),
    Fault("a premise that does not hold", "bounds/invert.py", "        if x >= 0 and holds(x):\n            return x\n", "        if x >= 0:\n            return x * Fraction(1001, 1000)\n", ("links",)),
    Fault("a guess taken unverified", "bounds/invert.py", "            if holds(x):\n                return x\n", "            return x * Fraction(1001, 1000)\n", ("links",)),
    Fault("a link the wrong way round", "prove/encoding.py", 'return f"(=> {inside} ({_side(link.target)} {target} {number(link.conclusion)}))"', 'return f"(=> ({_side(link.target)} {target} {number(link.conclusion)}) {inside})"', ("links",)),
    Fault("a link without its temperature", "prove/encoding.py", 'f"(* T {number(link.conclusion)})"', "number(link.conclusion)", ("links",)),
    Fault("drift and span confused", "prove/encoding.py", "None, Fraction(2)))", "None, Fraction(1)))", ("links", "coupled")),
    Fault("bands closed at the upper end", "prove/encoding.py", 'f"(< T {number(i.high)})" if i.open_high else f"(<= T {number(i.high)})"', 'f"(<= T {number(i.high)})"', ("contracts",)),
    Fault("the span of one kept set with the mass of another", "bounds/graph.py", "(n.grade == fact.node.grade or not fact.quantity.graded)", "True", ("contracts",)),
    Fault("a kept mass taken for a smaller one", "bounds/graph.py", "ordered and node.grade > grade", "ordered and node.grade < grade", ("contracts",)),
    Fault("all mass in the kept set", "prove/obligations.py", "1 - a.node.grade, label=clause.name", "Fraction(0), label=clause.name", ("contracts",)),
    Fault("agreement taken for disagreement", "prove/obligations.py", "out = [atom(quantity, lower, True, sign=-1, shift=one)] if lower else []\n        return (*out, *([atom(quantity, upper", "out = [atom(quantity, lower, True)] if lower else []\n        return (*out, *([atom(quantity, upper", ("contracts",)),
    Fault("a rate taken for a limit on every token", "prove/obligations.py", "clause.statistic in (Statistic.MEAN, Statistic.RATE)", "clause.statistic is Statistic.MEAN", ("contracts",)),
    Fault("the own bins of each side", "prove/obligations.py", ' or clause.argument("bins") == "own"', "", ("contracts",)),
    Fault("a link to what is within reach", "prove/encoding.py", "x = weakest_premise(row.name, constant, corner, source.rho)", "x = weakest_premise(row.name, constant, corner, Fraction(0))", ("contracts", "links")),
    Fault("exceptions joined in the linear step", "prove/linear.py", "return sum(c.exception > 0 for c in clauses if c.name in core) > 1", "return False", ("contracts",)),
    Fault("the easiest temperature of a claim", "prove/corner.py", "return min(ends) if atom.upper else max(ends)", "return max(ends) if atom.upper else min(ends)", ("contracts",)),
    Fault("the best case of a clause", "prove/obligations.py", "max(q.low, *ends) if a.upper else min(", "max(q.low, min(ends)) if a.upper else min(", ("contracts",)),
    Fault("the best temperature of a sloped span", "prove/obligations.py", "Fact(node, max(Fraction(0), *spans), label=clause.name)", "Fact(node, min(spans), label=clause.name)", ("contracts",)),
    Fault("a clause on all traffic holds on a slice", "prove/obligations.py", 'return scope == "" or (mode_of(clause) is Mode.POINT and clause.exception == 0)', "return True", ("contracts",)),
    Fault("a clause on a slice holds on all traffic", "prove/obligations.py", "    if clause.slices:\n        return False\n", "", ("contracts",)),
    Fault("a half-open band covers its end", "prove/obligations.py", "return high < i.high or (high == i.high and not i.open_high)", "return high <= i.high", ("contracts",)),
    Fault("any mean of an unbounded metric counts", "prove/obligations.py", "return mode_of(clause) is not Mode.MEAN or clause.metric.range[1] is not None", "return True", ("contracts",)),
    Fault("exceptions forgotten on the way to a mean", "bounds/graph.py", "rho == 0 or source is not Mode.POINT or target is Mode.POINT or RHO in lemma.bound.free_symbols", "True", ("contracts",)),
    Fault("exceptions of two clauses taken for one", "bounds/graph.py", "return sum(exceptions(facts).values(), Fraction(0))", "return max(exceptions(facts).values(), default=Fraction(0))", ("contracts",)),
    Fault("parameters at their best corner", "bounds/graph.py", "out[symbol] = high if sign == weakest else low", "out[symbol] = low if sign == weakest else high", ("links", "contracts")),
    Fault("a sampler that truncates is ignored", "bounds/graph.py", "if not set(lemma.requires) <= parameters.conditions:", "if False:", ("contracts",)),
    Fault("an instance beyond a clause passes", "prove/replay.py", "return bool(value <= bound) if atom.upper else bool(value >= bound)", "return True", ("contracts",)),
    Fault("a claim counts as broken on its good side", "prove/replay.py", "return bool(value > bound) if atom.upper else bool(value < bound)", "return True", ("contracts",)),
    Fault("a budget rounded up", "prove/budget.py", "text = decimal_down(binding.value, DIGITS) if upper", "text = decimal_up(binding.value, DIGITS) if upper", ("budgets",)),
    Fault("a monitor's double rounded up", "prove/budget.py", "double = monitor_float_down(limit) if target.upper", "double = monitor_float_up(limit) if target.upper", ("budgets",)),
)  # fmt: skip

KERNEL_FAULTS: tuple[Fault, ...] = (
    Fault("four times the bound of a sum", "conformance/tolerances.py", "    value = product / (1 - product)\n", "    value = 4 * product / (1 - product)\n", ("limits",)),
    Fault("a quarter of the bound of a sum", "conformance/tolerances.py", "    value = product / (1 - product)\n", "    value = product / (1 - product) / 4\n", ("limits",)),
    Fault("four roundings of a cast", "conformance/errors.py", "    u = t.unit_roundoff(d.output)\n    return t.constant(u,", "    u = 4 * t.unit_roundoff(d.output)\n    return t.constant(u,", ("limits",)),
    Fault("an argument's error not amplified", "conformance/errors.py", "value = off + off**2", "value = off - off**2", ("limits",)),
    Fault("the limit of a contract ignored on held-out shapes", "conformance/composition.py", "run.operation, run.limits, left=run.left)", "run.operation, left=run.left)", ("limits",)),
    Fault("a violation within tolerance", "conformance/model.py", "self.value - slack > self.tolerance.value", "self.value - slack > 4 * self.tolerance.value", ("verdicts",)),
    Fault("what is not finite is within", "conformance/model.py", "if self.value is None or self.value - slack", "if self.value is not None and self.value - slack", ("verdicts",)),
    Fault("the oracle's own error forgotten", "conformance/model.py", "Verdict.WITHIN if self.value + slack <=", "Verdict.WITHIN if self.value - slack <=", ("verdicts",)),
    Fault("a limit that says nothing is kept", "conformance/model.py", "return Verdict.UNDER_SPECIFIED\n        slack", "return Verdict.WITHIN\n        slack", ("verdicts",)),
    Fault("changed operands unnoticed", "conformance/harness.py", "    if changed:\n        run.find(\"inputs_changed\"", "    if False:\n        run.find(\"inputs_changed\"", ("harness",)),
    Fault("kept results unnoticed", "conformance/harness.py", "if within is False and before is not None", "if within and before is not None", ("harness",)),
    Fault("late work unnoticed", "conformance/harness.py", "if any(not same_bits(old, kept) for old, kept, _ in run.held):", "if False:", ("harness",)),
    Fault("NaN is a wildcard", "conformance/harness.py", "    if not bool(torch.isfinite(error).all()):\n        return None\n", "    error = error.nan_to_num(0.0)\n", ("harness",)),
    Fault("checks without power count", "conformance/harness.py", "        run.powerless += 1\n    else:", "        run.powered += 1\n    else:", ("harness",)),
    Fault("fewer draws are enough", "conformance/model.py", "or self.draws < self.protocol.asked", "", ("confidence",)),
    Fault("any confidence is reached", "conformance/sampling.py", "reached = 1 - miss ** (made / asked)", "reached = 1 - miss ** (made * asked)", ("confidence",)),
    Fault("a rate of 95 % from any trials", "conformance/tolerances.py", "if sum(weights[passed:]) <= alpha:", "if sum(weights[passed:]) <= 1:", ("confidence",)),
    Fault("a signature that is seen changes nothing", "conformance/contract.py", "if one.seen and run.verdict is not Verdict.VIOLATION:", "if False:", ("signals",)),
    Fault("every fault grows", "conformance/signatures.py", "grown = least > top", "grown = True", ("signals",)),
    Fault("no fault grows", "conformance/signatures.py", "grown = least > top", "grown = top > least", ("signals",)),
    Fault("a fault that passes is no finding", "conformance/contract.py", "        if verdict in wrong:\n", "        if False:\n", ("calibration",)),
)  # fmt: skip
"""Faults of kernel contracts, caught by checks of `kernel_battery`."""
