"""Table of kernels that ship with torch, torchao, bitsandbytes, Triton and kcverify, as the classes call them.

Each row says what the kernel is declared to be. `risky` kernels may end their process, or need settings of their own, and are
only called in one of their own. `needs` returns why a kernel is not at hand here.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend

from kcverify.conformance import adapters as a
from kcverify.conformance import dynamic4, grouped, samples, surroundings, tampering
from kcverify.conformance.form import printable, reason
from kcverify.conformance.later import Later, missing
from kcverify.conformance.model import Declared, Function, Protocol
from kcverify.conformance.operations import LIBRARY_FORMATS, base
from kcverify.conformance.probes import NARROW, SAMPLED, unfit
from kcverify.conformance.table import ROWS as CLASSES
from kcverify.conformance.table import KernelClass
from kcverify.diagnostics import input_error
from kcverify.measure.kernels import KERNELS


def _here() -> str:
    return ""


def _compiler() -> str:
    return "" if shutil.which(os.environ.get("CXX", "g++")) else "no C++ compiler for torch.compile"


def _cuda() -> str:
    return "" if torch.cuda.is_available() else "no CUDA device"


def _interpreter() -> str:
    return missing("triton")


def _gpu_triton() -> str:
    return missing("triton") or _cuda()


def _operator(name: str) -> str:
    """Why torch's operator is not at hand on a processor."""
    try:
        found = torch._C._dispatch_has_computed_kernel_for_dispatch_key(f"aten::{name}", "CPU")
    except RuntimeError:
        return f"torch {torch.__version__} has no {name}"
    return "" if found else f"torch has no processor kernel of {name}: it needs a GPU"


def _engine(name: str) -> str:
    if name == "onednn":
        return "" if torch.backends.mkldnn.is_available() else "torch was built without oneDNN"
    known = torch.backends.quantized.supported_engines
    return "" if name in known else f"no quantised engine {name}"


@dataclass(frozen=True)
class Row:
    """One kernel: `name` of the table, operation, callable, declaration, and the classes it is surveyed under (all if empty).

    `environment` are variables of the process that a risky kernel runs in.
    """

    name: str
    operation: str
    kernel: Function
    declared: Declared
    note: str = ""
    classes: tuple[str, ...] = ()
    shapes: tuple[tuple[str, int, int], ...] = ()
    risky: bool = False
    needs: Callable[[], str] = _here
    environment: tuple[tuple[str, str], ...] = ()
    trials: int = 0

    def applies(self, row: KernelClass) -> bool:
        """Whether the class can be about the kernel's operation."""
        return base(self.operation) in row.operations and (not self.classes or row.id in self.classes)

    def protocol(self, row: KernelClass) -> Protocol:
        """The class's protocol in the kernel's range of shapes."""
        p = row.protocol
        d = self.declared
        drawn = SAMPLED if d.inputs in NARROW else p.distributions
        names = tuple(n for n in drawn if not unfit(n, d.each, d.output))
        return Protocol(self.trials or p.trials, names, p.seed, p.confidence, self.shapes or p.shapes, p.requires)


def _float(name: str) -> Declared:
    return Declared(name, "float32", name)


_THREE = ("float32", "bfloat16", "float16")
_PACKED = ("C-PRC-01", "C-ORD-02", "C-CMP-03")
_F32, _INT8 = Declared(), Declared("int8", "int32", "int32")
_E4M3 = Declared("float8_e4m3fn", "float32", "bfloat16")
_MIXED = Declared("float8_e5m2", "float32", "bfloat16", formats=("float8_e5m2", "float8_e4m3fn"))
_NARROW_OUT = Declared("float8_e4m3fn", "float32", "float8_e4m3fn")
_ONE = ("C-PRC-01",)
_SMALL = (("m", 1, 16), ("n", 16, 32), ("k", 16, 64))
_OUT = {"fp8": "bfloat16", "int8_bf16": "bfloat16", "int4_bf16": "bfloat16", "bfloat16": "bfloat16"}
_FINE = ("C-PRC-01", "C-PRC-03", "C-PRC-04", "C-ORD-02", "C-CMP-03", "C-EXC-01")
"""Classes whose limits are 0, or against an oracle that doubled sums complete."""
_GROUPS = (("m", 1, 16), ("n", 16, 32), ("k", 64, 64))
_DOUBLED = (("m", 1, 32), ("n", 2, 32), ("k", 2, 128))
_GROUPED = (("m", 1, 48), ("n", 8, 64), ("k", 8, 512))
_ALIGNED = (("m", 48, 48), ("n", 32, 32), ("k", 64, 64))
_FEW = (("m", 1, 4), ("n", 2, 8), ("k", 4, 128))
_TILES = (("m", 1, 20), ("n", 1, 20), ("k", 1, 96))
_INTERPRETED = (("TRITON_INTERPRET", "1"),)


