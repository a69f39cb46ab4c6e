"""Hides secrets in what people read: plans, logs, reports. The values that travel are never changed.

A value is hidden when its *name* says that it is a secret (``password``, ``hf_token``, ``apiKey``), or when the value
itself has the shape of one (an AWS access key, a password inside a URL, a token with a known prefix). Words of language
models that end in "token" (``pad_token``, ``max_tokens``) are not secrets, nor is the place of one (``SECRET_FILE``).

In free text, a name counts where something is clearly given to it: ``password=x``, ``"password": "x"``,
``--password x``, ``Authorization: x``. In ``bad token: 7`` nothing is. Whoever knows the values themselves
(`secret_values`) passes them along, and they are hidden wherever they stand.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

#: What stands in the place of a secret.
HIDDEN = "***"

_WORDS = re.compile(
    r"passw(or)?d|passphrase|_pwd$|secret|credential|(^|_)auth$|(^|_)authorization$|(^|_)token$|(^|_)signature$|(^|_)jwt$"
    r"|(api|access|private|signing|encryption|ssh|account|master)_?key|connection_?string"
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_HARMLESS = re.compile(
    r"(^|_)(pad|eos|bos|unk|sep|cls|mask|stop|start|end|special|image|audio|video)_token$|_(file|dir)$"
)

#: Values that tell by themselves. Each prefix is its issuer's own.
_SHAPES = (
    (re.compile(r"\b(AKIA|ASIA)[A-Z0-9]{16}\b"), HIDDEN),
    (re.compile(r"(?<=://)([^/\s:@]*):[^/\s]+@"), rf"\1:{HIDDEN}@"),
    (re.compile(r"\b(gh[pousr]_|github_pat_|glpat-|hf_|xox[abprs]-|pypi-|sk-)[A-Za-z0-9_-]{20,}"), HIDDEN),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]+"), HIDDEN),
    (re.compile(r"\b(Bearer|Basic) +[\w.~+/-]{8,}=*"), rf"\1 {HIDDEN}"),
    (
        re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
        rf"\1{HIDDEN}\2",
    ),
)
#: (before, name, between, value) of a value that is given to a name.
_GIVEN = (
    re.compile(r"()(\b[A-Za-z_][\w.-]{2,80})(=)(\"[^\"\n]*\"|'[^'\n]*'|[^\s&;,\"')\]}]+)"),
    re.compile(r"([\"'])([\w.-]{3,80})(\1\s*:\s*)(\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|[^\s,}\]\"']+)"),
    re.compile(r"([\"'])(--?[\w-]{3,80})(\1,\s*)(\"[^\"\n]*\"|'[^'\n]*')"),
    re.compile(r"((?<!\S))(--?[A-Za-z][\w-]{2,80})( +)(?!-)(\"[^\"\n]*\"|'[^'\n]*'|[^\s]+)"),
    re.compile(r"()(\b(?i:[\w-]*authorization|x-api-key|set-cookie|cookie))( *: *)([^\n\"']+)"),
)
#: Shorter values stand in too many words by chance.
_VALUE_MIN_CHARS = 6


def is_secret(name: str) -> bool:
    """Whether the name of a variable, hyperparameter or option says that its value is a secret."""
    word = _CAMEL.sub("_", name).lower().replace("-", "_").strip("_")
    return bool(_WORDS.search(word)) and not _HARMLESS.search(word)


def redact_text(text: str, values: Collection[str] = ()) -> str:
    """`text` without secrets that can be told by their shape or by the name they are given to, and without `values`.

    Text that is cut is redacted first: half a secret has no shape.
    """
    for value in sorted(values, key=len, reverse=True):  # one may be part of another
        text = text.replace(value, HIDDEN)
    for shape, instead in _SHAPES:
        text = shape.sub(instead, text)
    for given in _GIVEN:
        text = given.sub(_hide_given, text)
    return text


def secret_values(*named: Mapping[str, Any]) -> frozenset[str]:
    """Values in mappings of names to values (environment, hyperparameters, nested) that `redact` would hide by name."""
    found: set[str] = set()
    for mapping in named:
        _walk(mapping, found.add)
    return frozenset(value for value in found if len(value) >= _VALUE_MIN_CHARS)


def redact(value: Any) -> Any:
    """A copy of `value` (mappings, sequences and plain values, nested) with its secrets hidden.

    ``{"Key": "password", "Value": "x"}``, as AWS writes tags, is such a name and value, too.
    """
    if isinstance(value, Mapping):
        pair = value.get("Key", value.get("Name"))
        hides = isinstance(pair, str) and is_secret(pair)
        return {k: HIDDEN if _hides(k, v) or (hides and k == "Value") else _member(k, v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact(v) for v in value]
    return _redact_json(value) if isinstance(value, str) else value


def redact_mpi_options(text: str) -> str:
    """mpirun's options without secrets in the variables that they set: ``-x NAME=VALUE``, ``-genv NAME VALUE``."""
    try:
        words = shlex.split(text)
    except ValueError:  # a quote without its end: where a value ends can't be told
        return HIDDEN if any(is_secret(name) for name in re.findall(r"[A-Za-z_]\w+", text)) else text
    shown = list(words)
    for i, word in enumerate(words):
        name, equals, _ = word.partition("=")
        if equals and is_secret(name):
            shown[i] = f"{name}={HIDDEN}"
        elif i > 1 and words[i - 2].lstrip("-") in ("env", "genv") and is_secret(words[i - 1]):
            shown[i] = HIDDEN
    hidden = " ".join(word if word.endswith(HIDDEN) else shlex.quote(word) for word in shown)
    return redact_text(text if shown == words else hidden)


