"""The evidence check finds what is missing, alone and under xdist, and stays silent otherwise."""

import pytest

from tenure_conformance.spec import MAX_IDS_PER_TEST, spec
from tests.support.evidence import defined_ids

WITHOUT_AND_WITH_XDIST = pytest.mark.parametrize("extra", [(), ("-n", "2")], ids=["alone", "xdist"])


def run(pytester: pytest.Pytester, *extra: str) -> pytest.RunResult:
    """Run the inner suite as a stranger would: plugin and option, no configuration of ours."""
    return pytester.runpytest_inprocess(
        "-p", "tests.support.evidence", "--spec-evidence", "--strict-markers", *extra
    )


@pytest.fixture(autouse=True)
def _importable_support(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(pytestconfig.rootpath))


def write(pytester: pytest.Pytester, *, page: str, tests: str) -> None:
    spec_dir = pytester.mkdir("docs") / "spec"
    spec_dir.mkdir()
    (spec_dir / "lifecycle.md").write_text(page, encoding="utf-8")
    pytester.makepyfile("import pytest\nfrom tenure_conformance.spec import spec\n" + tests)


def test_ids_are_taken_from_sentences_and_rows_but_not_from_references_or_code() -> None:
    page = """
**[L4]** At the instant of expiry a lease is gone. **[L5]** See [L1], too.

| **[T9b]** | running | dead_lettered |
- **[W3.2]** A late report changes nothing.

```
**[X1]** this is an example
```
"""

    assert list(defined_ids(page)) == ["L4", "L5", "T9b", "W3.2"]


def test_the_decorator_takes_one_to_five_ids() -> None:
    too_many = [f"L{n}" for n in range(MAX_IDS_PER_TEST + 1)]

    assert spec("L4", "L5").args == ("L4", "L5")
    with pytest.raises(ValueError, match="split the test"):
        spec(*too_many)
    with pytest.raises(ValueError, match="0 ids"):
        spec()


@pytest.mark.process
@WITHOUT_AND_WITH_XDIST
def test_a_spec_with_evidence_passes(pytester: pytest.Pytester, extra: tuple[str, ...]) -> None:
    write(
        pytester,
        page="**[L1]** One.\n\n| **[L2]** | Two. |\n",
        tests="@spec('L1')\ndef test_one(): pass\n@spec('L1', 'L2')\ndef test_two(): pass\n",
    )

    result = run(pytester, *extra)

    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*spec evidence: complete*"])


@pytest.mark.process
@WITHOUT_AND_WITH_XDIST
def test_an_uncited_sentence_fails_the_run(
    pytester: pytest.Pytester, extra: tuple[str, ...]
) -> None:
    write(
        pytester,
        page="**[L1]** One. **[L2]** Two.\n",
        tests="@spec('L1')\ndef test_one(): pass\n",
    )

    result = run(pytester, *extra)

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["[[]L2] is cited by no test"])
    result.stdout.no_fnmatch_line("*[[]L1]*")


@pytest.mark.parametrize(
    "decorator_and_body",
    [
        "@pytest.mark.skip(reason='later')\ndef test_one(): pass\n",
        "@pytest.mark.xfail(reason='known')\ndef test_one(): assert False\n",
        "@pytest.mark.xfail(reason='known', strict=False)\ndef test_one(): pass\n",
        "def test_one(): pytest.skip('not here')\n",
    ],
    ids=["skipped", "expected failure", "unexpected pass", "skipped inside"],
)
def test_only_a_test_that_was_executed_and_passed_is_evidence(
    pytester: pytest.Pytester, decorator_and_body: str
) -> None:
    write(pytester, page="**[L1]** One.\n", tests="@spec('L1')\n" + decorator_and_body)

    result = run(pytester)

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["[[]L1] is cited, but by no test that was executed and passed"])


@pytest.mark.process
@WITHOUT_AND_WITH_XDIST
def test_an_unknown_id_fails_the_run(pytester: pytest.Pytester, extra: tuple[str, ...]) -> None:
    write(pytester, page="**[L1]** One.\n", tests="@spec('L1', 'L9')\ndef test_one(): pass\n")

    result = run(pytester, *extra)

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["[[]L9] is cited by *test_one but no sentence has this id"])


def test_stacked_marks_do_not_get_round_the_limit(pytester: pytest.Pytester) -> None:
    ids = [f"L{n}" for n in range(1, MAX_IDS_PER_TEST + 2)]
    write(
        pytester,
        page="".join(f"**[{spec_id}]** Sentence.\n" for spec_id in ids),
        tests=f"@spec('L1')\n@spec(*{ids[1:]!r})\ndef test_all(): pass\n",
    )

    result = run(pytester)

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*test_all cites 6 ids, at most 5 are allowed"])


def test_an_id_defined_twice_fails_the_run(pytester: pytest.Pytester) -> None:
    write(
        pytester,
        page="**[L1]** One.\n\n**[L1]** One again.\n",
        tests="@spec('L1')\ndef test_one(): pass\n",
    )

    result = run(pytester)

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["[[]L1] is defined 2 times*"])


def test_a_spec_without_sentences_fails_the_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_one(): pass")

    result = run(pytester)

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["no sentence with an id was found*"])


def test_without_the_option_nothing_is_judged(pytester: pytest.Pytester) -> None:
    write(pytester, page="**[L1]** One.\n", tests="def test_one(): pass\n")

    result = pytester.runpytest_inprocess("-p", "tests.support.evidence")

    assert result.ret == pytest.ExitCode.OK
