"""One measurement: a pair of kernels over data, through the generated monitor, to a result as plain data."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kcverify import __version__
from kcverify.diagnostics import InputError, diagnosis, input_error
from kcverify.elaborate.contract import Contract
from kcverify.elaborate.membership import belongs
from kcverify.measure.causes import Causes
from kcverify.measure.data import Request, load_data, text_around
from kcverify.measure.devices import device_of
from kcverify.measure.layers import by_layer, check_by_layer
from kcverify.measure.observed import Observer
from kcverify.measure.options import MeasureOptions
from kcverify.measure.origin import digest_of_data, new_mark
from kcverify.measure.outcomes import load_outcomes, open_parser
from kcverify.measure.premise import Run as MeasuredRun
from kcverify.measure.premise import measured_guarantees
from kcverify.measure.run import Outcome, Rows, check_lengths, one_sided_ids, run_pair, told_requests
from kcverify.measure.sides import FileSide, Identified, Side, open_pair
from kcverify.measure.times import Stamps, told_times
from kcverify.measure.tokenizer import Tokenizer
from kcverify.output.check import verdict_data
from kcverify.prove.check import Checked
from kcverify.runtime.errors import MonitorInputError
from kcverify.runtime.native.source import kernel_source
from kcverify.runtime.report import build_report, seen_cells


def load_monitor(source: str, temperature: float | None) -> Any:
    """An instance of the generated monitor, from its source text.

    Raises InputError: `option_invalid` for a temperature that the contract does not assume.
    """
    try:
        return _monitor_class(source)(temperature=temperature, exact=True)
    except MonitorInputError as error:
        raise translated(error) from None


def _monitor_class(source: str) -> Any:
    module = types.ModuleType("kcverify_generated_monitor")
    exec(compile(source, "<generated monitor>", "exec"), module.__dict__)
    return module.ContractMonitor


def kernel_text(source: str) -> str:
    """C++ of the row kernel that the generated monitor builds for bfloat16 logits."""
    return kernel_source(_monitor_class(source).PLAN, torch.bfloat16)


def translated(error: MonitorInputError) -> InputError:
    """A monitor's complaint as a diagnostic."""
    return InputError(diagnosis(error.slug, error.holes))


def masks(contract: Contract, rows: Rows) -> dict[str, torch.Tensor]:
    """Row mask of every slice whose membership the trace decides for all rows of the batch.

    A slice that rests on a field the requests lack is left out: its clauses become unobservable, never passed.
    """
    out = {}
    for s in contract.slices:
        answers: list[bool] = []
        for index, position in zip(rows.request_index.tolist(), rows.positions.tolist(), strict=True):
            request = rows.requests[index]
            known = belongs(s.predicate, {"position": position, **request.fields}, request.tags)
            if known is None:
                break
            answers.append(known)
        else:
            out[s.name] = torch.tensor(answers, dtype=torch.bool)
    return out


def _requests(reference: Side, candidate: Side, data: str | None, options: MeasureOptions) -> list[Request]:
    if data is None:
        recorded = told_requests(reference, candidate, options.window)
        if recorded is None:
            raise input_error(
                "option_invalid", option="--data", reason="kernels need data to run on", hint="--data FILE"
            )
        return recorded
    tokenizer = reference.tokenizer or candidate.tokenizer
    requests = load_data(
        data,
        window=options.window,
        tokenizer=tokenizer,
        vocabulary=reference.vocabulary or candidate.vocabulary,
        limit=options.limit,
    )
    if options.limit is not None:
        check_lengths(reference, candidate, requests, options.limit)
    return requests


def check_options(options: MeasureOptions, data: str | None) -> None:
    """Raise InputError (`option_invalid`) for numbers that no run can have, and options that would do nothing."""
    device_of(options.device)
    for option, value in (("--window", options.window), ("--limit", options.limit)):
        if value is not None and value < 1:
            raise input_error("option_invalid", option=option, reason=f"{value} is not a positive number")
    if options.limit is not None and data is None:
        reason = "recorded files without data are measured whole"
        raise input_error("option_invalid", option="--limit", reason=reason, hint="--data FILE")
    if not -(2**63) <= options.seed < 2**64:
        raise input_error("option_invalid", option="--seed", reason=f"{options.seed} does not fit 64 bits")
    if options.parse is not None and options.observations is None:
        reason = "it judges responses of a file of observations, and none is given"
        raise input_error("option_invalid", option="--parse", reason=reason, hint="--observations FILE")
    if options.rows is not None and not options.by_layer:
        raise input_error("option_invalid", option="--rows", reason="nothing reads it without --by-layer")


