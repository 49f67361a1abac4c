"""The process link: every message survives the way, nothing is lost or reordered, and nobody else can get at it."""

from __future__ import annotations

import stat
import threading
from collections.abc import Iterator

import msgspec
import pytest
import zmq

from radixrt.config import EngineConfig
from radixrt.engine import link, questions
from radixrt.engine.link import (
    PROTOCOL,
    Abort,
    Add,
    Answered,
    Ask,
    Failed,
    Flush,
    Flushed,
    FrontLink,
    Heartbeat,
    Load,
    Outputs,
    Progress,
    Ready,
    Stop,
    WorkerLink,
)
from radixrt.engine.questions import (
    Declined,
    Done,
    DropTails,
    Explain,
    Explained,
    Pause,
    Pinned,
    PinPrefix,
    RequestFacts,
    RequestsView,
    Resume,
    TreeView,
    Unpin,
    ViewRequests,
    ViewTree,
)
from radixrt.types import (
    CacheReport,
    Divergence,
    EngineStats,
    Finish,
    FinishReason,
    GenerateRequest,
    LogprobOptions,
    ModelInfo,
    SamplingParams,
    TokenLogprob,
    TokenOutput,
)

REQUEST = GenerateRequest(
    uid=1 << 40,
    prompt=[1, 2, 3],
    sampling=SamplingParams(stop=("a", "\n"), stop_token_ids=(5,), logit_bias={7: -1.5}, seed=-(2**63), max_new_tokens=None),
    namespace=("", "salt"),
    logprobs=LogprobOptions(start_len=0, top=3, token_ids=(1, 2)),
    priority=-4,
)
OUTPUT = TokenOutput(
    9, [4, 5], finish=Finish(FinishReason.STOP, matched="end"), logprobs=[TokenLogprob(-0.5, 4, [(-0.5, 4)], [])],
    prompt_logprobs=[TokenLogprob(None, 1)], cached_tokens=3, report=CacheReport(3, 4, {"slots": 0.5}, Divergence(3, [7])),
)  # fmt: skip
MODEL = ModelInfo(model_path="m", architecture="A", vocab_size=3, context_length=4, capacity_tokens=5, eos_token_ids=(2,))
QUESTIONS = [
    PinPrefix("system", [1, 2], ("", "salt", ""), 1.5),
    Unpin("system"),
    Explain([1], ("", "", "")),
    ViewTree(None, 1, 2, 3),
    DropTails([([1, 2], 1)], ("", "", "")),
    ViewRequests(7),
    Pause(True),
    Resume(),
]
ANSWERS = [
    Pinned(2, 1.5),
    Explained(Divergence(1, [2, 3])),
    TreeView([{"handle": 1, "parent": None, "namespace": ["", "salt", ""]}], 4),
    RequestsView([RequestFacts(1, 5, 2, 6, 1, 0, 0, 0.5, "")], [RequestFacts(2, 5, -1, 0, 0, 3, 1, 1.5, "memory")], 1, 9),
    Done(True),
    Declined("why", 400, "ttl", "invalid_value"),
]
COMMANDS = [
    Load(PROTOCOL, EngineConfig.of(model_path="toy", max_total_tokens=64, mem_fraction_static=0.25), 20),
    Add([REQUEST, REQUEST]),
    Abort(3),
    Flush(4),
    *(Ask(5 + i, question) for i, question in enumerate(QUESTIONS)),
    Stop(),
]
REPORTS = [
    Progress(1, 2, "blk.0.attn_q"),
    Ready(PROTOCOL, MODEL, EngineStats(), EngineConfig.of(model_path="toy", max_total_tokens=9)),
    Failed("why", config=True),
    Outputs([OUTPUT, TokenOutput(2, [])], EngineStats(steps=3, locked_tokens=4)),
    Flushed(4, True, EngineStats(wait_seconds={"memory": 1.5}, reuse_counts=[1, 2])),
    *(Answered(5 + i, answer, EngineStats()) for i, answer in enumerate(ANSWERS)),
    Heartbeat(5, True),
]


