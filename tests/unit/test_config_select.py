"""What one host is to run: selection, overrides, absolute paths, and no dependence on the order of the file."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gezelctl.config.desired import HostDesired
from gezelctl.config.diagnostics import InvalidConfig
from gezelctl.config.loader import LoadedConfig, load_models
from gezelctl.config.select import for_host
from gezelctl.config.settings import option_values

TEXT = """\
apiVersion: gezelctl/v1
stack: lab
catalogs: [{path: ./catalog}, {path: /srv/catalog}]
store: {path: store, adoptFrom: [~/hub, /x]}
sources: {huggingface: {token: {fromFile: secrets/hf}}}
backends:
  cuda: {engine: llama-cpp, accelerator: cuda, binary: ./bin/llama-server, extraArgs: {a: 1},
    engineOptions: {threads: 4, flashAttn: on}}
  path: {engine: llama-cpp, binary: llama-server}
  unused: {engine: llama-cpp, embedded: true}
defaults: {backend: cuda, startTimeoutS: 60}
models:
  - name: tiny
    source: {path: models/tiny.gguf}
    port: 8082
    backend: path
    engineOptions: {chatTemplateFile: t.jinja}
    apiKey: {fromFile: key}
    spec: {type: draft-simple, draftModel: d.gguf}
  - name: chat
    model: m
    port: 8081
    context: 4096
    extraArgs: {temp: 0.6}
hosts:
  lab-01: {}
  lab-02:
    models: [chat]
    store: {link: copy}
    defaults: {host: 127.0.0.2}
    backends: {cuda: {accelerator: vulkan, embedded: true, engineOptions: {threads: 8}, extraArgs: {b: 2}}}
  lab-03:
    models: [chat]
    backends: {cuda: {engine: llama-cpp, archive: {url: "https://h/a.tgz", sha256: "%s"}}}
  empty: {models: []}
