"""The syntax tree: what the text says, with the place of every word; equality ignores places."""

from __future__ import annotations

from dataclasses import dataclass, field

from kcverify.source import Source, Span


@dataclass(frozen=True)
class Node:
    """Whatever has a place in the text."""

    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True)
class Name(Node):
    """A word: of a metric, slice, assumption, unit of evidence, operator, severity."""

    text: str


@dataclass(frozen=True)
class Text(Node):
    """Quoted text, without its quotes."""

    value: str


@dataclass(frozen=True)
class Number(Node):
    """An unsigned decimal as it was written."""

    text: str


@dataclass(frozen=True)
class Call(Node):
    """`name(a, b)` inside a number, such as `top_p(0.95)`."""

    function: Name
    arguments: tuple[Expression, ...]


@dataclass(frozen=True)
class Negative(Node):
    """`-operand`."""

    operand: Expression


@dataclass(frozen=True)
class Power(Node):
    """`base ^ exponent`, the exponent negated when `minus`."""

    base: Expression
    exponent: Expression
    minus: bool


@dataclass(frozen=True)
class Chain(Node):
    """`first op operand op operand …`, with `+ -` or with `* /` throughout."""

    first: Expression
    rest: tuple[tuple[str, Expression], ...]


Expression = Number | Name | Call | Negative | Power | Chain


@dataclass(frozen=True)
class Unit(Node):
    """A unit as it was written, without spaces."""

    text: str


@dataclass(frozen=True)
class Value(Node):
    """A number and its unit, if one is written."""

    expression: Expression
    unit: Unit | None


@dataclass(frozen=True)
class Hole(Node):
    """`?`, with its unit if one is written."""

    unit: Unit | None


@dataclass(frozen=True)
class Range(Node):
    """`[low, high]` or a half-open form, with a unit of both ends if one is written after it."""

    low: Value
    high: Value
    open_low: bool
    open_high: bool
    unit: Unit | None


@dataclass(frozen=True)
class Named(Node):
    """`name = value` among the arguments of a metric."""

    name: Name
    value: Value


@dataclass(frozen=True)
class Directed(Node):
    """`left || right` among the arguments of a metric."""

    left: Name
    right: Name


@dataclass(frozen=True)
class MetricUse(Node):
    """A metric with its arguments."""

    name: Name
    arguments: tuple[Named | Directed | Value, ...]


@dataclass(frozen=True)
class Compared(Node):
    """`<= value`, `>= value` or a hole."""

    operator: Name
    value: Value | Hole


@dataclass(frozen=True)
class Modifier(Node):
    """`except`, `on`, `at`, `over`, `unit` or `when`, with what follows it."""

    keyword: str
    value: Value | Hole | None = None
    names: tuple[Name, ...] = ()
    range: Range | None = None


@dataclass(frozen=True)
class Clause(Node):
    """One line of a family's block or of `guarantee`."""

    name: Name
    statistic: Name | None
    metric: MetricUse
    test: Compared | Range
    modifiers: tuple[Modifier, ...]
    severity: Name | None


@dataclass(frozen=True)
class Clauses(Node):
    """The block of one family; `keyword` is `numerical`, `statistical`, `runtime` or `guarantee`."""

    keyword: Name
    clauses: tuple[Clause, ...]


@dataclass(frozen=True)
class Role(Node):
    """`reference trainer = "kernel"`."""

    role: Name
    alias: Name
    kernel: Text


@dataclass(frozen=True)
class Pair(Node):
    """The block `pair`."""

    roles: tuple[Role, ...]


@dataclass(frozen=True)
class Assumption(Node):
    """`name in range`, `name <= value`, `name = value`, or (with nothing) `independent name`."""

    name: Name
    operator: Name | None = None
    value: Value | None = None
    range: Range | None = None


@dataclass(frozen=True)
class Assume(Node):
    """The block `assume`."""

    assumptions: tuple[Assumption, ...]


@dataclass(frozen=True)
class Comparison(Node):
    """`field op value`."""

    field: Name
    operator: Name
    value: Value | Text


@dataclass(frozen=True)
class Membership(Node):
    """`field in range`."""

    field: Name
    range: Range


@dataclass(frozen=True)
class Tagged(Node):
    """`tag("name")`."""

    function: Name
    tag: Text


@dataclass(frozen=True)
class Not(Node):
    """`not part`."""

    part: Predicate


@dataclass(frozen=True)
class Junction(Node):
    """Two or more parts joined by `and` or by `or`."""

    operator: str
    parts: tuple[Predicate, ...]


Predicate = Comparison | Membership | Tagged | Not | Junction


@dataclass(frozen=True)
class Slice(Node):
    """`slice name = predicate`."""

    name: Name
    predicate: Predicate


@dataclass(frozen=True)
class Param(Node):
    """`param name = value`."""

    name: Name
    value: Value


@dataclass(frozen=True)
class Amount(Node):
    """A plain number and its unit."""

    number: Number
    unit: Unit | None


@dataclass(frozen=True)
class Option(Node):
    """`name amount` or `name "text"`."""

    name: Name
    value: Amount | Text


@dataclass(frozen=True)
class Split(Node):
    """`split a 70%, b 30%`."""

    shares: tuple[Option, ...]


@dataclass(frozen=True)
class Recorded(Node):
    """One line of `observability`: `trace` and `fingerprint` have names, `replay` has a value."""

    keyword: str
    names: tuple[Name, ...] = ()
    value: Value | None = None


@dataclass(frozen=True)
class Observability(Node):
    """The block `observability`."""

    lines: tuple[Recorded, ...]


@dataclass(frozen=True)
class Rule(Node):
    """One line of `escalate`."""

    severity: Name
    action: Name
    options: tuple[Option, ...]


@dataclass(frozen=True)
class Escalate(Node):
    """The block `escalate`."""

    rules: tuple[Rule, ...]


@dataclass(frozen=True)
class Stage(Node):
    """One stage of `promote`; a bare amount continues the option before it."""

    name: Name
    items: tuple[Option | Amount, ...]


@dataclass(frozen=True)
class Promote(Node):
    """The block `promote`."""

    stages: tuple[Stage, ...]


@dataclass(frozen=True)
class KernelSection(Node):
    """One of the eight parts of a kernel contract: its items as sequences of words."""

    keyword: Name
    items: tuple[tuple[Name, ...], ...]


@dataclass(frozen=True)
class KernelClass(Node):
    """`class C-PRC-01`."""

    text: str


@dataclass(frozen=True)
class Use(Node):
    """`use "file.kc"`."""

    path: Text


@dataclass(frozen=True)
class Doc(Node):
    """The description line of a contract."""

    text: Text


@dataclass(frozen=True)
class Header(Node):
    """`contract name version "…" extends parent`, or with `kernel` the header of a kernel contract."""

    name: Name
    version: Text | None
    parent: Name | None
    kernel: bool


Block = (
    Pair
    | Assume
    | Slice
    | Param
    | Clauses
    | Split
    | Observability
    | Escalate
    | Promote
    | KernelSection
    | KernelClass
    | Doc
)


@dataclass(frozen=True)
class Contract(Node):
    """A header and the lines and blocks that follow it."""

    header: Header
    items: tuple[Block, ...]


@dataclass(frozen=True)
class File:
    """Everything that one source holds."""

    source: Source = field(compare=False, repr=False)
    uses: tuple[Use, ...] = ()
    contracts: tuple[Contract, ...] = ()
