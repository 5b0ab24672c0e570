"""Engine archives: fetched, verified, unpacked without trusting a single name in them."""

from __future__ import annotations

import io
import os
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gezelctl.config.model import Archive
from gezelctl.errors import EngineError, FetchError, GezelctlError
from gezelctl.execute import engines
from gezelctl.execute.engines import install_engine, unpack
from gezelctl.execute.fetch import Fetcher
from gezelctl.observe.hub import Hub
from gezelctl.store.layout import Paths
from tests import hubserver
from tests.executing import PROGRAM, make_paths, sha, tar_bytes


def zip_bytes(*members: tuple[str, bytes, int]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content, mode in members:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            archive.writestr(info, content)
    return out.getvalue()


def unpacked(tmp_path: Path, data: bytes) -> Path:
    archive = tmp_path / "archive"
    archive.write_bytes(data)
    unpack(archive, tmp_path / "out", "the archive")
    return tmp_path / "out"


def test_a_build_keeps_its_bits_and_links(tmp_path: Path) -> None:
    links = (("./b/libx.so", "libx.so.0"), ("./b/libx.so.0", b"so"))
    out = unpacked(tmp_path, tar_bytes(("./", None), ("./b/", None), ("./b/llama-server", PROGRAM), *links))
    assert (out / "b/llama-server").read_bytes() == PROGRAM
    assert os.access(out / "b/llama-server", os.X_OK)
    assert (out / "b/libx.so").read_bytes() == b"so"


def test_a_zip_keeps_executable_bits(tmp_path: Path) -> None:
    data = zip_bytes(("bin/llama-server", PROGRAM, 0o100755), ("README", b"text", 0o100644))
    out = unpacked(tmp_path, data)
    assert stat.S_IMODE((out / "bin/llama-server").stat().st_mode) == 0o755
    assert stat.S_IMODE((out / "README").stat().st_mode) == 0o644


def test_setuid_is_dropped(tmp_path: Path) -> None:
    out = unpacked(tmp_path, tar_bytes(("llama-server", PROGRAM), mode=0o6755))
    assert stat.S_IMODE((out / "llama-server").stat().st_mode) == 0o755


UNSAFE: dict[str, bytes] = {
    "parent": tar_bytes(("../evil", b"x")),
    "absolute": tar_bytes(("/tmp/evil", b"x")),
    "backslash": tar_bytes(("..\\evil", b"x")),
    "link out": tar_bytes(("a/l", "../../evil")),
    "absolute link": tar_bytes(("l", "/etc/passwd")),
    "hard link out": tar_bytes(("l", "../../etc/passwd"), kind=tarfile.LNKTYPE),
    "device": tar_bytes(("d", "x"), kind=tarfile.CHRTYPE),
    "twice": tar_bytes(("a", b"x"), ("a", "b")),
    "pipe": tar_bytes(("p", "x"), kind=tarfile.FIFOTYPE),
    "below a link": tar_bytes(("d", "other"), ("d/x", b"x")),
    "link through a link": tar_bytes(("s/", None), ("s/up", ".."), ("out", "s/up/../../evil"), ("f", b"x")),
    "zip parent": zip_bytes(("../evil", b"x", 0o100644)),
    "zip link": zip_bytes(("l", b"/etc/passwd", 0o120777)),
    "zip device": zip_bytes(("d", b"", 0o020644)),
}


@pytest.mark.parametrize("name", UNSAFE)
def test_an_unsafe_archive_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(EngineError) as caught:
        unpacked(tmp_path, UNSAFE[name])
    assert caught.value.code == "ARCHIVE_UNSAFE"
    assert not (tmp_path / "evil").exists()
    assert not Path("/tmp/evil").exists()


def test_a_bomb_is_refused_by_what_it_declares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "MAX_UNPACKED_BYTES", 1000)
    with pytest.raises(EngineError, match="more than 1,000"):
        unpacked(tmp_path, tar_bytes(("zeros", b"\0" * 1001)))


