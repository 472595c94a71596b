"""The gateway in front of real servers: mirrors, splits, measures, falls back, recovers, survives kill -9.

Two gateways share a store; what other systems were told to read and to ask is there under its name.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import yaml
from gateway_cases import CONTRACT, TOKEN, Load, Process, fault, inside, served, serving, whole
from prometheus_client.parser import text_string_to_metric_families

from kcverify import driver
from kcverify.delivery.state import State
from kcverify.gateway.observed import Listed, scored
from kcverify.gateway.settings import Limits
from kcverify.gateway.stepwise import by_steps
from kcverify.gateway.upstream import Upstream
from kcverify.routing.table import table_of

pytestmark = [pytest.mark.needs("torch"), pytest.mark.slow]
AUTH = {"authorization": f"Bearer {TOKEN}"}
LIFE = CONTRACT.replace(
    " }\nruntime {", "\n  gap: mean tv <= 0.5 on long -> L1 }\nslice long = prompt_tokens >= 4\nruntime {"
).replace("escalate {", "escalate {\n  L1 -> log")
"""Every kind of evidence that counters show, and a slice."""


@pytest.fixture(scope="module")
def exact() -> Iterator[Process]:
    with serving("serve-demo", "--kernel", "float32") as server:
        yield server


@pytest.fixture(scope="module")
def fast() -> Iterator[Process]:
    with serving("serve-demo", "--kernel", "bf16", "--admin-token", TOKEN) as server:
        yield server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("gateway")
    (where / "served.kc").write_text(LIFE, encoding="utf-8")
    (where / "token").write_text(TOKEN + "\n", encoding="utf-8")
    return where


def gateway(exact: Process, fast: Process, *more: str) -> list[str]:
    return [
        "gateway", "served.kc", "--reference", exact.url, "--candidate", fast.url, "--store", "s.db", "--port", "0",
        "--admin-token-file", "token", "--log", "log.jsonl", "--limit", "copies=8", *more,
    ]  # fmt: skip


def test_from_shadow_to_canary_through_faults_and_a_kill(exact: Process, fast: Process, folder: Path) -> None:
    """One life of a candidate; each step checks what the one before left in the store."""
    with serving(*gateway(exact, fast), cwd=folder) as process:
        load = Load(process.url)
        _shadow(load, folder)
        _canary(load)
        _shared_names(load, folder)
        with serving(*gateway(exact, fast), cwd=folder) as other:
            _fallback([load, Load(other.url, 100_000)], fast)
        _numbers(load, fast)
        load.settled()
        before = load.status()
        process.kill()
    with serving(*gateway(exact, fast), cwd=folder) as process:
        load = Load(process.url, load.number)
        after = load.status()
        for name in ("position", "run", "version", "seq", "health"):
            assert after[name] == before[name], name
        assert any(row["seen"] and row["log_e"] for row in after["health"]), (
            "the detectors went on, they did not restart"
        )
        assert after["route"]["weights"] == before["route"]["weights"]
        assert after["route"]["salt"] == before["route"]["salt"]
        assert inside(folder, "history", "--store", "s.db")[0] == 0
        _rolled_back(load)
    _replayed(folder)


def _shadow(load: Load, folder: Path) -> None:
    """Clients are answered by the safe kernel; the candidate gets copies, and the evidence of them is in the store."""
    assert hook(load, "confirm-rollout", "shadow") == 425, "nothing was shown yet"
    answers = load.run(80)
    assert all(whole(a) for a in answers)
    assert {served(a)["served"] for a in answers} == {"safe"}
    assert all("mirrored" in served(a) for a in answers)
    assert all("token_ids" not in a.text and "token_id:" not in a.text for a in answers)
    load.settled()
    status = load.status()
    cells = {c["clause"]: c for c in status["evidence"]}
    assert cells["drift"]["requests"] > 60 and cells["drift"]["missing"] == cells["drift"]["invalid"] == 0
    assert cells["drift"]["verdict"] == cells["errors"]["verdict"] == "pass"
    assert status["witnesses"]["drift"][0]["tokens"]
    stored = inside(folder, "gate", "served.kc", "--stage", "shadow", "--store", "s.db")
    asked = inside(folder, "gate", "served.kc", "--gateway", load.url, "--token-file", "token", "--format", "json")
    assert (stored[0], asked[0]) == (0, 0), (stored, asked)
    assert json.loads(asked[1])["gate"]["verdict"] == "pass"
    _argo(load, folder, "shadow")
    assert inside(folder, "promote", "served.kc", "--store", "s.db")[0] == 0


def hook(load: Load, type: str, stage: str) -> int:
    """What Flagger would see of a hook."""
    return load.client.post(
        f"/kcverify/hooks/{type}?stage={stage}", json={"name": "x", "phase": "Progressing"}
    ).status_code


def _argo(load: Load, folder: Path, stage: str) -> None:
    """The generated AnalysisTemplate, asked as Argo's web provider asks."""
    text = inside(folder, "emit", "argo", "served.kc", "--gateway", load.url)[1]
    template = next(t for t in yaml.safe_load_all(text) if t["metadata"]["name"].endswith(stage))
    arguments = {a["name"]: a.get("value", TOKEN) for a in template["spec"]["args"]}
    metric = template["spec"]["metrics"][0]
    web = metric["provider"]["web"]

    def filled(words: str) -> str:
        return re.sub(r"\{\{args\.(\w+)\}\}", lambda m: arguments[m[1]], words)

    headers = {h["key"]: filled(h["value"]) for h in web["headers"]}
    answer = httpx.request(web["method"], filled(web["url"]), headers=headers, json=web["jsonBody"], timeout=60)
    assert answer.status_code == 200 and web["jsonPath"] == "{$.gate}"
    result = answer.json()["gate"]
    assert (result["stage"], result["verdict"]) == (stage, "pass")
    assert f'result.stage == "{stage}" && result.verdict == "pass"' in metric["successCondition"]


