"""The mutation gate: every seeded fault of the table is caught, and the code as it is passes."""

from __future__ import annotations

import pytest
from faults import FAULTS, KERNEL_FAULTS, Fault
from mutated import battery_with, source_of


def test_the_code_as_it_is_passes():
    assert battery_with("enclosure.py", source_of("enclosure.py")) == ""


def test_there_are_enough_faults_of_every_kind():
    assert len({f.name for f in FAULTS}) == len(FAULTS) >= 12
    assert {f.file.split("/")[0] for f in FAULTS} >= {"enclosure.py", "bounds", "prove"}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_the_fault_is_caught(fault: Fault):
    text = source_of(fault.file)
    assert fault.old in text, f"{fault.name}: the text to replace is no longer in {fault.file}; update the table"
    found = battery_with(fault.file, text.replace(fault.old, fault.new, 1), fault.caught_by)
    assert found, f"{fault.name}: no check noticed"
    assert found.split(":")[0] in fault.caught_by, found


def test_kernel_contracts_as_they_are_pass():
    pytest.importorskip("torch")
    assert battery_with("conformance/model.py", source_of("conformance/model.py"), battery="kernel_battery.py") == ""


@pytest.mark.parametrize("fault", KERNEL_FAULTS, ids=lambda f: f.name)
def test_a_fault_of_kernel_contracts_is_caught(fault: Fault):
    pytest.importorskip("torch")
    text = source_of(fault.file)
    assert fault.old in text, f"{fault.name}: the text to replace is no longer in {fault.file}; update the table"
    found = battery_with(
        fault.file, text.replace(fault.old, fault.new, 1), fault.caught_by, battery="kernel_battery.py"
    )
    assert found, f"{fault.name}: no check noticed"
    assert found.split(":")[0] in fault.caught_by, found
