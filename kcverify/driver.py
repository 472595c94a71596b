"""The pipeline in reading order: one function per command, used alike by the command line and by Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from kcverify import __version__
from kcverify.diagnostics import InputError, Report, input_error
from kcverify.elaborate import elaborate_file
from kcverify.elaborate.contract import Clause, Contract
from kcverify.elaborate.kernel import KernelContract
from kcverify.forms.files import read_source
from kcverify.forms.read import read
from kcverify.measure.options import MeasureOptions
from kcverify.prove.budget import Budget, Demand, fill
from kcverify.prove.budget import derive as derive_budgets
from kcverify.prove.check import Checked, check, report_holes
from kcverify.prove.verdict import Limits, Verdict
from kcverify.source import Source

__all__ = [
    "Checked",
    "Compiled",
    "Derived",
    "Loaded",
    "MeasureOptions",
    "check",
    "compile_monitor",
    "derive",
    "emit_monitor",
    "limits",
    "load",
    "load_source",
    "measure",
    "measure_in_group",
    "read_source",
    "replay",
    "report",
    "select",
    "summary",
    "watch",
]


@dataclass(frozen=True)
class Loaded:
    """The contracts of one file (text, YAML or JSON) and what was found wrong with it."""

    source: Source
    contracts: tuple[Contract, ...]
    report: Report
    kernels: tuple[KernelContract, ...] = ()


@dataclass(frozen=True)
class Derived:
    """Filled holes of one contract, the check of the filled contract, and what could not be filled."""

    contract: Contract
    budgets: tuple[Budget, ...]
    failed: tuple[tuple[Clause, tuple[Demand, ...]], ...]
    report: Report
    checked: Checked | None = None

    @property
    def exit_code(self) -> int:
        """0 all filled and proved; 1 a hole that nothing fills; else that of the filled contract."""
        if self.report.errors:
            return 1
        return self.checked.exit_code if self.checked is not None else 0


def load_source(source: Source, parameters: Mapping[str, Fraction] | None = None) -> Loaded:
    """Parse and elaborate; the report has every fault of the text, and the contracts are those without one."""
    report = Report()
    found = elaborate_file(read(source, report), report, parameters=parameters or {})
    return Loaded(source, found.contracts, report, found.kernels)


def load(path: str | Path, *, parameters: Mapping[str, Fraction] | None = None) -> tuple[Contract, ...]:
    """The contracts of a file. Raises InputError with every diagnostic where the file is not usable."""
    loaded = load_source(read_source(str(path)), parameters)
    if loaded.report.errors:
        raise InputError(*loaded.report.errors)
    return loaded.contracts


def select(contracts: tuple[Contract, ...], name: str | None) -> Contract:
    """The contract called `name`, or the only one. Raises InputError: `option_invalid`."""
    if not contracts:
        raise input_error(
            "option_invalid",
            option="FILE",
            reason="the file holds kernel contracts only, and this command needs a contract of a pair",
            hint="kcverify conformance run FILE --kernel MODULE:FUNCTION",
        )
    names = ", ".join(f"`{c.name}`" for c in contracts)
    if name is None:
        if len(contracts) == 1:
            return contracts[0]
        raise input_error(
            "option_invalid",
            option="--contract",
            reason=f"the file holds {names}: name one",
            hint="add `--contract NAME`",
        )
    for contract in contracts:
        if contract.name == name:
            return contract
    raise input_error(
        "option_invalid",
        option="--contract",
        reason=f"no contract `{name}`; the file holds {names}",
        hint="use one of these names",
    )


def limits() -> Limits:
    """The default effort, with results of recursions kept in the user's cache folder."""
    return Limits(cache=Path.home() / ".cache" / "kcverify")


def derive(contract: Contract, limits: Limits | None = None) -> Derived:
    """Fill the holes with the largest budgets that every guarantee allows, and check the filled contract."""
    report = Report()
    budgets, failed = derive_budgets(contract, limits)
    report_holes(failed, report)
    if not any(c.limit.hole for c in contract.clauses):
        report.add("no_hole", contract.span, name=contract.name)
    checked = check(fill(contract, budgets), limits) if budgets and not failed else None
    return Derived(contract, tuple(budgets), tuple(failed), report, checked)


@dataclass(frozen=True)
class Compiled:
    """A contract's monitor as source text, and the check whose verdicts its header states."""

    checked: Checked
    text: str


def emit_monitor(contract: Contract, limits: Limits | None = None) -> str:
    """Source text of the contract's monitor, a torch module; its header states the verdicts."""
    return compile_monitor(contract, limits).text


def compile_monitor(contract: Contract, limits: Limits | None = None) -> Compiled:
    """The contract's monitor with the check that it rests on. Raises InputError: `hole_open`."""
    from kcverify.emit.monitor import emit_monitor as emit

    checked = check(contract, limits)
    hole = next((c for c in checked.contract.clauses if c.limit.hole), None)
    if hole is not None:
        raise input_error("hole_open", hole.value_span, name=hole.name)
    text = emit(checked.contract, verdicts=summary(checked.verdicts), digest=checked.digest, version=__version__)
    return Compiled(checked, text)


def masks_of(compiled: Compiled) -> str:
    """Source of the masks of a contract, a module for a trainer that imports kcverify.rl."""
    from kcverify.emit.masks import emit_masks

    return emit_masks(compiled.checked.contract, digest=compiled.checked.digest, version=__version__)


def kernel_of(compiled: Compiled) -> str:
    """Source of the C++ row kernel of a monitor, for bfloat16 logits. Raises InputError: `extra_missing` without torch."""
    try:
        from kcverify.measure.session import kernel_text
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    return kernel_text(compiled.text)


