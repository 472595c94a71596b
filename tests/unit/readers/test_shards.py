"""Which files a side names, and which shards of two sides belong together."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcverify.diagnostics import InputError
from kcverify.readers.shards import Shard, find, is_several, matched, natural

ENDINGS = (".npy", ".safetensors")


def made(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return folder


def shards(*names: str) -> tuple[Shard, ...]:
    return tuple(Shard(name, Path(name + ".npy")) for name in names)


def names(pairs: object) -> list[tuple[str, str]]:
    return [(a.name, b.name) for a, b in pairs]  # type: ignore[attr-defined]


def test_a_folder_is_read_through_in_the_order_of_numbers(tmp_path: Path) -> None:
    made(tmp_path, "part-10.npy", "part-2.npy", "more/part-1.safetensors", "note.txt", ".part-3.npy", ".cache/a.npy")
    found = find("reference", [str(tmp_path)], ENDINGS)
    assert [s.name for s in found] == ["more/part-1", "part-2", "part-10"]


def test_a_pattern_and_a_list_give_the_same_names(tmp_path: Path) -> None:
    made(tmp_path, "a-1.npy", "a-2.npy", "b-1.npy")
    pattern = find("reference", [str(tmp_path / "a-*.npy")], ENDINGS)
    listed = find("reference", [str(tmp_path / "a-2.npy"), str(tmp_path / "a-1.npy")], ENDINGS)
    assert [s.name for s in pattern] == ["a-1", "a-2"]
    assert [s.name for s in listed] == ["a-2", "a-1"], "named files keep the order given"
    deep = find("reference", [str(made(tmp_path / "x", "u/p.npy", "v/p.npy") / "*" / "p.npy")], ENDINGS)
    assert [s.name for s in deep] == ["u/p", "v/p"]


def test_a_folder_whose_name_looks_like_a_pattern_is_a_folder(tmp_path: Path) -> None:
    made(tmp_path / "run[1]", "a.npy")
    made(tmp_path / "run1", "b.npy")
    assert [s.name for s in find("reference", [str(tmp_path / "run[1]")], ENDINGS)] == ["a"]


def test_a_file_whose_name_looks_like_a_pattern_is_a_file(tmp_path: Path) -> None:
    made(tmp_path, "a[1].npy")
    assert not is_several(str(tmp_path / "a[1].npy"))
    assert is_several(str(tmp_path)) and is_several(str(tmp_path / "a*.npy"))


@pytest.mark.parametrize("spec", ["", "*.npy", "z*"])
def test_nothing_found_is_said(tmp_path: Path, spec: str) -> None:
    made(tmp_path, "a.txt")
    with pytest.raises(InputError, match=r"no file that ends in \.npy or \.safetensors"):
        find("reference", [str(tmp_path / spec)], ENDINGS)


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    made(tmp_path, "a.npy", "a.safetensors")
    with pytest.raises(InputError, match="two shards of the reference are called a"):
        find("reference", [str(tmp_path)], ENDINGS)


@pytest.mark.parametrize(
    ("left", "right", "by", "pairs"),
    [
        (("a", "b"), ("b", "a"), "name", [("a", "a"), ("b", "b")]),
        (("r-1", "r-2"), ("c-2", "c-1"), "number", [("r-1", "c-1"), ("r-2", "c-2")]),
        (("r-001-of-2", "r-002-of-2"), ("c-2-of-2", "c-1-of-2"), "number", [("r-001-of-2", "c-1-of-2"), ("r-002-of-2", "c-2-of-2")]),
        (("v1-1", "v1-2"), ("c-2", "c-1"), "number", [("v1-1", "c-1"), ("v1-2", "c-2")]),
        (("x", "y"), ("u", "w"), "order", [("x", "u"), ("y", "w")]),
        (("run7-a", "run7-b"), ("run8-c", "run8-d"), "order", [("run7-a", "run8-c"), ("run7-b", "run8-d")]),
    ],
)  # fmt: skip
def test_matching(left: tuple[str, ...], right: tuple[str, ...], by: str, pairs: list[tuple[str, str]]) -> None:
    found = matched(shards(*left), shards(*right))
    assert (found.by, names(found.pairs)) == (by, pairs)


@pytest.mark.parametrize(
    ("left", "right", "told"),
    [
        (("a", "b", "c"), ("a", "c"), ["the candidate has no shard of the same name as b.npy"]),
        (("a",), ("a", "b"), ["the reference has no shard of the same name as b.npy"]),
        (("a", "b"), ("a", "c"), ["the candidate has no shard of the same name as b.npy", "the reference has no shard of the same name as c.npy"]),
        (("r-1", "r-2", "r-3"), ("c-1", "c-3"), ["the candidate has no shard of the same number as r-2.npy"]),
        (("x", "y"), ("u",), ["the reference has 2 shards, the candidate 1, and no name occurs in both"]),
        (tuple(f"p{i}" for i in range(9)), ("p0",), ["p1.npy, p2.npy, p3.npy, p4.npy, p5.npy and 3 more"]),
    ],
)  # fmt: skip
def test_a_missing_or_extra_shard_is_named(left: tuple[str, ...], right: tuple[str, ...], told: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        matched(shards(*left), shards(*right))
    messages = [d.message for d in caught.value.diagnostics]
    assert len(messages) == len(told)
    assert all(text in message for text, message in zip(told, messages, strict=True))
    assert {d.code.slug for d in caught.value.diagnostics} == {"shard_mismatch"}


def test_natural_order() -> None:
    assert sorted(["b2", "a10", "a9", "1", "a"], key=natural) == ["1", "a", "a9", "a10", "b2"]
