"""The table of what a fingerprint states: one row a field, under the name that `fingerprint` of a contract uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

ABSENT = "absent"
"""What a field holds that could not be told; it is never guessed."""

Value: TypeAlias = "str | Mapping[str, str]"


@dataclass(frozen=True)
class Field:
    """One field: which digest it enters, what it holds, and whether its parts are files: then one part more or less is
    another identity, where a part of any other field that one side leaves out is only silent."""

    name: str
    digest: Literal["identity", "context"]
    what: str
    files: bool = False


FIELDS: tuple[Field, ...] = (
    Field("weights", "identity", "every shard by name, with the SHA-256 of its bytes", files=True),
    Field("dtype", "identity", "element types of the stored tensors, or of a function's logits"),
    Field("quantization", "identity", "how weights and activations are stored beside their element types"),
    Field("kernels", "identity", "source files or builds of the kernels, with their SHA-256", files=True),
    Field("build", "identity", "version and build of the library that the kernels run in"),
    Field("tokenizer", "identity", "tokenizer files with their SHA-256, or the name of a built-in one", files=True),
    Field("sampler", "identity", "how tokens are drawn: temperature and truncation, or the file that says so"),
    Field("device", "context", "CPU model and vector extensions; GPU, its compute capability and multiprocessors"),
    Field("versions", "context", "Python, torch, CUDA, cuDNN, and the libraries that numbers pass through"),
    Field("driver", "context", "operating system kernel and GPU driver"),
    Field("parallelism", "context", "threads, and sizes of tensor, pipeline and data parallelism"),
    Field("attention", "context", "backends of attention that are switched on"),
    Field("batch", "context", "requests and tokens of one call, as a kernel may choose its tiles by them"),
    Field("compile_mode", "context", "eager or compiled, and switches of determinism and reduced precision"),
    Field("environment", "context", "environment variables that change numbers"),
)

BY_NAME: Mapping[str, Field] = {field.name: field for field in FIELDS}

VARIABLES: tuple[str, ...] = (
    "ATEN_CPU_CAPABILITY", "CUBLASLT_WORKSPACE_SIZE", "CUBLAS_WORKSPACE_CONFIG", "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES",
    "CUDNN_DETERMINISTIC", "DNNL_DEFAULT_FPMATH_MODE", "KMP_DETERMINISTIC_REDUCTION", "MKL_CBWR", "MKL_NUM_THREADS",
    "NCCL_ALGO", "NCCL_PROTO", "NVIDIA_TF32_OVERRIDE", "OMP_DYNAMIC", "OMP_NUM_THREADS", "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_NUM_THREADS", "PYTORCH_CUDA_ALLOC_CONF", "TORCHINDUCTOR_MAX_AUTOTUNE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TRITON_F32_DEFAULT", "VLLM_ATTENTION_BACKEND", "VLLM_USE_V1", "XLA_FLAGS",
)  # fmt: skip
"""Environment variables that are known to change numbers."""

LIBRARIES: tuple[str, ...] = (
    "kcverify", "torch", "numpy", "safetensors", "triton", "transformers", "tokenizers", "vllm", "sglang", "flash-attn", "flashinfer-python",
    "bitsandbytes", "torchao", "nvidia-cublas-cu12", "nvidia-cudnn-cu12", "intel-openmp", "mkl",
)  # fmt: skip
"""Distributions whose versions are recorded where they are installed."""