""" % ("0" * 64)


@pytest.fixture
def loaded(tmp_path: Path) -> LoadedConfig:
    path = tmp_path / "models.yaml"
    path.write_text(TEXT)
    return load_models([str(path)])


def test_paths_are_absolute_and_servers_sorted(loaded: LoadedConfig, tmp_path: Path) -> None:
    desired = for_host(loaded, "lab-01", home="/home/me")
    chat, tiny = desired.servers
    assert (chat.name, tiny.name) == ("chat", "tiny")
    assert desired.catalogs == (str(tmp_path / "catalog"), "/srv/catalog")
    assert desired.store.path == str(tmp_path / "store")
    assert desired.store.adopt_from == ("/home/me/hub", "/x")
    assert desired.sources.huggingface.token is not None
    assert desired.sources.huggingface.token.from_file == str(tmp_path / "secrets/hf")
    assert chat.backend.binary == str(tmp_path / "bin/llama-server")
    assert tiny.backend.binary == "llama-server"
    assert tiny.source is not None
    assert tiny.source.path == str(tmp_path / "models/tiny.gguf")
    assert tiny.engine_options["chatTemplateFile"] == str(tmp_path / "t.jinja")
    assert tiny.api_key is not None
    assert tiny.api_key.from_file == str(tmp_path / "key")
    assert tiny.spec is not None
    assert tiny.spec.draft_model == str(tmp_path / "d.gguf")
    assert list(desired.backends) == ["cuda", "path"]
    assert (chat.start_timeout_s, chat.host) == (60, "127.0.0.1")


def test_paths_can_be_those_of_another_host(loaded: LoadedConfig) -> None:
    desired = for_host(loaded, "lab-01", home="/Users/lab", base_dir=Path("/srv/checkout"))
    assert desired.catalogs[0] == "/srv/checkout/catalog"
    assert desired.store.adopt_from[0] == "/Users/lab/hub"
    assert desired.base_dir == "/srv/checkout"


def test_a_host_overrides_field_by_field(loaded: LoadedConfig) -> None:
    (chat,) = for_host(loaded, "lab-02").servers
    assert (chat.backend.binary, chat.backend.embedded, chat.backend.accelerator) == (None, True, "vulkan")
    assert option_values(chat.backend.engine_options) == {"flashAttn": "on", "threads": 8}
    assert chat.backend.extra_args == {"a": 1, "b": 2}
    assert chat.host == "127.0.0.2"
    assert chat.start_timeout_s == 60
    store = for_host(loaded, "lab-02").store
    assert (store.link, store.path) == ("copy", for_host(loaded, "lab-01").store.path)


def test_a_program_form_replaces_the_others(loaded: LoadedConfig) -> None:
    (chat,) = for_host(loaded, "lab-03").servers
    assert chat.backend.binary is None
    assert chat.backend.archive is not None


def test_places_lead_to_what_decided(loaded: LoadedConfig) -> None:
    (chat,) = for_host(loaded, "lab-02").servers
    lines = TEXT.splitlines()

    def line(field: str) -> str:
        place = chat.place(field)
        assert place is not None
        return lines[place.line - 1][place.column - 1 :]

    assert line("context") == "4096"
    assert line("extraArgs.temp").startswith("0.6")
    assert line("backend.engineOptions.threads").startswith("8")
    assert line("backend.engineOptions.flashAttn").startswith("on")
    assert line("backend").startswith("cuda, startTimeoutS")
    assert line("host").startswith("127.0.0.2")
    assert line("slots").startswith("name: chat")


def test_the_first_label_of_a_host_name_is_enough(loaded: LoadedConfig) -> None:
    assert for_host(loaded, "lab-02.example.org").host == "lab-02"
    assert for_host(loaded, "empty").servers == ()


def test_an_unlisted_host_is_named_with_the_nearest(loaded: LoadedConfig) -> None:
    with pytest.raises(InvalidConfig) as caught:
        for_host(loaded, "lab-2")
    (found,) = caught.value.diagnostics
    assert found.code == "E0130"
    assert "lab-02" in found.cure
    assert "--host" in found.cure


def test_without_hosts_every_host_runs_everything(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(TEXT[: TEXT.index("hosts:")])
    assert len(for_host(load_models([str(path)]), "anything").servers) == 2


def test_a_backend_named_like_a_key_of_hosts_is_not_confused(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(
        "apiVersion: gezelctl/v1\nstack: s\nbackends: {store: {engine: mlx}}\n"
        "models: [{name: a, model: m, port: 1, backend: store}]\nhosts: {h: {store: {path: /p}}}\n"
    )
    (server,) = for_host(load_models([str(path)]), "h").servers
    assert "backend.path" not in server.places


def test_it_survives_json(loaded: LoadedConfig) -> None:
    desired = for_host(loaded, "lab-01")
    assert msgspec.json.decode(msgspec.json.encode(desired), type=HostDesired) == desired


def _shuffled(value: Any, rng: random.Random, *, ordered: bool = False) -> Any:
    if isinstance(value, dict):
        entries = list(value.items())
        rng.shuffle(entries)
        return {key: _shuffled(item, rng, ordered=key in ("catalogs", "adoptFrom")) for key, item in entries}
    if isinstance(value, list) and not ordered:
        return rng.sample([_shuffled(item, rng) for item in value], len(value))
    return value


def _without_places(desired: HostDesired) -> bytes:
    servers = tuple(msgspec.structs.replace(server, places={}) for server in desired.servers)
    return msgspec.json.encode(msgspec.structs.replace(desired, servers=servers))


@settings(max_examples=30)
@given(st.randoms(use_true_random=False), st.sampled_from(["lab-01", "lab-02", "lab-03"]))
def test_the_order_of_the_file_changes_only_places(
    tmp_path_factory: pytest.TempPathFactory, rng: Any, host: str
) -> None:
    folder = tmp_path_factory.getbasetemp()
    path = folder / "models.yaml"
    path.write_text(TEXT)
    expected = _without_places(for_host(load_models([str(path)]), host))
    tree = yaml.load(TEXT, Loader=yaml.BaseLoader)
    plain = yaml.dump(_shuffled(tree, rng), sort_keys=False).replace("'", "")
    path.write_text(plain.replace("sha256: 0", 'sha256: "0').replace('"' + "0" * 64, '"' + "0" * 64 + '"'))
    assert _without_places(for_host(load_models([str(path)]), host)) == expected
