"""The fingerprint of one side of a measured pair."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kcverify.diagnostics import InputError
from kcverify.measure.sides import FileSide, Identified, KernelSide
from kcverify.provenance import accelerator, machine
from kcverify.provenance import kernels as kernel_fields
from kcverify.provenance import weights as weight_fields
from kcverify.provenance.fields import Value
from kcverify.provenance.fingerprint import Fingerprint, fingerprint
from kcverify.resources import data_path


def weights_path(name: str, gguf: Path | None) -> Path | None:
    """The file that a shipped kernel's weights are read from, None for anything else."""
    model = name.partition(":")[0]
    return {"demo": data_path("tinylm.safetensors"), "smollm2": gguf}.get(model)


def context() -> dict[str, Value]:
    """Fields of the context: those of the machine with those of torch beside them."""
    return kernel_fields.joined(machine.fields(), accelerator.fields())


def _kernel(name: str) -> Mapping[str, Value]:
    """Fields of a kernel; none for a function whose source is not on disk."""
    try:
        return kernel_fields.fields(kernel_fields.resolve(name), accelerator.build())
    except InputError:
        return {}


def of_side(side: Identified, sampler: str, batch: str, gguf: Path | None = None) -> Fingerprint:
    """What a side tells by itself; `sampler` and `batch` are those of the run. A side that was recorded tells its type."""
    fields: Mapping[str, Value] = {}
    if isinstance(side, FileSide):
        fields = {"dtype": side.fingerprint["format"]}
    elif isinstance(side, KernelSide):
        kernel = _kernel(side.name)
        path = weights_path(side.name, gguf) if side.basis is not None else None
        fields = kernel_fields.joined(weight_fields.fields([str(path)]) if path is not None else {}, kernel)
        fields = {**context(), **fields, "batch": batch}
    return fingerprint(**{**fields, "sampler": {"measured": sampler}})