@pytest.mark.parametrize(
    "data", [b"", b"no archive", tar_bytes(("a", b"x" * 5000))[:-40], zip_bytes(("a", b"x", 0))[:-9]]
)
def test_a_broken_archive_is_named(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(EngineError) as caught:
        unpacked(tmp_path, data)
    assert caught.value.code == "ARCHIVE_BROKEN"


PART = st.sampled_from(["..", ".", "a", "b", "", "l"])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.lists(PART, min_size=1, max_size=4), st.lists(PART, max_size=4) | st.none()), max_size=6))
def test_nothing_is_ever_written_or_reached_outside(
    tmp_path_factory: pytest.TempPathFactory, members: list[tuple[list[str], list[str] | None]]
) -> None:
    """Whatever mixture of names and links: refused, or every file and every link's end is inside."""
    root = tmp_path_factory.mktemp("u")
    named = [("/".join(n), b"x" if t is None else "/".join(t)) for n, t in members]
    out: Path | None
    try:
        out = unpacked(root, tar_bytes(*((n, c) for n, c in named if n)))
    except GezelctlError:
        out = None
    assert {p.name for p in root.iterdir()} <= {"archive", "out"}
    for path in out.rglob("*") if out else ():
        assert os.path.realpath(path).startswith(os.path.realpath(root))


@pytest.fixture
def hub() -> Iterator[hubserver.Hub]:
    with hubserver.running_hub() as server:
        server.redirect = False
        yield server


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return make_paths(tmp_path)


def install(hub: hubserver.Hub, paths: Paths, data: bytes, *, digest: str = "", binary: str = "llama-server") -> Path:
    hub.add("lab/engine", "b1.tar.gz", data)
    archive = Archive(
        url=f"{hub.endpoint}/lab/engine/resolve/main/b1.tar.gz", sha256=digest or sha(data), binary=binary
    )
    with Fetcher(Hub(hub.endpoint)) as fetcher:
        return install_engine(paths, "cuda", archive, fetcher, lambda *_: None)


def test_an_engine_is_installed_once(hub: hubserver.Hub, paths: Paths) -> None:
    data = tar_bytes(("build/bin/llama-server", PROGRAM))
    program = install(hub, paths, data)
    assert program == paths.store / "engines" / "cuda" / sha(data)[:12] / "build/bin/llama-server"
    assert install(hub, paths, data) == program
    assert len(hub.requests) == 1
    assert [p.name for p in program.parents[3].iterdir()] == [sha(data)[:12]], (
        "neither archive nor temporary folder stays"
    )


def test_a_wrong_digest_leaves_nothing(hub: hubserver.Hub, paths: Paths) -> None:
    with pytest.raises(FetchError) as caught:
        install(hub, paths, tar_bytes(("llama-server", PROGRAM)), digest="0" * 64)
    assert caught.value.code == "HASH_MISMATCH"
    assert not [p for p in paths.store.rglob("*") if p.is_file()]


def test_an_archive_without_the_program_leaves_nothing(hub: hubserver.Hub, paths: Paths) -> None:
    with pytest.raises(EngineError, match="holds no executable `llama-server`"):
        install(hub, paths, tar_bytes(("README", b"x")))
    assert not [p for p in paths.store.rglob("*") if p.is_file()]


def test_what_a_crash_left_is_replaced(hub: hubserver.Hub, paths: Paths) -> None:
    data = tar_bytes(("llama-server", PROGRAM))
    target = paths.engine_dir("cuda", sha(data))
    half = target.with_name(f".{target.name}.unpacking")
    half.mkdir(parents=True)
    (half / "llama-server").write_bytes(b"half")
    target.with_name(f".{target.name}.archive.partial").write_bytes(data[:10])
    assert install(hub, paths, data).read_bytes() == PROGRAM
    assert not half.exists()
