"""The names that RL projects give to token ids, masks and log-probabilities, one row a project."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kcverify.readers.faults import listed, undeclared
from kcverify.readers.model import Opening
from kcverify.readers.stream import Status


@dataclass(frozen=True)
class Columns:
    """Column names of one project. `sides` maps rollout, trainer and reference to a column of log-probabilities.

    A position counts where every mask that is there, and the request's `sample_mask`, say 1. With `tail` the ids cover
    the prompt too, and the last of them belong to the log-probabilities; else the lengths must be equal. `length` is
    the number of tokens of a padded row, `outside` the status of a 0.0 off the mask.
    """

    ids: str
    masks: tuple[str, ...]
    sides: Mapping[str, str]
    name: tuple[str, ...] = ()
    length: str | None = None
    tail: bool = False
    sample_mask: str | None = None
    outside: Status = Status.MISSING


COLUMNS: dict[str, Columns] = {
    "prime-rl": Columns(
        "token_ids", ("loss_mask",), {"rollout": "inference_logprobs", "trainer": "trainer_logprobs"},
        name=("step", "rank", "export_sequence_idx"),
    ),
    "prime-rl-samples": Columns("token_ids", ("mask",), {"rollout": "logprobs", "reference": "ref_logprobs"}),
    "nemo-rl-lines": Columns(
        "token_ids", ("token_loss_mask", "token_mask"),
        {"rollout": "generation_logprobs", "trainer": "prev_logprobs", "reference": "reference_policy_logprobs"},
        name=("idx",), length="input_lengths",
    ),
    "verl": Columns(
        "responses", ("response_mask",),
        {"rollout": "rollout_log_probs", "trainer": "old_log_probs", "reference": "ref_log_prob"},
    ),
    "nemo-rl": Columns(
        "input_ids", ("token_mask",),
        {"rollout": "generation_logprobs", "trainer": "prev_logprobs", "reference": "reference_policy_logprobs"},
        length="input_lengths", sample_mask="sample_mask",
    ),
    "trl": Columns(
        "completion_ids", ("tool_mask", "completion_mask"),
        {"rollout": "sampling_per_token_logps", "trainer": "old_per_token_logps", "reference": "ref_per_token_logps"},
    ),
    "slime": Columns(
        "tokens", ("loss_mask", "loss_masks"),
        {"rollout": "rollout_log_probs", "trainer": "log_probs", "reference": "ref_log_probs"},
        name=("index",), tail=True,
    ),
    "openrlhf": Columns(
        "sequences", ("action_mask",),
        {"rollout": "rollout_log_probs", "trainer": "action_log_probs", "reference": "base_action_log_probs"},
        tail=True,
    ),
}  # fmt: skip
"""Project -> its column names, as its source has them (`table.py` names the files)."""


def side_of(opening: Opening, columns: Columns, there: Collection[str]) -> tuple[str, tuple[str, ...]]:
    """Which side to read: the declared one, else the rollout's, else the only one. Raises `stream_undeclared`."""
    found = [side for side, column in columns.sides.items() if column in there]
    asked = opening.value("side")
    if asked is not None:
        if asked not in found:
            has = listed(columns.sides[s] for s in found)
            raise undeclared(
                opening.head.path,
                f"it has no `{columns.sides.get(asked, asked)}` ({asked}); it has {has}",
                f"side={found[0] if found else 'rollout'}",
            )
        return asked, ()
    if not found:
        names = listed(columns.sides.values())
        raise undeclared(opening.head.path, f"none of {names} is there", "export the log-probabilities")
    note = f"log-probabilities are `{columns.sides[found[0]]}` ({found[0]})"
    others = [f"--declare side={s} reads `{columns.sides[s]}`" for s in found[1:]]
    return found[0], ("; ".join([note, *others]),) if others else ()