def _each(name: str, operation: str, kernel: Function, formats: tuple[str, ...] = _THREE) -> tuple[Row, ...]:
    return tuple(Row(f"{name}.{kind}", operation, kernel, _float(kind)) for kind in formats)


TORCH: tuple[Row, ...] = (
    *_each("matmul", "matmul", samples.matmul_good), *_each("linear", "linear", F.linear), *_each("sum", "sum", samples.sum_good),
    *_each("softmax", "softmax", samples.softmax_good), *_each("layer_norm", "layer_norm", samples.layer_norm_good),
    *_each("rms_norm", "rms_norm", a.rms_norm), *_each("attention", "attention", a.attention),
    *(Row(f"attention.{b.name.lower()}", "attention", a.attention_of(b), _F32, "one backend", ("C-CMP-01", "C-EXC-01"), needs=need)
      for b, need in ((SDPBackend.MATH, _here), (SDPBackend.FLASH_ATTENTION, _here), (SDPBackend.EFFICIENT_ATTENTION, _cuda))),
    Row("attention.grouped", "attention", a.attention_grouped, _F32, "two query heads a key head", ("C-CMP-01",)),
    Row("attention.masked", "attention", a.attention_masked, _F32, "a mask that leaves everything in", ("C-CMP-01",)),
    *(replace(row, classes=("C-CMP-01", "C-CMP-03")) for row in _each("attention.causal", "causal_attention", a.attention_causal)),
    *_each("logsumexp", "logsumexp", a.logsumexp), *_each("variance", "variance", a.variance, ("float32",)),
    *_each("multiply", "multiply", samples.multiply_good), *_each("relu", "relu", a.relu),
    Row("multiply.flushed", "multiply", a.multiply_flushed, _F32, "torch.set_flush_denormal(True)", ("C-PRC-03",)),
    Row("kl.none", "kl", a.kl_rows, _F32, "F.kl_div, reduction none: -inf against no mass is NaN"),
    Row("kl.log_target", "kl", a.kl_log_target, _F32, "F.kl_div, log_target: -inf on both sides is NaN"),
    Row("kl.mean", "kl", a.kl_mean, _F32, "F.kl_div, reduction mean: divides by the vocabulary too", ("C-CMP-01",)),
    Row("kl.batchmean", "kl", a.kl_batchmean, _F32, "F.kl_div, reduction batchmean", ("C-CMP-01",)),
    Row("cast.e4m3", "cast", a.cast_e4m3, Declared("float32", "float32", "float8_e4m3fn"), "465 and infinity become 448", ("C-PRC-01", "C-EXC-01")),
    Row("cast.e5m2", "cast", a.cast_e5m2, Declared("float32", "float32", "float8_e5m2"), "", ("C-PRC-01", "C-EXC-01")),
    Row("int_mm", "matmul", a.int_mm, _INT8, "", _PACKED),
    Row("int_mm.strided", "matmul", a.int_mm_strided, _INT8, "one expanded row: stride 0", _ONE),
    Row("int_mm.transposed", "matmul", a.int_mm_transposed, _INT8, "column order, and gaps between rows", _ONE),
    Row("matmul.int8", "matmul", a.plain_matmul, _INT8, "wraps modulo 256", _ONE),
    *(Row(f"u8s8.{e}", "linear", a.u8s8(e), Declared("int8", "int32", "float32"), "saturates at int16 without VNNI" if e != "qnnpack" else "", _ONE, _FEW, needs=partial(_engine, e))
      for e in a.U8S8),
    Row("matmul.e4m3", "matmul", a.plain_matmul, _E4M3, "rounds to e4m3", _ONE),
    Row("scaled_mm", "matmul", a.scaled_mm, _E4M3, "", (*_PACKED, "C-PRC-04")),
    Row("scaled_mm.mixed", "matmul", a.scaled_mm, _MIXED, "e5m2 times e4m3", _ONE),
    Row("scaled_mm.rowwise", "matmul", a.scaled_mm_rowwise, _E4M3, "a scale a row", _ONE),
    Row("scaled_mm.fast", "matmul", a.scaled_mm_fast, _E4M3, "use_fast_accum", _ONE),
    Row("scaled_mm.e4m3", "matmul", a.scaled_mm_e4m3, _NARROW_OUT, "e4m3 out, asked for", _ONE, _SMALL),
    Row("scaled_mm.scale_result", "matmul", a.scaled_mm_result, _NARROW_OUT, "the processor build divides by scale_result", _ONE, _SMALL),
    Row("scaled_mm.default", "matmul", a.scaled_mm_default, _E4M3, "e4m3 out", _ONE),
    *(Row(f"{op}.float64", op, kernel, Declared("float64", "float64", "float64"), "judged by doubled sums", _FINE, _DOUBLED) for op, kernel in (("matmul", samples.matmul_good), ("linear", F.linear))),
    *(replace(row, classes=(*_PACKED, "C-EXC-01"), note="a weight a group", needs=partial(_operator, "_grouped_mm"), shapes=_GROUPED)
      for row in _each("grouped_mm", "matmul", grouped.grouped_mm, ("float32", "bfloat16"))),
    Row("scaled_grouped_mm", "matmul", grouped.scaled_grouped_mm, _E4M3, "a weight and scales a group", _ONE, _ALIGNED, needs=partial(_operator, "_scaled_grouped_mm")),
    *(Row(f"dyn_quant_4bit.{name}", f"linear:dynamic4_{name}", partial(dynamic4.product, name), _F32, f"4-bit weights, a scale a {scale}; int8 inputs, a scale and a zero a row", _PACKED, _GROUPS, needs=partial(_operator, "_dyn_quant_matmul_4bit"))
      for name, scale in (("groups", "group of 32"), ("rows", "row"))),
    *(Row(f"format.{k.name}", f"linear:{k.name}", a.of_format(k.name), Declared("float32", "float32", _OUT.get(k.name, "float32")), k.note, _PACKED) for k in KERNELS),
    Row("embedding", "embedding", samples.embedding_good, _F32), Row("indexing", "embedding", a.lookup, _F32, "negative indices count from the end"),
    Row("index_select", "embedding", a.index_select, _F32), Row("gather", "embedding", a.gather, _F32),
    Row("scatter_add", "scatter", a.scatter_add, _F32), Row("index_add", "scatter", a.index_add, _F32),
    Row("index_put", "scatter", a.index_put, _F32, "negative indices count from the end"),
    Row("all_reduce.gloo", "all_reduce", samples.all_reduce_good, _F32),
    Row("all_reduce.two_steps", "all_reduce", samples.all_reduce_two_steps, _F32, "reduce, then broadcast"),
    Row("weight_int8pack.unpadded", "linear:int8_bf16", a.int8_weight_unpadded, _float("bfloat16"), "k not a multiple of 32", ("C-CMP-03",), (("m", 1, 8), ("n", 1, 64), ("k", 1, 100)), risky=True),
)  # fmt: skip

