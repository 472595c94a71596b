"""Table of kernels that ship with torch and with kcverify, as the classes call them.

Each row says what the kernel is declared to be. `risky` kernels may end their process and are only called in one of their
own. `needs` returns why a kernel is not at hand here.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from kcverify.conformance import samples
from kcverify.conformance.model import Declared, Function, Protocol
from kcverify.conformance.operations import EPSILON, base
from kcverify.conformance.table import ROWS as CLASSES
from kcverify.conformance.table import KernelClass
from kcverify.diagnostics import input_error
from kcverify.measure.kernels import BY_NAME as FORMATS
from kcverify.measure.kernels import KERNELS, multiply


def _here() -> str:
    return ""


def _compiler() -> str:
    return "" if shutil.which(os.environ.get("CXX", "g++")) else "no C++ compiler for torch.compile"


def _cuda() -> str:
    return "" if torch.cuda.is_available() else "no CUDA device"


@dataclass(frozen=True)
class Row:
    """One kernel: `name` of the table, operation, callable, declaration, and the classes it is surveyed under (all if empty)."""

    name: str
    operation: str
    kernel: Function
    declared: Declared
    note: str = ""
    classes: tuple[str, ...] = ()
    shapes: tuple[tuple[str, int, int], ...] = ()
    risky: bool = False
    needs: Callable[[], str] = _here

    def applies(self, row: KernelClass) -> bool:
        """Whether the class can be about the kernel's operation."""
        return base(self.operation) in row.operations and (not self.classes or row.id in self.classes)

    def protocol(self, row: KernelClass) -> Protocol:
        """The class's protocol in the kernel's range of shapes."""
        p = row.protocol
        names = tuple(n for n in p.distributions if self.declared.inputs not in _NARROW or n == "normal")
        return Protocol(p.trials, names, p.seed, p.confidence, self.shapes or p.shapes, p.requires)


_NARROW = ("float8_e4m3fn", "int8")


def int_mm(a: Tensor, b: Tensor) -> Tensor:
    """int8 product with int32 sums."""
    return torch._int_mm(a, b)


def plain_matmul(a: Tensor, b: Tensor) -> Tensor:
    """`a @ b`."""
    return a @ b


