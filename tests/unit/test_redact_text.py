"""What the redactor finds in text that people read, and what it leaves alone."""

import json
import time

import pytest

from hdp.contract.redact import redact, redact_argv, redact_mpi_options, redact_text, secret_values

KEY = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
TOKEN = "hf_" + "aB3" * 12

SECRETS = [
    (f"AWS_SECRET_ACCESS_KEY={KEY} python train.py", KEY),
    ("connect to postgres://me:p@ss:word@db/x failed", "p@ss:word"),
    ("s3 https://b.s3.amazonaws.com/k?X-Amz-Credential=AKIA7/x&X-Amz-Signature=0a1b2c&n=1", "0a1b2c"),
    ("https://b/k?X-Amz-Security-Token=IQoJb3JpZ2lu&n=1", "IQoJb3JpZ2lu"),
    (f"OSError: {TOKEN} is not a valid token", TOKEN),
    ("git+https://ghp_" + "x1" * 18 + "@github.com/me/it", "ghp_" + "x1" * 18),
    ('{"lr": 1, "db_password": "hun\\"ter2", "n": 3}', 'hun\\"ter2'),
    ("{'lr': 1, 'password': 'hunter2'}", "hunter2"),
    ("KeyError in config(api_key='hunter2', n=3)", "hunter2"),
    ("Command '['mysql', '--password', 'hunter2']' returned 1", "hunter2"),
    ("usage: train.py --hf-token hunter2 --lr 0.1", "hunter2"),
    ("train.py --password='two words' --lr 0.1", "two words"),
    ("Authorization: Basic bWU6cGFzc3dvcmQ=", "bWU6cGFzc3dvcmQ="),
    ("sent Bearer abcdefgh12345678", "abcdefgh12345678"),
    ("Set-Cookie: session=abc; Path=/", "abc"),
    ("jwt eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJSM end", "SflKxwRJSM"),
    ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY-----", "MIIE"),
    ("-----BEGIN PRIVATE KEY-----\nMIIE\ncut off", "MIIE"),
    ("mpirun -x WANDB_API_KEY=hunter2 -np 4", "hunter2"),
]


@pytest.mark.parametrize(("text", "secret"), SECRETS, ids=[t[:24] for t, _ in SECRETS])
def test_a_secret_in_text_is_hidden(text, secret):
    """Also where the text is an argument of a command, and a value of a mapping under a harmless name."""
    assert secret in text
    assert secret not in redact_text(text) and "***" in redact_text(text)
    assert secret not in redact_argv([text])[0]
    assert secret not in json.dumps(redact({"note": [text]}))


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: bad token: 17 at place 3",
        "tokens=512 max_tokens=1024 pad_token=0 eos_token='</s>'",
        "epoch=3 loss=0.25 lr=1e-3 key=value author=me",
        "raise ValueError(f'unexpected token {token}')",
        "https://host:8080/path?n=1#x and s3://bucket/key",
        "see me@example.com, or 10.0.0.1:7592",
        "--lr 0.1 --model gpt2 --tokenizer bert --verbose --save",
        "{'max_tokens': 5, 'tokenizer': 'x', 'pad_token': '<pad>'}",
        'File "/opt/ml/code/train.py", line 3, in <module>',
        "rank 3 on algo-2 failed (exit code 1): KeyError: 'secretary'",
    ],
)
def test_other_text_stays(text):
    assert redact_text(text) == text


def test_what_remains_says_what_was_there():
    text = 'https://me:pw@host/p?token=abc&n=1 password=\'x y\' {"api_key": "k"} --secret s -v'
    expected = 'https://me:***@host/p?token=***&n=1 password=\'***\' {"api_key": "***"} --secret *** -v'
    assert redact_text(text) == expected


def test_pairs_of_key_and_value():
    """As AWS writes tags, and environment variables of containers."""
    tags = [{"Key": "password", "Value": "x"}, {"Key": "team", "Value": "y"}, {"Name": "API_KEY", "Value": "z"}]
    assert [tag["Value"] for tag in redact(tags)] == ["***", "y", "***"]


def test_json_in_json_in_text():
    """A hyperparameter that is a dictionary, given as text: SageMaker's clients encode it twice."""
    twice = json.dumps(json.dumps({"password": "x", "n": 1}))
    assert json.loads(json.loads(redact({"config": twice})["config"])) == {"password": "***", "n": 1}
    assert redact({"config": ' {"password": "x"}'}) == {"config": '{"password": "***"}'}


def test_values_that_are_known_are_hidden_wherever_they_stand():
    """By name in the environment and in hyperparameters, nested and encoded; short ones and harmless names are left."""
    values = secret_values(
        {"DB_PASSWORD": "hunter2", "PATH": "/usr/bin", "PIN_SECRET": "12"},
        {"config": json.dumps({"api": {"key": "not-one", "token": "open-sesame"}}), "pad_token": "<padding>"},
    )
    assert values == {"hunter2", "open-sesame"}
    assert (
        redact_text("login as hunter2 or open-sesame-2, <padding> 12", values) == "login as *** or ***-2, <padding> 12"
    )


def test_a_long_value_that_contains_a_short_one():
    values = secret_values({"A_TOKEN": "abcdef", "B_TOKEN": "abcdefghi"})
    assert redact_text("abcdefghi abcdef", values) == "*** ***"


@pytest.mark.parametrize("text", ["a=" * 50_000, "://a:" * 20_000, "'-" * 50_000, "-" * 100_000, "eyJ" * 30_000])
def test_no_text_takes_long(text):
    """100 KB that is nearly a match everywhere."""
    began = time.monotonic()
    redact_text(text)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ("-x HF_TOKEN='a b' -x B=1", "-x HF_TOKEN=*** -x B=1"),
        ("-genv HF_TOKEN abc -genv B 1", "-genv HF_TOKEN *** -genv B 1"),
        ("--bind-to core -env MY_PASSWORD abc", "--bind-to core -env MY_PASSWORD ***"),
        ("-x B=1 --map-by node", "-x B=1 --map-by node"),
        ("-x HF_TOKEN='abc", "***"),
    ],
)
def test_mpiruns_options_hide_variables_by_name(options, shown):
    """Alone, in a mapping, and as JSON in a hyperparameter."""
    assert redact_mpi_options(options) == shown
    assert redact({"mpi": {"custom_mpi_options": options}}) == {"mpi": {"custom_mpi_options": shown}}
    parameter = {"sagemaker_mpi_custom_mpi_options": json.dumps(options)}
    assert json.loads(redact(parameter)["sagemaker_mpi_custom_mpi_options"]) == shown
