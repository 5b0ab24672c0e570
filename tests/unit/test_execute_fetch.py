"""Downloads against a real HTTP server: what arrives is verified, and each way to fail has its name and cure."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gezelctl.catalog.types import Origin
from gezelctl.config.redact import public_url
from gezelctl.config.secrets import Secret
from gezelctl.errors import FetchError
from gezelctl.execute.disk import require_space
from gezelctl.execute.fetch import Fetched, Fetcher, Want
from gezelctl.observe.hub import Hub, source_url
from gezelctl.plan.capacity import disk_margin
from tests import hubserver
from tests.executing import free_port, model_bytes, sha
from tests.hubserver import Fault

REPO, NAME = "lab/tiny", "sub/tiny q4.gguf"
ORIGIN = Origin(kind="huggingface", repo=REPO, filename=NAME)


@pytest.fixture
def hub() -> Iterator[hubserver.Hub]:
    with hubserver.running_hub() as server:
        yield server


def fetch(
    hub: hubserver.Hub, tmp_path: Path, want: Want, *, token: str = "", origin: Origin = ORIGIN, stall_s: float = 5.0
) -> tuple[Fetched, list[tuple[int, int]]]:
    progress: list[tuple[int, int]] = []
    with Fetcher(Hub(hub.endpoint, Secret(token) if token else None), stall_s=stall_s) as fetcher:
        found = fetcher.fetch(origin, tmp_path / "x.partial", want, lambda done, total: progress.append((done, total)))
    return found, progress


def failing(hub: hubserver.Hub, tmp_path: Path, want: Want, **options: object) -> FetchError:
    with pytest.raises(FetchError) as caught:
        fetch(hub, tmp_path, want, **options)  # type: ignore[arg-type] # passed through
    assert not (tmp_path / "x.partial").exists(), "a failed transfer leaves nothing"
    assert caught.value.cure, "every failure names the next step"
    return caught.value


def test_a_file_comes_whole_through_the_redirect(hub: hubserver.Hub, tmp_path: Path) -> None:
    data = model_bytes()
    digest = hub.add(REPO, NAME, data)
    found, progress = fetch(hub, tmp_path, Want(NAME, digest, len(data), gguf=True))
    assert (tmp_path / "x.partial").read_bytes() == data
    assert found == Fetched(digest, len(data), f"{hub.endpoint}/lab/tiny/resolve/main/sub/tiny%20q4.gguf")
    assert progress[0] == (0, len(data))
    assert progress[-1] == (len(data), len(data))
    assert [r.origin for r in hub.requests] == ["hub", "cdn"]


def test_a_stale_partial_is_replaced(hub: hubserver.Hub, tmp_path: Path) -> None:
    data = model_bytes()
    digest = hub.add(REPO, NAME, data)
    (tmp_path / "x.partial").write_bytes(b"old" * len(data))
    fetch(hub, tmp_path, Want(NAME, digest, len(data)))
    assert (tmp_path / "x.partial").read_bytes() == data


def test_the_token_goes_to_the_endpoint_and_nowhere_else(hub: hubserver.Hub, tmp_path: Path) -> None:
    hub.gated.add(REPO)
    digest = hub.add(REPO, NAME, model_bytes())
    fetch(hub, tmp_path, Want(NAME, digest), token=hub.token)
    sent = {r.origin: r.headers.get("authorization") for r in hub.requests}
    assert sent == {"hub": f"Bearer {hub.token}", "cdn": None}


def test_the_token_does_not_follow_to_another_port_of_the_same_host(hub: hubserver.Hub, tmp_path: Path) -> None:
    digest = hub.add(REPO, NAME, model_bytes())
    url = hub.cdn.replace("localhost", "127.0.0.1") + f"/blobs/{digest}"
    fetch(hub, tmp_path, Want(NAME, digest), token=hub.token, origin=Origin(kind="url", url=url))
    assert [r.headers.get("authorization") for r in hub.requests] == [None]


def test_the_user_agent_says_who_asks(hub: hubserver.Hub, tmp_path: Path) -> None:
    digest = hub.add(REPO, NAME, model_bytes())
    fetch(hub, tmp_path, Want(NAME, digest))
    assert all(r.headers["user-agent"].startswith("gezelctl/") for r in hub.requests)
    assert all(r.headers["accept-encoding"] == "identity" for r in hub.requests)


def test_a_chunked_answer_without_a_length_is_counted_by_the_catalog(hub: hubserver.Hub, tmp_path: Path) -> None:
    data = model_bytes()
    digest = hub.add(REPO, NAME, data)
    hub.fault = Fault("chunked")
    found, progress = fetch(hub, tmp_path, Want(NAME, digest, len(data)))
    assert (found.size_bytes, progress[-1]) == (len(data), (len(data), len(data)))


def test_another_digest_names_both(hub: hubserver.Hub, tmp_path: Path) -> None:
    data = model_bytes()
    hub.add(REPO, NAME, data)
    hub.fault = Fault("corrupt")
    error = failing(hub, tmp_path, Want(NAME, sha(data), len(data)))
    assert error.code == "HASH_MISMATCH"
    assert sha(data) in error.message
    assert sha(data[:-1] + bytes([data[-1] ^ 1])) in error.message


def test_a_body_cut_short_says_how_much_came(hub: hubserver.Hub, tmp_path: Path) -> None:
    data = model_bytes()
    hub.add(REPO, NAME, data)
    hub.fault = Fault("truncate", after=len(data) - 1)
    error = failing(hub, tmp_path, Want(NAME, sha(data), len(data)))
    assert error.code == "TRUNCATED"
    assert f"expected {len(data):,} bytes, have {len(data) - 1:,}" in error.message


def test_a_stall_ends_after_the_stall_time(hub: hubserver.Hub, tmp_path: Path) -> None:
    hub.add(REPO, NAME, model_bytes())
    hub.fault = Fault("stall", after=1000)
    assert failing(hub, tmp_path, Want(NAME), stall_s=0.3).code == "STALLED"


@pytest.mark.parametrize(("kind", "words"), [("html", "a web page"), ("lfs", "git-lfs pointer")])
def test_what_is_not_a_model_is_called_what_it_is(hub: hubserver.Hub, tmp_path: Path, kind: str, words: str) -> None:
    data = model_bytes()
    hub.add(REPO, NAME, data)
    hub.fault = Fault(kind)  # type: ignore[arg-type] # parametrized with fault kinds
    error = failing(hub, tmp_path, Want(NAME, sha(data), len(data), gguf=True))
    assert error.code == "NOT_GGUF"
    assert words in error.message


def test_an_upstream_change_stops_before_the_bytes(hub: hubserver.Hub, tmp_path: Path) -> None:
    data = model_bytes() + b"\0" * 3_000_000
    hub.add(REPO, NAME, data)
    error = failing(hub, tmp_path, Want(NAME, sha(b"pinned"), 1568))
    assert error.code == "UPSTREAM_CHANGED"
    assert f"{len(data):,}" in error.message
    assert "1,568" in error.message


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (404, "NOT_FOUND"),
        (410, "NOT_FOUND"),
        (416, "RANGE"),
        (429, "RATE_LIMITED"),
        (500, "SERVER_ERROR"),
        (503, "SERVER_ERROR"),
        (418, "HTTP_STATUS"),
    ],
)
def test_each_status_has_its_name(hub: hubserver.Hub, tmp_path: Path, status: int, code: str) -> None:
    hub.add(REPO, NAME, model_bytes())
    hub.fault = Fault("status", status=status, headers={"Retry-After": "17"} if status == 429 else {})
    error = failing(hub, tmp_path, Want(NAME))
    assert error.code == code
    assert f"HTTP {status}" in error.message
    assert ("in 17 s" in error.cure) == (status == 429)


def test_the_refusals_of_a_hub_have_three_texts(hub: hubserver.Hub, tmp_path: Path) -> None:
    hub.add(REPO, NAME, model_bytes())
    hub.private.add(REPO)
    without = failing(hub, tmp_path, Want(NAME))
    wrong = failing(hub, tmp_path, Want(NAME), token="hf_" + "x" * 34)
    hub.gated.add(REPO)
    hub.accepted = False
    gated = failing(hub, tmp_path, Want(NAME), token=hub.token)
    assert [e.code for e in (without, wrong, gated)] == ["UNAUTHORIZED", "TOKEN_REJECTED", "GATED"]
    assert f"{hub.endpoint}/{REPO}" in gated.cure, "the page where the licence is accepted"
    assert len({e.message for e in (without, wrong, gated)}) == 3


def test_a_missing_revision_and_a_missing_file_differ(hub: hubserver.Hub, tmp_path: Path) -> None:
    hub.add(REPO, NAME, model_bytes())
    file = failing(hub, tmp_path, Want("y"), origin=Origin(kind="huggingface", repo=REPO, filename="y.gguf"))
    revision = Origin(kind="huggingface", repo=REPO, filename=NAME, revision="refs/pr/1")
    assert "no such file" in file.message
    assert "no such revision" in failing(hub, tmp_path, Want(NAME), origin=revision).message


def test_redirects_end(hub: hubserver.Hub, tmp_path: Path) -> None:
    hub.add(REPO, NAME, model_bytes())
    hub.fault = Fault("loop")
    assert failing(hub, tmp_path, Want(NAME)).code == "REDIRECTS"
    assert len(hub.requests) == 6


def test_nobody_listens(hub: hubserver.Hub, tmp_path: Path) -> None:
    origin = Origin(kind="url", url=f"http://127.0.0.1:{free_port()}/x.gguf")
    assert failing(hub, tmp_path, Want("x"), origin=origin).code == "REFUSED"


def test_a_name_that_does_not_resolve(hub: hubserver.Hub, tmp_path: Path) -> None:
    assert (
        failing(hub, tmp_path, Want("x"), origin=Origin(kind="url", url="http://no-such-host.invalid/x")).code == "DNS"
    )


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/x", "http://[oops/x", "x.gguf"])
def test_what_is_no_web_address(hub: hubserver.Hub, tmp_path: Path, url: str) -> None:
    assert failing(hub, tmp_path, Want("x"), origin=Origin(kind="url", url=url)).code == "BAD_URL"


def test_a_certificate_that_nobody_vouches_for(hub: hubserver.Hub, tmp_path: Path) -> None:
    key, cert = tmp_path / "k.pem", tmp_path / "c.pem"
    subject = ["-nodes", "-days", "2", "-subj", "/CN=localhost"]
    kind = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command = [
        "openssl",
        *kind,
        *subject,
        "-addext",
        "subjectAltName=DNS:localhost",
        "-keyout",
        str(key),
        "-out",
        str(cert),
    ]
    made = subprocess.run(command, capture_output=True, check=False) if shutil.which("openssl") else None
    if made is None or made.returncode != 0:
        pytest.skip("needs the openssl program")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_handshake, args=(listener, context), daemon=True).start()
        url = f"https://localhost:{listener.getsockname()[1]}/x.gguf"
        assert failing(hub, tmp_path, Want("x"), origin=Origin(kind="url", url=url)).code == "TLS"


def _handshake(listener: socket.socket, context: ssl.SSLContext) -> None:
    try:
        connection, _ = listener.accept()
        with context.wrap_socket(connection, server_side=True):
            pass
    except OSError:
        return


def test_no_secret_of_an_address_is_shown(hub: hubserver.Hub, tmp_path: Path) -> None:
    url = f"http://user:planted@127.0.0.1:{free_port()}/x.gguf?sig=planted#planted"
    error = failing(hub, tmp_path, Want("x"), origin=Origin(kind="url", url=url), token="planted-token-value")
    assert "planted" not in str(error)
    assert public_url(url).endswith("/x.gguf")


def test_the_resolve_address_quotes_each_part() -> None:
    origin = Origin(kind="huggingface", repo="a/b", revision="refs/pr/1", filename="d e/f#g.gguf")
    url = source_url(origin, Hub("https://hub.example/"))
    assert url == "https://hub.example/a/b/resolve/refs%2Fpr%2F1/d%20e/f%23g.gguf"


def test_the_margin_lets_small_models_onto_small_disks() -> None:
    mib, gib = 1 << 20, 1 << 30
    assert disk_margin(100 * mib) == 200 * mib
    assert disk_margin(gib) == 2 * gib
    assert disk_margin(200 * gib) == 4 * gib
    assert disk_margin(50 * gib) == 2 * gib


def test_a_disk_without_room_refuses_before_the_first_byte(tmp_path: Path) -> None:
    with pytest.raises(FetchError) as caught:
        require_space(tmp_path / "not" / "made" / "yet", 1 << 60)
    assert caught.value.code == "DISK_FULL"
    assert str(tmp_path) in caught.value.message
