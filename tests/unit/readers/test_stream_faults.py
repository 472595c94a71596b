"""Every way in which a file can be wrong gives its code, its place and a hint."""

from __future__ import annotations

import json
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stream_files import DATA, batch, lines, safetensors

from kcverify.diagnostics import Diagnostic, InputError
from kcverify.readers import documents, table
from kcverify.readers.opening import open_stream
from kcverify.readers.sidecar import SUFFIX


def fault(path: Path, *declare: str) -> Diagnostic:
    with pytest.raises(InputError) as caught:
        list(open_stream(path, declare).requests())
    (found,) = caught.value.diagnostics
    assert found.hint
    return found


def output(**changes: Any) -> dict[str, Any]:
    return {
        "outputs": [{"token_ids": [1, 2], "logprobs": [{"1": {"logprob": -1.0}}, {"2": {"logprob": -2.0}}]} | changes]
    }


def content(*items: Any) -> dict[str, Any]:
    return {"choices": [{"logprobs": {"content": list(items)}}]}


GOOD = output()
DOCUMENTS: dict[str, tuple[Any, str, str]] = {
    "ids against logprobs": (output(token_ids=[1]), "stream_length", "outputs[0].logprobs: 1 token ids, 2 log-probabilities"),
    "no logprobs": (output(logprobs=None), "stream_invalid", "it has no `logprobs`"),
    "id negative": (output(token_ids=[1, -2]), "stream_value", "outputs[0].token_ids[1]: token id -2 is outside"),
    "id beyond 64 bit": (output(token_ids=[1, 2**70]), "stream_value", "is outside the vocabulary"),
    "id a fraction": (output(token_ids=[1, 2.0]), "stream_value", "2.0 is not a token id"),
    "id a flag": (output(token_ids=[True, 2]), "stream_value", "True is not a token id"),
    "id a text": (output(token_ids=["1", 2]), "stream_value", "'1' is not a token id"),
    "logprob a text": (output(logprobs=[{"1": {"logprob": "-1"}}, None]), "stream_value", "'-1' is not a number"),
    "logprob huge": (output(logprobs=[{"1": {"logprob": 10**400}}, None]), "stream_value", "beyond 1e308"),
    "logprob a list": (output(logprobs={"1": 2}), "stream_invalid", "is not a list"),
    "key no id": (output(logprobs=[{"x": {"logprob": -1.0}}, None]), "stream_value", "'x' is not a token id"),
    "token twice": (output(logprobs=[{"1": {"logprob": -1.0}, "01": {"logprob": -2.0}}, None]), "token_repeated", "token 1 is there twice"),
    "flat ranges": (
        output(logprobs={"start_indices": [0, 1], "end_indices": [1, 9], "token_ids": [1, 2], "logprobs": [-1.0, -2.0]}),
        "stream_value", "1 to 9 is no range of the 2 entries",
    ),
    "no such choice": ({"choices": [3]}, "stream_unknown", "`choices`"),
    "an error": ({"object": "error", "message": "out of memory", "code": 500}, "stream_invalid", "the engine answered with an error"),
    "an error in a batch": ({"custom_id": "a", "response": None, "error": {"message": "no"}}, "stream_invalid", "the engine answered with an error: 'no'"),
    "content entry": (content({"token": "a", "logprob": -1.0}, 5), "stream_invalid", "content[1]: 5 is not an object"),
    "content without token": (content({"logprob": -1.0}), "stream_invalid", "neither `token` nor `id`"),
    "content id": (content({"id": 1.5, "token": "a", "logprob": -1.0}), "stream_value", "1.5 is not a token id"),
    "parallel lists": (
        {"choices": [{"logprobs": {"tokens": ["a"], "token_logprobs": [-1.0, -2.0]}}]}, "stream_length", "1 tokens, 2 log-probabilities",
    ),
    "sglang pair": ({"meta_info": {"output_token_logprobs": [[-1.0]]}}, "stream_invalid", "is not [log-probability, token id, text]"),
    "sglang parallel": (
        {"meta_info": {"output_token_logprobs_val": [-1.0], "output_token_logprobs_idx": []}}, "stream_length",
        "1 output_token_logprobs_val, 0 output_token_logprobs_idx",
    ),
    "sglang ids": (
        {"output_ids": [4], "meta_info": {"output_token_logprobs": [[-1.0, 3, None]]}}, "stream_value", "token 4, and the log-probability is that of 3",
    ),
    "two numbers for one token": (
        {"meta_info": {"output_token_logprobs": [[-1.0, 3, None]], "output_top_logprobs": [[[-1.0, 3, None], [-2.0, 3, None]]]}},
        "token_repeated", "token 3 has log-probability -1 and -2",
    ),
    "probability": ({"completion_probabilities": [{"id": 1, "token": "a", "prob": 1.5}]}, "stream_value", "1.5 is not a probability"),
    "mask": (
        {"token_ids": [1], "mask": [2], "logprobs": [-1.0]}, "stream_value", "mask[0]: 2 is not 0 or 1",
    ),
    "mask length": ({"token_ids": [1], "mask": [1, 1], "logprobs": [-1.0]}, "stream_length", "1 logprobs, 1 token_ids, 2 mask"),
    "written length": ({"generation_logprobs": [0.0], "input_lengths": 4}, "stream_length", "4 tokens, and 1 log-probabilities"),
    "unknown": ({"loss": 1.0}, "stream_unknown", "its first record has the keys `loss`"),
}  # fmt: skip


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_wrong_document(name: str, tmp_path: Path) -> None:
    value, slug, text = DOCUMENTS[name]
    found = fault(lines(tmp_path / "a.jsonl", value))
    assert found.code.slug == slug
    assert text in found.message
    assert "a.jsonl" in found.message