def scaled_mm(a: Tensor, b: Tensor) -> Tensor:
    """e4m3 product with bfloat16 output and unit scales."""
    one = torch.ones(())
    return torch._scaled_mm(a, b.t().contiguous().t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def scaled_mm_default(a: Tensor, b: Tensor) -> Tensor:
    """e4m3 product without `out_dtype`: the result is e4m3."""
    one = torch.ones(())
    return torch._scaled_mm(a, b.t().contiguous().t(), scale_a=one, scale_b=one)


def scaled_mm_result(a: Tensor, b: Tensor) -> Tensor:
    """e4m3 product whose result is scaled by 2, and back: an ignored `scale_result` leaves half of it."""
    one, two = torch.ones(()), torch.full((), 2.0)
    columns = b.t().contiguous().t()
    out = torch._scaled_mm(a, columns, scale_a=one, scale_b=one, scale_result=two, out_dtype=torch.float8_e4m3fn)
    return (out.float() / 2).to(torch.float8_e4m3fn)


def int_mm_strided(a: Tensor, b: Tensor) -> Tensor:
    """int8 product of a transposed and an expanded operand."""
    rows = torch.cat(
        [torch._int_mm(row.expand(1, -1), b.t().contiguous().t()) for row in a.t().contiguous().t().split(1)]
    )
    return rows.to(torch.int32)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """torch's attention of one head."""
    return F.scaled_dot_product_attention(q[None, None], k[None, None], v[None, None])[0, 0]


def compiled_layer_norm(x: Tensor) -> Tensor:
    """torch's norm through `torch.compile`, which fuses it anew."""
    if "layer_norm" not in _COMPILED:
        _COMPILED["layer_norm"] = torch.compile(samples.layer_norm_good)
    out: Tensor = _COMPILED["layer_norm"](x)
    return out


_COMPILED: dict[str, Function] = {}


def rms_norm(x: Tensor) -> Tensor:
    """torch's norm by the root of the mean square."""
    return F.rms_norm(x, x.shape[-1:], eps=EPSILON)


def variance(x: Tensor) -> Tensor:
    """torch's variance."""
    return x.var(-1, correction=0)


def logsumexp(x: Tensor) -> Tensor:
    """torch's log-sum-exp."""
    return torch.logsumexp(x, -1)


def relu(x: Tensor) -> Tensor:
    """torch's rectifier."""
    return torch.relu(x)


def cast_e4m3(x: Tensor) -> Tensor:
    """Cast to float8_e4m3fn."""
    return x.to(torch.float8_e4m3fn)


def cast_e5m2(x: Tensor) -> Tensor:
    """Cast to float8_e5m2."""
    return x.to(torch.float8_e5m2)


def lookup(index: Tensor, table: Tensor) -> Tensor:
    """Indexing with a tensor."""
    return table[index]


def index_select(index: Tensor, table: Tensor) -> Tensor:
    """`index_select`."""
    return table.index_select(0, index)


def gather(index: Tensor, table: Tensor) -> Tensor:
    """`gather` of whole rows."""
    return table.gather(0, index[:, None].expand(-1, table.shape[1]))


def int8_weight_unpadded(x: Tensor, w: Tensor) -> Tensor:
    """`_weight_int8pack_mm` on operands as they are: torch 2.13 reads out of bounds in bfloat16 unless k is a multiple of 32."""
    codes, scales = FORMATS["int8"].pack(w.float()).codes, FORMATS["int8"].pack(w.float()).scales
    codes = codes[: w.shape[0], : w.shape[1]].contiguous()
    return torch._weight_int8pack_mm(x, codes, scales[: w.shape[0]].to(x.dtype).contiguous())


def int16_pairs(a: Tensor, b: Tensor) -> Tensor:
    """What u8 x s8 products do without VNNI: sums of two products saturate at int16 before they are added up in int32."""
    left, right = a.to(torch.int32) + 128, b.to(torch.int32)
    products = left[:, :, None] * right[None]
    if products.shape[1] % 2:
        products = F.pad(products, (0, 0, 0, 1))
    pairs = (products[:, ::2] + products[:, 1::2]).clamp(-(2**15), 2**15 - 1)
    return (pairs.sum(1) - 128 * right.sum(0)).to(torch.int32)


def half_sums(a: Tensor, b: Tensor) -> Tensor:
    """Sums in float16: 128 terms of 600 overflow."""
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float16)
    for i in range(a.shape[1]):
        total = total + a[:, i : i + 1].half() * b[i].half()
    return total.to(a.dtype)


def _format(name: str) -> Function:
    def kernel(x: Tensor, w: Tensor) -> Tensor:
        return multiply(FORMATS[name], x, FORMATS[name].pack(w.float()))

    return kernel


def _float(name: str) -> Declared:
    return Declared(name, "float32", name)


_THREE = ("float32", "bfloat16", "float16")
_PACKED = ("C-PRC-01", "C-ORD-02", "C-CMP-03")
_F32 = Declared()
_OUT = {"fp8": "bfloat16", "int8_bf16": "bfloat16", "int4_bf16": "bfloat16", "bfloat16": "bfloat16"}


def _each(name: str, operation: str, kernel: Function, formats: tuple[str, ...] = _THREE) -> tuple[Row, ...]:
    return tuple(Row(f"{name}.{kind}", operation, kernel, _float(kind)) for kind in formats)


