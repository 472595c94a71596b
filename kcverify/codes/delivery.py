"""Codes about promotion: the store of a candidate's stages, its events and the evidence that a gate reads (KC6xx)."""

from __future__ import annotations

from kcverify.codes.model import Code, Severity


def _row(id: str, slug: str, message: str, why: str, fix: str) -> Code:
    return Code(id, slug, Severity.ERROR, message, why, fix, input_fault=True)


ROWS: tuple[Code, ...] = (
    _row(
        "KC601",
        "store_missing",
        "{path} holds no store yet",
        "A store is started once, in the first stage of its contract; reading one that is not there would report nothing.",
        "start it with `kcverify promote CONTRACT --store PATH`",
    ),
    _row(
        "KC602",
        "store_invalid",
        "{path} is no usable store: {reason}",
        "The file is of another program, is damaged, or may not be read or written.",
        "check the path and its permissions, or restore the file and its -wal neighbour from a copy",
    ),
    _row(
        "KC603",
        "store_schema",
        "{path} has schema {found}, this version reads schema {known}",
        "Another version of kcverify wrote the store; guessing at its tables could lose an event.",
        "use the version that wrote it",
    ),
    _row(
        "KC604",
        "store_contract",
        "{path} follows the contract `{stored}` ({stored_digest}), and this one is `{given}` ({given_digest})",
        "Evidence and stages belong to one contract; a changed contract starts anew.",
        "use the contract that the store was started with, or start another store",
    ),
    _row(
        "KC605",
        "event_tampered",
        "{path}, event {seq}: {reason}",
        "Events are only ever added, and each one carries the hash of the one before. One that does not fit was changed or "
        "removed, so nothing after it can be trusted.",
        "restore the store from a copy; find out who wrote to it",
    ),
    _row(
        "KC606",
        "stage_moved",
        "another process was first: event {seq} ({kind}) put the candidate in `{position}` while this was decided",
        "Only one process moves the stage at a time. What was decided about the old stage says nothing about the new one.",
        "look at `kcverify status` and decide again",
    ),
    _row(
        "KC607",
        "transition_illegal",
        "{what} is not possible from `{position}`: {reason}",
        "Stages are entered in the order of the contract, one at a time, and none is skipped.",
        "see `kcverify status` for what is possible now",
    ),
    _row(
        "KC608",
        "evidence_invalid",
        "{path}: {reason}",
        "A gate decides from evidence about this contract that it can read completely, or not at all.",
        "give results of `kcverify measure --format json` or state files of the contract's monitor",
    ),
    _row(
        "KC609",
        "evidence_reused",
        "{path} was counted before: {where}",
        "E-values multiply on fresh data only. Data that counts twice looks like twice the evidence.",
        "measure on data that no earlier stage has seen, each worker on its own; results of `measure` and states of monitors tell runs apart, a bare report does not",
    ),
    _row(
        "KC610",
        "evidence_stale",
        "evidence of run {run}, and the store is at run {current}",
        "The candidate changed its stage since this evidence was gathered; it must not count for the new one.",
        "start counting from zero, for the run that `Store.state` names",
    ),
    _row(
        "KC611",
        "store_busy",
        "{path} was held by other processes for more than {seconds} s",
        "Writers take turns; one of them did not let go.",
        "try again; find the process that holds the file",
    ),
    _row(
        "KC612",
        "stage_undeclared",
        "the contract `{contract}` has no stage `{stage}`{known}",
        "What a stage needs before it is left stands in the block `promote` of the contract.",
        "add the stage to `promote`, or name one that is there",
    ),
    _row(
        "KC613",
        "state_differs",
        "{path}: the stored state is not what its events give: {detail}",
        "The state is kept so that it need not be computed anew; the events are what counts.",
        "run `kcverify rebuild --repair`",
    ),
    _row(
        "KC614",
        "clock_behind",
        "the clock reads {now}, and the last event is of {last}",
        "Events are in the order of time. A clock that was set back would let a minimum time pass twice, or never.",
        "set the clock right; where the last event's clock was wrong, wait until then, or start another store",
    ),
    _row(
        "KC615",
        "gateway_unreachable",
        "{url}: {reason}",
        "The answer of a running server is needed, and none came that says what was asked for.",
        "check the URL and the token, and that it runs: `curl URL/healthz`",
    ),
)