def _shared_names(load: Load, folder: Path) -> None:
    """Every metric and label that the generated rules read is on the page that Prometheus scrapes."""
    rules = yaml.safe_load(inside(folder, "emit", "prometheus", "served.kc")[1])
    text = json.dumps([rule["expr"] for group in rules["groups"] for rule in group["rules"]])
    read = set(re.findall(r"\b(kcverify_\w+)\{([^}]*)\}", json.loads(json.dumps(text)).replace('\\"', '"')))
    assert {name for name, _ in read} == {
        "kcverify_observations_total", "kcverify_exceedances_total", "kcverify_invalid_total", "kcverify_unobservable_total",
        "kcverify_log_wealth",
    }  # fmt: skip
    families = text_string_to_metric_families(httpx.get(f"{load.url}/metrics").text)
    samples = [sample for family in families for sample in family.samples]
    for name, matchers in read:
        wanted = re.findall(r'(\w+)=(~?)"([^"]*)"', matchers)
        found = [s for s in samples if s.name == name and all(_matches(s.labels, w) for w in wanted)]
        assert found, (name, matchers)
        assert set(found[0].labels) == {"contract", "clause", "slice"} | (
            {"side", "bet"} if "wealth" in name else set()
        )
    value = {(s.name, s.labels["clause"]): s.value for s in samples if "clause" in s.labels}
    assert value["kcverify_observations_total", "drift"] >= 80 and value["kcverify_invalid_total", "drift"] == 0
    cells = {c["clause"]: c for c in load.status()["evidence"]}
    assert value["kcverify_observations_total", "gap"] >= cells["gap"]["requests"] > 0


def _matches(labels: dict[str, str], wanted: tuple[str, str, str]) -> bool:
    name, pattern, text = wanted
    return name in labels and bool(re.fullmatch(text if pattern else re.escape(text), labels[name]))


