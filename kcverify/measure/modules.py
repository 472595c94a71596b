"""A user's own model: a torch module whose linear layers multiply as a format says, while all else stays as it is."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kcverify.diagnostics import InputError, input_error
from kcverify.measure.model import Linear
from kcverify.measure.tokenizer import Tokenizer

_SHORT = (torch.float16, torch.bfloat16)
_PROBE = (8, 8)
"""Requests and tokens of the call that shows which layers a model uses."""

Check = Callable[[object, int, int], Tensor]
"""`check(value, batch, length)`: the value when it is logits `[batch, length, V]`. Raises InputError."""


@dataclass(frozen=True)
class OwnModel:
    """A module in eval mode, and its matrices by qualified name, in the order of their first use.

    `layers` holds the linear layers that multiply with a matrix: several where they share it. `head` is the matrix whose
    product is the logits, empty where none is. `notes` say what is not swapped.
    """

    module: nn.Module
    layers: Mapping[str, tuple[nn.Linear, ...]]
    vocabulary: int
    head: str
    notes: tuple[str, ...]

    @property
    def matrices(self) -> tuple[str, ...]:
        """Names of all matrices that are swapped."""
        return tuple(self.layers)

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The matrices `[out, in]`, float32."""
        return {name: layers[0].weight.detach() for name, layers in self.layers.items()}

    def on(self, device: torch.device) -> OwnModel:
        """The model itself, moved."""
        self.module.to(device)
        return self

    def logits(self, linear: Linear, token_ids: Tensor) -> Tensor:
        """What the module returns for ids `[batch, seq]`, every matrix multiplied by `linear`; biases are added after."""
        with _multiplied(self.layers, linear):
            found: Tensor = _called(self.module, token_ids)
        return found.clone() if isinstance(found, Tensor) else found  # a module may write its next result over this one


@contextmanager
def _multiplied(layers: Mapping[str, tuple[nn.Linear, ...]], linear: Linear) -> Iterator[None]:
    """Every layer's forward is `linear` of its matrix, plus its bias."""
    every = [(name, layer) for name, shared in layers.items() for layer in shared]
    try:
        for name, layer in every:
            layer.__dict__["forward"] = partial(_product, linear, name, layer)
        yield
    finally:
        for _, layer in every:
            layer.__dict__.pop("forward", None)


def _product(linear: Linear, name: str, layer: nn.Linear, x: Tensor) -> Tensor:
    if not x.numel():  # a layer that no token reaches; kernels refuse empty products
        return x.new_zeros(*x.shape[:-1], layer.out_features)
    y = linear(name, x)
    return y if layer.bias is None else y + layer.bias.to(y.dtype)


def _called(module: nn.Module, token_ids: Tensor) -> Any:
    """The result, or its `.logits`. What goes past the forward of a linear layer is off meanwhile: graphs that
    torch.compile has made, and torch's fused encoder layer."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    eager = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
    try:
        with eager:
            found = module(token_ids)
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
    return getattr(found, "logits", found)


def _unusable(name: str, reason: str) -> InputError:
    return input_error("module_unusable", model=name, reason=reason)


def made_by(name: str, function: Callable[..., object]) -> object:
    """What the function gives. Raises InputError (`module_unusable`) for one that takes arguments, as a side of `measure` does."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a callable that does not say
        return function()
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    asked = [p.name for p in parameters if p.default is p.empty and p.kind not in optional]
    if asked:
        raise _unusable(name, f"it takes {', '.join(f'`{word}`' for word in asked)}, and such a function takes nothing")
    return function()


def opened(name: str, value: object, device: torch.device, check: Check) -> OwnModel:
    """What the function `name` returned, as a model: in eval mode, on `device`, 16-bit weights and buffers in float32.

    Raises InputError: `module_unusable`, and as `check`; whatever the module raises goes through.
    """
    if not isinstance(value, nn.Module):
        raise _unusable(name, f"it returned a {type(value).__name__}, not a torch.nn.Module")
    _check_types(name, value)
    value.eval()
    short = sorted({str(t.dtype).removeprefix("torch.") for t in value.parameters() if t.dtype in _SHORT})
    value._apply(lambda t: t.float() if t.dtype in _SHORT else t)
    value.to(device)
    layers, left = _layers(value)
    with torch.no_grad():
        width = check(_called(value, torch.zeros(2, 3, dtype=torch.int64, device=device)), 2, 3).shape[-1]
        used = _used(name, value, layers, width, device, check)
    left += [f"{matrix}: no call reached it" for matrix in layers if matrix not in used]
    if not used:
        why = f": {'; '.join(left[:3])}" if left else ""
        raise _unusable(name, f"no torch.nn.Linear multiplies in it{why}")
    kept = {matrix: layers[matrix] for matrix in used}
    last = used[-1]
    head = last if kept[last][0].out_features == width else ""
    notes = [f"its {' and '.join(short)} weights are read as float32, in which the reference computes"] if short else []
    return OwnModel(value, kept, width, head, (*notes, *_notes(value, kept, head, left)))


def _check_types(name: str, module: nn.Module) -> None:
    for what, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.is_meta:
            raise _unusable(name, f"`{what}` is on the meta device: it has no values")
    for what, tensor in module.named_parameters():
        if tensor.is_floating_point() and tensor.dtype not in (torch.float32, *_SHORT):
            kind = str(tensor.dtype).removeprefix("torch.")
            raise _unusable(name, f"`{what}` is {kind}; formats are of float32, float16 or bfloat16 weights")