@pytest.mark.parametrize("name", [n for n in DOCUMENTS if n not in ("unknown", "no such choice")])
def test_a_wrong_document_on_a_later_line_says_which(name: str, tmp_path: Path) -> None:
    value, slug, _ = DOCUMENTS[name]
    first = {
        "choices": content({"token": "a", "logprob": -1.0, "top_logprobs": []}),
        "meta_info": {"meta_info": {"output_token_logprobs": [[-1.0, 3, None]]}},
        "completion_probabilities": {"completion_probabilities": []},
        "mask": {"token_ids": [1], "mask": [1], "logprobs": [-1.0]},
        "generation_logprobs": {"generation_logprobs": [-1.0]},
    }
    good = next((v for k, v in first.items() if k in value), GOOD)
    found = fault(lines(tmp_path / "a.jsonl", good, value))
    assert found.code.slug == slug or found.code.slug == "stream_invalid"
    assert "line 2" in found.message


TEXTS: dict[str, tuple[bytes, str, str]] = {
    "empty": (b"", "file_empty", "is empty"),
    "blank": (b" \n \n", "file_empty", "is empty"),
    "empty list": (b"[]", "file_empty", "is empty"),
    "cut": (b'{"outputs": [{"token_ids": [1', "stream_invalid", "the JSON text ends too early"),
    "cut on line 2": (json.dumps(GOOD).encode() + b'\n{"outputs": [', "stream_invalid", "line 2: the JSON text ends too early"),
    "no JSON": (b"{a: 1}", "stream_invalid", "not JSON"),
    "a key twice": (b'{"outputs": [], "outputs": []}', "stream_invalid", "key 'outputs' occurs twice"),
    "not UTF-8": (b'{"a": "\xff"}', "stream_invalid", "not UTF-8 (byte 7)"),
    "deep": (b"[" * 100_000, "stream_invalid", "nested too deep"),
    "digits": (b'{"a": ' + b"1" * 10_000 + b"}", "stream_invalid", "not JSON"),
    "a number": (b"[1]", "stream_invalid", "[0]: 1 is not an object"),
    "text": (b"hello", "stream_unknown", "neither JSON nor a tensor file"),
    "gzip": (b"\x1f\x8b\x08\x00", "stream_unknown", "it is gzip"),
    "zstandard": (b"\x28\xb5\x2f\xfd", "stream_unknown", "it is zstandard"),
    "GGUF": (b"GGUF\x03\x00", "stream_unknown", "a model, not what it computed"),
    "events": (b'data: {"choices": []}', "stream_unknown", "server-sent events"),
    "zip": (b"PK\x03\x04xxxx", "stream_invalid", "starts as a zip archive and is damaged"),
    "npy": (b"\x93NUMPY\x01\x00v\x00{'descr'", "stream_invalid", "its header is damaged"),
    "safetensors": (struct.pack("<Q", 5) + b"{abc}", "stream_invalid", "header"),
    "safetensors cut": (struct.pack("<Q", 500) + b'{"a"', "stream_invalid", "a header of 500 bytes in a file of 12"),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_wrong_bytes(name: str, tmp_path: Path) -> None:
    raw, slug, text = TEXTS[name]
    (tmp_path / "a.bin").write_bytes(raw)
    found = fault(tmp_path / "a.bin")
    assert found.code.slug == slug
    assert text in found.message


def test_what_is_no_file(tmp_path: Path) -> None:
    assert "it is a folder" in fault(tmp_path).message
    assert fault(tmp_path / "none").code.slug == "file_unreadable"
    assert fault(Path("a\0b")).code.slug == "file_unreadable"
    os.mkfifo(tmp_path / "pipe")
    assert "no regular file" in fault(tmp_path / "pipe").message


@pytest.mark.skipif(os.geteuid() == 0, reason="needs a user who may be refused")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", GOOD)
    path.chmod(0)
    assert "permission denied" in fault(path).message


def test_safetensors_that_do_not_keep_to_their_header(tmp_path: Path) -> None:
    path = safetensors(tmp_path / "a.safetensors", {"logits": np.zeros((4, 8), dtype=np.float32)})
    raw = path.read_bytes()
    path.write_bytes(raw[:-1])
    assert "it is cut short" in fault(path).message
    path.write_bytes(raw.replace(b"F32", b"F8X"))
    assert "is not read" in fault(path).message
    path.write_bytes(raw.replace(b"[4, 8]", b"[4, 9]"))
    assert "does not fill" in fault(path).message


def test_arrays_that_are_not_read(tmp_path: Path) -> None:
    np.save(tmp_path / "o.npy", np.array([{}], dtype=object), allow_pickle=True)
    assert "without pickled objects" in fault(tmp_path / "o.npy").hint
    np.save(tmp_path / "f.npy", np.asfortranarray(np.zeros((4, 8))))
    assert "Fortran order" in fault(tmp_path / "f.npy").message
    np.save(tmp_path / "one.npy", np.zeros(4))
    assert fault(tmp_path / "one.npy").code.slug == "stream_unknown"
    assert "`array` (float64 [4])" in fault(tmp_path / "one.npy").message


@pytest.mark.parametrize("name", ["codes.npy", "codes.safetensors"])
def test_integers_are_told_what_logits_are(tmp_path: Path, name: str) -> None:
    codes = np.zeros((4, 8), np.int32)
    np.save(tmp_path / "codes.npy", codes)
    safetensors(tmp_path / "codes.safetensors", {"array": codes})
    found = fault(tmp_path / name)
    assert found.code.slug == "stream_unknown" and "logits must be floating point" in found.message
    assert f"`array` ({'int32' if name.endswith('npy') else 'I32'} [4, 8])" in found.message


def test_rows_in_a_layout_that_is_not_read_for_them_are_told_which_are(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", logits=np.zeros((4, 8), np.float32))
    found = fault(tmp_path / "rows.npz")
    assert "`logits` (float32 [4, 8])" in found.message and found.hint.endswith("safetensors and npy")


def test_several_arrays_are_asked_about(tmp_path: Path) -> None:
    path = safetensors(tmp_path / "a.safetensors", {"x": np.zeros((2, 4)), "y": np.zeros((2, 4))})
    found = fault(path)
    assert found.code.slug == "stream_undeclared"
    assert found.hint == "--declare tensor=x"
    assert len(list(open_stream(path, ["tensor=y"]).requests())) == 1
    assert fault(path, "tensor=z").code.slug == "declaration_invalid"


def test_ids_outside_the_rows(tmp_path: Path) -> None:
    columns = {"logits": np.zeros((2, 4)), "token_ids": np.array([0, 4])}
    assert (
        "token id 4 is outside the vocabulary of 4" in fault(safetensors(tmp_path / "a.safetensors", columns)).message
    )
    columns["token_ids"] = np.array([0])
    assert fault(safetensors(tmp_path / "a.safetensors", columns)).code.slug == "stream_length"


def test_columns_that_do_not_line_up(tmp_path: Path) -> None:
    b = batch()
    base = {"responses": b["ids"], "response_mask": b["mask"], "rollout_log_probs": b["rollout"]}
    path = tmp_path / "a.safetensors"
    assert fault(safetensors(path, base | {"responses": b["ids"][:, :3]})).code.slug == "stream_length"
    assert fault(safetensors(path, base | {"response_mask": b["mask"][:1]})).code.slug == "stream_length"
    assert fault(safetensors(path, base | {"response_mask": b["mask"] * 2})).code.slug == "stream_value"
    assert fault(safetensors(path, base | {"responses": b["ids"] - 6})).code.slug == "stream_value"
    assert fault(safetensors(path, base), "side=reference").code.slug == "stream_undeclared"


def test_a_size_limit_for_what_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(GOOD, indent=1), encoding="utf-8")
    monkeypatch.setattr(documents, "WHOLE", 50)
    found = fault(path)
    assert found.code.slug == "stream_too_large"
    assert "JSON lines" in found.hint
    monkeypatch.setattr(documents, "LINE", 20)
    assert "a line of 21 bytes" in fault(lines(path, GOOD)).message
    np.savez(tmp_path / "b.npz", responses=batch()["ids"], rollout_log_probs=batch()["rollout"])
    monkeypatch.setitem(table.READ_WHOLE, table.NPZ, 10)
    assert fault(tmp_path / "b.npz").code.slug == "stream_too_large"


@pytest.mark.needs("torch")
def test_a_torch_file_with_code_is_refused(tmp_path: Path) -> None:
    import torch

    from kcverify.readers import torch_file

    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "ran"),)

    torch.save({"rollout_log_probs": Evil()}, tmp_path / "a.pt")
    assert "objects that are not data" in fault(tmp_path / "a.pt").message
    (tmp_path / "b.pt").write_bytes(pickle.dumps({"a": Evil()}, protocol=2))
    assert fault(tmp_path / "b.pt").code.slug == "stream_invalid"
    assert not (tmp_path / "ran").exists()
    torch.save(torch.zeros(3), tmp_path / "c.pt")
    assert "it holds a Tensor" in fault(tmp_path / "c.pt").message
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_file, "WHOLE", 10)
        assert fault(tmp_path / "c.pt").code.slug == "stream_too_large"