def _canary(load: Load) -> None:
    """Half of the requests go to the candidate, by the hash that the table gives."""
    while load.status()["position"] != "canary":
        load.run(1)
    answers = load.run(40)
    sides = [served(a)["side"] for a in answers]
    assert all(whole(a) for a in answers)
    assert 8 < sides.count("candidate") < 32
    assert all(served(a)["served"] == served(a)["side"] for a in answers)
    assert all("logprobs" not in a.json()["choices"][0] or a.json()["choices"][0]["logprobs"] is None
               for a in answers if "json" in a.headers["content-type"])  # fmt: skip
    asked = load.client.post("/v1/completions", json={"model": "demo", "prompt": [97], "max_tokens": 2, "logprobs": 2})
    assert len(asked.json()["choices"][0]["logprobs"]["token_logprobs"]) == 2
    load.settled()
    assert 'kcverify_stage{stage="canary"} 1.0' in httpx.get(f"{load.url}/metrics").text
    assert hook(load, "confirm-rollout", "shadow") == 200, "the store is beyond the shadow stage"
    assert hook(load, "rollback", "canary") == 425
    assert hook(load, "confirm-rollout", "canary") == hook(load, "no-such", "canary") == 404


def _fallback(loads: list[Load], fast: Process) -> None:
    """A candidate that fails costs no client an answer; two gateways leave its route together, and return together.

    Their evidence is one, and each move is recorded once, whoever saw it first.
    """
    first = loads[0]
    seq = first.status()["seq"]
    fault(fast, {"name": "error_500"})
    _both(loads, "safe")
    fault(fast)
    _both(loads, "candidate")
    for load in loads:
        load.settled()
    for load in loads:  # each writes what it has before it answers
        load.status()
    one, two = (load.status() for load in loads)
    assert one["evidence"] == two["evidence"] and one["writer"] != two["writer"]
    assert one["route"]["weights"] == two["route"]["weights"] and one["route"]["salt"] == two["route"]["salt"]
    counted = next(c for c in one["evidence"] if c["clause"] == "errors")
    assert counted["requests"] > max(one["traffic"]["measured"], two["traffic"]["measured"]) - 80
    events = [e for e in one["events"] if e["seq"] > seq and e["kind"] in ("failed", "recovered")]
    told = [(e["kind"], *e["body"]["cells"]) for e in events]
    assert ("failed", "errors") in told and len(set(told)) == len(told), told
    assert [e["kind"] for e in events].count("recovered") == 1 and all(e["body"]["measured"] > 0 for e in events)


def _both(loads: list[Load], wanted: str, most: int = 1200) -> None:
    """Requests to both until both have the route."""
    start = sum(load.number for load in loads)
    while {load.status()["route"]["route"] for load in loads} != {wanted}:
        assert sum(load.number for load in loads) - start < most, [load.status()["events"][-3:] for load in loads]
        for load in loads:
            answers = load.run(16)
            assert all(whole(a) for a in answers), [a.text[:200] for a in answers if not whole(a)]


def _numbers(load: Load, fast: Process) -> None:
    """Answers that look right and are not: the numbers of the reference tell."""
    fault(fast, {"name": "scaled_logits", "value": 0.1})
    assert load.until("safe") <= 200
    last = [e for e in load.status()["events"] if e["kind"] == "failed"][-1]
    assert "drift" in last["body"]["cells"]
    fault(fast)


def _rolled_back(load: Load) -> None:
    assert load.client.post("/admin/rollback", json={}).status_code == 401
    assert load.client.post("/admin/rollback", content=b"{}", headers=AUTH).status_code == 409
    paused = load.client.post("/admin/pause", json={"reason": "look"}, headers=AUTH)
    assert paused.json()["route"]["weights"] == {"safe": "1"}
    back = load.client.post("/admin/rollback", json={"reason": "wrong weights"}, headers=AUTH)
    assert (back.json()["position"], back.json()["paused"]) == ("shadow", False)
    assert load.status()["events"][-1]["body"]["reason"] == "wrong weights"


