"""Codes about what a well-formed contract says: findings of the checker (KC2xx).

A severity of `note` marks findings that carry their weight in a verdict (`UNKNOWN`, `REFUTED`) and not in a severity.
"""

from __future__ import annotations

from kcverify.codes.model import Code, Severity

_ERROR, _WARNING, _NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE

_ASSUME = (
    "assume { temperature in [0.6, 1.0]; sampler = full_softmax; horizon <= 256 tokens; reward in [0, 1]; "
    "advantage in [-5, 5]; score_norm <= 2.0 }"
)


def _c(*lines: str) -> str:
    return "\n".join(("contract c", *lines)) + "\n"


def _proof(numerical: str, guarantee: str, assume: str = _ASSUME) -> str:
    return _c(assume, f"numerical {{ {numerical} }}", f"guarantee {{ {guarantee} }}")


def _row(
    id: str, slug: str, severity: Severity, message: str, why: str, fix: str, bad: str = "", good: str = ""
) -> Code:
    return Code(id, slug, severity, message, why, fix, bad, good)


_REWARD = _proof("drift: logit_span <= 0.05 except 0.02% -> L2", "safe: reward_drift <= 0.40")

_CLAUSES: tuple[Code, ...] = (
    _row(
        "KC201",
        "contradictory",
        _ERROR,
        "no pair of kernels meets all of {clauses}: {reason}",
        "The clauses exclude each other, so at least one of them always fails, whatever the kernel.",
        "relax one of the clauses shown",
        _c("statistical { same: agreement(top = 1) >= 99.9% -> L1; flips: flip_rate in [1%, 5%] -> L1 }"),
        _c("statistical { same: agreement(top = 1) >= 99.9% -> L1; flips: flip_rate in [0.05%, 5%] -> L1 }"),
    ),
    _row(
        "KC202",
        "dead",
        _WARNING,
        "`{name}` can never fire: {reason}",
        "Other clauses already imply this one, so it costs measurements and decides nothing.",
        "tighten it or leave it out",
        _c("numerical { ratio: log_ratio <= 0.06 -> L2; divergence: kl(candidate || reference) <= 0.05 nats -> L1 }"),
        _c("numerical { ratio: log_ratio <= 0.06 -> L2; divergence: kl(candidate || reference) <= 0.0005 nats -> L1 }"),
    ),
    _row(
        "KC203",
        "vacuous",
        _WARNING,
        "`{name}` allows every value of `{metric}`: {reason}",
        "The threshold is at or beyond the end of the metric's range, so the clause holds for every pair of kernels.",
        "choose a threshold inside the range",
        _c("numerical { tail: tv <= 1 -> L1 }"),
        _c("numerical { tail: tv <= 0.01 -> L1 }"),
    ),
    _row(
        "KC206",
        "infeasible",
        _ERROR,
        "`{name}` allows {limit}, which its storage format cannot give: {reason}",
        "Storing logits in a format moves them by up to half a unit in the last place, which no kernel can undo. Two sides "
        "that are both rounded either agree in every bit or differ by a whole unit.",
        "store logits in a finer format, or widen the threshold",
        _c("assume { logit_range in [-40, 40]; storage = bfloat16 }", "numerical { drift: logit_span <= 0.01 -> L2 }"),
        _c("assume { logit_range in [-40, 40]; storage = float32 }", "numerical { drift: logit_span <= 0.01 -> L2 }"),
    ),
    _row(
        "KC207",
        "unmeasurable",
        _WARNING,
        "`{name}` cannot be decided: {reason}",
        "A small rate can be certified only by many requests, and a small limit only by a monitor that resolves it; else "
        "the verdict will be inconclusive.",
        "allow a larger rate, a lower confidence, or more requests",
        _c(
            "numerical { tail: tv <= 0.01 except 0.001% at confidence 99% -> L1 }",
            "promote { offline { min 25_000 requests } }",
        ),
        _c("numerical { tail: tv <= 0.01 except 0.1% -> L1 }", "promote { offline { min 25_000 requests } }"),
    ),
    _row(
        "KC208",
        "unobservable",
        _WARNING,
        "no declared input carries what `{name}` needs: {reason}",
        "The value cannot be computed from what the run records, so the clause will get no verdict.",
        "record what the metric needs, or use a metric that the inputs carry",
        _c("numerical { tail: tv <= 0.01 -> L1 }", "observability { trace request_id, sampled_log_probabilities }"),
        _c("numerical { tail: tv <= 0.01 -> L1 }", "observability { trace request_id, logits }"),
    ),
    _row(
        "KC209",
        "not_enforced",
        _NOTE,
        "`{what}` is read and checked, and not run",
        "Proofs are about a pair of kernels. A kernel contract is decided by running a kernel; no verdict here rests on it.",
        "run it: kcverify conformance run FILE --kernel MODULE:FUNCTION",
    ),
)

