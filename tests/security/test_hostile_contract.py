"""Hostile words at every place of a contract, through every output: refused with a diagnostic, or still text."""

from __future__ import annotations

import ast
import io
import json
import re
import sqlite3
import types
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hostile_output import OWN, Tags, shape
from hostile_words import MARK, ONE_LINE, WORDS, unprintable

from kcverify import driver
from kcverify.cli import main
from kcverify.render import render_all
from kcverify.source import Source

BASE: dict[str, Any] = {
    "language": "1.0",
    "contracts": [
        {
            "kind": "pair", "name": "words", "version": "1", "description": "plain",
            "pair": {role: {"name": role, "kernel": role} for role in ("reference", "candidate", "guarded", "safe")},
            "assume": {"temperature": ["1", "1"]},
            "slices": {"s0": 'tag("word")', "s1": 'region == "word"'},
            "numerical": {
                "drift": {"metric": "logit_span", "at_most": "40", "except": "20%", "severity": "L2"},
                "far": {"metric": "tv", "at_most": "0.99", "slices": ["s0", "s1"], "severity": "L3"},
            },
            "runtime": {"errors": {"metric": "failure_rate", "at_most": "20%", "severity": "L2"}},
            "observability": {"trace": ["request_id", "region", "prompt_tokens"]},
            "guarantee": {"g": {"metric": "tv", "at_most": "1", "except": "20%"}},
            "escalate": {
                "L2": {"action": "guard", "dwell": "10 minutes", "recover": "200 requests"}, "L3": {"action": "rollback"},
            },
            "promote": {
                "offline": {"min": "50 requests"}, "shadow": {"for": "0 s"}, "canary": {"traffic": ["1%", "5%"]}, "full": {"stable": "24 h"},
            },
        }
    ],
}  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], bool]]:
    """Every text of the form: the way to it, and whether it is a key."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key), True
            yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from places(inner, (*path, index))
    else:
        yield path, False


def replaced(path: tuple[Any, ...], key: bool, word: str) -> Any:
    """The form with one text replaced; a name inside a slice's predicate is replaced inside it."""
    form = json.loads(json.dumps(BASE))
    inner = form
    for step in path[:-1]:
        inner = inner[step]
    if key:
        form_items = list(inner.items())
        inner.clear()
        inner.update({word if k == path[-1] else k: v for k, v in form_items})
    else:
        old = inner[path[-1]]
        inner[path[-1]] = old.replace('"word"', f'"{word}"') if isinstance(old, str) and '"word"' in old else word
    return form


ACCEPTED = {("version",), ("description",), ("kernel",), ("slices",)}
"""Where free text may stand: the last named step of the way."""


@pytest.mark.parametrize("place", list(places(BASE)), ids=lambda p: ".".join(map(str, p[0])) + (":key" if p[1] else ""))
def test_every_place_refuses_or_keeps_a_word(place: tuple[tuple[Any, ...], bool]) -> None:
    path, key = place
    for word in WORDS:
        loaded = driver.load_source(Source("c.json", json.dumps(replaced(path, key, word))))
        shown = render_all(loaded.report.diagnostics, color=False)
        assert not unprintable(shown), (word, shown)
        assert len(shown) < 20_000, (word, len(shown))
        if not loaded.report.errors and word not in ("", "yes", "null"):
            assert word in json.dumps(list(map(str, loaded.contracts)), ensure_ascii=False) or loaded.contracts


def combined(words: tuple[str, ...]) -> dict[str, Any]:
    """A contract with words at every place where free text may stand."""
    form = json.loads(json.dumps(BASE))
    made = form["contracts"][0]
    rounds = [words[i % len(words)] for i in range(6)]
    made["version"], made["description"] = rounds[0], rounds[1]
    for role, word in zip(made["pair"].values(), rounds[2:], strict=True):
        role["kernel"] = word
    made["slices"] = {f"s{i}": f'tag("{w}")' for i, w in enumerate(words)} | {
        f"r{i}": f'region == "{w}"' for i, w in enumerate(words[:6])
    }
    made["numerical"]["far"]["slices"] = list(made["slices"])
    return dict(form)


