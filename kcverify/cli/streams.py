"""Commands over files that engines and trainers write: inspect, compare."""

from __future__ import annotations

from typing import Annotated

import typer

from kcverify.cli import common
from kcverify.cli.common import Format, app, emit, say, wants_json, writable, write

Declare = Annotated[
    list[str] | None,
    typer.Option(
        "--declare",
        help="what the file does not say: temperature, logprobs_mode (raw, processed), top_p, top_k, min_p, vocabulary, dtype, "
        "weights, kernel, rows (logits, logprobs), format, side (rollout, trainer, reference), positions (response, prompt, all), tensor; "
        "wins over FILE.kcverify.json",
        metavar="KEY=VALUE",
    ),
]
Stream = Annotated[
    str, typer.Argument(metavar="FILE", help="what an engine or a trainer wrote; a folder or a pattern of such files")
]


@app.command(epilog="Example: kcverify inspect rollouts.jsonl --declare temperature=0.7")
def inspect(file: Stream, declare: Declare = None, format: Format = "text") -> int:
    """What a file of log-probabilities or logits is, what it carries and lacks, which metrics it can carry.

    Read are answers of vLLM, SGLang, llama-server and OpenAI-compatible engines (JSON, JSON lines), RequestOutput as JSON,
    generate of transformers, --kl-divergence-base of llama.cpp, exports of prime-rl, batches of verl, NeMo-RL, TRL, slime
    and OpenRLHF (safetensors, npz, parquet, torch.save), and rows of logits (safetensors, npy). A folder or a pattern of
    files is one dump: one line a shard, what they are together, what they disagree in.
    """
    from kcverify.output import inspect as output
    from kcverify.readers.answer import data, data_of_shards
    from kcverify.readers.inspected_shards import inspect_shards
    from kcverify.readers.inspection import inspect as read
    from kcverify.readers.shards import is_several

    as_json, several = wants_json(format), is_several(file)
    found = data_of_shards(inspect_shards(file, declare or ())) if several else data(read(file, declare))
    if as_json:
        emit(found)
    else:
        common.tell(output.shards if several else output.text, found)
    return 0


DeclareA = Annotated[
    list[str] | None,
    typer.Option("--declare-a", help="what the reference's file does not say; see inspect", metavar="KEY=VALUE"),
]
DeclareB = Annotated[
    list[str] | None,
    typer.Option("--declare-b", help="what the candidate's file does not say; see inspect", metavar="KEY=VALUE"),
]
SampledBy = Annotated[
    str, typer.Option("--sampled-by", help="the side whose tokens were sampled", metavar="candidate|reference")
]
As = Annotated[
    str | None,
    typer.Option(
        "--as",
        help="print the numbers under a project's own names too",
        metavar="verl|trl|nemo|slime|prime-rl|openrlhf|areal",
    ),
]
FailOn = Annotated[
    str, typer.Option("--fail-on", help="findings that give exit code 1", metavar="error|warning|never|CODE,...")
]
Window = Annotated[
    str | None, typer.Option("--window", help="window of geometric mean ratios to test", metavar="LOW,HIGH")
]
Chosen = Annotated[
    str | None,
    typer.Option(
        help="what compares the shards of a dump; process if not given",
        metavar="process|ray|serial",
    ),
]
Workers = Annotated[
    int | None, typer.Option(help="processes that compare shards, one thread each; as many as cores if not given")
]
Resume = Annotated[
    str | None,
    typer.Option(help="folder where finished shards are recorded; what it has is not compared again", metavar="DIR"),
]
Kept = Annotated[
    str | None, typer.Option("--min-kept-share", help="share of tokens that masks must keep; none if not given")
]


@app.command(
    epilog="Exit codes: 0 comparable; 1 a finding of severity error; 2 wrong input; 3 nothing could be observed, or shards "
    "are missing. Example: "
    "kcverify compare trainer.safetensors rollouts.jsonl --declare-b temperature=0.7 --as verl --html out.html"
)
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="the reference: a trainer's file, or the trusted engine's")],
    b: Annotated[str, typer.Argument(metavar="B", help="the candidate: what the engine wrote that sampled the tokens")],
    declare_a: DeclareA = None, declare_b: DeclareB = None, sampled_by: SampledBy = "candidate", as_: As = None,
    window: Window = None, min_kept_share: Kept = None, fail_on: FailOn = "error",
    executor: Chosen = None, workers: Workers = None, resume: Resume = None,
    html: Annotated[str | None, typer.Option("--html", help="write a self-contained HTML page", metavar="PATH")] = None,
    format: Format = "text",
) -> int:  # fmt: skip
    """Are two files comparable at all, how far apart are they, which tokens are to blame. Needs no contract.

    A folder or a pattern of files is one dump in shards: shards of the same name or number are compared by processes, and
    requests that lie in different ones are paired across them.
    """
    from pathlib import Path

    from kcverify.emit.streams import render_comparison
    from kcverify.executors.runs import Reports
    from kcverify.output import compare_streams as output
    from kcverify.streams.observing import Options
    from kcverify.streams.shard_runs import Spread
    from kcverify.streams.sharded import compare_sides

    as_json = wants_json(format)
    options = Options(sampled_by, as_, fail_on, _window(window), _share(min_kept_share))
    if html is not None:
        writable(html, a, b, f"{a}.kcverify.json", f"{b}.kcverify.json")
    chosen = None
    if executor is not None or workers is not None:
        from kcverify.driver import executor_of

        chosen = executor_of(executor, workers)
    spread = Spread(chosen, None if resume is None else Path(resume), Reports("compared", common.note))
    with common.stoppable():
        found = compare_sides(a, b, declare_a or (), declare_b or (), options, spread)
    if html is not None:
        write(html, render_comparison(found))
    if as_json:
        emit(found)
    else:
        common.tell(output.text, found)
        if html is not None:
            say(f"report: {html}")
    return int(found["exit_code"])


def _window(text: str | None) -> tuple[float, float] | None:
    """The two ends of `--window`. Raises InputError: `option_invalid`."""
    from kcverify import arguments
    from kcverify.diagnostics import input_error

    if text is None:
        return None
    parts = text.split(",")
    if len(parts) != 2:
        raise input_error(
            "option_invalid", option="--window", reason=f"`{text}` is not LOW,HIGH", hint="--window 0.99,1.01"
        )
    low, high = (float(arguments.number("--window", part.strip())) for part in parts)
    return low, high


def _share(text: str | None) -> float | None:
    from kcverify import arguments

    return None if text is None else float(arguments.number("--min-kept-share", text))
