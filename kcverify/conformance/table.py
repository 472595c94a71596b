"""The twelve classes of kernel contracts, one row each: statement, runner, derived tolerance, kernels that calibrate it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kcverify.conformance import composition, exceptions, order, precision, samples
from kcverify.conformance.model import Declared, Function, Protocol, Run

_DECLARED, _PROTOCOL = Declared(), Protocol()


@dataclass(frozen=True)
class KernelClass:
    """One class. `operations` are those it can be about, the first the default; `tolerance` is its formula in words.

    `baseline` fails ordinary functional tests, `bad` passes them and breaks the contract, `good` keeps it.
    """

    id: str
    title: str
    statement: str
    tolerance: str
    check: Callable[[Run], None]
    operations: tuple[str, ...]
    baseline: Function
    bad: Function
    good: Function
    declared: Declared = _DECLARED
    protocol: Protocol = _PROTOCOL


_BF16 = Declared("bfloat16", "float32", "bfloat16")
_SUMS = ("matmul", "linear", "sum")
_ALL = ("matmul", "linear", "softmax", "logsumexp", "variance", "layer_norm", "rms_norm", "attention")

ROWS: tuple[KernelClass, ...] = (
    KernelClass(
        "C-PRC-01", "accumulator preservation", "the declared accumulator is the one that is used",
        "gamma_K(u of the accumulator), then one rounding to the output, against |A||B|; 0 for sums exact in any order",
        precision.accumulator, (*_SUMS, "multiply", "cast"), samples.matmul_last_term_lost, samples.matmul_narrow, samples.matmul_good, _BF16,
    ),
    KernelClass(
        "C-PRC-02", "cancellation avoidance", "large offsets cancel before anything is rounded or exponentiated",
        "exponents off by the rounding of their span, gamma of the sum, relative; twice that for a shift",
        precision.cancellation, ("softmax", "logsumexp", "variance", "layer_norm"), samples.softmax_not_normal,
        samples.softmax_unshifted, samples.softmax_good,
        protocol=Protocol(distributions=("normal", "lognormal", "cancellation", "uniform")),
    ),
    KernelClass(
        "C-PRC-03", "denormal declaration", "numbers below the smallest normal one are flushed only where that is declared",
        "0: a product with one is exact", precision.denormals, ("multiply", "matmul", "linear", "sum", "relu", "cast"),
        samples.multiply_added, samples.multiply_flushing, samples.multiply_good,
    ),
    KernelClass(
        "C-PRC-04", "scaling invariance", "a power of two in an operand comes out as it is, in range",
        "0: a power of two commutes with every rounding of normal numbers", precision.scaling,
        ("matmul", "linear", "sum", "relu", "cast", "multiply"), samples.wrong_sign, samples.matmul_loss_scaled, samples.matmul_good,
    ),
    KernelClass(
        "C-ORD-01", "reduction order", "the spread over orders of a sum stays within the derived one",
        "2 gamma(N - 1) Σ|x|, 2 gamma(ceil log2 N) Σ|x| for balanced trees; nothing once N u >= 1/2", order.reduction, ("sum",),
        samples.sum_mean, samples.sum_narrow, samples.sum_good, protocol=Protocol(shapes=(("n", 2, 2048),)),
    ),
    KernelClass(
        "C-ORD-02", "determinism class", "repeats, batch sizes and threads agree as declared: bitwise, run_to_run or none",
        "0 for bitwise; twice the operation's tolerance for run_to_run", order.determinism, _ALL,
        samples.wrong_sign, samples.matmul_by_batch, samples.matmul_by_rows,
    ),
    KernelClass(
        "C-ORD-03", "communication overlap", "order and overlap of all-reduces do not change their results",
        "gamma(W - 1) Σ|x| over W processes; 0 between ranks", order.communication, ("all_reduce",),
        samples.all_reduce_local, samples.all_reduce_early, samples.all_reduce_good,
    ),
    KernelClass(
        "C-CMP-01", "fused equivalence", "the fused kernel agrees with the operation in steps",
        "the operation's tolerance for each side, added", composition.fused,
        ("layer_norm", "rms_norm", "softmax", "attention", "causal_attention", "kl", "matmul", "linear"), samples.layer_norm_skipped,
        samples.layer_norm_narrow, samples.layer_norm_good,
    ),
    KernelClass(
        "C-CMP-02", "schedule invariance", "tiles, splits and autotuned choices do not change the result",
        "the operation's tolerance for each schedule, added", composition.schedule, ("matmul", "linear", "sum", "logsumexp", "variance"),
        samples.wrong_sign, samples.matmul_split_tail_lost, samples.matmul_split,
    ),
    KernelClass(
        "C-CMP-03", "shape polymorphism", "held-out shapes pass at 0.95 of the benchmarked rate or better",
        "the operation's tolerance for each shape; exact binomial tails for the rate", composition.polymorphism,
        (*_ALL, "causal_attention", "sum", "relu", "multiply", "cast"), samples.wrong_sign, samples.matmul_tiled_only, samples.matmul_good,
    ),
    KernelClass(
        "C-EXC-01", "NaN and infinity propagation", "NaN, +Inf and -Inf come out where the declared policy puts them",
        "0: masks are equal", exceptions.propagation, ("matmul", "linear", "relu", "cast", "sum", "softmax", "layer_norm", "multiply", "kl"),
        samples.wrong_sign, samples.matmul_skips_zeros, samples.matmul_good,
    ),
    KernelClass(
        "C-EXC-02", "out of bounds", "indices out of range raise, clamp or give zeros, as declared",
        "0: rows are equal", exceptions.out_of_range, ("embedding", "scatter"),
        samples.embedding_next, samples.embedding_clamped, samples.embedding_good,
    ),
)  # fmt: skip

BY_ID: dict[str, KernelClass] = {row.id: row for row in ROWS}


def run_class(row: KernelClass, kernel: Function, declared: Declared | None = None, protocol: Protocol | None = None,
              operation: str | None = None) -> Run:  # fmt: skip
    """The class's check of a kernel; a check that nothing could fail is a finding. Never raises for what a kernel does."""
    run = Run(kernel, declared or row.declared, protocol or row.protocol, operation or row.operations[0])
    row.check(run)
    if run.powerless and not run.powered:
        run.find("nothing_decided")
    return run
