"""The table of formats: one row a format, tried in order; and the layouts of bytes in which they occur."""

from __future__ import annotations

from collections.abc import Sequence

from kcverify.readers import llama_server, logit_rows, openai, sglang, tensors, trainer_lines, vllm
from kcverify.readers.model import Format, Meaning
from kcverify.readers.projects import COLUMNS
from kcverify.readers.stream import Status
from kcverify.readers.values import MINUS_INFINITY, NAN, NULL, PLUS_INFINITY

JSON, SAFETENSORS, NPY, NPZ, PARQUET, TORCH, KLD = "JSON", "safetensors", "npy", "npz", "parquet", "torch", "llama.cpp"

READ_WHOLE = {NPZ: 2 << 30}
"""Bytes of a layout that can only be read whole (JSON and torch state theirs beside their readers)."""


_SMALLEST = (
    ("-3.4028234663852886e+38", "float32"),
    ("-3.3895313892515355e+38", "bfloat16"),
    ("-65504.0", "float16"),
)
"""What samplers write where they clamp a logarithm of 0 (SGLang: srt/layers/sampler.py)."""


def _meanings(**special: str) -> tuple[Meaning, ...]:
    """The placeholders of every format, with the wording of one where it differs."""
    says = {
        "null": "not written: the first token of a prompt, or a token that was not scored",
        "m9999": "impossible or not written; the two cannot be told apart",
        "m1000": "a filler for a token that was not scored",
        "m100": "the label that losses ignore: the token does not count",
        "minus_infinity": "probability zero: the sampler or a mask banned the token",
        "nan": "the kernel or the trainer computed no number",
        "infinity": "no log-probability is above 0: a kernel fault",
    } | special
    return (
        Meaning(NULL, Status.MISSING, says["null"]),
        Meaning("-9999.0", Status.PLACEHOLDER, says["m9999"]),
        Meaning("-1000.0", Status.PLACEHOLDER, says["m1000"]),
        Meaning("-100.0", Status.PLACEHOLDER, says["m100"]),
        Meaning(MINUS_INFINITY, Status.BANNED, says["minus_infinity"]),
        *(
            Meaning(value, Status.BANNED, f"minus infinity, clamped to the smallest {kind}")
            for value, kind in _SMALLEST
        ),
        Meaning(NAN, Status.BROKEN, says["nan"]),
        Meaning(PLUS_INFINITY, Status.BROKEN, says["infinity"]),
    )


_PADDING = "padding off the mask; under it a probability that rounds to one"
_TENSORS = (SAFETENSORS, NPZ, PARQUET, TORCH)
_ARRAYS = "kcverify.readers.tensors:read_arrays"


def _project(name: str, title: str, source: str, mode: str, null: str, zero: str = _PADDING) -> Format:
    return Format(
        name, title, _TENSORS, tensors.has(name), _ARRAYS, _meanings(null=null), source, {"logprobs_mode": mode},
        zero=zero, sides=tuple(COLUMNS[name].sides), follows=("side",),
    )  # fmt: skip


