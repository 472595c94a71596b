"""Time to read, elaborate, format and convert a contract of many clauses: `python benchmarks/language.py [--json]`."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

from kcverify.diagnostics import Report
from kcverify.elaborate import elaborate
from kcverify.forms import write
from kcverify.forms.read import read
from kcverify.source import Source
from kcverify.syntax.parser import parse
from kcverify.syntax.printer import formatted

FORMS = (
    "logit_span <= 0.05 except 0.02% on long -> L2",
    "mean kl(candidate || reference) <= 1e-4 nats -> L1",
    "importance_ratio in [0.95, 1.05] except 1% -> L2",
    "tv <= 0.01 + 2^-10 except 0.1% at confidence 99% -> L3",
)


def contract(clauses: int) -> str:
    """A contract with this many clauses, each with a comment."""
    lines = [f"  c{index}: {FORMS[index % len(FORMS)]} # clause {index}" for index in range(clauses)]
    head = 'contract many version "1"\nassume { temperature in [0.6, 1.0] }\nslice long = prompt_tokens >= 8192\n'
    return f"{head}numerical {{\n" + "\n".join(lines) + "\n}\n"


def best(run: Callable[[], object], repeats: int) -> float:
    """Shortest processor time of several runs, in seconds."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def measure(clauses: int, repeats: int) -> dict[str, float]:
    """Seconds of each operation on a contract of this size."""
    source = Source("many.kc", contract(clauses))
    start = time.process_time()
    parse(Source("one.kc", "contract c\n"), Report())
    cold = time.process_time() - start
    tree = parse(source, Report())
    data = write.data(tree)
    texts = {"json": Source("many.json", write.json_text(data)), "yaml": Source("many.yaml", write.yaml_text(data))}
    return {
        "tables": cold,
        "parse": best(lambda: parse(source, Report()), repeats),
        "parse_and_elaborate": best(lambda: elaborate(parse(source, Report()), Report(), parameters={}), repeats),
        "format": best(lambda: formatted(parse(source, Report())), repeats),
        **{f"read_{form}": best(lambda text=text: read(text, Report()), repeats) for form, text in texts.items()},  # type: ignore[misc]
    }


def main() -> None:
    """Print the figures."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--clauses", type=int, default=1000)
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--json", action="store_true")
    given = options.parse_args()
    figures = measure(given.clauses, given.repeats)
    if given.json:
        print(json.dumps({"clauses": given.clauses, "seconds": figures}, indent=2))
        return
    print(f"a contract of {given.clauses} clauses")
    for name, seconds in figures.items():
        print(f"  {name.replace('_', ' '):20} {seconds * 1000:8.1f} ms")


if __name__ == "__main__":
    main()
