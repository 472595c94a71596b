"""The gateway in front of real servers: mirrors, splits, measures, falls back, recovers, survives kill -9."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from gateway_cases import CONTRACT, TOKEN, Load, Process, fault, run, served, serving, whole

from kcverify import driver
from kcverify.delivery.state import State
from kcverify.routing.table import table_of

pytestmark = [pytest.mark.needs("torch"), pytest.mark.slow]
AUTH = {"authorization": f"Bearer {TOKEN}"}


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
    (where / "served.kc").write_text(CONTRACT, encoding="utf-8")
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
        _canary(load, folder)
        _fallback(load, fast)
        _numbers(load, fast)
        before = load.status()
        process.kill()
    with serving(*gateway(exact, fast), cwd=folder) as process:
        load = Load(process.url, load.number)
        after = load.status()
        for name in ("position", "run", "version", "seq"):
            assert after[name] == before[name], name
        assert after["route"]["weights"] == before["route"]["weights"]
        assert after["route"]["salt"] == before["route"]["salt"]
        assert run("history", "--store", "s.db", cwd=folder).returncode == 0
        _rolled_back(load)
    _replayed(folder)


def _shadow(load: Load, folder: Path) -> None:
    """Clients are answered by the safe kernel; the candidate gets copies, and the evidence of them is in the store."""
    answers = load.run(90)
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
    stored = run("gate", "served.kc", "--stage", "shadow", "--store", "s.db", cwd=folder)
    asked = run("gate", "served.kc", "--gateway", load.url, "--token-file", "token", "--format", "json", cwd=folder)
    assert (stored.returncode, asked.returncode) == (0, 0), (stored.stdout, asked.stdout, asked.stderr)
    assert json.loads(asked.stdout)["gate"]["verdict"] == "pass"
    assert run("promote", "served.kc", "--store", "s.db", cwd=folder).returncode == 0


def _canary(load: Load, folder: Path) -> None:
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
    text = httpx.get(f"{load.url}/metrics").text
    assert 'kcverify_observations_total{clause="drift",severity="L3",slice=""}' in text
    assert 'kcverify_stage{stage="canary"} 1.0' in text


def _fallback(load: Load, fast: Process) -> None:
    """A candidate that fails costs no client an answer; the route is left, and taken again after the repair."""
    fault(fast, {"name": "error_500"})
    assert load.until("safe") <= 200
    fault(fast)
    load.until("candidate")
    events = [e for e in load.status()["events"] if e["kind"] in ("failed", "recovered")]
    assert [e["kind"] for e in events][-1] == "recovered" and len(events) <= 4
    failed = [e["body"]["cells"] for e in events if e["kind"] == "failed"]
    assert ["errors"] in failed and all(e["body"]["measured"] > 0 for e in events)


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


SHORT = ("--limit", "first=2")
FAULTS = ("hang", "truncated", "garbage_json", "nan_logits", "crash")


@pytest.mark.parametrize("name", FAULTS)
def test_no_fault_of_the_candidate_reaches_a_client_that_another_could_answer(
    name: str, exact: Process, folder: Path, tmp_path: Path
) -> None:
    """Whole answers only; of a stream that breaks off after its first part the client is told."""
    (tmp_path / "served.kc").write_text(
        CONTRACT.replace("shadow { mirror 100%, for 1 s, min 60 requests }; ", ""), encoding="utf-8"
    )
    (tmp_path / "token").write_text(TOKEN, encoding="utf-8")
    with (
        serving("serve-demo", "--kernel", "float32", "--fault", name, "--admin-token", TOKEN) as bad,
        serving(*gateway(exact, bad, *(SHORT if name == "hang" else ())), cwd=tmp_path) as process,
    ):
        load = Load(process.url)
        answers = [load.one(n) for n in (1, 2, 4, 5, 7, 8, 10, 11, 3, 6, 9, 12)]
        broken = [a for a in answers if not whole(a)]
        assert all(a.status_code == 200 and '"error"' in a.text for a in broken), [a.text for a in broken]
        assert all("event-stream" in a.headers["content-type"] for a in broken)
        load.settled()
        status = load.status()
        if name != "nan_logits":
            assert {served(a)["served"] for a in answers if whole(a)} <= {"guarded", "safe"}
            errors = next(c for c in status["evidence"] if c["clause"] == "errors")
            assert errors["exceeding"] >= 3
        assert status["route"]["route"] != "candidate", status["health"]
