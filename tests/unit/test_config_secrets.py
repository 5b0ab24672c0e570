"""Secrets are read from where they are named, and are in nothing that is printed."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import pickle
from pathlib import Path

import msgspec
import pytest

from gezelctl.config.model import SecretRef
from gezelctl.config.redact import holds_token, is_secret_key, mask_line, mask_tokens
from gezelctl.config.secrets import Secret, SecretError, mask, resolve, secret_mac

VALUE = "hunter2-planted"


def test_no_form_of_a_secret_shows_it() -> None:
    secret = Secret(VALUE, origin="x")
    shown = [
        repr(secret),
        str(secret),
        f"{secret}",
        f"{secret:>20}",
        f"{secret!r}",
        json.dumps(secret, default=str),
    ]
    assert not any("hunter2" in text for text in [*shown, repr({"a": [secret]})])
    assert msgspec.json.encode({"a": secret}, enc_hook=str) == b'{"a":"(secret, set)"}'
    with pytest.raises(TypeError) as caught:
        msgspec.json.encode(secret)
    assert "hunter2" not in str(caught.value)
    with pytest.raises(TypeError):
        pickle.dumps(secret)
    assert secret.reveal() == VALUE
    assert secret == Secret(VALUE)
    assert secret != Secret("other")
    assert len({secret, Secret(VALUE)}) == 1


def test_from_the_environment(tmp_path: Path) -> None:
    assert resolve(SecretRef(from_env="KEY"), tmp_path, {"KEY": VALUE}).reveal() == VALUE


@pytest.mark.parametrize("written", [VALUE, VALUE + "\n", VALUE + "\r\n"])
def test_from_a_file_relative_to_the_configuration(tmp_path: Path, written: str) -> None:
    path = tmp_path / "key"
    path.write_bytes(written.encode())
    path.chmod(0o600)
    secret = resolve(SecretRef(from_file="key"), tmp_path)
    assert (secret.reveal(), secret.warning) == (VALUE, "")
    assert secret.origin == f"file {path}"


@pytest.mark.parametrize("mode", [0o604, 0o602])
def test_a_file_open_to_everybody_is_a_warning(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    path.write_text(VALUE)
    path.chmod(mode)
    assert "chmod 600" in resolve(SecretRef(from_file="key"), tmp_path).warning


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "E0142"),
        (b" \n", "E0142"),
        (b"a\nhunter2\n", "E0143"),
        (b"hunter2\xff", "E0143"),
        (b"hunter2" * 10000, "E0144"),
    ],
)
def test_a_file_that_is_no_secret_is_named_without_its_content(tmp_path: Path, content: bytes, code: str) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(SecretError) as caught:
        resolve(SecretRef(from_file="key"), tmp_path)
    error = caught.value
    assert error.code == code
    assert str(tmp_path / "key") in error.message
    assert error.cure
    assert "hunter2" not in f"{error!r} {error} {error.__cause__!r}"


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SecretError, match="environment variable KEY is not set"):
        resolve(SecretRef(from_env="KEY"), tmp_path, {})
    with pytest.raises(SecretError, match="environment variable KEY is empty"):
        resolve(SecretRef(from_env="KEY"), tmp_path, {"KEY": ""})
    with pytest.raises(SecretError, match="no such file"):
        resolve(SecretRef(from_file="none"), tmp_path)
    with pytest.raises(SecretError, match="is not a file"):
        resolve(SecretRef(from_file="."), tmp_path)


def test_a_pipe_in_the_place_of_a_file_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SecretError, match="is not a file"):
        resolve(SecretRef(from_file="pipe"), tmp_path)


def test_masking_replaces_longer_secrets_first() -> None:
    assert mask("a abc-def b hf_0123456789abcdefghij", [Secret("abc"), Secret("abc-def")]) == "a *** b ***"


def test_the_digest_is_keyed() -> None:
    assert secret_mac(Secret(VALUE), b"k") == hmac.new(b"k", VALUE.encode(), hashlib.sha256).hexdigest()
    assert secret_mac(Secret(VALUE), b"k") != secret_mac(Secret(VALUE), b"l")


@pytest.mark.parametrize("key", ["apiKey", "api-key", "API_KEY", "HF_TOKEN", "token", "password", "clientSecret"])
def test_keys_that_name_secrets(key: str) -> None:
    assert is_secret_key(key)
    assert mask_line(f"  {key}: {VALUE}, x: 1") == f"  {key}: ***"


@pytest.mark.parametrize("key", ["maxTokens", "fromEnv", "api-key-file", "tokenizer", "name"])
def test_keys_that_do_not(key: str) -> None:
    assert not is_secret_key(key)
    assert mask_line(f"{key}: {VALUE}") == f"{key}: {VALUE}"


@pytest.mark.parametrize(
    "text", ["hf_" + "a1" * 10, "x sk-proj-" + "b" * 20, "https://me:pw@host/x", "ghp_" + "c" * 36]
)
def test_tokens_by_shape(text: str) -> None:
    assert holds_token(text)
    assert not holds_token(mask_tokens(text))


@pytest.mark.parametrize("text", ["hf_model.gguf", "task-force-of-many-words", "https://host/a@b", "qwen3-4b@1.2.0"])
def test_ordinary_text_is_no_token(text: str) -> None:
    assert not holds_token(text)
    assert mask_tokens(text) == text