@pytest.fixture
def ends() -> Iterator[tuple[FrontLink, WorkerLink]]:
    front = FrontLink()
    worker = WorkerLink(front.path)
    yield front, worker
    front.close()
    worker.close()


def test_every_message_arrives_as_it_was_sent(ends: tuple[FrontLink, WorkerLink]) -> None:
    front, worker = ends
    for command in COMMANDS:
        front.send(command)
    assert [worker.receive(2000) for _ in COMMANDS] == COMMANDS
    for report in REPORTS:
        worker.send(report)
    assert [front.receive(2000) for _ in REPORTS] == REPORTS


def test_every_kind_of_message_is_among_those_tested() -> None:
    assert {type(command) for command in COMMANDS} == set(link.Command.__args__)
    assert {type(report) for report in REPORTS} == set(link.Report.__args__)
    assert {type(question) for question in QUESTIONS} == set(questions.AnyQuestion.__args__)
    assert {type(answer) for answer in ANSWERS} == set(questions.AnyAnswer.__args__)


def test_commands_sent_before_the_worker_exists_are_waiting_for_it() -> None:
    front = FrontLink()
    for uid in range(5000):
        front.send(Abort(uid))
    worker = WorkerLink(front.path)
    assert [worker.receive(2000) for _ in range(5000)] == [Abort(uid) for uid in range(5000)]
    front.close()
    worker.close()


def test_a_slow_front_holds_the_worker_back_and_loses_nothing(ends: tuple[FrontLink, WorkerLink]) -> None:
    front, worker = ends
    count = 4 * link.MAX_REPORTS_AHEAD
    sent = []

    def produce() -> None:
        for step in range(count):
            worker.send(Outputs([TokenOutput(1, list(range(256)))], EngineStats(steps=step)))
            sent.append(step)

    producer = threading.Thread(target=produce)
    producer.start()
    producer.join(0.5)
    assert producer.is_alive()
    assert len(sent) < count
    steps = []
    while len(steps) < count:
        report = front.receive(5000)
        assert isinstance(report, Outputs)
        steps.append(report.stats.steps)
    producer.join(5)
    assert steps == list(range(count))


def test_beats_have_a_socket_of_their_own_and_never_wait(ends: tuple[FrontLink, WorkerLink]) -> None:
    front, worker = ends
    beats = worker.beats()
    assert front.receive(50) is None  # gives the socket time to connect
    for step in range(5 * link.MAX_REPORTS_AHEAD):
        beats.send(Heartbeat(step, True))
    assert front.receive(2000) == Heartbeat(0, True)
    beats.close()


def test_nothing_to_receive_is_none(ends: tuple[FrontLink, WorkerLink]) -> None:
    front, worker = ends
    assert front.receive(0) is None
    assert worker.receive(0) is None


def test_the_sockets_lie_in_a_private_folder_that_is_removed() -> None:
    front = FrontLink()
    assert stat.S_IMODE(front.path.stat().st_mode) == 0o700
    front.close()
    front.close()
    assert not front.path.exists()


def test_a_long_temporary_folder_still_gives_a_usable_socket_path(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    front = FrontLink()
    worker = WorkerLink(front.path)
    front.send(Stop())
    assert worker.receive(2000) == Stop()
    front.close()
    worker.close()


@pytest.mark.parametrize("message", [b"", b"\x80\x04K\x01.", msgspec.msgpack.encode(["Pwn", 1]), msgspec.msgpack.encode(["Failed", 7])])
def test_a_foreign_message_is_refused(ends: tuple[FrontLink, WorkerLink], message: bytes) -> None:
    front, _ = ends
    stranger = zmq.Context.instance().socket(zmq.PUSH)
    stranger.connect(f"ipc://{front.path}/reports")
    stranger.send(message)
    with pytest.raises(msgspec.DecodeError):
        front.receive(2000)
    stranger.close(linger=0)
