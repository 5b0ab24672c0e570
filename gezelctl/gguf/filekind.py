"""Names what a file is that does not begin with the GGUF magic, so that the cure fits."""

from __future__ import annotations

from typing import Final

from gezelctl.errors import GgufError

MAGIC: Final = b"GGUF"
SNIFF_BYTES: Final = 512

# the u32 magics of the formats before GGUF, as the little-endian bytes on disk
_LEGACY: Final[dict[bytes, str]] = {
    b"lmgg": "ggml",
    b"fmgg": "ggmf",
    b"tjgg": "ggjt",
    b"algg": "ggla",
}

_FETCH = "fetch the model file itself and compare its sha256"


def _describe(head: bytes) -> tuple[str, str]:
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if head.startswith(b"version https://git-lfs"):
        return "a git-lfs pointer, not the model", "run `git lfs pull`, or fetch the file through its resolve URL"
    if text.startswith((b"<!doctype", b"<html", b"<head", b"<?xml")):
        return "a web page, not a model", "the download link needs a login or has moved: " + _FETCH
    if text.startswith((b'{"error', b'{"message', b'{"detail')):
        return "a JSON error message, not a model", "the download failed: " + _FETCH
    if head[:4] in _LEGACY:
        name = _LEGACY[head[:4]]
        return f"a legacy GGML file ({name}), older than GGUF", "fetch a GGUF conversion of this model"
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return "a zip archive (perhaps a PyTorch checkpoint)", "unpack it, or fetch a GGUF conversion of this model"
    if head.startswith(b"\x1f\x8b"):
        return "a gzip archive", "unpack it first"
    if head[8:10] == b'{"':
        return "a safetensors file", "use it with an MLX backend, or fetch a GGUF conversion of this model"
    if not head.strip(b"\0"):
        return "all zeros where the header should be", "the download or copy did not finish: fetch the file again"
    return f"not a GGUF file: it begins with {head[:4]!r}", _FETCH


def require_gguf(name: str, head: bytes) -> None:
    """Raises NOT_GGUF with what the file is instead; `head` holds its first bytes, up to 512."""
    if head.startswith(MAGIC):
        return
    if not head:
        raise GgufError(
            f"{name}: is empty", cure="the download or copy did not finish: fetch it again", code="NOT_GGUF"
        )
    what, cure = _describe(head)
    raise GgufError(f"{name}: is {what}", cure=cure, code="NOT_GGUF")


def require_version(name: str, version: int) -> None:
    """Accepts versions 2 and 3 in little-endian order; raises GGUF_VERSION for the rest."""
    if version in (2, 3):
        return
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    if version & 0xFFFF == 0 and 0 < swapped <= 0xFFFF:
        what = f"is a big-endian GGUF (version {swapped}); this host and llama.cpp here read little-endian"
        cure = "fetch the little-endian file, or convert it with gguf_convert_endian.py"
    elif version == 1:
        what, cure = "is GGUF version 1, which llama.cpp no longer reads", "fetch a newer conversion of this model"
    elif version == 0:
        what, cure = "has GGUF version 0, which does not exist", "the file is damaged: fetch it again"
    else:
        what = f"is GGUF version {version}; versions 2 and 3 are known"
        cure = "update gezelctl and the engine, or fetch a version 3 file"
    raise GgufError(f"{name}: {what}", cure=cure, code="GGUF_VERSION")
