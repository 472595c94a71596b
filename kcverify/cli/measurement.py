"""Commands that run kernels: measure and demo. They need the extra `kcverify[torch]`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from kcverify.cli import common
from kcverify.cli.common import (
    File,
    Format,
    Name,
    Set,
    app,
    emit,
    note,
    parameters,
    say,
    stoppable,
    wants_json,
    writable,
    write,
)
from kcverify.cli.provenance import DeclaredCandidate, DeclaredReference, Now, clock, declared, write_events

Device = Annotated[str, typer.Option(help="where kernels run", metavar="cpu|cuda")]
Gguf = Annotated[
    str | None, typer.Option("--gguf", help="wheel or GGUF file of SmolLM2, for smollm2:FORMAT", metavar="PATH")
]

FixedSample = Annotated[
    bool,
    typer.Option(
        "--fixed-sample",
        help="one look at a sample whose size was fixed before, as in CI: exact tests (Clopper-Pearson), fewer requests",
    ),
]

Data = Annotated[
    str | None,
    typer.Option(
        help="text file (cut into windows), JSON lines or token ids (.npy); - is standard input; files of logits need none",
        metavar="FILE",
    ),
]
Observations = Annotated[
    str | None,
    typer.Option(
        help="JSON lines, one request each: latency_ms, reward_reference, reward_candidate, failed and so on",
        metavar="FILE",
    ),
]
Parse = Annotated[
    str | None,
    typer.Option(
        help="what response_candidate and response_reference of the observations must be",
        metavar="json|regex:PATTERN|module:function",
    ),
]
Causes = Annotated[
    bool,
    typer.Option("--causes", help="split the drift into format error, kernel error and run noise; 5 times slower"),
]
ByLayer = Annotated[
    bool, typer.Option("--by-layer", help="swap one module at a time to the candidate's kernel: each one's share")
]
Spread = Annotated[
    str | None,
    typer.Option(help="what measures the shards of a dump; process if not given", metavar="process|ray|serial"),
]
Workers = Annotated[
    int | None, typer.Option(help="processes that measure shards, one thread each; as many as cores if not given")
]
Resume = Annotated[
    str | None,
    typer.Option(help="folder where finished shards are recorded; what it has is not measured again", metavar="DIR"),
]
Witnesses = Annotated[
    str | None,
    typer.Option("--witnesses", help="write the worst requests as events for `kcverify replay`", metavar="FILE"),
]
MostRows = Annotated[
    int | None, typer.Option(help="largest number of rows for --by-layer; 1024 if not given", metavar="N")
]


@contextmanager
def _progress(title: str) -> Iterator[Callable[[int, int], None] | None]:
    """The callback of a progress bar on standard error; None where standard error is no terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _path(value: str | None) -> Path | None:
    return None if value is None else Path(value)


@app.command(
    epilog="Examples: kcverify measure contracts/deploy_int8.kc --reference demo:float32 --candidate demo:int8 --data text.txt --report out.html"
)
def measure(
    contract_file: File,
    reference: Annotated[
        list[str],
        typer.Option(
            help="demo:FORMAT, smollm2:FORMAT, module:function, module:function:FORMAT where it returns a torch.nn.Module, or logits (.safetensors, .npy): a file, or a dump in shards "
            "as a folder, a pattern, or the option once for each file"
        ),
    ],
    candidate: Annotated[list[str], typer.Option(help="the same choices as the reference")],
    data: Data = None,
    window: Annotated[int, typer.Option(help="tokens of one request when the data is text")] = 64,
    temperature: Annotated[
        str | None, typer.Option(help="sampling temperature of the run, where the contract assumes a range without 1")
    ] = None,
    seed: Annotated[int, typer.Option(help="for whatever is drawn")] = 0,
    batch: Annotated[int | None, typer.Option(help="requests per call; chosen by size if not given")] = None,
    limit: Annotated[int | None, typer.Option(help="largest number of requests")] = None,
    report: Annotated[str | None, typer.Option(help="write a self-contained HTML page", metavar="PATH")] = None,
    fixed_sample: FixedSample = False, observations: Observations = None, parse: Parse = None, causes: Causes = False,
    by_layer: ByLayer = False, rows: MostRows = None, device: Device = "cpu", gguf: Gguf = None, executor: Spread = None,
    workers: Workers = None, resume: Resume = None, witnesses: Witnesses = None,
    fingerprint_reference: DeclaredReference = None, fingerprint_candidate: DeclaredCandidate = None, now: Now = None,
    format: Format = "text", contract: Name = None, set: Set = None,
) -> int:  # fmt: skip
    """Run a pair of kernels through the contract's monitor; a verdict per clause and slice."""
    from kcverify import arguments, driver
    from kcverify.measure.options import MeasureOptions
    from kcverify.output import measure as output

    as_json = wants_json(format)
    chosen = driver.select(driver.load(contract_file, parameters=parameters(set)), contract)
    inputs = (contract_file, *reference, *candidate, data, observations, gguf)
    if report is not None:
        writable(report, *inputs)
    heat = None if temperature is None else arguments.sized("--temperature", temperature)
    options = MeasureOptions(
        window, device, seed, batch, heat, limit, _path(gguf), fixed_sample, _path(observations), parse, causes, by_layer,
        rows, executor, workers, _path(resume), note,
    )  # fmt: skip
    if witnesses is not None:
        writable(witnesses, report, *inputs)
    watch = driver.watch(
        options, declared(fingerprint_reference, fingerprint_candidate), witnesses=witnesses is not None, now=clock(now)
    )
    options.watch = watch
    with _progress(candidate[0]) as options.progress, stoppable():
        result = driver.measure(chosen, reference, candidate, data, options)
    if report is not None:
        write(report, driver.report(result))
    if witnesses is not None:
        write_events(witnesses, watch.events)
    if as_json:
        emit(result)
    else:
        common.tell(output.text, result)
        if report is not None:
            say(f"report: {report}")
    return int(result["exit_code"])


@app.command(epilog="Example: kcverify demo --report-dir reports")
def demo(
    model: Annotated[
        str, typer.Option(help="tinylm ships with kcverify; smollm2 needs --gguf", metavar="tinylm|smollm2")
    ] = "tinylm",
    gguf: Gguf = None,
    report_dir: Annotated[
        str, typer.Option(help="folder for the monitor and the HTML reports", metavar="DIR")
    ] = "kcverify-demo",
    device: Device = "cpu",
) -> int:
    """The main job on a real language model: contract, proof, budget, monitor, five real kernels, verdicts, report."""
    from kcverify import demo as walk

    return walk.run(walk.Setting(model, _path(gguf), Path(report_dir), device), say, write, common.color(), note)