GROUPS = [ONE_LINE[i::3] for i in range(3)]
Run = Callable[..., tuple[int, str, str]]


NODES = {
    ast.Module, ast.Expr, ast.Constant, ast.ImportFrom, ast.alias, ast.ClassDef, ast.FunctionDef, ast.arguments, ast.arg, ast.Assign,
    ast.AnnAssign, ast.Name, ast.Attribute, ast.Call, ast.keyword, ast.Tuple, ast.List, ast.Dict, ast.Set, ast.Load, ast.Store, ast.Return,
    ast.Subscript, ast.Slice, ast.UnaryOp, ast.USub, ast.Not, ast.Invert, ast.BinOp, ast.BitOr, ast.BitAnd, ast.Mult, ast.Add, ast.Sub, ast.Div,
    ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Is, ast.IsNot, ast.In, ast.If, ast.IfExp, ast.BoolOp, ast.And, ast.Or,
    ast.GeneratorExp, ast.ListComp, ast.DictComp, ast.comprehension, ast.Starred, ast.For, ast.Raise, ast.AugAssign,
}  # fmt: skip
"""What generated code is made of: no import but of names, no global, no lambda, no template string, no `with`, no `try`."""
BUILTINS = {"frozenset", "super", "dict", "tuple", "list", "set", "len", "max", "min", "float", "int", "str", "bool", "all", "any",
            "sum", "zip", "range", "ValueError", "property", "enumerate", "abs", "object", "type", "isinstance", "staticmethod"}  # fmt: skip


