"""Faults injected into a candidate behind a real gateway: requests until guarded and safe, wrong answers, return, moves.

Every server and the gateway are processes of their own on loopback: a float32 reference (also the safe kernel), an int8
candidate with a switch for faults, and a healthy twin of it that says afterwards what the right answer would have been.
`--quick` is what the test runs; the whole takes about ten minutes on two idle cores.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import queue
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from gateway_traffic import TOKEN, Answer, Process, Traffic, body_of, ended, server, switched, text_of

from kcverify.routing.health import WatchedCell, Watcher, Where

TEXT = """contract faults version "1"
assume {{ temperature = 1; sampler = full_softmax; vocabulary = 256; traffic = 100 requests/s }}
numerical {{ drift: tv <= 0.05 except {rate} -> L3 }}
runtime {{
  errors: failure_rate <= {rate} -> L3
  slow:   {latency} latency <= {seconds} s -> L3
}}
observability {{ trace request_id, prompt_tokens, weight_version; fingerprint weights }}
escalate {{ L3 -> rollback, false_alarm_every {every} requests, dwell 1 s, recover {recover} requests }}
promote {{ full {{ stable 1 h }} }}
"""
MOVES = ("guarded", "failed", "cleared", "recovered")
STEPPED = """
import pathlib, runpy, sys, time
step, now, now_ns = pathlib.Path(sys.argv.pop(1)), time.time, time.time_ns
read = lambda: float(step.read_text() or 0)
time.time, time.time_ns = (lambda: now() + read()), (lambda: now_ns() + int(read() * 1e9))
runpy.run_module("kcverify", run_name="__main__", alter_sys=True)
"""
"""A gateway whose wall clock is moved by what a file says."""


@dataclass(frozen=True)
class Sizes:
    """Thresholds and lengths. `most` requests under a fault; `still` while nothing is expected to move; `back` until return.

    `rate` of all clauses where a case states none.
    """

    rate: int = 5
    every: int = 1_000_000
    recover: int = 50
    seconds: float = 6.0
    clean: int = 40
    most: int = 2_000
    still: int = 200
    back: int = 4_000

    def contract(self, rate: int) -> str:
        """The text of a contract whose clauses all allow `rate` percent."""
        return TEXT.format(
            rate=f"{rate}%",
            latency=f"p{100 - rate}",
            seconds=self.seconds,
            every=f"{self.every:_}",
            recover=self.recover,
        )


QUICK = Sizes(10, 10_000, 20, 20.0, 12, 400, 40, 600)


@dataclass(frozen=True)
class Case:
    """A fault: what is sent to the candidate's switch, and whether the route is expected to move.

    `restart`: the candidate's process is gone, and its repair is a new one. `kill`: the gateway is killed once the route
    has moved (at once where it is not to move). `step`: seconds by which the gateway's own clock jumps to and fro.
    `processed`: log-probabilities after temperature. `rate` in percent.
    """

    name: str
    faults: Sequence[Mapping[str, Any]] = ()
    moves: bool = True
    restart: bool = False
    kill: bool = False
    step: float = 0.0
    processed: bool = False
    rate: int | None = None


def _fault(name: str, value: Any = None, share: float = 1.0) -> tuple[Mapping[str, Any]]:
    return ({"name": name, "share": share} | ({} if value is None else {"value": value}),)


CASES = (
    Case("clean", moves=False),
    Case("switched to int4", _fault("kernel", "int4")),
    Case("NaN logits", _fault("nan_logits")),
    Case("temperature x 2, log-probabilities before it", _fault("wrong_temperature", 2.0)),
    Case("temperature x 2, log-probabilities after it", _fault("wrong_temperature", 2.0), processed=True),
    Case("stale weights", _fault("stale_weights", 0.1)),
    Case("other weights, reported", _fault("other_weights", 0.1)),
    Case("slow", _fault("slow", 4_000)),
    Case("hanging", _fault("hang")),
    Case("crashing", _fault("crash"), restart=True),
    Case("truncated answers and streams", _fault("truncated", "chunk")),
    Case("an error in 3 % of requests", _fault("error_500", 500, 0.03), rate=1),
    Case("the candidate's clock steps", _fault("clock_step", -86_400), moves=False),
    Case("the gateway's clock steps", moves=False, step=86_400.0),
    Case("clean, the gateway killed", moves=False, kill=True),
    Case("switched to int4, the gateway killed", _fault("kernel", "int4"), kill=True),
)
QUICK_CASES = ("switched to int4", "crashing", "clean, the gateway killed")


# -- one fault ---------------------------------------------------------------------------------------------------------


@dataclass
class Lane:
    """What the faults of one lane share."""

    folder: Path
    reference: Process
    twin: Process
    candidates: dict[bool, Process]
    sizes: Sizes

    def gateway(self, case: Case, number: int) -> Process:
        """A gateway with a new store."""
        step = self.folder / f"step-{number}"
        step.write_text("0", encoding="utf-8")
        words = ["-c", STEPPED, str(step)] if case.step else ["-m", "kcverify"]
        more = ["--logprobs", "processed"] if case.processed else []
        name = f"faults-{number}.kc"
        (self.folder / name).write_text(self.sizes.contract(case.rate or self.sizes.rate), encoding="utf-8")
        return Process(
            [*words, "gateway", name, "--reference", self.reference.url, "--candidate", self.candidate(case).url,
             "--store", f"store-{number}.db", "--port", "0", "--admin-token-file", "token", "--limit", "first=5",
             "--limit", "copies=16", "--top", "64", *more],
            self.folder,
        )  # fmt: skip

    def candidate(self, case: Case) -> Process:
        """The candidate that a case needs."""
        if case.processed not in self.candidates:
            more = ("--logprobs-mode", "processed") if case.processed else ()
            self.candidates[case.processed] = server(self.folder, "int8", *more).start()
        return self.candidates[case.processed]


def injected(lane: Lane, case: Case, number: int) -> dict[str, Any]:
    """Everything that is reported of one fault."""
    gateway, candidate, sizes = lane.gateway(case, number).start(), lane.candidate(case), lane.sizes
    with ended(gateway):
        traffic = Traffic(gateway.url)
        traffic.run(sizes.clean, "clean")
        before = traffic.settled()
        switched(candidate, case.faults)
        row = _struck(lane, case, traffic, before, lane.folder / f"step-{number}")
        if case.kill:
            row |= _killed(gateway, traffic, "safe" if case.moves else "candidate")
        _repaired(candidate, case)
        row |= _returned(sizes.back, traffic)
        traffic.run(sizes.clean, "after")
        traffic.settled()
        moves = [e for e in traffic.events() if e["kind"] in MOVES]
        row |= {"moves": [f"{e['kind']} {e['body'].get('to', '')}".strip() for e in moves]}
    return {"fault": case.name} | row | _judged(lane, traffic.answers)


def _struck(lane: Lane, case: Case, traffic: Traffic, before: Mapping[str, Any], step: Path) -> dict[str, Any]:
    """Requests under the fault until the route is safe; then some more."""
    sizes = lane.sizes
    if not case.moves:
        for offset in (case.step, -case.step, 0.0) if case.step else (0.0,):
            step.write_text(str(offset), encoding="utf-8")
            traffic.run(sizes.still // (3 if case.step else 1), "fault")
        traffic.settled()
        return {}
    safe = traffic.run(sizes.most, "fault", lambda r: r["route"] == "safe")
    traffic.run(sizes.clean, "fault, safe" if safe else "fault")
    traffic.settled()
    base = before["traffic"]["counts"]["requests"]
    moves = [e for e in traffic.events() if e["kind"] in MOVES and e["seq"] > before["seq"]]
    first = {e["kind"]: e["body"]["requests"] - base for e in reversed(moves)}
    failed = first.get("failed")
    return {
        "guarded": min((n for n in (first.get("guarded"), failed) if n is not None), default=None), "safe": failed,
        "by": sorted({c for e in moves if e["kind"] == "failed" for c in e["body"]["cells"]}),
    }  # fmt: skip


def _killed(gateway: Process, traffic: Traffic, route: str) -> dict[str, Any]:
    """Kill the gateway in the middle of traffic, start it again: seconds away, the route and events that it comes back to."""
    before = traffic.events()
    running = threading.Thread(target=traffic.run, args=(20, "killed"))
    running.start()
    time.sleep(0.3)
    gateway.kill()
    began = time.monotonic()
    gateway.again()
    away = time.monotonic() - began
    running.join()
    status, after = traffic.settled(), traffic.events()
    kept = status["route"]["route"] == route and after[: len(before)] == before
    return {"kept": kept, "seconds away": round(away, 1)}


def _repaired(candidate: Process, case: Case) -> None:
    if case.restart:
        candidate.again()
    else:
        switched(candidate, ())


def _returned(most: int, traffic: Traffic) -> dict[str, Any]:
    """Requests and seconds from the repair until the candidate serves again."""
    before = traffic.settled()
    if before["route"]["route"] == "candidate":
        return {}
    back = traffic.run(most, "repaired", lambda r: r["route"] == "candidate")
    found = [e for e in traffic.events() if e["kind"] in ("recovered", "cleared") and e["seq"] > before["seq"]]
    if not back or not found:
        return {"return": None, "return s": None}
    base = before["traffic"]["counts"].get("requests", 0)
    return {
        "return": found[-1]["body"]["requests"] - base, "return s": round((found[-1]["at"] - before["now"]) / 1000, 1)
    }  # fmt: skip


def _judged(lane: Lane, answers: Sequence[Answer]) -> dict[str, Any]:
    """Wrong answers: of a candidate under a fault, other than its healthy twin and the reference give for the seed.

    A stream that the safe kernel went on with counts too: its noise starts anew, so that neither would have said this.
    """
    struck = [a for a in answers if a.phase.startswith("fault") and a.text is not None]
    until = [a for a in struck if a.phase == "fault"]
    served = [a for a in struck if a.served == "candidate"]
    with ThreadPoolExecutor(8) as pool:
        wrong = [a for a, right in zip(served, pool.map(lambda a: _right(lane, a), served), strict=True) if not right]
    lost = [a for a in answers if a.text is None]
    away = [a for a in lost if a.phase == "killed" and not a.wrong.startswith(("status", "stream"))]
    errors = [a for a in lost if a not in away]
    return {
        "under fault": len(until), "wrong": len(wrong), "wrong share": round(len(wrong) / max(1, len(until)), 4),
        "wrong when safe": sum(a.phase == "fault, safe" for a in wrong), "client errors": len(errors),
        "errors": sorted({a.wrong for a in errors}), "no gateway": len(away), "requests": len(answers),
    }  # fmt: skip


def _right(lane: Lane, answer: Answer) -> bool:
    path, fields = body_of(answer.number, 2)
    for healthy in (lane.twin, lane.reference):
        if text_of(httpx.post(f"{healthy.url}{path}", json=fields, timeout=60))[0] == answer.text:
            return True
    return False


def clean_runs(runs: int, length: int) -> dict[str, Any]:
    """The watcher of a gateway on streams that meet their limits: a binary clause at 0.4 % and a share at 0.3 % of 1 %."""
    cells = (
        WatchedCell("errors", "L3", "safe", "binary", 0.01, 1e6), WatchedCell("drift", "L3", "safe", "share", 0.01, 1e6)
    )  # fmt: skip
    false = guarded = 0
    for seed in range(runs):
        rng, watcher, route = random.Random(seed), Watcher(cells), "candidate"
        for _ in range(length):
            error = float(rng.random() < 0.004)
            drift = rng.randrange(1, 21) / 100 if rng.random() < 0.03 else 0.0
            watcher.add({"errors": (error, error), "drift": (drift, drift)})
            shift = watcher.decide(Where(route, "health" if route == "guarded" else "", 0))
            if shift is not None:
                watcher.took(shift)
                route, false, guarded = (
                    shift.route,
                    false + (shift.kind == "failed"),
                    guarded + (shift.kind == "guarded"),
                )
    return {"runs": runs, "requests each": length, "false fallbacks": false, "moves to guarded": guarded}


# -- all of it ---------------------------------------------------------------------------------------------------------


def measured(sizes: Sizes, cases: Sequence[Case], lanes: int, show: Callable[[str], None]) -> list[dict[str, Any]]:
    """A row a fault, in their order; `lanes` at a time."""
    waiting: queue.SimpleQueue[tuple[int, Case]] = queue.SimpleQueue()
    for pair in enumerate(cases):
        waiting.put(pair)
    rows: dict[int, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        (folder / "token").write_text(TOKEN + "\n", encoding="utf-8")
        reference, twin = server(folder, "float32").start(), server(folder, "int8").start()
        stack.enter_context(ended(reference, twin))

        def work(lane: Lane) -> None:
            with contextlib.suppress(queue.Empty):
                while True:
                    number, case = waiting.get_nowait()
                    began = time.monotonic()
                    try:
                        row = injected(lane, case, number)
                    except (httpx.HTTPError, SystemExit, ValueError, KeyError) as error:
                        row = {"fault": case.name, "failed": f"{type(error).__name__}: {error}"[:300]}
                    rows[number] = row | {"seconds": round(time.monotonic() - began, 1)}
                    show(f"{case.name}: {json.dumps(rows[number])}")

        work_lanes = [Lane(folder, reference, twin, {}, sizes) for _ in range(lanes)]
        threads = [threading.Thread(target=work, args=(lane,)) for lane in work_lanes]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            for process in itertools.chain.from_iterable(lane.candidates.values() for lane in work_lanes):
                process.end()
    return [rows[n] for n in sorted(rows)]


COLUMNS = {
    "fault": "fault", "guarded": "until guarded", "safe": "until safe", "wrong": "wrong answers", "wrong share": "of those under the fault",
    "client errors": "client errors", "return": "return after", "return s": "seconds", "moves": "moves",
}  # fmt: skip


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(COLUMNS.values()) + " |", "|---" * len(COLUMNS) + "|"]
    for row in rows:
        shown = {**row, "moves": len(row.get("moves", ())), "wrong share": f"{row.get('wrong share', 0):.1%}"}
        lines.append("| " + " | ".join("–" if shown.get(k) is None else str(shown[k]) for k in COLUMNS) + " |")
    return "\n".join(lines)


def missed(found: Mapping[str, Any], cases: Mapping[str, Case]) -> list[str]:
    """Targets that were not met."""
    out = []
    if found["clean"]["false fallbacks"]:
        out.append(f"{found['clean']['false fallbacks']} false fallbacks in clean runs")
    for row in found["faults"]:
        case, name = cases[row["fault"]], row["fault"]
        checks = {
            "it could not be measured: " + str(row.get("failed")): "failed" in row,
            "the route moved": not case.moves and bool(row.get("moves")),
            "never safe": case.moves and row.get("safe") is None,
            "safe after more than 1,000 requests": (row.get("safe") or 0) > 1000,
            "no return after the repair": case.moves and row.get("safe") is not None and row.get("return") is None,
            "client errors that a healthy upstream could have answered": bool(row.get("client errors")),
            "wrong answers after the fallback": bool(row.get("wrong when safe")),
            "the killed gateway forgot its route": row.get("kept") is False,
        }
        out += [f"{name}: {what}" for what, bad in checks.items() if bad]
    return out


def main() -> None:
    """Print the table, or JSON with `--json`; what was not met is told below."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="machine readable")
    parser.add_argument("--quick", action="store_true", help="three faults against a limit of 10 %%")
    parser.add_argument("--lanes", type=int, default=2, help="faults that are injected at the same time")
    parser.add_argument("--only", help="faults whose name holds this")
    options = parser.parse_args()
    cases = [c for c in CASES if c.name in QUICK_CASES or not options.quick]
    cases = [c for c in cases if options.only is None or options.only in c.name]
    quiet = options.json

    def show(line: str) -> None:
        if not quiet:
            print(line, file=sys.stderr, flush=True)

    rows = measured(QUICK if options.quick else Sizes(), cases, 1 if options.quick else options.lanes, show)
    clean = clean_runs(*((6, 500) if options.quick else (60, 3_000)))
    found: dict[str, Any] = {"clean": clean, "faults": rows}
    found["missed"] = missed(found, {c.name: c for c in cases})
    if options.json:
        print(json.dumps(found, indent=1))
        return
    print(table(rows))
    print(f"\nClean runs of the watcher: {clean}")
    print("\n".join(["", *(f"MISSED {line}" for line in found["missed"])]) or "\nAll targets met")


if __name__ == "__main__":
    main()
