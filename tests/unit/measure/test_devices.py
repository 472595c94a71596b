"""Names of devices: those that this torch serves, and those that it only knows."""

from __future__ import annotations

import warnings

import pytest
import torch

from kcverify.diagnostics import InputError
from kcverify.measure import devices


@pytest.mark.parametrize("name", ["mkldnn", "hpu", "ideep", "privateuseone", "lazy", "meta", "nonsense", "", "cpu:x"])
def test_a_device_that_is_not_served_lists_those_that_are(name: str) -> None:
    """Torch answers some names with an internal assert, a missing module or a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InputError) as caught:
            devices.device_of(name)
    [found] = caught.value.diagnostics
    assert found.code.slug == "option_invalid" and f"`{name}`" in found.message
    assert found.hint == f"one of {', '.join(devices.served())}"
    assert "INTERNAL" not in found.message and "torch.hpu" not in found.message and "Caffe2" not in found.message


def test_what_is_served_can_be_used() -> None:
    assert devices.served()[0] == "cpu"
    for name in devices.served():
        assert torch.zeros(1, device=devices.device_of(name)).device.type == name.partition(":")[0]


@pytest.mark.parametrize(
    ("count", "names"), [(1, ("cpu", "cuda")), (2, ("cpu", "cuda", "cuda:0", "cuda:1"))], ids=["one", "two"]
)
def test_accelerators_are_listed(count: int, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)
    assert devices.served() == names
