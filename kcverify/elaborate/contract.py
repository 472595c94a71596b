"""The typed contract: what the text means, every number exact, every name resolved."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from kcverify.catalog.model import Metric, Statistic
from kcverify.source import Span


@dataclass(frozen=True)
class Interval:
    """Closed interval `[low, high]` (None: unbounded); `open_high` makes it half-open, as bands are."""

    low: Fraction | None
    high: Fraction | None
    open_high: bool = False


@dataclass(frozen=True)
class Threshold:
    """`constant + sum(coefficient * assumption)`, in the metric's canonical unit."""

    constant: Fraction
    terms: tuple[tuple[str, Fraction], ...] = ()

    @property
    def is_constant(self) -> bool:
        """Whether no assumption occurs in it."""
        return not self.terms


@dataclass(frozen=True)
class Limit:
    """What a value is compared with: at most `upper`, at least `lower`; `hole` where the text says `?`.

    With `hole`, the side that the compiler must fill is `upper` for `<= ?`, `lower` for `>= ?` (`floor`), and is None.
    """

    lower: Threshold | None = None
    upper: Threshold | None = None
    hole: bool = False
    floor: bool = False
    strict: bool = False


@dataclass(frozen=True)
class Band:
    """`when parameter in [low, high)`: the clause binds only for these values of an assumption."""

    parameter: str
    interval: Interval


@dataclass(frozen=True)
class Clause:
    """One measured clause, or (with `severity` empty) one claim of the `guarantee` block.

    `exception` is the share of tokens (or requests) on which the limit may be exceeded; a quantile clause `pNN` has
    been turned into one. `window` is in seconds. `unit` is `request` or `token`. `quantile` keeps NN for printing.
    """

    name: str
    metric: Metric
    arguments: tuple[tuple[str, str | Fraction], ...]
    statistic: Statistic
    limit: Limit
    span: Span
    value_span: Span
    severity: str = ""
    exception: Fraction = Fraction(0)
    slices: tuple[str, ...] = ()
    confidence: Fraction = Fraction(95, 100)
    unit: str = "request"
    window: Fraction | None = None
    band: Band | None = None
    quantile: Fraction | None = None
    text: str = ""

    def argument(self, name: str) -> str | Fraction | None:
        """Value of a named argument, or None."""
        return dict(self.arguments).get(name)


@dataclass(frozen=True)
class Role:
    """One member of the `pair` block: role (`reference`, `candidate`, `guarded`, `safe`), alias, kernel."""

    role: str
    alias: str
    kernel: str
    span: Span


@dataclass(frozen=True)
class Sampler:
    """`full_softmax`, `greedy`, `top_p` or `top_k` with its parameter."""

    kind: str
    value: Fraction | None = None


@dataclass(frozen=True)
class Assumptions:
    """What the guarantees are proved under. Each is None where the contract does not state it; `spans` says where."""

    temperature: Interval | None = None
    sampler: Sampler | None = None
    horizon: int | None = None
    reward: Interval | None = None
    advantage: Fraction | None = None
    score_norm: Fraction | None = None
    token_score_norm: Fraction | None = None
    log_ratio_sd: Fraction | None = None
    vocabulary: int | None = None
    logit_range: Interval | None = None
    storage: str | None = None
    traffic: Fraction | None = None
    independent_tokens: bool = False
    spans: dict[str, Span] = field(default_factory=dict)


@dataclass(frozen=True)
class FieldCompare:
    """A trace field compared with a number or with text; `operator` is one of `<= < >= > == !=`."""

    field: str
    operator: str
    value: Fraction | str


@dataclass(frozen=True)
class FieldWithin:
    """A trace field in an interval."""

    field: str
    interval: Interval


@dataclass(frozen=True)
class HasTag:
    """The request carries the tag."""

    tag: str


@dataclass(frozen=True)
class Negation:
    """Not `part`."""

    part: Predicate


@dataclass(frozen=True)
class Conjunction:
    """All of `parts`."""

    parts: tuple[Predicate, ...]


@dataclass(frozen=True)
class Disjunction:
    """Any of `parts`."""

    parts: tuple[Predicate, ...]


Predicate = FieldCompare | FieldWithin | HasTag | Negation | Conjunction | Disjunction


@dataclass(frozen=True)
class SliceDef:
    """A named predicate over trace fields, every number exact; `fields` are those that it reads (`tags` for a tag)."""

    name: str
    predicate: Predicate
    span: Span
    fields: tuple[str, ...]


@dataclass(frozen=True)
class Action:
    """One line of `escalate`: what a severity does. Times in seconds, `recover` in requests."""

    severity: str
    action: str
    span: Span
    false_alarm_every: Fraction | None = None
    false_alarm_unit: str = "s"
    dwell: Fraction | None = None
    recover: int | None = None


@dataclass(frozen=True)
class Stage:
    """One stage of `promote`. `traffic` lists shares for a canary; times in seconds."""

    name: str
    span: Span
    data: str | None = None
    min_requests: int | None = None
    mirror: Fraction | None = None
    traffic: tuple[Fraction, ...] = ()
    duration: Fraction | None = None
    hold: Fraction | None = None
    stable: Fraction | None = None


@dataclass(frozen=True)
class Observability:
    """Trace fields, fingerprint fields, replay window in seconds."""

    trace: tuple[str, ...] = ()
    fingerprint: tuple[str, ...] = ()
    replay: Fraction | None = None
    span: Span | None = None


@dataclass(frozen=True)
class Contract:
    """`C = (N, S, R, O, Π)`, elaborated. `clauses` are those of all three measured families in file order."""

    name: str
    version: str
    description: str
    span: Span
    roles: tuple[Role, ...] = ()
    assumptions: Assumptions = field(default_factory=Assumptions)
    slices: tuple[SliceDef, ...] = ()
    clauses: tuple[Clause, ...] = ()
    guarantees: tuple[Clause, ...] = ()
    observability: Observability | None = None
    actions: tuple[Action, ...] = ()
    stages: tuple[Stage, ...] = ()
    splits: tuple[tuple[str, Fraction], ...] = ()
    parameters: tuple[tuple[str, Fraction], ...] = ()
