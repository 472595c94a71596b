"""A small world for the tests of provenance: a checkpoint, a kernel, a contract, a result about them, a key, no torch."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from kcverify import driver
from kcverify.elaborate.form import digest
from kcverify.provenance import attest, envelope, keys, verify
from kcverify.provenance import kernels as kernel_fields
from kcverify.provenance import weights as weight_fields
from kcverify.provenance.fingerprint import Fingerprint, fingerprint
from kcverify.source import Source

TEXT = """contract easy version "1"
assume { temperature = 1; sampler = full_softmax; horizon <= 1 tokens; reward in [0, 1] }
slice long = prompt_tokens >= 8
numerical { drift: logit_span <= 2 except 30% -> L2; tail: tv <= 0.9 except 1% on long -> L3 }
guarantee { safe: reward_drift <= 0.9 }
observability { trace request_id, prompt_tokens; fingerprint weights, kernels; replay within 24 h }
"""
DAY = 86_400_000
START = 20_000 * DAY


def shard(path: Path, content: bytes = b"\0" * 8) -> Path:
    """A safetensors file with one float32 tensor."""
    entry = {"a": {"dtype": "F32", "shape": [len(content) // 4], "data_offsets": [0, len(content)]}}
    header = json.dumps({**entry, "__metadata__": {"format": "pt"}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + content)
    return path


def _evidence(p_fail: float | None, p_pass: float | None, kind: str = "share") -> dict[str, Any]:
    return {
        "kind": kind, "requests": 400, "exceeding_rows": 0, "exceeding_requests": 0, "log_e_fail": None, "log_e_pass": None,
        "p_fail": p_fail, "p_pass": p_pass, "log_threshold_fail": 3.0, "requests_needed": 299,
    }  # fmt: skip


EVIDENCE = {
    "pass": _evidence(1.0, 0.01),
    "fail": _evidence(0.01, 1.0),
    "inconclusive": _evidence(0.5, 0.5),
    "unobservable": _evidence(None, None),
    "not_enforced": _evidence(None, None, "none"),
}
"""Numbers of a clause that say what its verdict says."""


@cache
def contract(text: str = TEXT) -> Any:
    """The contract of a text."""
    return driver.load_source(Source("easy.kc", text)).contracts[0]


@cache
def checked(text: str = TEXT) -> Any:
    """The contract of a text, checked."""
    return driver.check(contract(text))


def result(found: Fingerprint, verdicts: tuple[str, str] = ("pass", "pass"), text: str = TEXT) -> dict[str, Any]:
    """What `measure` gives, as far as an attestation reads it."""
    made = contract(text)
    word = "fail" if "fail" in verdicts else "pass" if verdicts == ("pass", "pass") else "inconclusive"
    names = (("drift", None, "L2"), ("tail", "long", "L3"))
    rows = [
        {"name": n, "slice": s, "severity": v, "verdict": w, "evidence": dict(EVIDENCE[w])}
        for (n, s, v), w in zip(names, verdicts, strict=True)
    ]
    return {
        "contract": {"name": made.name, "version": made.version, "digest": digest(made)},
        "pair": {"reference": "exact:run", "candidate": "mykernel:run"},
        "complete": True,
        "verdict": word,
        "measured": {"digest": digest(made), "clauses": rows},
        "provenance": {"trace": ["prompt_tokens", "request_id"], "reference": found.data(), "candidate": found.data()},
    }


@dataclass(frozen=True)
class World:
    """A folder in which everything is attested: call `attest` to sign, `check` to verify."""

    folder: Path
    private: str
    public: str

    @property
    def weights(self) -> Path:
        """The checkpoint, a folder of two shards."""
        return self.folder / "model"

    @property
    def kernel(self) -> Path:
        """The source of the kernel."""
        return self.folder / "mykernel.py"

    @property
    def sidecar(self) -> Path:
        """The attestation."""
        return self.weights / "kcverify.intoto.jsonl"

    def fingerprint(self, **more: Any) -> Fingerprint:
        """What was measured."""
        kernel = kernel_fields.fields(kernel_fields.resolve(str(self.kernel)), "build 1")
        found = kernel_fields.joined(weight_fields.fields([str(self.weights)]), kernel)
        return fingerprint(**{**found, **more})

    def statements(self, made: Mapping[str, Any], text: str = TEXT, **more: Any) -> list[dict[str, Any]]:
        """The statements about a result."""
        path = self.folder / "result.json"
        path.write_text(json.dumps(made))
        setting = attest.Setting(str(path), [str(self.weights)], [str(self.kernel)], START, START + 90 * DAY)
        return attest.statements(checked(text), replace(setting, **more))

    def sign(self, statements: list[dict[str, Any]]) -> bytes:
        """The signed file, written as the sidecar."""
        content = envelope.sign(statements, keys.private_key(self.private))
        self.sidecar.write_bytes(content)
        return content

    def given(self, **more: Any) -> verify.Given:
        """What a careful user compares with."""
        told = {
            "now": START + DAY,
            "contract": contract(),
            "weights": [str(self.weights)],
            "kernels": [str(self.kernel)],
        }
        served = {} if "fingerprint" in more else {"fingerprint": self.fingerprint()}
        return verify.Given(**{**told, **served, **more})

    def check(self, given: verify.Given | None = None, public: str | None = None) -> verify.Verified:
        """Verify the sidecar."""
        return verify.verify(str(self.sidecar), keys.public_key(public or self.public), given or self.given())


def world(folder: Path) -> World:
    """A world with nothing attested yet."""
    (folder / "model").mkdir()
    for name in ("model-1.safetensors", "model-2.safetensors"):
        shard(folder / "model" / name, name.encode()[:16])
    (folder / "model" / "tokenizer.json").write_text("{}")
    (folder / "mykernel.py").write_text("def run(token_ids):\n    raise SystemExit\n")
    private, public = keys.generate(folder / "team.key")
    return World(folder, str(private), str(public))


def slugs(found: verify.Verified) -> list[str]:
    return [d.code.slug for d in found.findings]