def _obstacle(layer: nn.Linear) -> str:
    """Why the product of this layer cannot be swapped, empty where it can."""
    if type(layer).forward is not nn.Linear.forward or "forward" in vars(layer):
        return f"{type(layer).__name__} has a forward of its own"
    if layer.weight.dtype not in (torch.float32, *_SHORT):
        return f"its weight is {str(layer.weight.dtype).removeprefix('torch.')}"
    return ""


def _layers(module: nn.Module) -> tuple[dict[str, tuple[nn.Linear, ...]], list[str]]:
    """Layers by matrix, those that share a weight under the name of the first, and those left out, with the reason."""
    found: dict[tuple[Any, ...], tuple[str, list[nn.Linear]]] = {}
    alive, left = [], []
    for name, layer in module.named_modules():
        if not isinstance(layer, nn.Linear):
            continue
        if reason := _obstacle(layer):
            left.append(f"{name}: {reason}")
            continue
        weight = layer.weight
        alive.append(weight)  # a computed weight must not leave its address to the next one
        found.setdefault(_place(weight), (f"{name}.weight".removeprefix("."), []))[1].append(layer)
    return {name: tuple(layers) for name, layers in found.values()}, left


def _place(weight: Tensor) -> tuple[Any, ...]:
    return weight.data_ptr(), tuple(weight.shape), weight.stride()


def _used(
    name: str, module: nn.Module, layers: Mapping[str, tuple[nn.Linear, ...]], width: int, device: torch.device,
    check: Check,
) -> list[str]:  # fmt: skip
    """Matrices that a call multiplies with where they are swapped, in that order. Two calls must give the same logits."""
    rows = [m.num_embeddings for m in module.modules() if isinstance(m, nn.Embedding)]
    ids = torch.arange(_PROBE[0] * _PROBE[1], device=device) * min([width, *rows]) // (_PROBE[0] * _PROBE[1])
    first, again = (check(_called(module, ids.reshape(_PROBE)), *_PROBE).clone() for _ in range(2))
    if first.shape != again.shape or not torch.allclose(first, again, rtol=0, atol=0, equal_nan=True):
        raise _unusable(name, "two calls on the same tokens in eval mode give different logits")
    order: dict[str, None] = {}

    def linear(matrix: str, x: Tensor) -> Tensor:
        order.setdefault(matrix)
        return F.linear(x, layers[matrix][0].weight.to(x.dtype))

    with _multiplied(layers, linear):
        check(_called(module, ids.reshape(_PROBE)), *_PROBE)
    return list(order)


def _notes(module: nn.Module, kept: Mapping[str, tuple[nn.Linear, ...]], head: str, left: list[str]) -> Iterator[str]:
    """What stays as it is, and what of it shares memory with a matrix."""
    mine = sum(layers[0].weight.numel() for layers in kept.values())
    every = sum(p.numel() for p in module.parameters())
    tables = {_place(m.weight): n for n, m in module.named_modules() if isinstance(m, nn.Embedding)}
    yield (
        f"{len(kept)} matrices of linear layers, {100 * mine / max(every, 1):.3g} % of {every:,} parameters, are swapped; all other "
        "parts (embeddings, norms, biases, attention scores) stay in the reference's type, and their bytes are not counted"
    )
    for matrix, layers in kept.items():
        if table := tables.get(_place(layers[0].weight)):
            what = "the head" if matrix == head else matrix
            yield f"{what} shares its weight with the embedding {table}: its product alone is swapped, and its bytes are counted beside the embedding's"
        if len(layers) > 1:
            yield f"{matrix} is the weight of {len(layers)} layers: they are swapped together, and its bytes are counted once"
    if left:
        yield f"left as they are: {'; '.join(left)}"


def digest(module: nn.Module) -> str:
    """SHA-256 of all parameters and buffers that the module saves, by name."""
    found = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        if isinstance(tensor, Tensor):
            found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return found.hexdigest()


def tokenizer_of(name: str, vocabulary: int, *holders: object) -> Tokenizer | None:
    """The first `tokenizer` of these with `encode(text)` and `decode(ids)`; None without one.

    Its `encode` raises InputError (`module_unusable`) where the user's fails or gives ids outside the vocabulary.
    """
    given = (getattr(holder, "tokenizer", None) for holder in holders)
    found: Any = next((t for t in given if all(callable(getattr(t, a, None)) for a in ("encode", "decode"))), None)
    if found is None:
        return None

    def encode(raw: bytes) -> list[int]:
        text = raw.decode("utf-8")
        try:
            ids = found.encode(text)
            out = [int(i) for i in getattr(ids, "ids", ids)]
        except Exception as error:
            raise _unusable(name, f"its tokenizer failed: {type(error).__name__}: {error}") from error
        outside = next((i for i in out if not 0 <= i < vocabulary), None)
        if outside is not None:
            raise _unusable(name, f"its tokenizer gives id {outside}, outside the vocabulary of {vocabulary}")
        return out

    return Tokenizer("own", vocabulary, encode, lambda ids: str(found.decode(list(ids))))
