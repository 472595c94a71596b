"""Catalogue of known traps: where each was reported, the shipped contract and kernel that show it, and the verdict to expect.

A trap of a processor feature is gated on the flag: elsewhere the kernel is right, and an emulation shows the fault.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from kcverify.conformance import answer
from kcverify.conformance.isolate import contract_apart, contract_here, kernels_of, together
from kcverify.conformance.kernels import BY_NAME
from kcverify.resources import contracts_dir

SAMPLES = "kcverify.conformance.samples:"
VNNI = ("avx512_vnni", "avx_vnni", "amx_int8")
_WITHIN, _VIOLATION = "within_tolerance", "violation"


def always() -> bool:
    """On every machine."""
    return True


def without_vnni() -> bool:
    """On a processor that adds pairs of int8 products at int16."""
    return not set(VNNI) & set(answer.machine()["features"])


def with_vnni() -> bool:
    """On a processor with a dot product of int8 quadruples."""
    return not without_vnni()


@dataclass(frozen=True)
class Trap:
    """One known fault, or the right twin of one: `verdict` is expected `where` it holds, `otherwise` elsewhere.

    `otherwise` is empty where nothing is claimed of other machines.
    """

    source: str
    about: str
    contract: str
    kernel: str
    verdict: str = _VIOLATION
    where: Callable[[], bool] = always
    otherwise: str = ""

    @property
    def expected(self) -> str:
        """The verdict that is expected here; empty where none is claimed."""
        return self.verdict if self.where() else self.otherwise

    @property
    def missing(self) -> str:
        """Why the kernel is not at hand here."""
        row = BY_NAME.get(self.kernel)
        return "" if row is None else row.needs()


_T, _R = "kernel_traps", "quantization_reports"
_CPU = f"{_T}: CPU table"
_CUDA = f"{_T}: CUDA"


def _saturating(engine: str) -> Trap:
    about = f"u8 x s8 by {engine} saturates at int16 without VNNI"
    return Trap(f"{_T} 1, {_R} 29", about, "u8s8_product", f"u8s8.{engine}", _VIOLATION, without_vnni, _WITHIN)


ROWS: tuple[Trap, ...] = (
    Trap(f"{_T} 1, {_R} 29", "the same, emulated on every processor", "int8_product", "int16_pairs"),
    *(_saturating(engine) for engine in ("onednn", "x86", "fbgemm")),
    Trap(f"{_T} 1", "qnnpack adds at int32", "u8s8_product", "u8s8.qnnpack", _WITHIN),
    Trap(f"{_T} 2", "torchao W8A8 compiled with freezing leaves its eager self", "w8a8_frozen", "torchao.w8a8.frozen", _VIOLATION, without_vnni, _WITHIN),
    Trap(f"{_T} 2", "the same, emulated on every processor", "w8a8_frozen", "torchao.w8a8.saturating"),
    Trap(f"{_T} 2", "reduce_range leaves room for pairs at int16", "w8a8_frozen", "torchao.w8a8_narrow.saturating", _WITHIN),
    Trap(f"{_T} 2", "reduce_range makes both agree", "w8a8_frozen", "torchao.w8a8_narrow.frozen", _WITHIN),
    Trap(f"{_T} 2", "torchao W8A8 in eager mode keeps its tolerance", "w8a8_linear", "torchao.w8a8", _WITHIN),
    Trap(f"{_T} 3", "e4m3 saturates: 465, 1,000 and infinity become 448", "e4m3_infinity", "cast.e4m3"),
    Trap(f"{_T} 3", "e5m2 overflows to infinity above 61,439", "e5m2_infinity", "cast.e5m2", _WITHIN),
    Trap(f"{_T} 4", "bfloat16 tl.dot in Triton's interpreter is garbage", "triton_dot", "triton.dot.bfloat16"),
    Trap(f"{_T} 4", "operands cast to float32 first are right", "triton_dot", "triton.dot_widened.bfloat16", _WITHIN),
    Trap(f"{_T} 4", "fp8 casts of Triton's interpreter are no reference", "triton_cast", "triton.cast.e4m3"),
    Trap(f"{_T} 5, {_R} 3", "F.kl_div: target 0 and input -inf give NaN", "kl_divergence", "kl.none"),
    Trap(f"{_T} 5, {_R} 4", "F.kl_div: -inf in log_target gives NaN", "kl_divergence", "kl.log_target"),
    Trap(f"{_T} 5, {_R} 4", "terms without mass left out before the product", "kl_divergence", f"{SAMPLES}kl_good", _WITHIN),
    Trap(f"{_T} 5", 'F.kl_div: "mean" divides by the vocabulary too', "kl_reduction", "kl.mean"),
    Trap(f"{_T} 5", '"batchmean" is the divergence', "kl_reduction", "kl.batchmean", _WITHIN),
    Trap(f"{_T} 6", "float16 sums overflow where float32 sums do not (emulated)", "half_accumulation", "half_sums"),
    Trap(_CPU, "int8 a @ b wraps modulo 256", "int8_product", "matmul.int8"),
    Trap(_CPU, "_int_mm is exact", "int8_product", "int_mm", _WITHIN),
    Trap(f"{_R} 32", "_int_mm of an expanded row reads other memory (oneDNN)", "int8_strides", "int_mm.strided", _VIOLATION, with_vnni),
    Trap(f"{_R} 32", "_int_mm in column order and with gaps between rows", "int8_strides", "int_mm.transposed", _WITHIN),
    Trap(_CPU, "fp8 a @ b rounds its result to e4m3", "fp8_product", "matmul.e4m3"),
    Trap(_CPU, "_scaled_mm without out_dtype gives e4m3", "fp8_product", "scaled_mm.default"),
    Trap(_CPU, "_scaled_mm with bfloat16 out is right", "fp8_product", "scaled_mm", _WITHIN),
    Trap(_CPU, "row-wise scales are right", "fp8_product", "scaled_mm.rowwise", _WITHIN),
    Trap(_CPU, "the fast_accum flag changes nothing on a processor", "fp8_product", "scaled_mm.fast", _WITHIN),
    Trap(_CPU, "e5m2 times e4m3 is right", "fp8_mixed", "scaled_mm.mixed", _WITHIN),
    Trap(_CPU, "int8 weights: bfloat16 reads out of bounds at other k", "int8_weight_shapes", "weight_int8pack.unpadded"),
    Trap(_CPU, "int8 weights padded to whole vectors", "int8_weight_shapes", "format.int8_bf16", _WITHIN),
    Trap(_CPU, "int4 weights of torch", "int4_weight", "format.int4", _WITHIN),
    *(Trap(_CPU, f"torchao {name}", "w8a8_linear", f"torchao.{name}", _WITHIN) for name in ("int8", "fp8", "a8int4")),
    Trap(_CPU, "torchao int4", "int4_weight", "torchao.int4", _WITHIN),
    *(Trap(_CPU, f"bitsandbytes {name}", "int4_weight", f"bitsandbytes.{name}", _WITHIN) for name in ("nf4", "fp4")),
    *(Trap(_CPU, f"4-bit weights by {name}, int8 inputs of torch", "int4_weight", f"dyn_quant_4bit.{name}", _WITHIN) for name in ("groups", "rows")),
    Trap(_CPU, "bitsandbytes Linear8bitLt scales by a constant that lost a digit", "w8a8_linear", "bitsandbytes.linear8"),
    Trap(_CPU, "the same with columns of outliers kept apart", "w8a8_linear", "bitsandbytes.linear8_outliers"),
    Trap(_CPU, "grouped fp8 products have no processor kernel", "fp8_product", "scaled_grouped_mm", _WITHIN),
    Trap(f"{_R} 31", "scale_result is not a factor of the result", "e4m3_output", "scaled_mm.scale_result"),
    Trap(f"{_R} 31", "e4m3 out without it is right", "e4m3_output", "scaled_mm.e4m3", _WITHIN),
    Trap(f"{_R} 37", "zeros pass an absolute tolerance on many equal logits", "softmax_stable", f"{SAMPLES}softmax_zeros"),
    Trap(f"{_R} 40", "a tolerance from format and length, with results near 0", "accumulator_bf16", "matmul.bfloat16", _WITHIN),
    Trap(f"{_R} 45", "log-sum-exp without the maximum", "logsumexp_f16", f"{SAMPLES}logsumexp_unshifted"),
    Trap(f"{_R} 45", "softmax without the maximum", "softmax_stable", f"{SAMPLES}softmax_unshifted"),
    Trap("torch", "indexing accepts negative indices", "out_of_range", "indexing"),
    Trap("torch", "index_put accepts negative indices", "scatter", "index_put"),
    Trap("torch", "flushing denormals is a setting of the whole process", "denormals", "multiply.flushed"),
    Trap(_CUDA, "_scaled_mm in column order on a GPU", "fp8_product", "scaled_mm.cuda", _WITHIN),
    Trap(_CUDA, "fast accumulation loses bits", "fp8_product", "scaled_mm.fast.cuda"),
    Trap(f"{_CUDA}, {_R} 31", "scale_result is ignored for fp8 out", "e4m3_output", "scaled_mm.scale_result.cuda"),
    Trap(_CUDA, "_int_mm on a GPU takes more than 16 rows", "int8_product", "int_mm.cuda"),
    Trap(_CUDA, "Triton's bfloat16 dot on a GPU", "triton_dot", "triton.dot.bfloat16.cuda", _WITHIN),
    Trap(_CUDA, "Triton's fp8 cast on a GPU", "triton_cast", "triton.cast.e4m3.cuda", _WITHIN),
    Trap(_CUDA, "int4 weights on a GPU", "int4_weight", "format.int4.cuda", _WITHIN),
)  # fmt: skip


def run(trap: Trap) -> dict[str, Any]:
    """The trap's kernel under its contract, in a process of its own where it needs one."""
    path = contracts_dir() / "kernels" / f"{trap.contract}.kc"
    text, file = path.read_text(encoding="utf-8"), f"contracts/kernels/{path.name}"
    if _apart(trap):
        (contract,) = kernels_of(text, file)
        return contract_apart(contract, text, file, trap.kernel)
    return contract_here(text, file, None, trap.kernel)


def outcomes(traps: Sequence[Trap]) -> list[dict[str, Any]]:
    """Every trap as data; those in processes of their own run beside the others."""
    return together([(_apart(trap), partial(outcome, trap)) for trap in traps])


def _apart(trap: Trap) -> bool:
    row = BY_NAME.get(trap.kernel)
    return row is not None and row.risky


def outcome(trap: Trap) -> dict[str, Any]:
    """The trap as data: expected and found; `as_expected` is null where it was not run or nothing is claimed."""
    head = {
        "source": trap.source, "about": trap.about, "contract": trap.contract, "kernel": trap.kernel, "expected": trap.expected,
        "not_here": trap.missing,
    }  # fmt: skip
    if trap.missing:
        return {**head, "found": "", "as_expected": None, "worst": None}
    found = run(trap)
    same = found["verdict"] == trap.expected if trap.expected else None
    return {**head, "found": found["verdict"], "as_expected": same, "worst": found["worst"]}
