"""The guided tour that `kcverify demo` runs: every stage of the main job on a real model, with its output."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kcverify import driver
from kcverify.diagnostics import input_error
from kcverify.measure.options import MeasureOptions
from kcverify.output import check as check_output
from kcverify.output import compare_streams as compare_output
from kcverify.output import derive as derive_output
from kcverify.output import measure as measure_output
from kcverify.output.style import paint
from kcverify.prove.check import check
from kcverify.resources import contracts_dir, data_path

Say = Callable[[str], None]
Write = Callable[[str, str], None]


@dataclass(frozen=True)
class Tour:
    """What differs between the models: the sides' prefix, window and number of requests, the kernel formats."""

    prefix: str
    window: int
    limit: int
    formats: tuple[str, ...]
    rollouts: bool = False


TOURS = {
    "tinylm": Tour("demo", 16, 640, ("bfloat16", "int8", "w8a8", "fp8", "int4"), rollouts=True),
    "smollm2": Tour("smollm2", 32, 8, ("bfloat16", "int8_bf16", "w8a8", "fp8", "int4_bf16")),
}


@dataclass(frozen=True)
class Setting:
    """Choices of one run of the tour."""

    model: str
    gguf: Path | None
    folder: Path
    device: str


def run(setting: Setting, say: Say, write: Write, color: bool, note: Say = lambda _: None) -> int:
    """Walk through the stages; exit code 0 when every stage did its work. Raises InputError.

    `note` is told when a step that takes long begins.
    """
    tour = TOURS.get(setting.model)
    if tour is None:
        raise input_error(
            "option_invalid", option="--model", reason=f"no model `{setting.model}`", hint="tinylm or smollm2"
        )
    try:
        setting.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise input_error(
            "file_unwritable", path=str(setting.folder), reason=(error.strerror or str(error)).lower()
        ) from None
    start = time.monotonic()
    contract = driver.load(contracts_dir() / "deploy_int8.kc")[0]
    say(paint("1. A contract, compiled and proved (contracts/deploy_int8.kc)", "bold", color) + "\n")
    say(check_output.text(check(contract), color) + "\n")
    say(paint("2. A budget derived from a reward tolerance (contracts/budget.kc)", "bold", color) + "\n")
    say(derive_output.text(driver.derive(driver.load(contracts_dir() / "budget.kc")[0]), color) + "\n")
    monitor = setting.folder / "monitor.py"
    text = driver.emit_monitor(contract)
    write(str(monitor), text)
    say(paint("3. A torch monitor, generated", "bold", color) + f"\n\n  {monitor}, {len(text.splitlines())} lines\n")
    say(paint("4. Real kernels against the float32 reference", "bold", color) + "\n")
    note(
        f"step 4 of {5 if tour.rollouts else 4}: measuring {len(tour.formats)} formats, one after another: {', '.join(tour.formats)}"
    )
    results = [_measure(contract, tour, fmt, setting, write) for fmt in tour.formats]
    say("\n".join(measure_output.rows_table(results)) + "\n")
    for result in results:
        say(f"  {result['pair']['candidate']}: {measure_output.sentence(result)}")
    if tour.rollouts:
        note("step 5 of 5: writing and comparing files of a trainer and an engine")
        say(
            "\n"
            + paint("5. Files of a trainer and an engine, with faults planted, told apart from drift", "bold", color)
        )
        say("\n" + "\n".join(_streams(setting, write)))
    say(f"\n  reports: {setting.folder}/*.html")
    say(f"  {time.monotonic() - start:.0f} s")
    return 0


def _measure(contract: Any, tour: Tour, fmt: str, setting: Setting, write: Write) -> dict[str, Any]:
    options = MeasureOptions(window=tour.window, device=setting.device, limit=tour.limit, gguf=setting.gguf)
    result = driver.measure(
        contract, f"{tour.prefix}:float32", f"{tour.prefix}:{fmt}", str(data_path("heldout.txt")), options
    )
    write(str(setting.folder / f"{fmt}.html"), driver.report(result))
    return result


def _streams(setting: Setting, write: Write) -> list[str]:
    """Compare each pair of files, and say in two lines what was found and how far apart they are."""
    lines = []
    for batch, answers in driver.write_rollouts(setting.folder, Path(data_path("heldout.txt"))):
        found = driver.compare(str(batch), str(answers), ("side=trainer", "temperature=0.8"), ("temperature=0.8",))
        write(str(setting.folder / f"compare-{answers.stem}.html"), driver.comparison_report(found))
        lines += compare_output.brief(found)
    return lines
