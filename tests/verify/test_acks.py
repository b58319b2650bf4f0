"""The acknowledgement file: what is written is read, what is torn is skipped, the rest refused."""

from pathlib import Path

import pytest
from msgspec import json

from tenure.core.ids import JobId, LeaseId, RequestId
from tenure.core.instants import Instant
from tenure.core.vocabulary import VerdictKind
from tenure.errors import InvalidInput
from tenure.verify import Ack, AckOp, AckWriter, read_acks
from tests.support.histories import World

JOB = JobId("018bcfe5-6800-75b1-a522-4a58b791df6a")
LEASE = LeaseId("1-" + "0" * 32)
NOON = Instant(1_700_000_000_000_000)
ACK = Ack(op=AckOp.ENQUEUE, job_id=JOB, at=NOON, answer=VerdictKind.OK)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    acks = World(1).run(100).acks

    with AckWriter(tmp_path / "acks") as writer:
        for ack in acks:
            writer.write(ack)

    assert list(read_acks(tmp_path / "acks")) == acks


def test_a_line_is_in_the_file_when_write_returns(tmp_path: Path) -> None:
    writer = AckWriter(tmp_path / "acks")
    writer.write(ACK)

    assert list(read_acks(tmp_path / "acks")) == [ACK]
    writer.close()


def test_a_line_has_the_documented_shape(tmp_path: Path) -> None:
    ack = Ack(
        op=AckOp.COMPLETE,
        job_id=JobId("018bcfe5-6800-75b1-a522-4a58b791df6a"),
        at=Instant(1_700_000_000_000_000),
        answer=VerdictKind.COMMITTED,
        request_id=RequestId("r1"),
        lease_id=LeaseId("1-" + "0" * 32),
    )
    with AckWriter(tmp_path / "acks") as writer:
        writer.write(ack)

    assert (tmp_path / "acks").read_text() == (
        '{"op":"complete","job_id":"018bcfe5-6800-75b1-a522-4a58b791df6a",'
        '"at":1700000000000000,"answer":"COMMITTED","request_id":"r1",'
        '"lease_id":"1-00000000000000000000000000000000"}\n'
    )


def test_a_torn_last_line_is_skipped_and_cut_by_the_next_writer(tmp_path: Path) -> None:
    path = tmp_path / "acks"
    with AckWriter(path) as writer:
        writer.write(ACK, ACK)
    path.write_bytes(path.read_bytes()[:-7])

    assert list(read_acks(path)) == [ACK]

    with AckWriter(path) as writer:
        writer.write(ACK)
    assert list(read_acks(path)) == [ACK, ACK]


def line(**fields: object) -> str:
    """A lawful line but for these fields."""
    return json.encode({"op": "enqueue", "job_id": JOB, "at": NOON} | fields).decode()


@pytest.mark.parametrize(
    "wrong",
    [
        "{",
        "[]",
        '{"op":"enqueue"}',
        "x" * 70_000,
        line(op="nothing"),
        line(op="complete", request_id="r"),
        line(op="cancel"),
        line(op="redrive", answer="OK", request_id="r"),
        line(job_id="j"),
        line(job_id=JOB.upper()),
        line(answered_id="j", answer="OK"),
        line(op="complete", request_id="r", lease_id="mine", answer="COMMITTED"),
        line().replace(JOB, "\\ud800"),
        line(at="noon"),
        line(at=-1),
        line(at=NOON // 1_000_000),  # seconds
        line(at=NOON // 1000),  # milliseconds
        line(at=NOON * 1000),  # nanoseconds
        line().replace(str(NOON), "18446744073709551616"),
        line(rev=2**63),
        line(answer="COMMITTED"),
        line(answer="CANCELLED"),
        line(answer="MAYBE"),
        line(op="complete", request_id="r", lease_id=LEASE, answer="OK"),
        line(op="heartbeat", lease_id=LEASE, answer="COMMITTED"),
        line(op="claim", lease_id=LEASE, answer="CANCELLED"),
    ],
)
def test_an_invalid_line_is_refused_with_its_number(tmp_path: Path, wrong: str) -> None:
    path = tmp_path / "acks"
    path.write_text(f"{line()}\n\n{wrong}\n")

    with pytest.raises(InvalidInput, match="acks, line 3"):
        list(read_acks(path))


def test_an_acknowledgement_may_have_ids_of_a_wrong_form(tmp_path: Path) -> None:
    path = tmp_path / "acks"
    path.write_text(line(op="start", job_id="j", lease_id="l", request_id="r", answer="REJECTED"))
    path.write_text(path.read_text() + "\n")

    [ack] = read_acks(path)

    assert ack.answer is VerdictKind.REJECTED


def test_fields_of_a_later_version_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "acks"
    path.write_text(line(answer="OK", weather="fine") + "\n")

    assert list(read_acks(path)) == [ACK]


def test_the_example_lines_in_the_documentation_can_be_read(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "acks.md"
    lines = [line for line in page.read_text().splitlines() if line.startswith("{")]
    (tmp_path / "acks").write_text("\n".join([*lines, ""]))

    [request, answer] = read_acks(tmp_path / "acks")

    assert (request.answer, answer.answer) == (None, VerdictKind.OK)
    assert all(f"`{field}`" in page.read_text() for field in Ack.__struct_fields__)