FLAGS = {
    "temperature=-1": "is not a number from 0 up",
    "temperature=nan": "is not a number from 0 up",
    "temperature": "is not of the form key=value",
    "logprobs_mode=odd": "is none of `raw`, `processed`",
    "top_p=0": "is not in (0, 1]",
    "top_k=1.5": "is not a whole number",
    "vocabulary=0": "is not a whole number from 1 up",
    "vocabulary=2": "outside the vocabulary of 2",
    "colour=red": "there is no key 'colour'",
    "format=odd": "is no format of JSON",
    "format=sglang": "it is not `sglang`",
    "weights=": "is not a short text",
}


@pytest.mark.parametrize("flag", FLAGS)
def test_a_wrong_declaration(flag: str) -> None:
    assert FLAGS[flag] in fault(DATA / "llama_server_comp_q4_1.json", flag).message


def test_a_declaration_twice() -> None:
    assert "given twice" in fault(DATA / "llama_server_comp_q4_1.json", "top_k=1", "top_k=2").message


@pytest.mark.parametrize(
    ("file", "declare"),
    [
        ("llama_server_comp_q4_1.json", "tensor=x"), ("llama_server_comp_q4_1.json", "side=trainer"),
        ("vllm_completions.jsonl", "rows=logits"), ("prime_rl.jsonl", "positions=prompt"), ("prime_rl.jsonl", "rows=logprobs"),
        ("hf_generate.safetensors", "tensor=logits"), ("hf_generate.safetensors", "side=rollout"),
    ],
)  # fmt: skip
def test_a_declaration_that_the_format_does_not_follow(file: str, declare: str) -> None:
    found, key = fault(DATA / file, declare), declare.partition("=")[0]
    assert found.code.slug == "declaration_invalid" and f"leave `{key}` out" in found.hint


