"""What counts as a secret, and what stays readable."""

from __future__ import annotations

from typing import Any

import pytest

from hdp.contract.redact import is_secret, redact, redact_argv

WORDS = ["password", "DB_PASSWD", "api_key", "apiKey", "WANDB_API_KEY", "hf_token", "--auth-token", "accessToken"]
AWS = ["AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "credentials", "private-key", "basic_auth"]


@pytest.mark.parametrize("name", [*WORDS, *AWS])
def test_names_of_secrets(name: str) -> None:
    """Hidden by name."""
    assert is_secret(name)


@pytest.mark.parametrize(
    "name", ["max_tokens", "tokenizer", "pad_token", "eos_token", "author", "keyboard", "lr", "key"]
)
def test_names_that_only_look_like_it(name: str) -> None:
    """Words of language models and others stay."""
    assert not is_secret(name)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"a": {"password": "x", "b": [1, {"token": "y"}]}}, {"a": {"password": "***", "b": [1, {"token": "***"}]}}),
        ({"hp": '{"password": "x", "n": 1}'}, {"hp": '{"password": "***", "n": 1}'}),
        ({"hp": '{"n":1}'}, {"hp": '{"n":1}'}),
        ({"hp": "{not json"}, {"hp": "{not json"}),
        ("https://me:pw@host/p", "https://me:***@host/p"),
        ("id AKIAIOSFODNN7EXAMPLE end", "id *** end"),
        ({"token": None}, {"token": None}),
        (3, 3),
    ],
)
def test_values_are_hidden_at_any_depth(value: Any, shown: Any) -> None:
    """Nested values, JSON inside text, and shapes of secrets."""
    assert redact(value) == shown


def test_the_original_is_not_changed() -> None:
    """redact returns a copy."""
    value = {"password": "x", "l": [1]}
    redact(value)
    assert value == {"password": "x", "l": [1]}


def test_arguments_are_hidden() -> None:
    """--secret value and --secret=value; whatever follows a secret option counts as its value."""
    argv = ["python", "t.py", "--hf_token", "x", "--lr", "0.1", "--password=y", "--token", "--verbose", "z"]
    expected = ["python", "t.py", "--hf_token", "***", "--lr", "0.1", "--password=***", "--token", "***", "z"]
    assert redact_argv(argv) == expected
