"""Reads what gezelctl keeps of a GGUF file, from disk or from any `ByteSource`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from gezelctl.gguf.header import Header, read_header
from gezelctl.gguf.numbers import check_numbers
from gezelctl.gguf.shards import check_set, shard_paths
from gezelctl.gguf.source import ByteSource, LocalFile
from gezelctl.gguf.types import GgufSummary
from gezelctl.gguf.weights import weigh

ARCHITECTURE_KEY = "general.architecture"


def read_headers(path: Path) -> list[Header]:
    """The checked headers of the model that begins at `path`, one per shard."""
    with ExitStack() as stack:
        return _headers([stack.enter_context(LocalFile(shard)) for shard in shard_paths(path)])


def read_summary(path: Path) -> GgufSummary:
    """The summary of the model at `path`, of all shards when it is the first of several.

    Raises GgufError with a code: FILE_MISSING, NOT_GGUF, GGUF_VERSION, GGUF_CORRUPT, GGUF_TRUNCATED, SPLIT,
    ARCH_UNSUPPORTED. A file without tensors (a header alone) is read like any other.
    """
    return _summarise(read_headers(path))


def read_summary_from(sources: ByteSource | Sequence[ByteSource]) -> GgufSummary:
    """`read_summary` of one source, or of all shards of a model in order.

    A source of unknown size is checked up to the end of its tensor table, and counts with the size it must have.
    """
    return _summarise(_headers(sources if isinstance(sources, Sequence) else [sources]))


def _headers(sources: Sequence[ByteSource]) -> list[Header]:
    headers = [read_header(source) for source in sources]
    check_set(headers)
    return headers


def _summarise(headers: list[Header]) -> GgufSummary:
    first = headers[0]
    architecture = first.text(ARCHITECTURE_KEY)
    vocab_size = first.tokens.total if first.tokens else first.number(f"{architecture}.vocab_size")
    summary = GgufSummary(
        version=first.version,
        architecture=architecture,
        file_bytes=sum(header.data_end if header.size is None else header.size for header in headers),
        shards=len(headers),
        values=first.values,
        arrays=first.arrays,
        weights=weigh(
            first.name,
            [tensor for header in headers for tensor in header.tensors],
            sum(header.elements for header in headers),
        ),
        vocab_size=vocab_size or 0,
        chat_template=first.chat_template,
    )
    check_numbers(first.name, summary)
    return summary