_SLICES: tuple[Code, ...] = (
    _row(
        "KC210",
        "slice_empty",
        _ERROR,
        "no request can be in the slice `{name}`",
        "Its conditions exclude each other.",
        "correct the conditions",
        _c("slice s = prompt_tokens >= 10 and prompt_tokens < 5", "numerical { a: tv <= 0.01 on s -> L1 }"),
        _c("slice s = prompt_tokens >= 5 and prompt_tokens < 10", "numerical { a: tv <= 0.01 on s -> L1 }"),
    ),
    _row(
        "KC211",
        "slice_conflict",
        _ERROR,
        "slices `{first}` and `{second}` overlap and their limits exclude each other",
        "A request in both slices cannot meet both clauses.",
        "separate the slices or align the limits",
        _c(
            "slice a = prompt_tokens >= 100",
            "slice b = prompt_tokens >= 200",
            "statistical { low: flip_rate in [1%, 2%] on a -> L1; high: flip_rate in [5%, 6%] on b -> L1 }",
        ),
        _c(
            "slice a = prompt_tokens in [100, 200)",
            "slice b = prompt_tokens >= 200",
            "statistical { low: flip_rate in [1%, 2%] on a -> L1; high: flip_rate in [5%, 6%] on b -> L1 }",
        ),
    ),
    _row(
        "KC212",
        "slice_covered",
        _WARNING,
        "`{name}` on slice `{inner}` is weaker than `{other}` on `{outer}`, which contains it",
        "Every request of the inner slice is already under the tighter clause.",
        "tighten the inner clause or leave it out",
        _c(
            "slice long = prompt_tokens >= 8192",
            "slice wide = prompt_tokens >= 1024",
            "numerical { a: tv <= 0.02 on long -> L1; b: tv <= 0.01 on wide -> L1 }",
        ),
        _c(
            "slice long = prompt_tokens >= 8192",
            "slice wide = prompt_tokens >= 1024",
            "numerical { a: tv <= 0.005 on long -> L1; b: tv <= 0.01 on wide -> L1 }",
        ),
    ),
    _row(
        "KC213",
        "slice_unused",
        _WARNING,
        "the slice `{name}` is not used",
        "No clause is measured on it.",
        "use it with `on`, or remove it",
        _c("slice long = prompt_tokens >= 8192", "numerical { a: tv <= 0.01 -> L1 }"),
        _c("slice long = prompt_tokens >= 8192", "numerical { a: tv <= 0.01 on long -> L1 }"),
    ),
)

_TAIL = "numerical { tail: tv <= 0.01 -> L2 }"