def redact_argv(argv: Sequence[str]) -> list[str]:
    """`argv` with the values of ``--secret value`` and ``--secret=value`` hidden."""
    out: list[str] = []
    hide_next = False
    for argument in argv:
        name, equals, _ = argument.partition("=")
        option = argument.startswith("-") and is_secret(name)
        if hide_next and not option:
            out.append(HIDDEN)
        else:
            out.append(f"{name}={HIDDEN}" if option and equals else str(redact(argument)))
        hide_next = option and not equals
    return out


def _member(name: object, value: Any) -> Any:
    """A mapping's value that its name doesn't hide as a whole."""
    if not str(name).endswith("custom_mpi_options") or not isinstance(value, str):
        return redact(value)
    inner = _members(value)  # as a hyperparameter it is JSON
    return json.dumps(redact_mpi_options(inner)) if isinstance(inner, str) else redact_mpi_options(value)


def _hides(name: object, value: object) -> bool:
    return value is not None and is_secret(str(name))


def _hide_given(match: re.Match[str]) -> str:
    before, name, between, value = match.groups()
    if not is_secret(name) and not name.lower().endswith("cookie"):
        return match[0]
    quote = value[0] if value[0] in "\"'" else ""
    return f"{before}{name}{between}{quote}{HIDDEN}{quote}"


def _redact_json(text: str) -> str:
    """A string that holds JSON has its members redacted; other text what `redact_text` finds."""
    value = _members(text)
    if value is None:
        return redact_text(text)
    hidden = redact(value)
    return text if hidden == value else json.dumps(hidden, ensure_ascii=False)


def _members(text: str) -> Any:
    """The object, list or string that `text` holds as JSON; None where it isn't one."""
    if text.lstrip()[:1] not in ("{", "[", '"'):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _walk(value: Any, found: Callable[[str], object], secret: bool = False) -> None:
    if isinstance(value, str) and (members := _members(value)) is not None:
        _walk(members, found, secret)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            _walk(item, found, secret or is_secret(str(name)))
    elif isinstance(value, (list, tuple)):
        for item in value:
            _walk(item, found, secret)
    elif secret and isinstance(value, (str, int)) and not isinstance(value, bool):
        found(str(value))
