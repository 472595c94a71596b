"""Compiles the Triton row kernels for sm_90 without a GPU and counts the machine instructions a pair of logits costs.

The count follows the hot path of the largest loop: a branch that is taken where the running maximum rises is left out.
It needs Triton with its bundled `nvdisasm`. `--json` prints it for machines.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "0"
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kcverify.runtime.gpu import launch as backend
from kcverify.runtime.rowplan import STATISTICS, RowPlan

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
PLANS = {
    "full set": RowPlan(frozenset(STATISTICS) - {"chi2", "bc"}, ((1, False),)),
    "span, TV, KL, ratios": RowPlan(
        frozenset({"logit_span", "tv", "kl_candidate_reference", "ratio_min", "ratio_max"}), ((1, False),)
    ),
    "one sweep: KL, log ratio": RowPlan(frozenset({"kl_reference_candidate", "log_ratio"})),
}
FORMATS = {"bf16": False, "fp32": True}
RARE = 20  # a forward branch over more instructions than this is the rare case of a tile
TYPES = {
    "state": "*i32", "part": "*fp64", "table": "*fp64", "maxima": "*fp64", "out": "*fp64", "only": "*i64", "ids": "*i64", "wide": "*fp64", "rows": "i32",
    "step": "i64", "stretches": "i32", "width": "i32", "z_step": "i64", "w_step": "i64", "stretch": "i32", "scale": "fp32",
    "k": "fp32", "scale_high": "fp32", "scale_low": "fp32",
}  # fmt: skip
ALIGNED = ("z", "w", "part", "width", "z_step", "w_step", "stretch")


def compiled(kernel: Any, logits: str, constants: dict[str, object], warps: int) -> Any:
    """The kernel for an H100 or H200, for rows that are 16-byte aligned."""
    names = kernel.arg_names
    known = TYPES | {"z": f"*{logits}", "w": f"*{logits}"}
    types = {name: "constexpr" if name in constants else known.get(name, "constexpr") for name in names}
    fixed = {(names.index(name),): value for name, value in constants.items()}
    attributes = {(names.index(n),): [["tt.divisibility", 16]] for n in ALIGNED if n in names}
    source = ASTSource(fn=kernel, signature=types, constexprs=fixed, attrs=attributes)
    options = backend.Shape().options | {"num_warps": warps}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def instructions(kernel: Any) -> tuple[list[tuple[str, str]], dict[str, int], str]:
    """Opcode and text of every instruction, the places of the labels, and the registers and stack as the tool says."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(kernel.asm["cubin"])
        text = subprocess.run([TOOLS / "nvdisasm", "-c", path], capture_output=True, text=True, check=True).stdout
        usage = subprocess.run([TOOLS / "cuobjdump", "-res-usage", path], capture_output=True, text=True).stdout
    found: list[tuple[str, str]] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if match := re.match(r"^(\.L_x_\d+):", line):
            labels[match[1]] = len(found)
        elif match := re.match(r"^\s+/\*[0-9a-f]{4,}\*/\s+(.*?);", line):
            words = re.sub(r"^@!?U?P\d+\s+", "", match[1])
            found.append((words.split()[0].split(".")[0], match[1]))
    numbers = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    return found, labels, f"{numbers[1]} registers, {numbers[2]} bytes of stack" if numbers else ""


def hot_paths(found: list[tuple[str, str]], labels: dict[str, int]) -> list[list[str]]:
    """Opcodes along each loop, the rare branches skipped."""

    def target(at: int) -> int | None:
        match = re.search(r"`\((\.L_x_\d+)\)", found[at][1])
        return labels.get(match[1]) if match else None

    paths = []
    for end, (name, _) in enumerate(found):
        start = target(end) if name == "BRA" else None
        if start is None or start >= end:
            continue
        path, at = [], start
        while at <= end:
            path.append(found[at][0])
            ahead = target(at) if found[at][0] == "BRA" and at < end else None
            at = ahead if ahead is not None and at + RARE < ahead <= end else at + 1
        paths.append(path)
    return paths


def row(kernel: Any, logits: str, constants: dict[str, object], warps: int) -> dict[str, object]:
    """Instructions and special-function instructions a pair, of the longest hot path that computes an exponential."""
    found, labels, usage = instructions(compiled(kernel, logits, constants, warps))
    lanes = int(str(constants["BLOCK"])) // (32 * warps)
    loops = [path for path in hot_paths(found, labels) if path.count("MUFU") >= lanes] or [[]]
    plain = min(loops, key=len) if "MASKED" not in constants else max(loops, key=len)
    return {"a_pair": len(plain) / lanes, "special": plain.count("MUFU") / lanes, "usage": usage}


def counts() -> dict[str, dict[str, dict[str, object]]]:
    """For each format and plan, the rows of the first sweep, plain and masked, and of the second."""
    rows, finish, last = backend.kernels()
    shape = backend.Shape()
    out: dict[str, dict[str, dict[str, object]]] = {}
    for logits, exact in FORMATS.items():
        for name, plan in list(PLANS.items())[: 1 if exact else None]:
            first, second = backend.flags(plan, exact=exact, scaled=False), backend.second_flags(plan)
            here = out[f"{logits}, {name}"] = {}
            for what, block in (("plain", shape.plain), ("masked", shape.masked)):
                constants = {"BLOCK": block, "MASKED": what == "masked", "STAGES": shape.stages, **first}
                here[what] = row(rows.sums_kernel, logits, constants, shape.warps)
            if any(second.values()):
                constants = {"BLOCK": shape.plain, "EXACT": exact, "SCALED": False, "STAGES": shape.stages, **second}
                here["second"] = row(finish.second_kernel, logits, constants, shape.warps)
        compile_the_rest(finish, last, shape, logits)
    return out


def compile_the_rest(finish: Any, last: Any, shape: backend.Shape, logits: str) -> None:
    """The kernels whose speed does not matter, also as one row in one stretch specialises them."""
    for one in ({}, {"rows": 1, "stretches": 1, "step": 1, "width": 1}):
        for masks in (False, True):
            constants = {"MASKS_ON": masks, "SOFTMAX": True, "CERTIFIED": masks, "LIMIT": 0.01}
            compiled(finish.merge_kernel, logits, constants | {k: v for k, v in one.items() if k != "width"}, 1)
        constants = {"BLOCK": shape.wide, **{k: v for k, v in one.items() if k in ("rows", "width")}}
        compiled(finish.wide_kernel, logits, constants, shape.warps // 2)
        constants = {"TOKEN": True, "CERTIFIED": True, "LIMIT": 0.01, "BLOCK": backend.ROWS_A_PROGRAM}
        compiled(last.statistics_kernel, logits, constants | {k: v for k, v in one.items() if k == "rows"}, 1)


def lines(found: dict[str, dict[str, dict[str, object]]]) -> list[str]:
    """A table of text."""
    out = ["sm_90 machine instructions a pair of logits (plain + second sweep decide the speed of a full set)"]
    for name, columns in found.items():
        parts = [f"{what} {c['a_pair']:.1f} ({c['usage']})" for what, c in columns.items()]
        out.append(f"{name:34s} {'; '.join(parts)}")
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    found = counts()
    print(json.dumps(found) if parser.parse_args().json else "\n".join(lines(found)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