def inert(source: str, modules: tuple[str, ...]) -> None:
    """Only allowed nodes, imports and names in the source of a generated module."""
    tree = ast.parse(source)
    assert {type(n) for n in ast.walk(tree)} <= NODES, {type(n).__name__ for n in ast.walk(tree)} - {
        n.__name__ for n in NODES
    }
    known = set(BUILTINS)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.module in modules, node.module
            known |= {a.asname or a.name for a in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            known.add(node.name)
        elif isinstance(node, ast.arg):
            known.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            known.add(node.id)
    loaded = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    assert loaded <= known, loaded - known
    attributes = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    assert not [a for a in attributes if a.startswith("__") and a != "__init__"], attributes
    assert source.isascii() and not unprintable(source)


def executed(source: str) -> types.ModuleType:
    module = types.ModuleType("generated")
    exec(compile(source, "<generated>", "exec"), module.__dict__)
    return module


TARGETS = ("prometheus", "argo", "flagger", "openslo")


@pytest.mark.parametrize("words", GROUPS, ids=range(len(GROUPS)))
def test_every_output_of_a_hostile_contract_is_still_text(words: tuple[str, ...], run: Run, tmp_path: Path) -> None:
    plain = tuple(f"plain{i}" for i in range(len(words)))
    Path("plain.json").write_text(json.dumps(combined(plain)))
    Path("c.json").write_text(json.dumps(combined(words)))
    loaded = driver.load_source(Source("c.json", Path("c.json").read_text()))
    assert not loaded.report.errors
    run("check", "c.json")
    documents = [json.loads(run("check", "c.json", "--format", form)[1]) for form in ("json", "sarif")]
    assert documents[1]["version"] == "2.1.0"
    ElementTree.fromstring(run("check", "c.json", "--format", "junit")[1])
    lines = [run("check", name, "--format", "github")[1].splitlines() for name in ("c.json", "plain.json")]
    assert [line.split(" ")[0] for line in lines[0]] == [line.split(" ")[0] for line in lines[1]]
    for form in ("kc", "yaml", "json"):
        run("convert", "c.json", "--to", form, "-o", f"again.{form if form != 'json' else 'contract.json'}")
    run("diff", "c.json", "again.kc")
    run("check", "c.json", "--certificate", "certificate.json", "--coq", "proof.v")
    run("certificate", "check", "certificate.json", "--contract", "c.json")
    run("compile", "c.json", "-o", "monitor.py")
    inert(Path("monitor.py").read_text(), ("kcverify.runtime", "__future__"))
    executed(Path("monitor.py").read_text()).ContractMonitor()
    for target in TARGETS:
        shapes = []
        for name in ("c.json", "plain.json"):
            out = run("emit", target, name)[1]
            shapes.append(shape(list(yaml.safe_load_all(io.StringIO(out)))))
        assert shapes[0] == shapes[1], target
    run("promote", "c.json", "--store", "s.db")
    for command in ("status", "history", "rebuild"):
        run(command, "--store", "s.db")
    run("status", "--store", "s.db", "--format", "json")
    run("route", "http-route", "c.json", "--store", "s.db")
    db = sqlite3.connect("s.db")
    assert {"events", "state", "evidence", "writers"} <= {n for (n,) in db.execute("SELECT name FROM sqlite_master")}
    db.close()
    assert not list(tmp_path.rglob(f"*{MARK}*"))


def test_a_page_of_hostile_requests_has_the_tags_of_a_plain_one(run: Run, tmp_path: Path) -> None:
    """Names and tags of requests, the names of the files, the contract's own words: one run on the real model."""
    pages = []
    for name, words in (("plain", [f"word{i}" for i in range(len(WORDS))]), ("hostile", list(WORDS))):
        folder = tmp_path / name
        folder.mkdir()
        contract = combined(("plain",)) if name == "plain" else combined(("</script><img src=x onerror=alert(1)>",))
        (folder / "c.json").write_text(json.dumps(contract))
        data = folder / (
            "plain.jsonl"
            if name == "plain"
            else "-rf $(touch pwned) `x` <img src=x onerror=alert(1)> {{7*7}}\u202e.jsonl"
        )
        lines = [
            {
                "request_id": w[:100] or f"r{i}",
                "token_ids": [1, 2, 3 + i],
                "prompt_tokens": 1,
                "tags": [w[:100]],
                "region": w[:100],
            }
            for i, w in enumerate(words)
        ]
        rows = {line["request_id"]: line for line in lines}.values()
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        page = folder / "page.html"
        out = run(
            "measure", str(folder / "c.json"), "--reference", "demo:float32", "--candidate", "demo:int8", "--data", str(data),
            "--report", str(page), "--format", "json", "--witnesses", str(folder / "witnesses.jsonl"),
        )[1]  # fmt: skip
        (folder / "result.json").write_text(out)
        for target in ("cloudevents", "github", "junit", "sarif"):
            written = run("emit", target, str(folder / "c.json"), "--result", str(folder / "result.json"))[1]
            assert written.strip(), target
        pages.append(page.read_text(encoding="utf-8"))
    assert Tags(pages[1]).found - OWN <= Tags(pages[0]).found
    assert not unprintable(pages[1])
    assert not re.search(r"<img|<svg/|onerror=alert\(1\)>", pages[1])
    assert not list(tmp_path.rglob(MARK))


def test_masks_of_a_hostile_contract_are_inert(run: Run, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "contracts" / "rl_rollout.kc").read_text(encoding="utf-8")
    text = re.sub(r"guarantee \{.*?\n\}", "", text, flags=re.DOTALL)
    for a, b, c in zip(ONE_LINE[::3], ONE_LINE[1::3], ONE_LINE[2::3], strict=False):
        word = (a, b, c)
        changed = (
            text.replace('"1.2"', f'"{a}"').replace('tag("structured")', f'tag("{b}")').replace('"vllm-fp8"', f'"{c}"')
        )
        Path("c.kc").write_text(changed, encoding="utf-8", errors="surrogatepass")
        with pytest.raises(SystemExit) as stop:
            main(["compile", "c.kc", "-o", "monitor.py", "--rl", "masks.py"])
        assert stop.value.code in (0, 2), word
        if stop.value.code == 0:
            inert(
                Path("masks.py").read_text(),
                ("kcverify.rl", "kcverify.rl.enforce", "__future__", "torch", "typing", "collections.abc"),
            )
    assert not list(tmp_path.rglob(MARK))
