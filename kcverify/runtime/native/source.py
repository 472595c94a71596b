"""Source of the row kernel for one plan: only the sums that it needs, its limits and ranks as constants."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from kcverify.runtime.rowplan import RowPlan
from kcverify.runtime.sums import COLUMNS

FILES = ("vector.h", "row.h", "top.h", "sweep_one.h", "sweep_two.h", "rows.cpp")
FORMATS: Mapping[torch.dtype, str] = {torch.bfloat16: "KC_BF16", torch.float16: "KC_FP16", torch.float32: "KC_FP32"}
EXTRA = ("LOST", "GAINED", "INVALID")
MOST_TOP = 256
"""Largest k of a top-k agreement that the kernel keeps."""


def flags(plan: RowPlan, dtype: torch.dtype, *, scaled: bool) -> dict[str, bool]:
    """Which parts of the source a plan needs; `scaled`: the temperature is not 1."""
    wanted = plan.sums
    softmax = plan.softmax
    found = {
        "KC_SOFTMAX": softmax,
        "KC_REVERSE": "kl_candidate_reference" in wanted,
        "KC_ENTROPY": bool(wanted & {"entropy_reference", "entropy_candidate"}),
        "KC_TV": "tv" in wanted,
        "KC_CHI2": "chi2" in wanted,
        "KC_BC": "bc" in wanted,
        "KC_SCALED": scaled,
        "KC_CERTIFIED": plan.certified is not None and not wanted & {"chi2", "bc"},
        "KC_TOP": bool(plan.top),
    }
    found["KC_SWEEP"] = found["KC_TV"] or found["KC_CHI2"] or found["KC_BC"]
    return found | {name: kind is dtype for kind, name in FORMATS.items()}


def kernel_source(plan: RowPlan, dtype: torch.dtype, *, scaled: bool = True) -> str:
    """Text of the C++ kernel for logits of `dtype` (bfloat16, float16 or float32); the same for the same plan."""
    chosen = flags(plan, dtype, scaled=scaled)
    folder = Path(__file__).parent
    parts = [select((folder / name).read_text(encoding="utf-8"), chosen).strip("\n") for name in FILES]
    return "\n\n".join(part for part in (parts[0], _constants(plan, chosen), *parts[1:]) if part) + "\n"


def _constants(plan: RowPlan, chosen: Mapping[str, bool]) -> str:
    tops = sorted(plan.top)
    names = [*(f"O_{name}" for name in COLUMNS), *(f"O_{name}" for name in EXTRA), "O_TOPS"]
    lines = [f"enum {{ {', '.join(names)}, OUTPUTS = O_TOPS + {len(tops)} }};"]
    if tops:
        lines += [
            f"static constexpr int K = {max(k for k, _ in tops) + 1}, TOPS = {len(tops)};",
            f"static constexpr int TOP_K[] = {{{', '.join(str(k) for k, _ in tops)}}};",
            f"static constexpr bool TOP_ORDERED[] = {{{', '.join(str(o).lower() for _, o in tops)}}};",
        ]
    if chosen["KC_CERTIFIED"]:
        lines.append(f"static constexpr double TV_LIMIT = {plan.tv_limit!r};")
    return "\n".join(lines)


def select(text: str, chosen: Mapping[str, bool]) -> str:
    """The text with every `#if` on our own flags resolved: `KC_A`, or several joined by `||`. Raises KeyError."""
    out: list[str] = []
    stack: list[tuple[bool, bool]] = []  # is this branch kept; is it ours
    for line in text.splitlines():
        word = line.strip()
        if word.startswith("#if"):
            ours = word.startswith("#if KC_")
            stack.append((not ours or any(chosen[n.strip()] for n in word[4:].split("||")), ours))
            hidden = ours
        elif word in ("#else", "#endif"):
            kept, hidden = stack.pop()
            if word == "#else":
                stack.append((not kept if hidden else kept, hidden))
        else:
            hidden = False
        blank = not word and (not out or not out[-1])
        if not hidden and not blank and all(kept for kept, _ in stack):
            out.append(line)
    return "\n".join(out) + "\n"
