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
from kcverify.measure.data import Request, load_data, text_around
from kcverify.measure.options import MeasureOptions
from kcverify.measure.run import Outcome, Rows, file_requests, run_pair
from kcverify.measure.sides import FileSide, Side, open_pair
from kcverify.measure.tokenizer import Tokenizer
from kcverify.output.check import verdict_data
from kcverify.prove.check import Checked
from kcverify.runtime.errors import MonitorInputError

_SAMPLED = ("token_log_ratio", "sequence_ratio", "geometric_ratio", "ess")


def load_monitor(source: str, temperature: float | None) -> Any:
    """An instance of the generated monitor, from its source text.

    Raises InputError: `option_invalid` for a temperature that the contract does not assume.
    """
    module = types.ModuleType("kcverify_generated_monitor")
    exec(compile(source, "<generated monitor>", "exec"), module.__dict__)
    try:
        return module.ContractMonitor(temperature=temperature)
    except MonitorInputError as error:
        raise translated(error) from None


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
        side = next((s for s in (reference, candidate) if isinstance(s, FileSide)), None)
        if side is None:
            raise input_error(
                "option_invalid", option="--data", reason="kernels need data to run on", hint="--data FILE"
            )
        return file_requests(side, options.window)
    tokenizer = reference.tokenizer or candidate.tokenizer
    return load_data(
        data,
        window=options.window,
        tokenizer=tokenizer,
        vocabulary=reference.vocabulary or candidate.vocabulary,
        limit=options.limit,
    )


def measure_contract(
    checked: Checked, source: str, reference: str, candidate: str, data: str | None, options: MeasureOptions
) -> dict[str, Any]:
    """Run the pair and return the result: contract, pair, data, verdicts, guarantees, fingerprints.

    Raises InputError for sides, data and options that are not usable. Ctrl-C ends the run with `complete` False.
    """
    torch.manual_seed(options.seed)
    contract = checked.contract
    temperature = None if options.temperature is None else float(options.temperature)
    monitor = load_monitor(source, temperature)
    first, second = open_pair(reference, candidate, device=options.device, gguf=options.gguf)
    requests = _requests(first, second, data, options)
    sampled = any(c.metric.name in _SAMPLED for c in contract.clauses)

    def feed(rows: Rows) -> None:
        width = contract.assumptions.vocabulary
        if width is not None and width != rows.reference.shape[-1]:
            found = f"{rows.reference.shape[-1]} entries"
            raise input_error("assumption_mismatch", assumed=f"a vocabulary of {width}", found=found)
        keep = slice(None) if not sampled else rows.next_ids >= 0
        ids = (
            rows.request_ids
            if not sampled
            else [r for r, n in zip(rows.request_ids, rows.next_ids.tolist(), strict=True) if n >= 0]
        )
        if not ids:
            return
        try:
            monitor.update(
                rows.reference[keep], rows.candidate[keep], request_ids=ids, sampled_ids=rows.next_ids[keep] if sampled else None,
                slices={k: v[keep] for k, v in masks(contract, rows).items()},
            )  # fmt: skip
            monitor.close(list(dict.fromkeys(ids)))
        except MonitorInputError as error:
            raise translated(error) from None

    with torch.no_grad():
        outcome = run_pair(first, second, requests, on_rows=feed, batch=options.batch, progress=options.progress)
    measured = monitor.report()
    locate_witnesses(measured["clauses"], requests, first.tokenizer or second.tokenizer)
    return result(checked, measured, outcome, (first, second), data, len(requests), options)


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


def result(
    checked: Checked,
    measured: dict[str, Any],
    outcome: Outcome,
    sides: tuple[Side, Side],
    data: str | None,
    total: int,
    options: MeasureOptions,
) -> dict[str, Any]:
    """The whole result as plain data, as `--format json` prints it and the HTML report reads it."""
    verdict, code = overall(measured["clauses"], outcome.complete)
    contract = checked.contract
    return {
        "kcverify": __version__,
        "contract": {"name": contract.name, "version": contract.version, "description": contract.description, "digest": checked.digest},
        "pair": {"reference": sides[0].name, "candidate": sides[1].name},
        "data": {"source": data or "rows of the files", "requests": total, "window": options.window, "seed": options.seed, "measured requests": outcome.requests, "measured rows": outcome.rows},
        "complete": outcome.complete,
        "verdict": verdict,
        "exit_code": code,
        "guarantees": [verdict_data(v) for v in checked.verdicts],
        "measured": measured,
        "fingerprints": {"reference": dict(sides[0].fingerprint), "candidate": dict(sides[1].fingerprint)},
    }  # fmt: skip
