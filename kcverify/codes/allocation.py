"""Codes about allocations of formats, maps of drift and chains from a kernel to the policy gradient (KC75x)."""

from __future__ import annotations

from kcverify.codes.model import Code, Severity


def _row(id: str, slug: str, message: str, why: str, fix: str) -> Code:
    return Code(id, slug, Severity.ERROR, message, why, fix, input_fault=True)


ROWS: tuple[Code, ...] = (
    _row(
        "KC751",
        "allocation_no_budget",
        "contract `{name}` has no clause to allocate against: {reasons}",
        "An allocation spends a limit on KL, TV, chi2, logit drift, logit span or log ratio on all traffic among the modules of a model.",
        "add a clause such as `numerical { near: mean tv <= 0.01 -> L2 }`",
    ),
    _row(
        "KC752",
        "allocation_data",
        "the data has {count} requests: {reason}",
        "Modules are compared on some requests, and the assignment is verified on others that it has never seen.",
        "give more text with --data, a smaller --window or a smaller --calibration",
    ),
    _row(
        "KC753",
        "chain_unusable",
        "no chain from `{kernel}` to the logits of {model}: {reason}",
        "A chain starts at a tolerance of matrix products against the sum of magnitudes, declared for all inner sizes of the model.",
        "write `tolerance { backward_error <= gamma(k, float32) + unit_roundoff(bfloat16) }` in a contract of class C-PRC-01",
    ),
    _row(
        "KC754",
        "module_unusable",
        "`{model}` gives no model to swap formats in: {reason}",
        "A model of your own is a function that takes nothing and returns a torch.nn.Module: token ids [batch, seq] in, logits (or an object with `.logits`) out, with linear layers, the same in every call.",
        "return the module with its weights, in eval mode and in float32, float16 or bfloat16",
    ),
)  # fmt: skip
