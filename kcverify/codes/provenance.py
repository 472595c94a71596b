"""Codes about what travels: fingerprints, replays, attestations, and runs that are void before any number (KC9xx)."""

from __future__ import annotations

from kcverify.codes.model import Code, Severity


def _row(id: str, slug: str, message: str, why: str, fix: str) -> Code:
    return Code(id, slug, Severity.ERROR, message, why, fix, input_fault=True)


def _rejection(id: str, slug: str, message: str, why: str, fix: str) -> Code:
    return Code(id, slug, Severity.ERROR, message, why, fix)


_VOID: tuple[Code, ...] = (
    _row(
        "KC901",
        "trace_missing",
        "the run is void: request {request} has no `{field}`, which `trace` of `{contract}` names ({count} of {total} requests)",
        "A clause on a slice, and whoever looks into a violation, rests on the trace. Without a field nobody can say which "
        "requests a number is of, so no number is looked at.",
        "write the field into every line of the data, or take it out of `trace`",
    ),
    _row(
        "KC902",
        "fingerprint_missing",
        "the run is void: the {side} `{name}` says nothing about `{field}`, which `fingerprint` of `{contract}` names",
        "A number is about one identity. What a side does not tell by itself must be declared, never guessed.",
        "declare it: `kcverify fingerprint ... -o F.json`, then `--fingerprint-{side} F.json`",
    ),
    _row(
        "KC903",
        "identity_mismatch",
        "the run is void: {field} of the {side} is {found}, and {where} says {expected}",
        "Other weights, kernels, tokenizers or samplers make another pair; what was measured on one says nothing about the other.",
        "run what was declared, or declare what runs",
    ),
    _row(
        "KC904",
        "provenance_missing",
        "{path} is void: it does not say {what}, which `observability` of `{contract}` asks for",
        "The contract wants to know of what its numbers are. Evidence that does not tell counts for nothing.",
        "give the whole result of `kcverify measure --format json`, or put its `provenance` into {path}.provenance.json",
    ),
)

_FILES: tuple[Code, ...] = (
    _row(
        "KC910",
        "fingerprint_invalid",
        "{path} is no fingerprint: {reason}",
        "A fingerprint states every field and the two digests that they give; one that does not add up was edited.",
        "write it with `kcverify fingerprint -o FILE`",
    ),
    _row(
        "KC911",
        "weights_invalid",
        "{path}: {reason}",
        "Weights are files, or folders that hold shards (.safetensors, .gguf, .bin, .pt, .pth, .npy, .npz).",
        "point at the checkpoint",
    ),
    _row(
        "KC912",
        "kernel_unknown",
        "`{kernel}` names no kernel: {reason}",
        "A kernel is one that kcverify ships (`demo:FORMAT`), a function `module:function` whose source is on this machine, or "
        "the file of a build.",
        "see `kcverify fingerprint --help`",
    ),
    _row(
        "KC920",
        "event_invalid",
        "{path} holds no event that can be replayed: {reason}",
        "A replay needs everything that decided the numbers; a line that lacks some of it, or was edited, cannot be trusted.",
        "write events with `kcverify measure --witnesses FILE`",
    ),
    _row(
        "KC921",
        "event_expired",
        "the event is of {at}; `replay within {window}` of `{contract}` ended at {end}",
        "The contract promises a replay for this long. Later, weights and machines may be gone, and a difference would mean nothing.",
        "replay sooner, or write a longer window into the contract",
    ),
    _row(
        "KC922",
        "replay_identity",
        "not replayed: {field} of the {side} is {found} here and was {expected} in the event",
        "Numbers of other weights or kernels are other numbers. They were not computed, so that nobody compares them.",
        "replay with the weights, kernel, tokenizer and sampler of the event",
    ),
    _row(
        "KC930",
        "key_invalid",
        "{path} is no {what}: {reason}",
        "Attestations are signed with ed25519, the private key as PKCS 8 and the public one as SubjectPublicKeyInfo, both PEM.",
        "make a pair with `kcverify keygen`",
    ),
    _row(
        "KC931",
        "attest_refused",
        "nothing was signed: {reason}",
        "An attestation says that this contract was met by these weights. What does not say so is not signed by mistake.",
        "attest a passing result of this contract, or state a failure with `--record-failure`",
    ),
    _row(
        "KC932",
        "attest_inside",
        "nothing was written: {path} is one of the files whose hash is signed",
        "A signature inside the file that it covers changes the file; it is a sidecar beside it.",
        "choose another output, such as CHECKPOINT.intoto.jsonl",
    ),
)