EMULATED: tuple[Row, ...] = (
    Row("int16_pairs", "matmul", a.int16_pairs, _INT8, "emulates u8 x s8 without VNNI", _ONE, _FEW),
    Row("half_sums", "matmul", a.half_sums, Declared("float16", "float32", "float32"), "emulates float16 accumulation", _ONE),
    Row("wide_sums", "matmul", a.wide_sums, Declared("float16", "float32", "float32"), "float32 accumulation of float16", _ONE),
    Row("tf32", "matmul", a.tf32_operands, _F32, "emulates tf32 operands", _ONE),
)  # fmt: skip

COMPILED: tuple[Row, ...] = tuple(
    Row(f"{name}.compiled", name, kernel, _F32, "eager against torch.compile", ("C-CMP-01",), (("m", 16, 16), ("n", 96, 96), ("k", 64, 64)), risky=True, needs=_compiler)
    for name, kernel in a.COMPILED.items()
)  # fmt: skip


def _library(library: str, name: str) -> Row:
    kind = "float16" if (library, name) == ("bitsandbytes", "int8") else "float32"
    kernel = Later(f"kcverify.conformance.with_{library}", "eager", name)
    what = f"{library}, eager" + _NOTES.get((library, name), "")
    return Row(
        f"{library}.{name}",
        f"linear:{library}_{name}",
        kernel,
        _float(kind),
        what,
        ("C-PRC-01",),
        _GROUPS,
        needs=partial(missing, library),
    )