def measure_contract(
    checked: Checked, source: str, reference: str, candidate: str, data: str | None, options: MeasureOptions
) -> dict[str, Any]:
    """Run the pair and return the result: contract, pair, data, verdicts, guarantees, fingerprints.

    Raises InputError for sides, data and options that are not usable. Ctrl-C ends the run with `complete` False.
    """
    check_options(options, data)
    torch.manual_seed(options.seed)
    contract = checked.contract
    temperature = None if options.temperature is None else float(options.temperature)
    monitor = load_monitor(source, temperature)
    first, second = open_pair(reference, candidate, device=options.device, gguf=options.gguf)
    requests = _requests(first, second, data, options)
    parse = open_parser(options.parse)
    outcomes = [] if options.observations is None else load_outcomes(options.observations, parse)
    observer = Observer(monitor, contract, outcomes, options.clock)
    live = None if isinstance(second, FileSide) else observer.elapsed
    stamps = Stamps(contract, told_times(contract, outcomes), live)
    split = Causes(first, second, monitor.temperature, contract, feed, lambda: load_monitor(source, temperature))
    check_by_layer(first, second, options)
    watch = options.watch
    if watch is not None:
        watch.begin(contract, (first, second), requests, monitor.temperature, options.batch)

    def take(rows: Rows) -> None:
        try:
            feed(monitor, contract, rows, stamps.of(rows))
            observer.take(rows)
            if options.causes:
                split.take(rows)
        except MonitorInputError as error:
            raise translated(error) from None
        if watch is not None:
            watch.take(rows)

    with torch.no_grad():
        watched = observer.watch(second)
        outcome = run_pair(first, watched, requests, on_rows=take, batch=options.batch, progress=options.progress)
        notes = observer.finish(requests)
    measured = build_report(monitor, one_look=options.fixed_sample)
    measured["notes"] += notes + stamps.notes(measured["clauses"]) + one_sided_ids(first, second)
    locate_witnesses(measured["clauses"], requests, first.tokenizer or second.tokenizer)
    logits = (side.fingerprint.get("logits", "") for side in (first, second))
    told = told_data(data, len(requests), digest_of_data(requests, outcomes, logits), options)
    found = result(checked, measured, outcome, (first, second), told, new_mark())
    longest = max((len(r.token_ids) for r in requests), default=0)
    if options.causes:
        found["causes"] = split.report()
    if options.by_layer:
        kept = requests if outcome.complete else []
        found["by_layer"] = by_layer(first, second, kept, monitor.temperature, options)
    found["measured_guarantees"] = measured_guarantees(checked, measured_run(monitor, outcome, data, longest, options))
    return found if watch is None else found | watch.finish(found)


def feed(monitor: Any, contract: Contract, rows: Rows, times: torch.Tensor | None = None) -> None:
    """Measure a batch of rows, whose requests were at `times` (see `times.Stamps`).

    Clauses on tokens leave out the rows that no token follows, where any token is known.

    Raises InputError (`assumption_mismatch`), MonitorInputError.
    """
    width = contract.assumptions.vocabulary
    if width is not None and width != rows.reference.shape[-1]:
        found = f"{rows.reference.shape[-1]} entries"
        raise input_error("assumption_mismatch", assumed=f"a vocabulary of {width}", found=found)
    sampled = any(i >= 0 for request in rows.requests for i in request.token_ids)
    monitor.update(
        rows.reference, rows.candidate, request_ids=rows.request_ids,
        sampled_ids=rows.next_ids.clamp_min(-1) if sampled else None, slices=masks(contract, rows), times=times,
    )  # fmt: skip
    monitor.close(list(dict.fromkeys(rows.request_ids)))


def measured_run(
    monitor: Any, outcome: Outcome, data: str | None, longest: int, options: MeasureOptions
) -> MeasuredRun:
    """What the statements about the guarantees rest on; `longest` tokens has the longest request."""
    cells = seen_cells(monitor, monitor.settled_evidence()).items()
    return MeasuredRun(
        {(monitor.CLAUSES[index].name, name): seen for (index, name), seen in cells},
        monitor.temperature,
        outcome.requests,
        data or "the files",
        longest,
        outcome.complete,
        options.fixed_sample,
    )


def locate_witnesses(
    clauses: Sequence[dict[str, Any]], requests: Sequence[Request], tokenizer: Tokenizer | None
) -> None:
    """Add position, token text and the text around it to each worst value."""
    by_id = {r.request_id: r for r in requests}
    for clause in clauses:
        worst = clause.get("max")
        request = by_id.get(str(worst["request"])) if worst else None
        if worst is None or request is None or not isinstance(worst.get("row"), int):
            continue
        worst["position"] = worst["row"]
        if tokenizer is not None and all(i >= 0 for i in request.token_ids):
            before, after = text_around(request, worst["row"], tokenizer)
            worst["context"] = {"before": before, "after": after}
            if isinstance(worst.get("token"), int) and worst["token"] >= 0:
                worst["token_text"] = tokenizer.decode([worst["token"]])


def overall(clauses: Sequence[Mapping[str, Any]], complete: bool) -> tuple[str, int]:
    """Verdict word and exit code of a run: a failure outweighs what is undecided, and an interrupted run never passes."""
    words = [c["verdict"] for c in clauses if c["verdict"] != "not_enforced"]
    if "fail" in words:
        return "fail", 1
    if not words or any(w != "pass" for w in words) or not complete:
        return "inconclusive", 3
    return "pass", 0


def told_data(data: str | None, total: int, digest: str, options: MeasureOptions) -> dict[str, Any]:
    """What a result says of its data."""
    source = data or "rows of the files"
    return {"source": source, "requests": total, "window": options.window, "seed": options.seed, "digest": digest}


def result(
    checked: Checked,
    measured: dict[str, Any],
    outcome: Outcome,
    sides: tuple[Identified, Identified],
    data: Mapping[str, Any],
    run: str,
) -> dict[str, Any]:
    """The whole result as plain data, as `--format json` prints it and the HTML report reads it; `run` is its mark."""
    verdict, code = overall(measured["clauses"], outcome.complete)
    contract = checked.contract
    return {
        "kcverify": __version__,
        "run": run,
        "contract": {"name": contract.name, "version": contract.version, "description": contract.description, "digest": checked.digest},
        "pair": {"reference": sides[0].name, "candidate": sides[1].name},
        "data": {**data, "measured requests": outcome.requests, "measured rows": outcome.rows},
        "complete": outcome.complete,
        "verdict": verdict,
        "exit_code": code,
        "guarantees": [verdict_data(v) for v in checked.verdicts],
        "measured": measured,
        "fingerprints": {"reference": dict(sides[0].fingerprint), "candidate": dict(sides[1].fingerprint)},
    }  # fmt: skip