def test_a_sidecar(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", GOOD)
    side = path.with_name(path.name + SUFFIX)
    side.write_text('{"temperature": 0.7, "weights": "step 3"}', encoding="utf-8")
    stream = open_stream(path, ["temperature=0.8"])
    assert (stream.declared["temperature"].value, stream.declared["temperature"].origin) == (0.8, "flag")
    assert (stream.declared["weights"].value, stream.declared["weights"].origin) == ("step 3", "sidecar")
    for text in ("[]", "{", '{"top_p": 2}', '{"x": 1}', '{"temperature": true}', '{"temperature": "\\ud800"}'):
        side.write_text(text, encoding="utf-8")
        assert fault(path).code.slug in ("declaration_invalid", "stream_invalid")


def test_a_declared_width_that_the_rows_do_not_have() -> None:
    assert "49152 wide" in fault(DATA / "hf_generate.safetensors", "vocabulary=49153").message


def test_a_declaration_against_the_file_is_said() -> None:
    stream = open_stream(DATA / "llama_server_native_q4_1.json", ["temperature=1"])
    assert "the file says 0.0" in stream.notes[0]


def test_a_setting_beyond_doubles_is_left_out(tmp_path: Path) -> None:
    answer = json.loads((DATA / "llama_server_native_q3_k_s.json").read_text(encoding="utf-8"))
    answer["generation_settings"] = {"temperature": 10**400}
    assert open_stream(lines(tmp_path / "a.jsonl", answer)).value("temperature") is None