_SCALE = ": scales by 6.200124e-05 for 1/127^2 = 6.2000124e-05, off by 1.8e-5"
_NOTES = {
    ("bitsandbytes", "int8"): _SCALE,
    ("bitsandbytes", "linear8"): f", Linear8bitLt{_SCALE}",
    ("bitsandbytes", "linear8_outliers"): f", Linear8bitLt, columns of outliers of 6 and more apart{_SCALE}",
}
LIBRARIES: tuple[Row, ...] = (
    *(_library(library, name) for library, name in LIBRARY_FORMATS),
    *(
        Row(
            f"torchao.{name}.frozen", f"linear:torchao_{name}", Later("kcverify.conformance.with_torchao", "frozen", name), _F32,
            "compiled with freezing against eager; saturates at int16 without VNNI" if name == "w8a8" else "compiled with freezing, 7-bit codes",
            ("C-CMP-01",), (("m", 16, 16), ("n", 64, 64), ("k", 1024, 1024)), True, lambda: missing("torchao") or _compiler(), trials=1,
        )
        for name in ("w8a8", "w8a8_narrow")
    ),
    *(
        Row(
            f"torchao.{name}.saturating", f"linear:torchao_{name}", Later("kcverify.conformance.with_torchao", "saturating", name), _F32,
            "emulates the compiled layer without VNNI" + (", 7-bit codes" if name == "w8a8_narrow" else ""),
            ("C-CMP-01",), (("m", 16, 16), ("n", 64, 64), ("k", 1024, 1024)), needs=partial(missing, "torchao"), trials=1,
        )
        for name in ("w8a8", "w8a8_narrow")
    ),
)  # fmt: skip


SCHEDULES = ("16x16", "16x32", "32x32", "16x64")
"""Tiles and steps of a product that an autotuner may choose from."""


def _triton(name: str, kernel: str, operation: str, declared: Declared, note: str = "") -> tuple[Row, Row]:
    """In the interpreter, and on a GPU."""
    tiled = kernel == "dot_tiled"
    function = Later("kcverify.conformance.with_triton", kernel, schedules=SCHEDULES if tiled else ())
    classes = ("C-CMP-02",) if tiled else ("C-PRC-01",) if operation == "matmul" else ("C-PRC-01", "C-EXC-01")
    shapes = _TILES if operation == "matmul" else (("m", 1, 8), ("n", 1, 64))
    here = Row(
        f"triton.{name}",
        operation,
        function,
        declared,
        f"Triton's interpreter{note}",
        classes,
        shapes,
        True,
        _interpreter,
        _INTERPRETED,
        2,
    )
    there = replace(
        here,
        name=f"triton.{name}.cuda",
        declared=replace(declared, device="cuda"),
        note="Triton on a GPU",
        needs=_gpu_triton,
        environment=(),
    )
    return here, there