ROWS: tuple[Row, ...] = (
    *_each("matmul", "matmul", samples.matmul_good), *_each("linear", "linear", F.linear), *_each("sum", "sum", samples.sum_good),
    *_each("softmax", "softmax", samples.softmax_good), *_each("layer_norm", "layer_norm", samples.layer_norm_good),
    Row(
        "layer_norm.compiled", "layer_norm", compiled_layer_norm, _F32, "eager against torch.compile", ("C-CMP-01",),
        (("m", 16, 16), ("n", 96, 96)), risky=True, needs=_compiler,
    ),
    *_each("rms_norm", "rms_norm", rms_norm), *_each("attention", "attention", attention),
    *_each("logsumexp", "logsumexp", logsumexp), *_each("variance", "variance", variance, ("float32",)),
    *_each("multiply", "multiply", samples.multiply_good), *_each("relu", "relu", relu),
    Row("cast.e4m3", "cast", cast_e4m3, Declared("float32", "float32", "float8_e4m3fn"), "467 and infinity become 448", ("C-PRC-01", "C-EXC-01")),
    Row("cast.e5m2", "cast", cast_e5m2, Declared("float32", "float32", "float8_e5m2"), "", ("C-PRC-01", "C-EXC-01")),
    Row("int_mm", "matmul", int_mm, Declared("int8", "int32", "int32"), "", _PACKED),
    Row("int_mm.strided", "matmul", int_mm_strided, Declared("int8", "int32", "int32"), "transposed and expanded operands", ("C-PRC-01",)),
    Row("matmul.int8", "matmul", plain_matmul, Declared("int8", "int32", "int32"), "wraps modulo 256", ("C-PRC-01",)),
    Row("matmul.e4m3", "matmul", plain_matmul, Declared("float8_e4m3fn", "float32", "bfloat16"), "rounds to e4m3", ("C-PRC-01",)),
    Row("scaled_mm", "matmul", scaled_mm, Declared("float8_e4m3fn", "float32", "bfloat16"), "", (*_PACKED, "C-PRC-04")),
    Row("scaled_mm.scale_result", "matmul", scaled_mm_result, Declared("float8_e4m3fn", "float32", "float8_e4m3fn"), "the processor build divides by scale_result", ("C-PRC-01",), (("m", 1, 16), ("n", 16, 32), ("k", 16, 64))),
    Row("scaled_mm.default", "matmul", scaled_mm_default, Declared("float8_e4m3fn", "float32", "bfloat16"), "e4m3 out", ("C-PRC-01",)),
    *(Row(f"format.{k.name}", f"linear:{k.name}", _format(k.name), Declared("float32", "float32", _OUT.get(k.name, "float32")), k.note, _PACKED) for k in KERNELS),
    Row("embedding", "embedding", samples.embedding_good, _F32), Row("indexing", "embedding", lookup, _F32, "negative indices count from the end"),
    Row("index_select", "embedding", index_select, _F32), Row("gather", "embedding", gather, _F32),
    Row("all_reduce.gloo", "all_reduce", samples.all_reduce_good, _F32),
    Row("weight_int8pack.unpadded", "linear:int8_bf16", int8_weight_unpadded, _float("bfloat16"), "k not a multiple of 32", ("C-CMP-03",), (("m", 1, 8), ("n", 1, 64), ("k", 1, 100)), risky=True),
    Row("int16_pairs", "matmul", int16_pairs, Declared("int8", "int32", "int32"), "emulates u8 x s8 without VNNI", ("C-PRC-01",), (("m", 1, 4), ("n", 2, 8), ("k", 4, 128))),
    Row("half_sums", "matmul", half_sums, Declared("float16", "float32", "float16"), "emulates float16 accumulation", ("C-PRC-01",)),
    Row("scaled_mm.cuda", "matmul", scaled_mm, Declared("float8_e4m3fn", "float32", "bfloat16"), "scale_result, fast accumulation", _PACKED, needs=_cuda),
)  # fmt: skip

BY_NAME: dict[str, Row] = {row.name: row for row in ROWS}
SURVEY: tuple[tuple[Row, KernelClass], ...] = tuple((k, c) for k in ROWS for c in CLASSES if k.applies(c))


def find(name: str) -> Function:
    """A kernel by the table's name or as `module:function`, looked for in the working directory too.

    Raises InputError: `kernel_not_found`.
    """
    if name in BY_NAME:
        return BY_NAME[name].kernel
    module, colon, path = name.partition(":")
    if not colon or not module or not path:
        raise input_error("kernel_not_found", kernel=name, reason="not a name of the table, nor module:function")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: object = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except Exception as error:  # a module of the user's may raise anything
        raise input_error("kernel_not_found", kernel=name, reason=f"{type(error).__name__}: {error}") from error
    if not callable(found):
        raise input_error("kernel_not_found", kernel=name, reason="not callable")
    return found
