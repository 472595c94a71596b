"""The table of faults: every row takes its own default, texts and JSON say the same, shares strike at their rate."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from kcverify.diagnostics import InputError
from kcverify.serving.faults import KINDS, Behaviour, Faults, fault, read_fault, read_faults


@pytest.mark.parametrize("row", KINDS, ids=lambda row: row.name)
def test_a_row_changes_something_and_takes_its_default(row):
    assert row.read(row.default) == row.default
    assert bool(row.value) == (row.default is not None)
    found = read_fault(row.name if row.default is None else f"{row.name}={row.default}")
    assert found == fault(row.name) == read_faults({"name": row.name})[0]
    faults = Faults([found])
    assert faults.behaviour() != Behaviour()
    assert (faults.whole() == Behaviour()) == row.by_request
    with pytest.raises(InputError):
        read_fault(f"{row.name}=no such value")
    if row.by_request:
        assert read_fault(f"{row.name}@0.25").share == 0.25
    else:
        with pytest.raises(InputError, match="all requests or none"):
            read_fault(f"{row.name}@0.25")


@pytest.mark.parametrize(
    "text",
    ["", "=3", "slow=", "slow=nan", "slow=-1", "slow@2", "slow@", "crash=1.5", "error_500=200", "@0.5", "slow=inf"],
)
def test_what_is_no_fault_is_refused(text):
    with pytest.raises(InputError) as found:
        read_fault(text)
    assert found.value.diagnostics[0].code.slug == "option_invalid"


@pytest.mark.parametrize(
    "value",
    [
        None,
        3,
        "slow",
        {"name": ["slow"]},
        {"name": "slow", "value": [1]},
        {"name": "slow", "x": 1},
        [{}],
        {"name": "slow", "value": True},
    ],
)
def test_json_that_is_no_fault_is_refused(value):
    with pytest.raises(InputError):
        read_faults(value)


def test_shares_strike_at_their_rate_and_alike_in_every_run():
    def struck() -> list[bool]:
        faults = Faults([fault("error_500", None, 0.03), fault("slow", 0, 0.5)])
        return [faults.behaviour().error is not None for _ in range(4000)]

    assert struck() == struck()
    assert 80 <= sum(struck()) <= 165
    assert read_faults({}) == read_faults([]) == []