TRITON: tuple[Row, ...] = tuple(
    row
    for name, kernel, operation, declared, note in (
        ("dot.float16", "dot", "matmul", Declared("float16", "float32", "float32"), ""),
        ("dot_tiled.float16", "dot_tiled", "matmul", Declared("float16", "float32", "float32"), ": tiles and steps of an autotuner"),
        ("dot.bfloat16", "dot", "matmul", Declared("bfloat16", "float32", "float32"), ": bfloat16 is read as whole numbers"),
        ("dot_widened.bfloat16", "dot_widened", "matmul", Declared("bfloat16", "float32", "float32"), ""),
        ("dot.int8", "dot", "matmul", _INT8, ""),
        ("dot.e4m3", "dot", "matmul", Declared("float8_e4m3fn", "float32", "float32"), ""),
        ("cast.e4m3", "cast", "cast", Declared("float32", "float32", "float8_e4m3fn"), ": no reference for fp8 casts"),
    )
    for row in _triton(name, kernel, operation, declared, note)
)  # fmt: skip

_ON_CUDA = (
    "matmul.", "linear.", "softmax.", "layer_norm.", "rms_norm.", "attention.", "sum.", "logsumexp.", "int_mm", "scaled_", "format.", "cast.",
)  # fmt: skip
_NOT_ON_CUDA = (
    "matmul.int8",
    "matmul.e4m3",
    "int_mm.strided",
    "attention.efficient_attention",
    *(f"{r.name}" for r in COMPILED),
)
CUDA: tuple[Row, ...] = tuple(
    replace(row, name=f"{row.name}.cuda", declared=replace(row.declared, device="cuda"), needs=_cuda)
    for row in TORCH
    if row.name.startswith(_ON_CUDA) and row.name not in _NOT_ON_CUDA
)
"""The same kernels where operands and results are on a GPU."""

ROWS: tuple[Row, ...] = (*TORCH, *EMULATED, *COMPILED, *LIBRARIES, *TRITON, *CUDA)
BY_NAME: dict[str, Row] = {row.name: row for row in ROWS}
SURVEY: tuple[tuple[Row, KernelClass], ...] = tuple((k, c) for k in ROWS for c in CLASSES if k.applies(c))


_LEFT: dict[str, tuple[surroundings.Settings, tuple[tampering.Change, ...]]] = {}
"""Settings and names of the process as a module's first import left them: later ones run nothing of it."""


def find(name: str) -> Function:
    """A kernel by the table's name or as `module:function`, looked for in the working directory too.

    What its module changes about the process at import holds for the kernel's calls alone. Raises InputError: `kernel_not_found`.
    """
    if name in BY_NAME:
        return BY_NAME[name].kernel
    module, path = split(name)
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    with tampering.watching(not module.startswith(_OWN)):
        ours, names = surroundings.read(), tampering.snapshot()
    replaced: tuple[tampering.Change, ...] = ()
    try:
        found: object = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
        replaced = tampering.changes(names)
        own, put_there = _LEFT.setdefault(module, (surroundings.read(), replaced))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a module of the user's may raise anything
        said = f"{printable(type(error).__name__)}: {reason(error)}"
        raise input_error("kernel_not_found", kernel=name, reason=said) from error
    finally:
        tampering.undo(replaced or tampering.changes(names))
        surroundings.put(ours)
    if not callable(found):
        raise input_error("kernel_not_found", kernel=name, reason="not callable")
    return found if own == ours and not put_there else surroundings.within(found, own, put_there)


_OWN = "kcverify."
"""Modules whose kernels are not watched."""


def left(name: str) -> str:
    """What the module of `module:function` changed about the process when it was imported, in words."""
    known = _LEFT.get(name.partition(":")[0])
    if known is None:
        return ""
    settings, replaced = known
    return "; ".join(x for x in (settings.differing(surroundings.read()), tampering.said(replaced)) if x)


def split(name: str) -> tuple[str, str]:
    """Module and function of `module:function`. Raises InputError: `kernel_not_found`."""
    module, _, path = name.partition(":")
    if not module or not path:
        raise input_error("kernel_not_found", kernel=name, reason="not a name of the table, nor module:function")
    return module, path