_POLICY: tuple[Code, ...] = (
    _row(
        "KC220",
        "policy_no_action",
        _ERROR,
        "severity {severity} has no action, and `{clause}` raises it: {trace}",
        "A clause that fails without consequence protects nothing.",
        "add a line for the severity to `escalate`",
        _c(_TAIL, "escalate { L1 -> log }"),
        _c(_TAIL, "escalate { L1 -> log; L2 -> guard, dwell 10 minutes, recover 2000 requests }"),
    ),
    _row(
        "KC221",
        "policy_weaker_action",
        _ERROR,
        "{severity} does `{action}`, which is weaker than `{other_action}` of {other}: {trace}",
        "A higher severity must not do less than a lower one.",
        "swap the actions",
        _c(_TAIL, "escalate { L2 -> rollback, dwell 60 minutes; L3 -> log }"),
        _c(_TAIL, "escalate { L2 -> log; L3 -> rollback, dwell 60 minutes }"),
    ),
    _row(
        "KC222",
        "policy_cycle",
        _ERROR,
        "{severity} has no `dwell`, so the route can leave and return in no time: {trace}",
        "Without a minimum stay a route flaps between kernels, and each switch loses caches and evidence.",
        "add `dwell 10 minutes`",
        _c(_TAIL, "escalate { L2 -> guard, recover 2000 requests }"),
        _c(_TAIL, "escalate { L2 -> guard, dwell 10 minutes, recover 2000 requests }"),
    ),
    _row(
        "KC223",
        "policy_unreachable",
        _ERROR,
        "the stage `{stage}` cannot be reached: {reason}",
        "A stage before it can never be completed.",
        "correct the stage that blocks it",
        _c(_TAIL, "promote { canary { traffic 0%, hold 4 h }; full { stable 24 h } }"),
        _c(_TAIL, "promote { canary { traffic 1%, hold 4 h }; full { stable 24 h } }"),
    ),
    _row(
        "KC224",
        "policy_window",
        _ERROR,
        "the window of `{name}` holds {supplied} requests, and {needed}",
        "A window that is shorter than its sample can never decide.",
        "make the window longer",
        _c("assume { traffic = 20 requests/s }", "runtime { first: p95 time_to_first_token <= 300 ms over 1 s -> L1 }"),
        _c(
            "assume { traffic = 20 requests/s }",
            "runtime { first: p95 time_to_first_token <= 300 ms over 10 minutes -> L1 }",
        ),
    ),
    _row(
        "KC225",
        "policy_unsafe",
        _ERROR,
        "a breach of L3 does `{action}` and does not reach the safe kernel in one step: {trace}",
        "The highest severity says that the candidate must not serve, whatever its route is at that moment.",
        "write `L3 -> rollback` or `L3 -> stop`",
        _c(_TAIL, "escalate { L2 -> log; L3 -> guard, dwell 60 minutes }"),
        _c(_TAIL, "escalate { L2 -> log; L3 -> rollback, dwell 60 minutes }"),
    ),
)

_NOISE = "assume { log_ratio_sd = 0.05; horizon <= 8000 tokens }"

_LENGTH: tuple[Code, ...] = (
    _row(
        "KC240",
        "unsatisfiable_with_length",
        _ERROR,
        "long responses cannot meet `{name}`: {reason}",
        "Per-token noise of a standard deviation s has a mean of -s^2/2 in the log ratio, since the ratio itself has the "
        "mean 1. The geometric mean of a long response tends to exp(-s^2/2), and a window without that value is left.",
        "widen the window, or use a metric whose noise does not accumulate",
        _c(_NOISE, "numerical { geo: geometric_ratio in [0.999, 1.001] -> L1 }"),
        _c(_NOISE, "numerical { geo: geometric_ratio in [0.99, 1.01] -> L1 }"),
    ),
    _row(
        "KC241",
        "weight_collapse",
        _WARNING,
        "`{name}` has no floor, and the weights of long responses vanish: {reason}",
        "The weight of a response is a product of as many ratios as it has tokens. Its mean is 1 and its median falls "
        "exponentially with the length, so a limit from above alone never fires where the gradient is lost.",
        "state a lower limit, or a limit of the effective sample share",
        _c(_NOISE, "numerical { seq: sequence_ratio <= 3 -> L1 }"),
        _c(_NOISE, "numerical { seq: sequence_ratio in [0.5, 3] -> L1 }"),
    ),
    _row(
        "KC242",
        "direction_inverted",
        _WARNING,
        "`{name}` limits candidate over reference to {written}, so the importance ratio reference over candidate is in {effective}",
        "A limit on q/p is not the same limit on p/q unless its ends are each other's inverse, and importance weights are p/q.",
        "write the limit on `token_ratio`, or make its ends each other's inverse",
        _c("numerical { k1: token_inverse_ratio in [0.5, 5.0] -> L1 }"),
        _c("numerical { k1: token_inverse_ratio in [0.2, 5.0] -> L1 }"),
    ),
)

