"""Which hosts are this machine."""

import pytest

from tenure.protocol import is_loopback
from tenure.remote.settings import parse_address
from tests.support.cases import each_case


@each_case(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.255.255.254", True),
        ("::1", True),
        ("[::1]", True),
        ("0:0:0:0:0:0:0:1", True),
        ("::ffff:127.0.0.1", True),
        ("[::ffff:127.0.0.1]", True),
        ("localhost", True),
        ("LOCALHOST", True),
        ("localhost.", False),
        ("localhost.evil.com", False),
        ("127.evil.com", False),
        ("127.0.0.1.evil.com", False),
        ("126.255.255.255", False),
        ("128.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("0.0.0.0", False),  # noqa: S104 - judged, not bound
        ("::", False),
        ("[127.0.0.1]", False),
        ("[localhost]", False),
        ("[::1", False),
        ("]::1[", False),
        ("[]", False),
        ("", False),
    ],
)
def test_only_certain_names_count_as_this_machine(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://LOCALHOST:1", True),
        ("http://[::1]:1", True),
        ("http://127.evil.com:1", False),
        ("http://localhost.:1", False),
    ],
)
def test_the_host_of_a_url_is_judged_by_the_same_rule(url: str, expected: bool) -> None:
    assert parse_address(url).is_private is expected