def _replayed(folder: Path) -> None:
    """The split of every logged request follows from its salt, id and weights alone."""
    contract = driver.load_source(driver.read_source(str(folder / "served.kc")), {}).contracts[0]
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(lines) > 200
    state = _state(folder)
    for line in lines:
        table = table_of(contract, state, salt=line["salt"])
        place = table.routed(line["request_id"]).place
        share = share_of(line["weights"].get("candidate", "0"))
        if set(line["weights"]) <= {"candidate", "safe"}:
            assert line["side"] == ("candidate" if place < share * 2**64 else "safe")
        assert line["seed"] is not None or line["request_id"].isalnum()
        assert line["status"] == 200 and len(line["body_sha256"]) == 64


def share_of(text: str) -> float:
    a, _, b = text.partition("/")
    return int(a) / int(b or 1)


def _state(folder: Path) -> State:
    from kcverify.delivery.store import Store

    with Store(str(folder / "s.db")) as store:
        return store.verify()


def test_tokens_asked_one_by_one_have_the_numbers_of_one_question(exact: Process) -> None:
    """`prompt_logprobs`, and the next token's list at each position: the same numbers where both have them."""
    prompt, tokens, top = [116, 104, 101, 32], (99, 97, 116, 10), 5

    async def both() -> tuple[Listed | None, Listed | None]:
        server = Upstream.at("reference", exact.url, Limits())
        await server.learn()
        body = {"model": "demo", "prompt": [*prompt, *tokens], "max_tokens": 1, "prompt_logprobs": top}
        found = (await server.client.post("/v1/completions", json=body, timeout=60)).json()
        steps, claims = await by_steps(server, None, prompt, tokens, top, {"content-type": "application/json"})
        await server.client.aclose()
        assert claims.model and claims.vocabulary == 256
        return scored(found, len(prompt), tokens, top), steps

    whole, steps = asyncio.run(both())
    assert whole is not None and steps is not None
    np.testing.assert_array_equal(np.sort(whole.ids), np.sort(steps.ids))
    np.testing.assert_allclose(np.sort(whole.top), np.sort(steps.top), atol=1e-5)
    known = ~np.isnan(steps.logprobs)
    assert known.tolist() == [t in row for t, row in zip(tokens, steps.ids.tolist(), strict=True)]
    np.testing.assert_allclose(whole.logprobs[known], steps.logprobs[known], atol=1e-5)
    assert not np.isnan(whole.logprobs).any() and not steps.broken.any()


