"""Files that a gate on a store was shown: none counts twice, and what one said against a clause is not forgotten.

A gate may be asked as often as one likes about evidence that grows. A file that takes the place of another is a new start,
and a bad candidate that may start as often as it likes passes once. So each look at files that ended without a promotion is
noted, and a later look at other files takes along what spoke against the pass side: for files that are fresh the product of
both is the e-value, for a later state of the same monitor the later one is, and the sum of what is negative is below either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kcverify.delivery import evidence
from kcverify.delivery.evidence import OF, RUN, Evidence
from kcverify.delivery.state import State
from kcverify.delivery.store import Store
from kcverify.diagnostics import input_error
from kcverify.elaborate.contract import Contract

WHAT = "looked at"
"""What the note is about, as its event says."""


def named(sources: Sequence[Evidence]) -> dict[str, Any]:
    """What an event says of the files that it rests on: paths by SHA-256, and names of what they say."""
    files = {sha: path for source in sources for path, sha in source.files}
    return {"files": files, "contents": [digest for source in sources for digest in source.contents]}


def distinct(sources: Sequence[Evidence], state: State | None = None, store: Store | None = None) -> None:
    """No file may count twice, neither here nor in an earlier run, and no data twice here. Raises InputError:
    `evidence_reused`."""
    seen: dict[str, str] = {}
    measured: dict[str, str] = {}
    before = {} if state is None or store is None else _seen(state, store)
    for source in sources:
        for path, name in (*source.files, *((source.path, content) for content in source.contents)):
            for asked in _asked(name):
                if asked in seen:
                    raise input_error("evidence_reused", path=path, where=_told(name, seen[asked]))
                if asked in before:
                    raise input_error("evidence_reused", path=path, where=before[asked])
            seen |= dict.fromkeys(_kept(name), path)
        if source.data in measured:
            where = f"{measured[source.data]} was measured on the same data, and e-values multiply on fresh data only"
            raise input_error("evidence_reused", path=source.path, where=where)
        measured |= {source.data: source.path} if source.data else {}


_BARE = "without a mark "


def _kept(name: str) -> Iterator[str]:
    """What a name of a content is found under. A report with the mark of its run is also found without it."""
    yield name
    said, of, _ = name.partition(OF)
    if of:
        yield _BARE + said


def _asked(name: str) -> Iterator[str]:
    """What a name is looked up as: two reports that say the same are one, unless each has a mark and data of its own."""
    yield name
    said, of, _ = name.partition(OF)
    if of:
        yield said
    elif not name.startswith(RUN):
        yield _BARE + name


def _told(name: str, path: str) -> str:
    return f"it is of the run that {path} reports" if name.startswith(RUN) else f"it has the content of {path}"


def _seen(state: State, store: Store) -> dict[str, str]:
    """Names of contents and files that earlier runs were shown, and what came of it."""
    told: dict[str, str] = {}
    for body in _notes(store):
        if body["run"] != state.run:
            told |= dict.fromkeys((*body["files"], *body["contents"]), f"run {body['run']} was shown it")
    told |= {name: f"run {run} was decided with it" for name, run in state.used.items() if run != state.run}
    return {kept: what for name, what in told.items() for kept in _kept(name)}


def _notes(store: Store) -> Iterator[Mapping[str, Any]]:
    for event in store.events(kinds=("noted",)):
        body = event.body
        if body.get("what") == WHAT:
            if not _is_note(body):
                raise input_error("event_tampered", path=store.path, seq=event.seq, reason="it is no note of a look")
            yield body


_PARTS = {"run": int, "files": dict, "contents": list, "against": dict}


def _is_note(body: Mapping[str, Any]) -> bool:
    parts = all(type(body.get(name)) is kind for name, kind in _PARTS.items())
    return (
        parts
        and all(type(log) in (int, float) for log in body["against"].values())
        and all(type(name) is str for name in body["contents"])
    )


def _earlier(store: Store, state: State, sources: Sequence[Evidence]) -> list[Mapping[str, Any]]:
    """Looks of this run at files that are not all among those of a later look, or among the given ones."""
    out: list[Mapping[str, Any]] = []
    for body in _notes(store):
        if body["run"] == state.run:
            out = [one for one in out if not set(one["files"]) <= set(body["files"])] + [body]
    given = {sha for source in sources for _, sha in source.files}
    return [one for one in out if not set(one["files"]) <= given]


def against(store: Store, state: State, sources: Sequence[Evidence]) -> dict[str, float] | None:
    """What earlier looks of this run said against the pass side, by cell; None where every one is repeated now."""
    found = _earlier(store, state, sources)
    if not found:
        return None
    out: dict[str, float] = {}
    for body in found:
        for name, log in body["against"].items():
            out[name] = out.get(name, 0.0) + min(0.0, float(log))
    return out


def record(store: Store, state: State, sources: Sequence[Evidence], contract: Contract, now: int) -> None:
    """Note a look at files, once for each set of them."""
    told = named(sources)
    if not told["files"] or any(set(told["files"]) <= set(one["files"]) for one in _earlier(store, state, ())):
        return
    cells = [c for c in evidence.merged(sources, contract) if c.log_e_pass is not None]
    speaking = {
        c.key: max(c.log_e_pass, -evidence.LARGEST) for c in cells if c.log_e_pass is not None and c.log_e_pass < 0
    }
    count = len(told["files"])
    reason = f"{count} {'file was' if count == 1 else 'files were'} looked at"
    store.append("noted", {"what": WHAT, "run": state.run, **told, "against": speaking, "reason": reason}, now)