def summary(verdicts: tuple[Verdict, ...]) -> dict[str, str]:
    """Guarantee (with its slice) -> verdict word."""
    return {v.claim.name + (f" on {v.scope}" if v.scope else ""): v.status.value for v in verdicts}


def measure(
    contract: Contract,
    reference: str | Sequence[str],
    candidate: str | Sequence[str],
    data: str | None,
    options: MeasureOptions | None = None,
) -> dict[str, Any]:
    """Run a pair of kernels over the data through the contract's generated monitor; the result as JSON data.

    A side that is a folder, a pattern or several files of logits is a dump in shards, measured by the executor of the
    options. Raises InputError for sides, data or options that are not usable, `extra_missing` without torch.
    """
    try:
        from kcverify.measure.session import measure_contract
        from kcverify.measure.shard import in_several
        from kcverify.measure.sharded import measure_shards
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    options = options or MeasureOptions()
    if options.watch is None:
        options = replace(options, watch=watch(options, {}))
    several = in_several(reference, candidate, options)
    executor = executor_of(options.executor, options.workers) if several else None
    checked = check(contract)
    source = emit_monitor(contract)
    if several:
        return measure_shards(checked, source, reference, candidate, data, options, executor)
    one, other = (side if isinstance(side, str) else side[0] for side in (reference, candidate))
    return measure_contract(checked, source, one, other, data, options)


def measure_in_group(
    contract: Contract,
    reference: str | Sequence[str],
    candidate: str | Sequence[str],
    data: str | None = None,
    options: MeasureOptions | None = None,
    group: Any = None,
) -> dict[str, Any]:
    """`measure` of dumps in shards inside a `torch.distributed` group (None: the default one), as a trainer runs it.

    Every rank calls it with the same arguments, measures its share of the shards and returns the whole result, which
    is that of `measure` bit for bit. Raises what `measure` raises, on all ranks.
    """
    try:
        from kcverify.measure.sharded import measure_in_group as measure_together
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    source = emit_monitor(contract)
    options = options or MeasureOptions()
    if options.watch is None:
        options = replace(options, watch=watch(options, {}))
    return measure_together(check(contract), source, reference, candidate, data, options, group)


def watch(options: MeasureOptions, declared: Mapping[str, Any], *, witnesses: bool = False, now: int = 0) -> Any:
    """What records the provenance of a run and voids it where `observability` is not met; `declared` has fingerprints by
    side. With `witnesses` its `events` are those of the worst values. Raises InputError: `extra_missing` without torch.
    """
    try:
        from kcverify.provenance.watch import Setting, Watch
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    return Watch(Setting(declared, options.seed, options.gguf, options.device, witnesses, now))


def replay(path: str, setting: Mapping[str, Any], line: int | None = None, clause: str | None = None) -> dict[str, Any]:
    """Runs the request of an event again on both kernels; `setting` are the fields of `provenance.replay.Setting`.

    Raises InputError: `event_invalid`, `event_expired`, `replay_identity`, `extra_missing` without torch.
    """
    try:
        from kcverify.provenance import replay as replaying
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    from kcverify.provenance.events import read_event

    event, chosen = read_event(path, line, clause), replaying.Setting(**setting)
    replaying.check_window(event, chosen.now)
    return {"kcverify": __version__, **replaying.replay(event, emit_monitor(event.contract), chosen)}


EXECUTORS = ("process", "ray", "serial")
"""What spreads the work over shards: processes of this machine, a Ray cluster, or nothing."""


def executor_of(name: str | None, workers: int | None) -> Any:
    """The executor of that name (None: process) with so many workers (None: one a core).

    Raises InputError: `option_invalid`, `extra_missing` without Ray.
    """
    from kcverify.executors.pool import Processes, Serial

    if name in (None, "process"):
        return Processes(workers)
    if name == "serial":
        return Serial()
    if name == "ray":
        try:
            from kcverify.executors.cluster import Ray
        except ModuleNotFoundError as error:
            if error.name != "ray":
                raise
            raise input_error("extra_missing", package="ray", hint="pip install 'kcverify[ray]'") from None
        return Ray(workers)
    reason = f"`{name}` is none of {', '.join(EXECUTORS)}"
    raise input_error("option_invalid", option="--executor", reason=reason, hint="--executor process")


def write_rollouts(folder: Path, text: Path) -> list[tuple[Path, Path]]:
    """Rollouts of the demo model as a trainer's and an engine's files: `(verl, vLLM)` for each planted fault.

    Raises InputError: `extra_missing` without torch.
    """
    try:
        from kcverify.measure.rollouts import write_rollouts as written
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    return [(batch, answers) for _, batch, answers in written(folder, text)]


def compare(a: str, b: str, declared_a: Sequence[str] = (), declared_b: Sequence[str] = ()) -> dict[str, Any]:
    """Two files of log-probabilities or logits: identity findings, drift, verdict, as JSON data. Raises InputError."""
    from kcverify.streams.sharded import compare_sides

    return compare_sides(a, b, declared_a, declared_b)


def comparison_report(result: Mapping[str, Any]) -> str:
    """The result of `compare` as one self-contained HTML page."""
    from kcverify.emit.streams import render_comparison

    return render_comparison(result)


def _missing(error: ModuleNotFoundError) -> Exception:
    """The diagnostic of a missing extra; the error itself where something else is missing."""
    known = error.name in ("torch", "safetensors")
    return input_error("extra_missing", package=error.name) if known else error


def report(result: Mapping[str, Any]) -> str:
    """The result of `measure` as one self-contained HTML page."""
    from kcverify.emit.report import render_report

    return render_report(result)
