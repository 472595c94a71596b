"""Values on the command line: `name=value` pairs, ranges, assumptions of the calculator."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from typing import Any

from kcverify.bounds.calculator import GIVENS
from kcverify.bounds.graph import Parameters
from kcverify.bounds.published import HORIZON, region_of
from kcverify.bounds.special import Effort
from kcverify.bounds.trust_region import REFERENCE, Region
from kcverify.diagnostics import input_error
from kcverify.exact import NumberError, parse_number

_ASSUMABLE = ("temperature", "horizon", "reward", "advantage", "score_norm", "token_score_norm", "exceedance")
_LEAST = Fraction(1, 10**100)


def number(option: str, text: str) -> Fraction:
    """An exact number. Raises InputError: `option_invalid`."""
    try:
        return parse_number(text)
    except NumberError as error:
        raise input_error(
            "option_invalid", option=option, reason=str(error), hint="write a number such as 0.05, 1e-5 or 0.1%"
        ) from None


def sized(option: str, text: str) -> Fraction:
    """A number that the calculator's answers can show as doubles. Raises InputError: `option_invalid`."""
    x = number(option, text)
    if x and not _LEAST <= abs(x) <= 1 / _LEAST:
        raise input_error(
            "option_invalid", option=option, reason=f"{text} is not between 1e-100 and 1e100", hint="write 0, or a number of a size that is met in practice"
        )  # fmt: skip
    return x


def one(option: str, words: list[str] | None) -> str | None:
    """The value of an option that may be given once. Raises InputError: `option_invalid`."""
    if len(words or ()) > 1:
        raise input_error("option_invalid", option=option, reason="it is given twice", hint="give it once")
    return words[0] if words else None


def span(option: str, text: str) -> tuple[Fraction, Fraction]:
    """`low..high` or one number. Raises InputError: `option_invalid`."""
    low, dots, high = text.partition("..")
    a = sized(option, low)
    b = sized(option, high) if dots else a
    if a > b:
        raise input_error(
            "option_invalid", option=option, reason=f"the range {text} is reversed", hint=f"write {high}..{low}"
        )
    return a, b


def pairs(option: str, words: Iterable[str]) -> dict[str, str]:
    """`name=value` words as a mapping. Raises InputError: `option_invalid`."""
    out: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name or not value:
            raise input_error(
                "option_invalid", option=option, reason=f"`{word}` is not name=value", hint=f"{option} name=value"
            )
        if name in out:
            raise input_error("option_invalid", option=option, reason=f"`{name}` is given twice", hint="give it once")
        out[name] = value
    return out


def _positive(name: str, x: Fraction) -> Fraction:
    if x <= 0:
        raise input_error(
            "option_invalid", option=f"--assume {name}", reason="it must be above 0", hint="give a positive number"
        )
    return x


def assumptions(words: Iterable[str]) -> tuple[Parameters, Fraction]:
    """Parameter boxes and the exceedance. Raises InputError: `option_invalid`."""
    box: dict[str, tuple[Fraction, Fraction]] = {}
    rho = Fraction(0)
    for name, text in pairs("--assume", words).items():
        option = f"--assume {name}"
        if name not in _ASSUMABLE:
            raise input_error(
                "option_invalid", option=option, reason="unknown assumption", hint="known: " + ", ".join(_ASSUMABLE)
            )
        low, high = span(option, text)
        if name == "exceedance":
            if not 0 <= high < 1:
                raise input_error(
                    "option_invalid",
                    option=option,
                    reason="it must be in [0, 1)",
                    hint="a share such as 0.0001 or 0.01%",
                )
            rho = high
        elif name == "reward":
            width = high - low if ".." in text else 2 * abs(high)
            box["reward_range"] = (width, width)
        elif name == "horizon":
            if high.denominator != 1 or high < 1 or high > 10**7:
                raise input_error(
                    "option_invalid",
                    option=option,
                    reason="it must be a whole number from 1 to 10000000",
                    hint="tokens of one response",
                )
            box["horizon"] = (Fraction(1), high)
        elif name == "temperature":
            box[name] = (_positive(name, low), high)
        else:
            size = max(abs(low), abs(high))
            box[name] = (_positive(name, size), size)
    return Parameters(box, effort=Effort(run=True)), rho


def given(word: str) -> tuple[str, Fraction | tuple[Fraction, Fraction]]:
    """The one `--given`. Raises InputError: `option_invalid`."""
    ((name, text),) = pairs("--given", [word]).items()
    option = f"--given {name}"
    if name not in GIVENS:
        raise input_error(
            "option_invalid", option=option, reason="unknown quantity", hint="known: " + ", ".join(GIVENS)
        )
    low, high = span(option, text)
    if name == "importance_ratio":
        if not (0 < low <= 1 <= high) or ".." not in text:
            raise input_error(
                "option_invalid", option=option, reason="a ratio range must hold 1", hint="importance_ratio=0.9..1.1"
            )
        return name, (low, high)
    if high < 0 or (name == "tv" and high > 1) or low != high:
        raise input_error(
            "option_invalid",
            option=option,
            reason="it must be one number, at least 0 (and at most 1 for tv)",
            hint=f"{name}=0.05",
        )
    return name, high


_REGION = {"tv": "tv", "kl": "kl", "kl_sum": "kl_sum", "tv_sum": "tv_sum", "span": "span"}


def comparison(word: str | None, words: Iterable[str]) -> tuple[Fraction, Region, int]:
    """Effective span, trust region and tokens of a response of `--compare published`.

    What is not stated of the region follows from the span; without any word it is the reference region.

    Raises InputError: `option_invalid`.
    """
    values = pairs("--assume", words)
    temperature = span("--assume temperature", values.pop("temperature", "1"))[0]
    name, size = given(word) if word is not None else ("logit_span", Fraction(1, 10))
    if name not in ("logit_span", "logit_drift") or isinstance(size, tuple):
        raise input_error(
            "option_invalid", option="--given", reason="a comparison starts from logits", hint="--given logit_span=0.1"
        )
    effective = (2 * size if name == "logit_drift" else size) / _positive("temperature", temperature)
    if word is None and not values:
        return effective, REFERENCE, HORIZON
    found: dict[str, Any] = {}
    length, reward = HORIZON, Fraction(1)
    for key, text in values.items():
        low, high = span(f"--assume {key}", text)
        if key == "horizon":
            if high.denominator != 1 or not 1 <= high <= 10**6:
                raise input_error(
                    "option_invalid",
                    option="--assume horizon",
                    reason="it must be a whole number from 1 to 1000000",
                    hint="tokens",
                )
            length = int(high)
        elif key == "reward":
            reward = high - low if ".." in text else 2 * abs(high)
        elif key in _REGION and high >= 0:
            found[_REGION[key]] = high
        else:
            known = ", ".join(("temperature", "horizon", "reward", *_REGION))
            raise input_error(
                "option_invalid", option=f"--assume {key}", reason="not usable in a comparison", hint=f"known: {known}"
            )
    if word is None and found:
        return effective, Region(length, reward_range=reward, **found), length
    return effective, replace(region_of(effective, length, reward), **found), length
