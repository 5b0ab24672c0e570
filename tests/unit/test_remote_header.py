"""Headers over HTTP: what is read is what a local read gives, little is downloaded, and each failure has its name."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gezelctl.catalog.types import Origin, PayloadFile
from gezelctl.config.secrets import Secret
from gezelctl.errors import FetchError, GezelctlError, GgufError
from gezelctl.gguf.reader import read_summary
from gezelctl.gguf.types import GgufSummary
from gezelctl.observe import remote
from gezelctl.observe.hub import Connection, Hub
from gezelctl.observe.remote import RemoteFile, cached_remote, remote_summary
from tests import ggufmake as make
from tests import hubserver
from tests.executing import free_port, sha
from tests.hubserver import Fault

REPO, NAME = "lab/tiny", "tiny.gguf"
MIB = 1024 * 1024


@pytest.fixture
def hub() -> Iterator[hubserver.Hub]:
    with hubserver.running_hub() as server:
        yield server


def model(tokens: int = 300, data_bytes: int = 8 * MIB) -> bytes:
    """A file with a vocabulary of this size and this many bytes of tensors."""
    values = make.LLAMA | {"tokenizer.ggml.tokens": [f"token{i}" for i in range(tokens)]}
    return make.gguf_bytes(values, [("token_embd.weight", (32, data_bytes // 64), 1)])


BIG = model()
VOCABULARY = model(200_000, 16 * MIB)


def hub_file(name: str = NAME, **pins: object) -> PayloadFile:
    return PayloadFile(name, "weights", Origin("huggingface", repo=REPO, filename=name), **pins)  # type: ignore[arg-type] # pins


def read(
    hub: hubserver.Hub, cache: Path, *files: PayloadFile, token: str = "", limit_s: float | None = None
) -> GgufSummary:
    config = Hub(hub.endpoint, Secret(token) if token else None)
    with Connection(config, stall_s=5) as connection:
        return remote_summary(files or (hub_file(),), config, cache, connection, limit_s=limit_s)


def failing(hub: hubserver.Hub, cache: Path, *files: PayloadFile, **more: object) -> GezelctlError:
    with pytest.raises((FetchError, GgufError)) as caught:
        read(hub, cache, *files, **more)  # type: ignore[arg-type] # passed through
    assert caught.value.cure, "every failure names the next step"
    assert "planted" not in str(caught.value), "a signed link is a secret"
    assert not list(cache.rglob("*.json")), "a failure is not remembered"
    return caught.value


def local(tmp_path: Path, data: bytes) -> GgufSummary:
    path = tmp_path / "local.gguf"
    path.write_bytes(data)
    return read_summary(path)


@pytest.mark.parametrize(("data", "most"), [(BIG, 600 * 1024), (VOCABULARY, 6 * MIB)], ids=["small", "vocabulary"])
def test_ranges_bring_the_header_and_little_more(hub: hubserver.Hub, tmp_path: Path, data: bytes, most: int) -> None:
    hub.add(REPO, NAME, data)
    assert read(hub, tmp_path) == local(tmp_path, data)
    assert hub.sent_bytes <= most
    assert hub.requests[0].headers["range"] == f"bytes=0-{512 * 1024 - 1}"
    assert {r.headers["range"] for r in hub.requests if r.origin == "hub"} == {"bytes=0-524287"}, "then the link itself"


@pytest.mark.parametrize("kind", ["plain", "chunked"])
def test_a_server_without_ranges_is_hung_up_on(hub: hubserver.Hub, tmp_path: Path, kind: str) -> None:
    hub.ranges = False
    hub.add(REPO, NAME, VOCABULARY)
    if kind == "chunked":
        hub.fault = Fault("chunked")
    expected = local(tmp_path, VOCABULARY)
    assert read(hub, tmp_path) == expected
    assert len(hub.requests) == 2, "one answer is enough"
    if kind == "plain":
        assert hub.sent_bytes < len(VOCABULARY), "the tensors were not sent to the end"


def test_only_the_hub_sees_the_token(hub: hubserver.Hub, tmp_path: Path) -> None:
    hub.gated.add(REPO)
    hub.add(REPO, NAME, VOCABULARY)
    read(hub, tmp_path, token=hub.token)
    seen = {r.origin: r.headers.get("authorization") for r in hub.requests}
    assert seen == {"hub": f"Bearer {hub.token}", "cdn": None}


def test_an_expired_link_is_asked_for_again(hub: hubserver.Hub, tmp_path: Path) -> None:
    hub.links_expire = True
    hub.add(REPO, NAME, VOCABULARY)
    assert read(hub, tmp_path) == local(tmp_path, VOCABULARY)
    assert sum(r.origin == "hub" for r in hub.requests) > 1


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (Fault("status", 500), "SERVER_ERROR"),
        (Fault("status", 429, headers={"Retry-After": "7"}), "RATE_LIMITED"),
        (Fault("status", 403), "GATED"),
        (Fault("truncate", after=1000), "TRUNCATED"),
        (Fault("html"), "NOT_GGUF"),
        (Fault("lfs"), "NOT_GGUF"),
        (Fault("loop"), "REDIRECTS"),
    ],
    ids=lambda value: value.kind if isinstance(value, Fault) else value,
)
def test_each_failure_has_its_name(
    hub: hubserver.Hub, tmp_path: Path, fault: Fault, code: str, *, ranges: bool
) -> None:
    hub.ranges = ranges
    hub.add(REPO, NAME, BIG)
    hub.fault = fault
    assert failing(hub, tmp_path).code == code


def test_who_may_not_read_is_told_how(hub: hubserver.Hub, tmp_path: Path) -> None:
    hub.add(REPO, NAME, BIG)
    hub.gated.add(REPO)
    assert failing(hub, tmp_path).code == "GATED"
    hub.accepted = False
    assert failing(hub, tmp_path, token=hub.token).code == "GATED"
    hub.gated.clear()
    assert failing(hub, tmp_path, token="hf_wrong").code == "TOKEN_REJECTED"
    assert failing(hub, tmp_path, hub_file("other.gguf")).code == "NOT_FOUND"


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}/x.gguf"
    file = PayloadFile("x.gguf", "weights", Origin("url", url=url))
    with Connection(Hub()) as connection, pytest.raises(FetchError) as caught:
        remote_summary([file], Hub(), tmp_path, connection)
    assert caught.value.code == "REFUSED"


def test_a_slow_server_is_given_up(hub: hubserver.Hub, tmp_path: Path) -> None:
    hub.add(REPO, NAME, VOCABULARY)
    hub.fault = Fault("slow")
    assert failing(hub, tmp_path, limit_s=0.05).code == "STALLED"


def test_another_file_than_the_pinned_one(hub: hubserver.Hub, tmp_path: Path) -> None:
    digest = hub.add(REPO, NAME, BIG)
    assert failing(hub, tmp_path, hub_file(size_bytes=17)).code == "UPSTREAM_CHANGED"
    wrong = failing(hub, tmp_path, hub_file(sha256="0" * 64))
    assert wrong.code == "UPSTREAM_CHANGED"
    assert digest in str(wrong)
    assert read(hub, tmp_path, hub_file(sha256=digest, size_bytes=len(BIG))).file_bytes == len(BIG)


def test_a_file_that_is_cut_short_on_the_server(hub: hubserver.Hub, tmp_path: Path) -> None:
    hub.add(REPO, NAME, BIG[: 4 * MIB])
    assert failing(hub, tmp_path).code == "GGUF_TRUNCATED"
    hub.add(REPO, NAME, b"")
    assert failing(hub, tmp_path).code == "NOT_GGUF"


@pytest.mark.parametrize("ranges", [True, False])
def test_a_header_without_end_is_given_up(
    hub: hubserver.Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, ranges: bool
) -> None:
    monkeypatch.setattr(remote, "HEADER_LIMIT_BYTES", 1 * MIB)
    hub.ranges = ranges
    hub.add(REPO, NAME, VOCABULARY)
    assert failing(hub, tmp_path).code == "HEADER_TOO_LONG"


def shard_set(hub: hubserver.Hub, count: int = 3) -> list[PayloadFile]:
    names = [f"big-{i:05d}-of-{count:05d}.gguf" for i in range(1, count + 1)]
    for index, name in enumerate(names):
        split = {"split.no": (make.U16, index), "split.count": (make.U16, count)}
        values = make.LLAMA | {"llama.block_count": count} | split if index == 0 else split
        hub.add(REPO, name, make.gguf_bytes(values, [(f"blk.{index}.ffn_up.weight", (32, 64), 1)]))
    return [hub_file(name) for name in names]


def test_every_shard_is_read(hub: hubserver.Hub, tmp_path: Path) -> None:
    files = shard_set(hub)
    found = read(hub, tmp_path, *files)
    assert (found.shards, found.weights.tensor_count, len(found.weights.layers)) == (3, 3, 3)
    del hub.files[REPO, "main", files[1].name]
    assert failing(hub, tmp_path / "cold", *files).code == "NOT_FOUND"
    assert failing(hub, tmp_path / "cold", *files[:1]).code == "SPLIT"


def test_a_pinned_file_is_asked_for_once(hub: hubserver.Hub, tmp_path: Path) -> None:
    file = hub_file(sha256=hub.add(REPO, NAME, VOCABULARY))
    config = Hub(hub.endpoint)
    assert cached_remote([file], config, tmp_path) is None
    found = read(hub, tmp_path, file)
    hub.requests.clear()
    assert read(hub, tmp_path, file) == found == cached_remote([file], config, tmp_path)
    assert not hub.requests


def test_an_unpinned_file_is_read_again_only_when_it_changed(hub: hubserver.Hub, tmp_path: Path) -> None:
    hub.add(REPO, NAME, VOCABULARY)
    first = read(hub, tmp_path)
    hub.sent_bytes = 0
    assert read(hub, tmp_path) == first
    assert hub.sent_bytes == 512 * 1024, "one window, for its ETag"
    hub.add(REPO, NAME, BIG)
    assert read(hub, tmp_path).vocab_size == 300


def test_a_damaged_cache_is_made_anew(hub: hubserver.Hub, tmp_path: Path) -> None:
    file = hub_file(sha256=hub.add(REPO, NAME, BIG))
    found = read(hub, tmp_path, file)
    (entry,) = (path for path in tmp_path.rglob("*") if path.is_file())
    for damage in (b"", b"{}", entry.read_bytes()[:-40]):
        entry.write_bytes(damage)
        assert read(hub, tmp_path, file) == found


DATA = b"GGUF" + struct.pack("<I", 3) + bytes(i * 7 % 251 for i in range(3 * MIB))
READS = st.lists(st.tuples(st.integers(0, len(DATA)), st.integers(0, MIB)), max_size=8)


@pytest.mark.parametrize("ranges", [True, False])
def test_reads_anywhere_give_the_bytes_there(*, ranges: bool) -> None:
    with ExitStack() as stack:
        hub = stack.enter_context(hubserver.running_hub())
        hub.ranges = ranges
        hub.add(REPO, NAME, DATA)
        connection = stack.enter_context(Connection(Hub(hub.endpoint)))

        @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
        @given(READS)
        def check(reads: list[tuple[int, int]]) -> None:
            with RemoteFile(hub_file(), connection) as source:
                source.open()
                for offset, length in itertools.islice(reads, 8):
                    assert source.read_at(offset, length) == DATA[offset : offset + length]
                assert source.etag == sha(DATA)
                assert source.size == len(DATA)

        check()


@pytest.mark.engine("smollm2")
def test_the_135m_model_from_afar(hub: hubserver.Hub, tmp_path: Path, smollm2: Path) -> None:
    hub.add(REPO, NAME, smollm2.read_bytes())
    assert read(hub, tmp_path) == read_summary(smollm2)
    assert hub.sent_bytes < 2.5 * MIB, "of 94 MiB"