PAGE = (Path(__file__).parents[2] / "docs" / "gateway.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)(?: file=(\S+))?\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_the_page_does_what_it_says(exact: Process, fast: Process, tmp_path: Path) -> None:
    """Every command and program of docs/gateway.md, in order; the demo servers are those that run here already."""
    ports = {"8001": exact.url, "8002": fast.url}
    with contextlib.ExitStack() as running:
        for kind, name, body in BLOCKS:
            for port, url in ports.items():
                body = body.replace(f"http://127.0.0.1:{port}", url)
            if kind == "kc":
                (tmp_path / name).write_text(body, encoding="utf-8")
            elif kind == "python":
                out = io.StringIO()
                with contextlib.redirect_stdout(out):
                    exec(compile(body, "gateway.md", "exec"), {})
            elif kind == "text":
                assert body == out.getvalue()
            else:
                for line, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", body, re.MULTILINE):
                    _told(shlex.split(line), shown.splitlines(), tmp_path, ports, running)
    assert {"8001", "8002", "8080"} == set(ports)


def _told(
    words: list[str], shown: list[str], folder: Path, ports: dict[str, str], running: contextlib.ExitStack
) -> None:
    """One command of the page: what it prints holds every line that is shown."""
    if words[:2] == ["kcverify", "serve-demo"]:
        kernel = {"8001": "float32", "8002": "bf16"}[words[5]]
        assert words == ["kcverify", "serve-demo", "--kernel", kernel, "--port", words[5], "&"]
        return
    if words[:2] == ["kcverify", "gateway"]:
        assert words.pop() == "&" and words[words.index("--port") + 1] == "8080"
        words[words.index("--port") + 1] = "0"
        process = running.enter_context(serving(*words[1:], cwd=folder))
        ports["8080"] = process.url
        assert shown == [f"listening on http://127.0.0.1:8080, {process.rest}"]
        return
    end = time.monotonic() + 60
    while True:
        code, out = (0, httpx.get(words[1]).text) if words[0] == "curl" else inside(folder, *words[1:])
        if (code == 0 and all(line in out for line in shown)) or time.monotonic() > end:
            break
        time.sleep(0.1)
    assert code == 0 and all(line in out for line in shown), (words, out)


FAULTS = ("hang", "truncated", "garbage_json", "nan_logits", "crash")
"""The last one ends the server."""


def test_no_fault_of_the_candidate_reaches_a_client_that_another_could_answer(fast: Process, tmp_path: Path) -> None:
    """Whole answers only; of a stream that breaks off after its first part the client is told.

    The reference gives no `prompt_logprobs`, so that it is asked token by token.
    """
    text = CONTRACT.replace("shadow { mirror 100%, for 1 s, min 60 requests }; ", "")
    (tmp_path / "served.kc").write_text(text, encoding="utf-8")
    (tmp_path / "token").write_text(TOKEN, encoding="utf-8")
    with (
        serving(str(Path(__file__).with_name("plain_engine.py")), "--kernel", "float32") as plain,
        serving(*gateway(plain, fast, "--limit", "first=2"), cwd=tmp_path) as process,
    ):
        load = Load(process.url)
        load.run(12)
        load.settled()
        status = load.status()
        drift = next(c for c in status["evidence"] if c["clause"] == "drift")
        assert drift["requests"] > 0 and drift["missing"] == drift["invalid"] == drift["exceeding"] == 0
        assert status["traffic"]["counts"]["stepwise_reference"] == 1
        for name in FAULTS:
            _usable(load)
            fault(fast, {"name": name})
            _faulty(load, name)
            if name != "crash":
                fault(fast)


def _usable(load: Load) -> None:
    """The candidate is back in its first place, and known to answer."""
    assert load.client.post("/admin/rollback", json={}, headers=AUTH).status_code == 200
    end = time.monotonic() + 60
    while not load.status()["upstreams"]["candidate"]["up"]:
        assert time.monotonic() < end, load.status()["upstreams"]
        load.run(4)
    load.settled()
    assert load.client.post("/admin/rollback", json={}, headers=AUTH).json()["route"]["route"] == "candidate"


def _faulty(load: Load, name: str) -> None:
    answers = [
        load.one(n) for n in (1, 2, 4, 5, 7, 8, 10, 11, 3, 6, 9, 12)
    ]  # none of them ends before a cut would show
    broken = [a for a in answers if not whole(a)]
    assert all(a.status_code == 200 and '"error"' in a.text for a in broken), [a.text for a in broken]
    assert all("event-stream" in a.headers["content-type"] for a in broken)
    load.settled()
    status: dict[str, Any] = load.status()
    if name != "nan_logits":
        pieces = [a for a in answers if whole(a) and "event-stream" not in a.headers["content-type"]]
        assert {served(a)["served"] for a in pieces} <= {"guarded", "safe"}, "a stream may begin at the candidate"
        errors = next(c for c in status["evidence"] if c["clause"] == "errors")
        assert errors["exceeding"] >= 3, name
    assert status["route"]["route"] != "candidate", (name, status["health"])
