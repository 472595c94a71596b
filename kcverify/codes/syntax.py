"""Codes about the text of a contract that does not parse (KC0xx)."""

from __future__ import annotations

from kcverify.codes.model import Code, Severity

_GOOD = "contract c\nnumerical {\n  tail: tv <= 0.01 -> L1\n}\n"


def _row(id: str, slug: str, message: str, why: str, fix: str, bad: str, good: str = _GOOD) -> Code:
    return Code(id, slug, Severity.ERROR, message, why, fix, bad, good, input_fault=True)


_TEXT: tuple[Code, ...] = (
    _row(
        "KC001",
        "unexpected",
        "expected {expected}, found {found}",
        "The text does not follow the grammar at this place.",
        "see the language reference for the form of this line",
        "contract c\nnumerical {\n  tail: tv <= -> L1\n}\n",
    ),
    _row(
        "KC002",
        "unknown_character",
        "{character} has no meaning here",
        "Contracts are written with names, numbers, quoted text, and the signs of the grammar.",
        "remove the character",
        "contract c\nnumerical {\n  tail: tv <= 0.01 & 1 -> L1\n}\n",
    ),
    _row(
        "KC003",
        "unclosed_string",
        "this quoted text does not end on its line",
        "Quoted text starts and ends with a double quote on one line.",
        'add the closing `"`',
        'contract c version "1.0\n',
        'contract c version "1.0"\n',
    ),
    _row(
        "KC004",
        "unclosed_block",
        "the block `{block}` is not closed",
        "Every `{` needs its `}`; until then the lines that follow count as part of the block.",
        "add `}` where the block ends",
        "contract c\nnumerical {\n  tail: tv <= 0.01 -> L1\n",
    ),
    _row(
        "KC005",
        "nesting_too_deep",
        "brackets are nested {depth} deep; the limit is {limit}",
        "No contract needs such nesting, and reading it would cost memory without end.",
        "write the expression with fewer brackets",
        "contract c\nparam a = " + "(" * 100 + "1" + ")" * 100 + "\n",
        "contract c\nparam a = ((1))\n",
    ),
    _row(
        "KC006",
        "file_too_large",
        "the file has {size} characters; the limit is {limit}",
        "A contract is a few kilobytes; a file this large is data given by mistake.",
        "point at the contract file",
        "",
        "",
    ),
    _row(
        "KC007",
        "no_contract",
        "the file holds no contract",
        "A file holds one or more contracts, each opened by `contract NAME`; this one has none.",
        "start the file with `contract NAME`",
        "# only a comment\n",
        "contract c\n",
    ),
    _row(
        "KC008",
        "outside_contract",
        "`{block}` stands before any contract",
        "Blocks belong to the contract header above them.",
        "write `contract NAME` above this block",
        "numerical {\n  tail: tv <= 0.01 -> L1\n}\ncontract c\n",
    ),
    _row(
        "KC009",
        "unknown_block",
        "there is no block `{name}`",
        "The language has a closed set of blocks.",
        "use one of the blocks of the language reference",
        "contract c\nnumericl {\n  tail: tv <= 0.01 -> L1\n}\n",
    ),
    Code(
        "KC010",
        "more_errors",
        Severity.NOTE,
        "further errors of this file are not shown",
        "After many errors the rest is mostly their consequence.",
        "correct the errors above first",
        input_fault=True,
    ),
    _row(
        "KC011",
        "wrong_kind",
        "`{block}` does not belong to a {kind}",
        "A kernel contract has its own eight parts; a contract for a pair has the blocks of the five families.",
        "move the block to a contract of the other kind",
        'kernel contract k version "1"\nnumerical {\n  tail: tv <= 0.01 -> L1\n}\n',
    ),
)

_YAML = 'language: "1.0"\ncontracts:\n  - name: c\n'


def _form(id: str, slug: str, message: str, why: str, fix: str, bad: str, good: str = _YAML) -> Code:
    return _row(id, slug, message, why, fix, bad, good)


_FORMS: tuple[Code, ...] = (
    _form(
        "KC012",
        "form_syntax",
        "this is not {form}: {reason}",
        "The file is of the YAML or JSON form of a contract, and its text is broken at this place.",
        "correct the text at this place",
        'language: "1.0\ncontracts: []\n',
    ),
    _form(
        "KC013",
        "form_type",
        "{what} must be {wanted}, not {found}",
        "The YAML and JSON forms have the structure that `kcverify schema` prints.",
        "see `kcverify schema`",
        'language: "1.0"\ncontracts:\n  - name: c\n    numerical: 5\n',
    ),
    _form(
        "KC014",
        "form_key",
        "there is no key `{key}` in {where}",
        "An unknown key would be ignored silently, and with it what its author meant.",
        "see `kcverify schema`",
        'language: "1.0"\ncontracts:\n  - name: c\n    numercal: {}\n',
    ),
    _form(
        "KC015",
        "form_key_missing",
        "{where} has no `{key}`",
        "Without it the part has no meaning.",
        "add the key",
        'language: "1.0"\ncontracts:\n  - version: "1"\n',
    ),
    _form(
        "KC016",
        "form_key_twice",
        "the key `{key}` is given twice",
        "Readers of YAML and JSON differ in which of the two they keep.",
        "remove one of them",
        'language: "1.0"\ncontracts:\n  - name: c\n    name: d\n',
    ),
    _form(
        "KC017",
        "form_refused",
        "{what} is not accepted in a contract",
        "Contracts come from other people; aliases can grow a small file without end, and tags can name code.",
        "write the values out",
        'language: "1.0"\ncontracts: &all\n  - name: c\n',
    ),
    _form(
        "KC018",
        "form_language",
        "this file states language version {found}, and this kcverify reads up to {known}",
        "A newer version of the language may mean by these words what this kcverify does not know.",
        "update kcverify, or convert the file with the kcverify that wrote it",
        'language: "2.0"\ncontracts:\n  - name: c\n',
    ),
)

_OLD = Code(
    "KC019",
    "deprecated",
    Severity.WARNING,
    "the {kind} `{old}` is deprecated since language version {since}",
    "A newer version of the language has another word for it; the old one is read until the next major version.",
    "run `kcverify fmt`, which writes the new word",
)

_LIMITS: tuple[Code, ...] = (
    _row(
        "KC020",
        "lone_return",
        "a carriage return without a line feed ends no line",
        "Tools differ in whether it ends a line, so one reader's comment is another reader's clause.",
        "save the file with line ends LF or CRLF",
        "contract c\rnumerical {\r  tail: tv <= 0.01 -> L1\r}\r",
    ),
    _row(
        "KC021",
        "name_too_long",
        "a name has {size} characters; the limit is {limit}",
        "Names stand in tables, reports and labels of metrics, where a long one hides the others.",
        "use a shorter name",
        f"contract c\nnumerical {{\n  {'tail' * 30}: tv <= 0.01 -> L1\n}}\n",
    ),
)

ROWS: tuple[Code, ...] = (*_TEXT, *_FORMS, _OLD, *_LIMITS)
