"""The sums of a row as a commutative monoid: parts of a vocabulary move to one maximum and pilot shift, and add.

A state is a mapping of float64 `[N]`: the sums of `sums.COLUMNS` named in `SUMS`, the largest reference logit `m` and
the `pilot` shift to which they refer (raw logits), the ends `highest`, `lowest` of `w-z`, how many tokens are `lost`
and `gained`, flags `broken`, `has_z`, `has_w`, `has_token` and `far`, the drift `token` of the sampled token, and
`gross`, of what size G was the difference.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

State = dict[str, torch.Tensor]
SUMS = ("S", "PO", "PX", "X", "G", "D", "U", "Q")
ADDED = (*SUMS, "gross", "lost", "gained", "token")
LARGEST = ("m", "highest", "broken", "has_z", "has_w", "has_token", "far")
FIELDS = (*ADDED, *LARGEST, "lowest", "pilot")


def rebased(state: State, m: torch.Tensor, pilot: torch.Tensor, scale: float) -> State:
    """The state with its sums moved to another maximum and pilot shift (both float64 `[N]`); `scale` is 1/T.

    With `h = (c - c')/T`, `d = (m - m')/T`: X' = X + hS, G' = e^h G + expm1(h) X + (expm1(h) - h) S,
    D' = e^h (D + h(X + G)) + expm1(h) X', Q' = e^h (Q + h(S + X + G + PX)), then every sum by e^d, and U, Q by their
    shares of d. S is over the common tokens here. A state without tokens stays empty.
    """
    s = {name: state[name] for name in SUMS}
    common = s["S"] - s["PO"]
    h = torch.where(common + s["PX"] > 0, (state["pilot"] - pilot) * scale, 0.0)
    d = torch.where(s["S"] + s["PX"] > 0, (state["m"] - m) * scale, 0.0)
    less, grow, fade = torch.expm1(h), torch.exp(h), torch.exp(d)
    excess = torch.where(h.abs() < 1e-3, h * h * (0.5 + h / 6.0 + h * h / 24.0), less - h)
    x = s["X"] + h * common
    g = grow * s["G"] + less * s["X"] + excess * common
    dd = grow * (s["D"] + h * (s["X"] + s["G"])) + less * x
    px = grow * s["PX"]
    q = grow * (s["Q"] + h * (common + s["X"] + s["G"] + s["PX"]))
    out = {
        "gross": grow * state["gross"] + (h * less).abs() * common, "S": s["S"], "PO": s["PO"], "PX": px, "X": x, "G": g, "D": dd,
        "U": s["U"] + d * s["S"], "Q": q + d * (common + x + g + px),
    }  # fmt: skip
    return state | {name: fade * value for name, value in out.items()} | {"m": m, "pilot": pilot}


def merge(parts: Sequence[State], scale: float) -> State:
    """The state of all parts together: at the largest maximum, with the pilot of the part that has it."""
    stack = {name: torch.stack([part[name] for part in parts]) for name in FIELDS}
    usable = (stack["S"] > stack["PO"]) & (stack["far"] == 0)
    at = torch.where(usable, stack["m"], -torch.inf).argmax(0, keepdim=True)
    m, pilot = stack["m"].amax(0), stack["pilot"].gather(0, at)[0]
    moved = [rebased(part, m, pilot, scale) for part in parts]
    out: State = {"m": m, "pilot": pilot, "lowest": stack["lowest"].amin(0)}
    for name in ADDED:
        total = moved[0][name].clone()
        for part in moved[1:]:
            total += part[name]
        out[name] = total
    return {name: stack[name].amax(0) for name in LARGEST} | out