_VERIFY: tuple[Code, ...] = (
    _rejection(
        "KC940",
        "attestation_malformed",
        "{path}: {reason}",
        "The file is not, byte for byte, what `kcverify attest` writes: JSON lines of signed envelopes in canonical form, no key twice.",
        "fetch the file again from where it was attested",
    ),
    _rejection(
        "KC941",
        "attestation_key",
        "{path} was signed with the key {found}, and the one given is {expected}",
        "Anybody can sign anything; only the signature of a key that you trust says something.",
        "give the public key of who attested, from a source that you trust",
    ),
    _rejection(
        "KC942",
        "attestation_signature",
        "{path}, line {line}: the signature does not fit the payload",
        "The payload or the signature was changed after it was signed.",
        "fetch the file again; find out who changed it",
    ),
    _rejection(
        "KC943",
        "predicate_unknown",
        "{path}, line {line}: the predicate {found} is none that is known here",
        "A statement that is not understood cannot be vouched for.",
        "use the version of kcverify that wrote it",
    ),
    _rejection(
        "KC944",
        "attestation_incomplete",
        "{path}: {reason}",
        "Lines of a bundle are signed one by one, so one could be taken out or put in; the kernel-contract statement names the others.",
        "fetch the whole file again",
    ),
    _rejection(
        "KC945",
        "attestation_expired",
        "{path} was valid until {end}, and it is {now}",
        "An attestation is of its time: weights stay, but machines, libraries and traffic do not.",
        "measure and attest again",
    ),
    _rejection(
        "KC946",
        "attestation_early",
        "{path} is valid from {start}, and it is {now}",
        "A statement from the future was signed on a machine whose clock is wrong, or this clock is.",
        "set the clock right",
    ),
    _rejection(
        "KC947",
        "contract_changed",
        "the contract {given} is not the attested one, {attested}",
        "Verdicts and proofs are about one contract; another text may promise less.",
        "verify with the contract that was attested",
    ),
    _rejection(
        "KC948",
        "weights_changed",
        "{name} has the SHA-256 {found}, and {expected} was attested",
        "Other bytes are another model, about which nothing was measured.",
        "fetch the weights again, or measure and attest these",
    ),
    _rejection(
        "KC949",
        "kernel_changed",
        "the kernel {name} has the SHA-256 {found}, and {expected} was attested",
        "Another kernel computes other numbers; verdicts are about the one that was measured.",
        "use the kernel that was measured, or measure and attest this one",
    ),
    _rejection(
        "KC950",
        "subject_missing",
        "{kind} {name} was attested and is not here",
        "All subjects together were measured. One that is not compared could be anything.",
        "give it with `--weights` or `--kernel`",
    ),
    _rejection(
        "KC951",
        "subject_unattested",
        "{kind} {name} was given and is not attested",
        "A shard or kernel that nobody measured would be loaded with those that were.",
        "leave it out, or measure and attest it",
    ),
    _rejection(
        "KC952",
        "certificate_rejected",
        "the certificate of the proofs is rejected: {reason}",
        "Verdicts PROVED and REFUTED are checked again from their certificate by a small kernel, whoever signed them.",
        "attest again from the contract",
    ),
    _rejection(
        "KC953",
        "predicate_inconsistent",
        "{path}: {reason}",
        "What the statements say must follow from what they carry; a summary that says more was not written by `kcverify attest`.",
        "attest again from the result",
    ),
    _rejection(
        "KC955",
        "identity_changed",
        "{field} of what serves is {found}, and {expected} was measured",
        "Weights and kernel sources may be the same, and the library that runs them, the tokenizer or the format another.",
        "serve what was measured, or measure and attest what serves",
    ),
    _rejection(
        "KC954",
        "attestation_repeated_key",
        "{path}: {reason}",
        "Readers of JSON differ in which of two values under one key they take, so that one signature would cover two meanings.",
        "find out who signed it; `kcverify attest` writes no key twice",
    ),
)

ROWS: tuple[Code, ...] = (*_VOID, *_FILES, *_VERIFY)