ROWS: tuple[Format, ...] = (
    Format(
        "llama.cpp-kld", "llama.cpp --kl-divergence-base (16-bit rows)", (KLD,), lambda first: True,
        "kcverify.readers.llamacpp:read", (Meaning("clipped", Status.PLACEHOLDER, "16 nats or more below the largest logit: at most `floor`"),),
        "llama.cpp: tools/perplexity/perplexity.cpp", {"logprobs_mode": "raw", "temperature": 1.0}, ("weights",),
        zero="a probability of one", normalised=True, follows=("rows",),
    ),
    Format(
        "sglang", "SGLang /generate (meta_info)", (JSON,), sglang.is_answer, "kcverify.readers.sglang:read",
        (*_meanings(null="the first token of the input"), Meaning("-999999999.0", Status.BANNED, "minus infinity, written as a number")),
        "SGLang: srt/managers/tokenizer_manager.py", {"logprobs_mode": "processed"}, follows=("positions",),
    ),
    Format(
        "vllm-outputs", "vLLM RequestOutput written as JSON", (JSON,), vllm.is_output, "kcverify.readers.vllm:read",
        _meanings(null="the first token of the prompt"), "vLLM: outputs.py, logprobs.py", {"logprobs_mode": "raw"}, follows=("positions",),
    ),
    Format(
        "llama-server", "llama-server /completion", (JSON,), llama_server.is_native, "kcverify.readers.llama_server:read",
        _meanings(), "llama.cpp: tools/server", {"logprobs_mode": "raw"}, follows=("positions",),
    ),
    Format(
        "llama-server-completions", "llama-server /v1/completions and chat (content list with ids)", (JSON,), llama_server.is_completion,
        "kcverify.readers.llama_server:read", _meanings(), "llama.cpp: tools/server", {"logprobs_mode": "raw"}, follows=("positions",),
    ),
    Format(
        "chat", "OpenAI-compatible chat (logprobs.content): vLLM, SGLang and others", (JSON,), openai.is_content, "kcverify.readers.openai:read",
        _meanings(m9999="so unlikely that it is not among the most probable tokens; vLLM writes it for minus infinity too"),
        "OpenAI API reference; vLLM: entrypoints/openai", {"logprobs_mode": "raw"}, follows=("positions",),
    ),
    Format(
        "completions", "OpenAI-compatible completions (parallel lists): vLLM /v1/completions and others", (JSON,), openai.is_parallel,
        "kcverify.readers.openai:read", _meanings(null="the first token of an echoed prompt"),
        "vLLM: entrypoints/openai/completion", {"logprobs_mode": "raw"}, follows=("positions",),
    ),
    Format(
        "prime-rl", "prime-rl token export", (JSON,), trainer_lines.has("inference_logprobs", "trainer_logprobs", "loss_mask"),
        "kcverify.readers.trainer_lines:read", _meanings(null="NaN or infinite in the trainer: the exporter writes null for both"),
        "prime-rl: trainer/rl/token_export.py", {"logprobs_mode": "processed"}, zero=_PADDING, sides=tuple(COLUMNS["prime-rl"].sides), follows=("side",),
    ),
    Format(
        "prime-rl-samples", "prime-rl training samples", (JSON,), trainer_lines.has("token_ids", "mask", "logprobs"),
        "kcverify.readers.trainer_lines:read", _meanings(), "prime-rl: transports/rollouts/types.py", {"logprobs_mode": "processed"},
        zero=_PADDING, sides=tuple(COLUMNS["prime-rl-samples"].sides), follows=("side",),
    ),
    Format(
        "nemo-rl-lines", "NeMo-RL training data (train_data_stepN.jsonl)", (JSON,), trainer_lines.has("generation_logprobs"),
        "kcverify.readers.trainer_lines:read", _meanings(), "NeMo-RL: algorithms/grpo.py", {"logprobs_mode": "processed"},
        zero="a token that was not generated, padding, or a NaN that was rewritten", sides=tuple(COLUMNS["nemo-rl-lines"].sides), follows=("side",),
    ),
    Format(
        "hf-generate", "Hugging Face generate (scores, logits, sequences)", (SAFETENSORS,), logit_rows.is_generate,
        "kcverify.readers.logit_rows:read_generate", _meanings(minus_infinity="a token that a logits processor removed"),
        "transformers: generation/utils.py", {}, zero="the only token that truncation kept",
        follows=("rows",),
    ),
    _project("verl", "verl batch (DataProto tensors)", "verl: experimental/agent_loop, trainer/ppo", "processed", "not written"),
    _project("trl", "TRL GRPO batch", "TRL: trainer/grpo_trainer.py", "processed", "not written"),
    _project("openrlhf", "OpenRLHF experience", "OpenRLHF: trainer/ppo_utils/experience.py", "raw", "not written"),
    _project(
        "nemo-rl", "NeMo-RL batch", "NeMo-RL: algorithms/grpo.py", "processed", "not written",
        "a token that was not generated, padding, or a NaN that was rewritten",
    ),
    _project("slime", "slime samples (debug rollout and train data)", "slime: utils/types.py, observability", "processed", "not written"),
    Format(
        "logits", "rows of logits [N, V]", (SAFETENSORS, NPY), logit_rows.is_matrix, "kcverify.readers.logit_rows:read_matrix",
        _meanings(minus_infinity="a banned token"), "any", {"logprobs_mode": "raw"}, zero="a logit of 0",
        follows=("tensor", "rows"),
    ),
)  # fmt: skip

BY_NAME: dict[str, Format] = {row.name: row for row in ROWS}

READERS = {PARQUET: "kcverify.readers.parquet_file:read", TORCH: "kcverify.readers.torch_file:read"}
"""Layouts with a reader of their own, whichever project wrote the columns."""

MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"_logits_", KLD),
    (b"\x93NUMPY", NPY),
    (b"PAR1", PARQUET),
)
"""First bytes of a layout that can be read."""

UNREAD: tuple[tuple[bytes, str, str], ...] = (
    (b"\x1f\x8b", "gzip", "unpack it first (`gunzip -k FILE`)"),
    (b"\x28\xb5\x2f\xfd", "zstandard", "unpack it first (`zstd -d FILE`)"),
    (b"BZh", "bzip2", "unpack it first"),
    (b"\xfd7zXZ", "xz", "unpack it first"),
    (b"GGUF", "GGUF: a model, not what it computed", "point at a file of log-probabilities or logits"),
    (
        b"data:",
        "a stream of server-sent events",
        "ask for the whole answer (`stream: false`), or join the events to one JSON answer",
    ),
    (b"\x89HDF", "HDF5", "save safetensors or npy"),
    (b"ARROW1", "an Arrow file", "save parquet"),
)
"""First bytes of what is told but not read, what it is, and what to do."""


def candidates(container: str) -> Sequence[Format]:
    """The rows that occur in a layout, in the order in which they are tried."""
    return [row for row in ROWS if container in row.containers]
