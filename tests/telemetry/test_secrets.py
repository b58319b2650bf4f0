"""Secrets are hidden in whatever text they turn up, and code stays readable."""

import time

import pytest

from tenure.telemetry.logs import REDACTED, without_secrets
from tenure_conformance.spec import spec
from tests.support.cases import each_case

SECRET = "s3cr3tS3CR3Ts3cr3tS3CR3T"
TOKEN = f"tenure_{'a' * 16}_{'b' * 64}"


@spec("OB13")
@each_case(
    "text",
    [
        f"cannot connect to postgresql://app:{SECRET}@db/app",
        f"GET https://api.example/v1?api_key={SECRET}&page=2",
        f"Authorization: Bearer {SECRET}",
        f"Authorization: Basic {SECRET}==",
        f"sent Bearer {SECRET} and was refused",
        f"{{'password': '{SECRET}', 'user': 'ada'}}",
        f'{{"client_secret": "{SECRET}"}}',
        f"ghp_{SECRET}",
        f"the key sk-{SECRET} is not known",
        f"sk_live_{SECRET}",
        f"xoxb-12-{SECRET}",
        f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.{SECRET}",
        f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n{SECRET}\n-----END RSA PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{SECRET}",
        f"AWS_SECRET_ACCESS_KEY={SECRET}",
        f"aws_secret_access_key = {SECRET}/{SECRET}+x",
        f"secret_access_key = '{SECRET}'",
        f"x-api-key: {SECRET}",
        f"{{'X-Api-Key': '{SECRET}'}}",
        f"{{'password': b'{SECRET}'}}",
        f'password=rb"{SECRET}"',
        f'{{"password": "a\\"{SECRET}"}}',
        f"SECRET_KEY = '{SECRET}'",
        f"DB_PASS={SECRET}",
        f"{{'db_pass': '{SECRET}'}}",
        f"Server=db;Uid=app;Pwd={SECRET};",
        f"GET https://blob.example/a?sv=2024&sig={SECRET}&se=1",
        f"GET https://blob.example/a?X-Amz-Signature={SECRET}&se=1",
        f"cannot connect to postgresql://app:{SECRET[:4]}@{SECRET}@db/app",
        f"cannot connect to postgresql://app:@{SECRET}@{SECRET}@db/app",
    ],
)
def test_known_shapes_are_hidden(text: str) -> None:
    shown = without_secrets(text)

    assert SECRET not in shown
    assert REDACTED in shown


def test_what_stands_around_a_secret_is_kept() -> None:
    url = without_secrets(f"cannot connect to postgresql://app:{SECRET}@db:5432/app")
    key = without_secrets("AKIAIOSFODNN7EXAMPLE may not read s3://reports")

    assert url == f"cannot connect to postgresql://app:{REDACTED}@db:5432/app"
    assert without_secrets("redis://:a@b@c@cache/0") == f"redis://:{REDACTED}@cache/0"
    assert key == f"AKIA{REDACTED} may not read s3://reports"
    assert without_secrets(TOKEN) == f"tenure_{'a' * 16}_{REDACTED}"


@each_case(
    "text",
    [
        "Bearer authentication is not supported",
        "Basic authentication is not supported",
        "http://127.0.0.1:7717/v1/jobs refused the connection",
        "the file task-list-of-yesterday.txt is missing",
        "01930000-0000-7000-8000-000000000001 is no job",
        "http://127.0.0.1:7717/v1/users/ada@example.org is unknown",
        "first_pass=True, bypass: no, compass=north",
        "passes: 3, config=prod, design: new",
        "sig: SIGTERM arrived, signature = (self, value)",
        "the public_key: ssh-ed25519 AAAA",
        "1 pass: all tests are green",
        "PWD=/home/ada OLDPWD=/tmp",
        "redis://cache:@localhost/0",
        "mails went to ['ada@example.org', 'http://shop:80', 'bob@example.org']",
    ],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert without_secrets(text) == text


@spec("OB13")
def test_code_in_a_traceback_stays_readable_and_its_literals_do_not() -> None:
    text = """Traceback (most recent call last):
  File "shop/login.py", line 4, in login
    token = read_token(path); password = 'hunter2'
    pwd = os.getcwd(); db_pass = b'hunter2'
            ^^^^^^^^^^^^^^^^
  File "shop/login.py", line 2, in read_token
    raise ValueError(f"token={text}")
ValueError: token=abc123 of x
"""

    shown = without_secrets(text)

    assert f"    token = read_token(path); password = {REDACTED}\n" in shown
    assert f"    pwd = os.getcwd(); db_pass = {REDACTED}\n" in shown
    assert '    raise ValueError(f"token={text}")' in shown
    assert f"\nValueError: token={REDACTED} of x\n" in shown
    assert "hunter2" not in shown


@each_case(
    "piece",
    [
        "://",
        "://a:",
        "://a:@",
        "a@",
        "secret_access_",
        "x-api-",
        "password='",
        'pwd="\\',
        "pwd ",
        "db_pass",
        "sig=",
    ],
)
@pytest.mark.slow
def test_the_time_is_linear_in_the_length_of_the_text(piece: str) -> None:
    text = piece * (200_000 // len(piece))

    began = time.process_time()
    without_secrets(text)

    assert time.process_time() - began < 5.0  # quadratic patterns take minutes
