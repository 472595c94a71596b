"""The sums of a row that every backend fills, and the statistics that follow from them in float64.

With `m` the largest reference logit, a pilot shift `c`, `e = exp((z-m)/T)`, `x = ((w-z)-c)/T`, `t = expm1(x)`,
`g = t-x`, over the tokens that both sides have: X = sum e*x, G = sum e*g, D = sum e*t*x; PO and PX are the masses that
only one side has, S = sum e over all tokens of the reference; `b` and `grown` = 1+b are the growth of the normaliser.
"""
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import torch

from kcverify.runtime import formulas

LARGE_DRIFT = 16.0
_PIECES = 16
_SPLIT = 32_768
"""Values of a lone row from which torch shares its sum among threads."""
COLUMNS = (
    "S", "PO", "PX", "X", "G", "D", "b", "TV", "CHI2", "BC", "U", "Q",
    "grown", "pilot", "largest", "highest", "lowest", "drift", "top", "unswept",
)  # fmt: skip


class RowSums:
    """Per-row sums in float64 `[N]`, filled tile by tile and turned into statistics once."""

    def __init__(self, count: int, device: torch.device) -> None:
        table = torch.zeros(len(COLUMNS), count, dtype=torch.float64, device=device)
        counts = torch.zeros(2, count, dtype=torch.int64, device=device)
        self._bind(table, counts, torch.zeros(count, dtype=torch.bool, device=device))

    def _bind(self, table: torch.Tensor, counts: torch.Tensor, invalid: torch.Tensor) -> None:
        self.table, self.only, self.invalid = table, counts, invalid
        self.sums = dict(zip(COLUMNS, table.unbind(0), strict=True))
        self.reference_only, self.candidate_only = counts.unbind(0)

    def rows(self, start: int, stop: int) -> RowSums:
        """A view of the rows `start:stop`."""
        view = RowSums.__new__(RowSums)
        view._bind(self.table[:, start:stop], self.only[:, start:stop], self.invalid[start:stop])
        return view

    def careful(self, reach: float = LARGE_DRIFT) -> torch.Tensor:
        """Which rows `[N]` drift too far for float32 sums: more than `reach` from the pilot, or with lopsided masks."""
        s = self.sums
        mismatch = (self.reference_only > 0) | (self.candidate_only > 0)
        lopsided = mismatch & ~((s["grown"] > 1e-6) & (s["grown"] < 1e6))
        return (~(s["largest"] <= reach) | lopsided) & ~self.invalid

    def finish(
        self,
        wanted: frozenset[str],
        scale: float,
        reference: torch.Tensor,
        candidate: torch.Tensor,
        sampled: torch.Tensor | None,
        tv_limit: float | None = None,
    ) -> dict[str, torch.Tensor]:
        """The wanted statistics, float64 `[N]`; `scale` is 1/T.

        With a `tv_limit`, which needs `kl_reference_candidate` among the wanted, a row whose certificate is at most
        the limit reports the certificate, an upper bound of its total variation.
        """
        out = self._raw(wanted)
        if wanted <= out.keys():
            return out
        s = self.sums
        total, grown = s["S"], s["grown"]
        shift = log_growth(s)
        forward, backward, tv, chi2, bc = formulas.divergences(
            total, grown, s["b"], shift, *(s[name] for name in ("X", "G", "D", "PO", "PX", "TV", "CHI2", "BC"))
        )
        reference_entropy, candidate_entropy = formulas.entropies(total, grown, shift, s["U"], s["Q"])
        high, low = formulas.ends(s["highest"], s["lowest"], s["pilot"], shift, scale)
        lost, gained = self.reference_only > 0, self.candidate_only > 0
        forward = forward.masked_fill(lost, torch.inf)
        if tv_limit is not None:
            tv = formulas.chosen(tv, certificate(forward), s["unswept"] > 0, tv_limit)
        columns = {
            "tv": tv,
            "kl_reference_candidate": forward,
            "kl_candidate_reference": backward.masked_fill(gained, torch.inf),
            "chi2": chi2.masked_fill(lost, torch.inf),
            "bc": bc,
            "log_ratio": torch.maximum(high, -low).clamp_min(0.0).masked_fill(lost | gained, torch.inf),
            "ratio_min": torch.exp(-high).masked_fill(gained, 0.0),
            "ratio_max": torch.exp(-low).masked_fill(lost, torch.inf),
            "entropy_reference": reference_entropy,
            "entropy_candidate": candidate_entropy,
        }
        out |= {name: column for name, column in columns.items() if name in wanted}
        if "token_log_ratio" in wanted and sampled is not None:
            out["token_log_ratio"] = sampled_drift(reference, candidate, sampled, s["pilot"], scale) - shift
        return out

    def _raw(self, wanted: frozenset[str]) -> dict[str, torch.Tensor]:
        mismatch = (self.reference_only > 0) | (self.candidate_only > 0)
        drift, span = self.sums["drift"], self.sums["highest"] - self.sums["lowest"]
        columns = {"logit_drift": drift, "logit_span": span}
        return {name: columns[name].masked_fill(mismatch, torch.inf) for name in sorted(wanted & columns.keys())}


def certificate(divergence: torch.Tensor) -> torch.Tensor:
    """Upper bound `sqrt(KL/2)` of the total variation (Pinsker), a little enlarged for the rounding of the sums."""
    bound: torch.Tensor = formulas.certificate(divergence)
    return bound


def sampled_drift(
    reference: torch.Tensor, candidate: torch.Tensor, sampled: torch.Tensor, pilot: torch.Tensor, scale: float
) -> torch.Tensor:
    """`((w-z)-c)/T` of the sampled token, float64 `[N]`; NaN where it is absent on both sides."""
    z = reference.gather(1, sampled[:, None])[:, 0].double()
    w = candidate.gather(1, sampled[:, None])[:, 0].double()
    return ((w - z) - pilot) * scale


def row_total(x: torch.Tensor) -> torch.Tensor:
    """Row sums, float64 `[n]`, of `x` `[n, V]`: of fixed pieces, which are then added in double.

    Torch would split a lone row's sum among threads, which rounds it otherwise; pieces are shared among them whole.
    """
    width = x.shape[1]
    if width < _SPLIT:
        return x.sum(-1).double()
    whole = width - width % _PIECES
    total = x[:, :whole].unflatten(1, (_PIECES, -1)).sum(-1).double().sum(-1)
    return total if whole == width else total + x[:, whole:].sum(-1).double()


def log_growth(s: dict[str, torch.Tensor]) -> torch.Tensor:
    """`log(1+b)`, float64 `[n]`: what the shift of the log normalisers exceeds the pilot by."""
    return torch.where(s["b"] < -0.5, torch.log(s["grown"].clamp_min(0.0)), torch.log1p(s["b"]))