_GUARANTEES: tuple[Code, ...] = (
    _row(
        "KC204",
        "not_implied",
        _NOTE,
        "the clauses do not give `{name}`: {reason}",
        "No chain of lemmas from the clauses reaches the claim, and no instance that breaks it was found either.",
        "tighten the binding clause to the budget shown",
        _proof("drift: logit_span <= 0.05 except 0.02% -> L2", "safe: reward_drift <= 0.31"),
        _REWARD,
    ),
    _row(
        "KC205",
        "refuted",
        _NOTE,
        "`{name}` is false: {reason}",
        "A concrete pair of distributions meets every clause and breaks the claim.",
        "tighten the clauses or relax the claim",
        _proof(
            "tail: tv <= 0.5 -> L2", "safe: reward_drift <= 0.1", "assume { horizon <= 1 tokens; reward in [0, 1] }"
        ),
        _proof(
            "tail: tv <= 0.05 -> L2", "safe: reward_drift <= 0.1", "assume { horizon <= 1 tokens; reward in [0, 1] }"
        ),
    ),
    _row(
        "KC230",
        "guarantee_needs",
        _NOTE,
        "`{name}` needs the assumption `{assumption}`",
        "The lemma that leads to this claim has a parameter that the contract does not state.",
        "state it in `assume`",
        _proof(
            "drift: logit_span <= 0.05 -> L2", "safe: reward_drift <= 0.40", _ASSUME.replace("reward in [0, 1]; ", "")
        ),
        _proof("drift: logit_span <= 0.05 -> L2", "safe: reward_drift <= 0.40"),
    ),
    _row(
        "KC231",
        "exception_missing",
        _NOTE,
        "`{name}` holds except on {rate} of the tokens, and does not say so",
        "A claim about every token inherits the exception of the clause that it rests on.",
        "state the exception in the claim",
        _proof("drift: logit_span <= 0.05 except 0.02% -> L2", "room: clip_share(clip = 0.2) <= 50%"),
        _proof("drift: logit_span <= 0.05 except 0.02% -> L2", "room: clip_share(clip = 0.2) <= 50% except 0.02%"),
    ),
    _row(
        "KC232",
        "sampler_unsupported",
        _NOTE,
        "`{name}` cannot be proved under the sampler `{sampler}`",
        "The span bounds are about the whole softmax; truncation changes the support, and then no ratio is bounded.",
        "sample from the full softmax, or guarantee what the sampler allows",
        _proof(
            "drift: logit_span <= 0.05 except 0.02% -> L2",
            "safe: reward_drift <= 0.40",
            _ASSUME.replace("full_softmax", "top_p(0.95)"),
        ),
        _REWARD,
    ),
    _row(
        "KC233",
        "lower_bound_estimator",
        _NOTE,
        "`{name}` rests on `{metric}`, which is measured as a lower bound only",
        "A lower bound below the threshold says nothing about the value itself.",
        "measure the metric from full logits",
        _proof("sampled: token_log_ratio <= 0.05 -> L1", "safe: reward_drift <= 0.40"),
        _proof("whole: log_ratio <= 0.01 -> L1", "safe: reward_drift <= 0.40"),
    ),
    _row(
        "KC234",
        "jensen_refused",
        _NOTE,
        "a mean of `{premise}` bounds no mean of `{conclusion}`: {reason}",
        "A bound lifts from values to means only where it is concave.",
        "limit the metric pointwise",
        _proof("drift: mean logit_span <= 0.05 -> L2", "divergence: mean kl(candidate || reference) <= 0.001 nats"),
        _proof("drift: logit_span <= 0.05 -> L2", "divergence: mean kl(candidate || reference) <= 0.001 nats"),
    ),
    _row(
        "KC235",
        "hole_impossible",
        _ERROR,
        "no number fills the hole of `{name}`: {reason}",
        "Even a threshold of zero would not give the guarantees.",
        "move what is named as blocking",
        _proof("drift: logit_span <= ? except 1% -> L2", "safe: reward_drift <= 0.02"),
        _proof("drift: logit_span <= ? except 0.001% -> L2", "safe: reward_drift <= 0.02"),
    ),
    _row(
        "KC236",
        "hole_unused",
        _ERROR,
        "no guarantee rests on the hole of `{name}`",
        "A hole is filled from the guarantees; with none that uses it, every number would do.",
        "add a guarantee, or write a number",
        _c(_ASSUME, "numerical { drift: logit_span <= ? -> L2 }"),
        _proof("drift: logit_span <= ? -> L2", "safe: reward_drift <= 0.02"),
    ),
)

ROWS: tuple[Code, ...] = (*_CLAUSES, *_GUARANTEES, *_SLICES, *_POLICY, *_LENGTH)
