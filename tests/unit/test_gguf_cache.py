"""The cache: parsed once, never stale, never fatal."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gezelctl.errors import GgufError
from gezelctl.gguf import cache
from gezelctl.gguf.cache import cached_summary, cached_vocab
from gezelctl.gguf.reader import read_summary
from gezelctl.gguf.vocab import vocab_digest
from tests import ggufmake as make
from tests.unit.test_gguf_reader import split


def write(path: Path, **values: object) -> Path:
    path.write_bytes(make.gguf_bytes(make.LLAMA | values, make.LLAMA_TENSORS))
    return path


def unreadable_but_equal(path: Path) -> None:
    """Other bytes under the same size and mtime: whoever parses the file again fails."""
    status = path.stat()
    path.write_bytes(b"\0" * status.st_size)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_an_unchanged_file_is_not_read_again(tmp_path: Path) -> None:
    path, store = write(tmp_path / "m.gguf"), tmp_path / "cache"
    summary, vocab = cached_summary(path, store), cached_vocab(path, store)
    assert (summary, vocab) == (read_summary(path), vocab_digest(path))
    unreadable_but_equal(path)
    assert (cached_summary(path, store), cached_vocab(path, store)) == (summary, vocab)


def test_a_link_and_its_target_share_an_entry(tmp_path: Path) -> None:
    path, store = write(tmp_path / "m.gguf"), tmp_path / "cache"
    (tmp_path / "link.gguf").symlink_to(path)
    cached_summary(path, store)
    cached_summary(tmp_path / "link.gguf", store)
    assert len(list(store.iterdir())) == 1


def test_a_changed_file_is_read_again_into_the_same_entry(tmp_path: Path) -> None:
    path, store = write(tmp_path / "m.gguf"), tmp_path / "cache"
    assert cached_summary(path, store).block_count == 2
    status = path.stat()
    write(path, **{"llama.block_count": 3})
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert cached_summary(path, store).block_count == 3
    assert len(list(store.iterdir())) == 1


def test_any_shard_counts(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    paths, store = split(tmp_path / "set"), tmp_path / "cache"
    assert cached_summary(paths[0], store).shards == 3
    unreadable_but_equal(paths[2])
    assert cached_summary(paths[0], store).shards == 3
    paths[2].touch()
    with pytest.raises(GgufError, match="all zeros where the header should be"):
        cached_summary(paths[0], store)


@pytest.mark.parametrize("damage", [b"", b"\xc1", b"\x82\xa3key\x90\xa5value\x80"])
def test_a_damaged_entry_is_made_anew(damage: bytes, tmp_path: Path) -> None:
    path, store = write(tmp_path / "m.gguf"), tmp_path / "cache"
    summary = cached_summary(path, store)
    (entry,) = store.iterdir()
    intact = entry.read_bytes()
    entry.write_bytes(damage)
    assert cached_summary(path, store) == summary
    assert entry.read_bytes() == intact


def test_another_reader_version_is_another_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, store = write(tmp_path / "m.gguf"), tmp_path / "cache"
    cached_summary(path, store)
    unreadable_but_equal(path)
    monkeypatch.setattr(cache, "READER_VERSION", cache.READER_VERSION + 1)
    with pytest.raises(GgufError, match="all zeros"):
        cached_summary(path, store)


def test_a_directory_that_cannot_be_made_only_costs_time(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf")
    (tmp_path / "file").write_text("not a directory")
    assert cached_summary(path, tmp_path / "file" / "cache") == read_summary(path)


def test_errors_pass_through_and_leave_nothing(tmp_path: Path) -> None:
    store = tmp_path / "cache"
    with pytest.raises(GgufError, match="cannot be opened: No such file or directory"):
        cached_summary(tmp_path / "absent.gguf", store)
    (tmp_path / "loop.gguf").symlink_to(tmp_path / "loop.gguf")
    with pytest.raises(GgufError, match="cannot be opened"):
        cached_summary(tmp_path / "loop.gguf", store)
    (tmp_path / "bad.gguf").write_bytes(b"PK\x03\x04")
    with pytest.raises(GgufError, match="zip archive"):
        cached_summary(tmp_path / "bad.gguf", store)
    assert not store.exists()
