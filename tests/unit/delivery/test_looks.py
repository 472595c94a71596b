"""Files that a gate on a store is shown one after the other: none counts twice, and none is tried until one fits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from delivery_cases import NOON, contract

from kcverify.delivery import evidence, looks, promotion
from kcverify.delivery.evidence import Evidence
from kcverify.delivery.records import Record
from kcverify.delivery.store import Store
from kcverify.diagnostics import InputError
from kcverify.elaborate.form import digest
from kcverify.runtime.sequential import Wealth

ONE = contract("""contract lift version "1"
statistical { parses: parse_rate >= 95% -> L2 }
escalate { L2 -> guard, dwell 10 minutes, recover 200 requests }
promote { offline { min 50 requests }; shadow { for 0 s }; full { stable 24 h } }
""")
LIMIT = 0.049999999999999996


def shown(name: str, requests: int, bad: int) -> Evidence:
    """A file about so many requests."""
    wealth = Wealth()
    wealth.add(0.0, LIMIT, requests - bad)
    wealth.add(1.0, LIMIT, bad)
    found = evidence.of_records(name, ONE, requests, {"parses": Record(LIMIT, wealth, rows=requests, exceeding=bad)})
    return replace(found, files=((name, f"sha of {name}"),))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with promotion.start(str(tmp_path / "s.db"), ONE, NOON) as opened:
        yield opened


def tried(store: Store, *files: Evidence) -> tuple[bool, float | None, str]:
    """Whether a promotion with these files succeeds, the evidence for the clause, and the verdict about it."""
    found = promotion.promote(store, ONE, files, store.state().at + 1)
    cell = found.decision.cells[0]
    return found.moved, cell.log_e_pass, cell.verdict


BAD, LUCKY = shown("bad.json", 200, 14), shown("lucky.json", 200, 1)


def test_a_lucky_file_does_not_undo_those_that_were_shown_before(store: Store) -> None:
    """Each file alone passes a candidate at its limit once in twenty times; a file after file would pass it in the end."""
    assert promotion.gate_files(ONE, "offline", [LUCKY]).verdict == "pass"
    moved, before, _ = tried(store, BAD)
    assert not moved and before is not None and before < 0
    moved, total, verdict = tried(store, LUCKY)
    alone = LUCKY.cells[0].log_e_pass
    assert (moved, verdict) == (False, "inconclusive")
    assert alone is not None and total == pytest.approx(alone + before)


def test_looking_again_costs_nothing(store: Store) -> None:
    """The same files, more of them, or a later and larger one of a good candidate."""
    few = shown("few.json", 30, 0)
    assert not tried(store, few)[0] and not tried(store, few)[0]
    assert [e.kind for e in store.events()] == ["started", "noted"]
    assert tried(store, shown("more.json", 200, 2))[0]


def test_files_that_are_given_again_stand_for_themselves(store: Store) -> None:
    assert not tried(store, BAD)[0]
    alone, together = BAD.cells[0].log_e_pass, LUCKY.cells[0].log_e_pass
    moved, total, _ = tried(store, BAD, LUCKY)
    assert not moved and alone is not None and together is not None
    assert total == pytest.approx(alone + together)
    _, later, _ = tried(store, shown("late.json", 100, 0))
    assert later == pytest.approx(shown("late.json", 100, 0).cells[0].log_e_pass + min(0.0, alone + together))


def test_a_rollback_starts_anew_without_the_files_of_before(store: Store) -> None:
    assert not tried(store, BAD)[0]
    assert promotion.gate_store(store, ONE, [shown("good.json", 300, 0)], NOON + 9).verdict == "pass"
    promotion.rollback(store, NOON + 10)
    for old in (BAD, shown("good.json", 300, 0)):
        with pytest.raises(InputError, match=r"run 1 was (shown|decided with) it"):
            tried(store, old)
    assert tried(store, shown("fresh.json", 200, 2))[0]


def test_a_file_that_decided_a_stage_is_not_fresh_for_the_next(store: Store) -> None:
    """It was only asked about, and the promotion came with another one."""
    asked = shown("asked.json", 200, 1)
    assert promotion.gate_store(store, ONE, [asked], NOON + 1).verdict == "pass"
    assert tried(store, shown("other.json", 60, 0))[0]
    with pytest.raises(InputError, match="run 1 was decided with it"):
        tried(store, asked)
    assert store.rebuild()[1]


def counted(**more: object) -> dict[str, Any]:
    """A result of `measure` about a clause that is only counted."""
    numbers = {"kind": "binary", "requests": 90, "requests_needed": None, "p_fail": None, "p_pass": None, "log_e_fail": -1.0, "log_e_pass": 2.0}  # fmt: skip
    row = {"name": "parses", "slice": None, "verdict": "inconclusive", "reason": "seen", "evidence": numbers}
    report = {"digest": digest(ONE), "looks": "any number of looks", "requests": 90, "clauses": [row]}
    return {"measured": report, **more}


def marked(run: int, data: int) -> dict[str, Any]:
    return counted(run=f"{run:032x}", data={"source": "text.txt", "digest": f"sha256:{data:064x}"})


def read(name: str, result: Mapping[str, Any], **layout: Any) -> Evidence:
    return evidence.read_json(name, json.dumps(result, **layout).encode(), ONE, digest(ONE))


def edited(result: dict[str, Any]) -> dict[str, Any]:
    result["measured"]["clauses"][0]["evidence"]["log_e_pass"] = 1.5
    return result


def test_a_copy_that_is_laid_out_otherwise_is_the_same_file() -> None:
    first = read("0.json", counted())
    for copy in (read("1.json", counted(), indent=2, sort_keys=True), read("2.json", counted()["measured"])):
        with pytest.raises(InputError, match=r"it has the content of 0\.json"):
            promotion.gate_files(ONE, "offline", [first, copy])


def test_results_of_two_workers_that_count_alike_add_up() -> None:
    first, second = read("0.json", marked(1, 1)), read("1.json", marked(2, 2))
    assert promotion.gate_files(ONE, "offline", [first]).verdict == "inconclusive"
    whole = promotion.gate_files(ONE, "offline", [first, second])
    assert (whole.verdict, whole.requests) == ("pass", 180)


@pytest.mark.parametrize(
    ("copy", "reason"),
    [
        (lambda: read("c.json", marked(1, 1)), "has the content of 0.json"),
        (lambda: read("c.json", dict(reversed(marked(1, 1).items())), indent=1), "is of the run that 0.json reports"),
        (lambda: read("c.json", edited(marked(1, 1))), "is of the run that 0.json reports"),
        (lambda: read("c.json", marked(2, 1)), "has the content of 0.json"),
        (lambda: read("c.json", edited(marked(2, 1))), "0.json was measured on the same data"),
        (lambda: read("c.json", counted()), "has the content of 0.json"),
        (lambda: read("c.json", marked(1, 1)["measured"]), "has the content of 0.json"),
    ],
    ids=["renamed", "laid out otherwise", "edited", "measured again", "measured again elsewhere", "without its mark", "the report alone"],
)  # fmt: skip
def test_a_result_counts_once(copy: Callable[[], Evidence], reason: str, store: Store) -> None:
    """In one call in either order, and after a rollback unless another candidate was measured on the same data."""
    first, second = read("0.json", marked(1, 1)), copy()
    with pytest.raises(InputError, match=reason) as refusal:
        promotion.gate_files(ONE, "offline", [first, second])
    assert refusal.value.diagnostics[0].code.slug == "evidence_reused"
    with pytest.raises(InputError, match=r"KC609|counted before"):
        promotion.gate_files(ONE, "offline", [second, first])
    promotion.gate_store(store, ONE, [first], NOON + 1)
    promotion.rollback(store, NOON + 2)
    if "same data" in reason:
        assert promotion.gate_store(store, ONE, [second], NOON + 3).verdict == "inconclusive"
        return
    with pytest.raises(InputError, match="run 1 was shown it"):
        promotion.gate_store(store, ONE, [second], NOON + 3)


def test_a_later_report_of_a_resumed_run_takes_the_place_of_the_first(store: Store) -> None:
    promotion.gate_store(store, ONE, [read("half.json", edited(marked(1, 1)))], NOON + 1)
    assert promotion.gate_store(store, ONE, [read("whole.json", marked(1, 2))], NOON + 2).verdict == "inconclusive"


@pytest.mark.parametrize("run", [7, None, "f" * 31, "F" * 32, "0" * 32 + "\n", ["0" * 32]])
def test_what_is_no_mark_is_refused(run: object) -> None:
    with pytest.raises(InputError, match="is not what `kcverify measure` writes"):
        read("0.json", marked(1, 1) | {"run": run})


def test_a_note_that_was_changed_is_named(store: Store) -> None:
    promotion.noted(store, looks.WHAT, NOON, run=1, files={}, contents=[], against={"parses": "much"})
    with pytest.raises(InputError, match="event 2: it is no note of a look"):
        tried(store, LUCKY)
