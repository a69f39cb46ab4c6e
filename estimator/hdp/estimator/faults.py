"""Faults in the user's words: pydantic's errors and misspelt names become one line each.

A fault line has: where, the value seen, what was expected, and what to do. Lines are collected and raised together as
`hdp.contract.errors.SpecError`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from hdp.contract.errors import SpecError
from hdp.estimator.spelling import did_you_mean

_SHOWN_CHARS = 200
_LISTED = 12
_EXPECTED = {
    "bool_type": "True or False",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a dictionary",
    "model_type": "a dictionary",
}


class Strict(BaseModel):
    """Base of every user-facing model: frozen, unknown keys are refused, no value is converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True)


class Spoken(Strict):
    """A model that users make themselves: None is not given, and faults are a SpecError."""

    def __init__(self, **fields: Any) -> None:
        model = type(self)
        try:
            super().__init__(**{k: v for k, v in fields.items() if v is not None})
        except ValidationError as exc:
            raise SpecError(of_validation(exc, model, ""), model.__name__) from exc


def shown(value: Any) -> str:
    """`value` as a message shows it: its repr, cut where it is long."""
    try:
        text = repr(value)
    except Exception:  # the object is the user's; a number of 5,000 digits and a nest of 10,000 lists raise too
        text = f"<a {type(value).__name__} that can't be shown>"
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 3]}..."


def seen(value: Any) -> str:
    """`value` with its type, where the type is the fault."""
    return "None" if value is None else f"{shown(value)} ({type(value).__name__})"


def is_utf8(text: str) -> bool:
    """Whether `text` is valid Unicode, which lone surrogates aren't."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def not_one_of(where: str, value: object, known: Iterable[str]) -> str:
    """The fault line for a value outside an enumeration; a long enumeration isn't listed where a near name is found."""
    names = list(known)
    hint = did_you_mean(value, names)
    if len(names) > _LISTED and hint:
        return f"{where}: {shown(value)} isn't one of the {len(names)} known values{hint}"
    listed = ", ".join(names[:_LISTED]) + (", ..." if len(names) > _LISTED else "")
    return f"{where}: {shown(value)} isn't one of {listed}{hint}"


def of_validation(exc: ValidationError, model: type[BaseModel], where: str) -> list[str]:
    """One line for each error in `exc`, which came from `model`; `where` is what the user calls the value."""
    return [_line(dict(e), model, where) for e in exc.errors(include_url=False)]


def _line(error: dict[str, Any], model: type[BaseModel], where: str) -> str:
    """One pydantic error in the user's words."""
    path, model = _path(where, error["loc"]), _owner(model, error["loc"])
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    if kind == "literal_error":
        return not_one_of(path, value, _literals(model, error["loc"][-1]) or [str(context["expected"])])
    if kind in _EXPECTED:
        return f"{path} is {seen(value)}; expected {_EXPECTED[kind]}"
    says = {
        "extra_forbidden": lambda: f" is unknown{did_you_mean(error['loc'][-1], model.model_fields)}{_known(model)}",
        "missing": lambda: f" is missing{_say(model, error['loc'])}",
        "value_error": lambda: f": {context['error']}",
        "greater_than_equal": lambda: f" is {shown(value)}; expected {context['ge']} or more",
        "string_pattern_mismatch": lambda: f" is {shown(value)}; expected the form {context['pattern']}",
        "string_too_short": lambda: f" is {shown(value)}; expected at least {context['min_length']} characters",
        "string_too_long": lambda: f" has {len(value)} characters; at most {context['max_length']}",
        "too_long": lambda: f" has {len(value)} items; at most {context['max_length']}",
        "invalid_key": lambda: ": that key isn't text; use one of the known names" + _known(model),
        "less_than": lambda: f" is {shown(value)}; expected less than {context['lt']}",
        "less_than_equal": lambda: f" is {shown(value)}; expected {context['le']} or less",
    }
    return path + says.get(kind, lambda: f" is {seen(value)}: {error['msg']}")()


def _say(model: type[BaseModel], loc: tuple[int | str, ...]) -> str:
    field = model.model_fields.get(str(loc[-1])) if loc else None
    return "; say True or False" if field and field.annotation is bool else "; give it"


def _path(where: str, loc: tuple[int | str, ...]) -> str:
    """``where.key[0]`` for pydantic's location."""
    text = where
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else str(part))
    return text


def _known(model: type[BaseModel]) -> str:
    names = ", ".join(model.model_fields)
    return f" (known: {names})" if len(model.model_fields) <= _LISTED else ""


def _owner(model: type[BaseModel], loc: tuple[int | str, ...]) -> type[BaseModel]:
    """The model that holds the field at the end of `loc`."""
    for part in loc[:-1]:
        field = model.model_fields.get(str(part))
        inner = _models(field.annotation) if field else []
        model = inner[0] if inner else model
    return model


def _models(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for a in get_args(annotation) for m in _models(a)]


def _literals(model: type[BaseModel], name: int | str) -> list[str]:
    """The texts that the field `name` may have."""
    field = model.model_fields.get(str(name))
    return [text for text in _flat(field.annotation) if text is not None] if field else []


def _flat(annotation: object) -> list[str | None]:
    """Every text inside ``Literal[...]``, wherever it is in the annotation."""
    args = get_args(annotation)
    return [t for a in args for t in _flat(a)] if args else [annotation if isinstance(annotation, str) else None]
