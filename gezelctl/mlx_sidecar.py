"""Runs mlx_lm.server for gezelctl. One file, run by path inside the Python that has mlx-lm; it imports no gezelctl.

    python mlx_sidecar.py --config FILE     serve the model that FILE names, until SIGTERM or SIGINT (exit 0)
    python mlx_sidecar.py --version         the versions of mlx-lm and mlx
    python mlx_sidecar.py --help            the flags of mlx_lm.server

What it changes of the library's server: the model is loaded before the port is bound, and a failure ends the process
with one `[mlx] Name: message` line (the library would answer /health all the same); the configured model is served
under its alias and nothing else is ever loaded, for a client's `model` field could otherwise start a download; the
Metal limits are set and stay; a key is asked for when GEZELCTL_MLX_API_KEY is set.
"""

from __future__ import annotations

import functools
import hmac
import importlib
import json
import os
import signal
import sys
import threading
from importlib import metadata
from types import TracebackType
from typing import Any

_HERE = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120 - before pathlib may be shadowed from this folder
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "TRANSFORMERS_NO_ADVISORY_WARNINGS")
_KEY = "GEZELCTL_MLX_API_KEY"
_OPEN_PATHS = ("/health", "/v1/models")
_GRACE_S = 3.0
"""How long a running generation may hold up a stop."""
_HOOKS = ("ModelProvider", "ResponseGenerator", "APIHandler", "run", "main")


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _die(kind: type[BaseException], error: BaseException, _trace: TracebackType | None) -> None:
    """End the process at once: a non-daemon thread of the library would keep it alive without a server."""
    lines = str(error).strip().splitlines()
    _say(f"[mlx] {kind.__name__}: {lines[0] if lines else ''}")
    os._exit(1)


def _die_in_thread(args: Any) -> None:
    if args.thread is not None and args.thread.daemon:
        threading.__excepthook__(args)  # one request's thread; the server lives on
    else:
        _die(args.exc_type, args.exc_value, None)


def _stop(_signum: int, _frame: object) -> None:
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, signal.SIG_DFL)
    deadline = threading.Timer(_GRACE_S, os._exit, (0,))
    deadline.daemon = True
    deadline.start()
    raise KeyboardInterrupt


def _server_module() -> Any:
    server = importlib.import_module("mlx_lm.server")
    missing = [name for name in _HOOKS if not hasattr(server, name)]
    if missing:
        version = metadata.version("mlx-lm")
        raise ImportError(f"mlx-lm {version} has no mlx_lm.server.{missing[0]}; install a version that gezelctl knows")
    return server


def _set_limits(server: Any, config: dict[str, Any]) -> None:
    """Metal limits, which do nothing on other devices. The library resets the wired limit, so its setter is ours."""
    mx = importlib.import_module("mlx.core")
    if not mx.metal.is_available():
        return
    if limit := config.get("memoryLimitBytes"):
        mx.set_memory_limit(limit)
    if limit := config.get("cacheLimitBytes"):
        mx.set_cache_limit(limit)
    if limit := config.get("wiredLimitBytes"):
        modules: tuple[Any, ...] = (server, importlib.import_module("mlx_lm.generate"))
        for module in modules:
            if hasattr(module, "maybe_set_recommended_wired_limit"):
                module.maybe_set_recommended_wired_limit = functools.partial(mx.set_wired_limit, limit)


def _serve_one_model(server: Any, config: dict[str, Any]) -> None:
    """Only the configured model, under its alias, its folder or no name."""
    names = {config["alias"], config["model"], "default_model"}
    base: Any = server.ModelProvider

    class OneModel(base):  # type: ignore[misc] # a class of an untyped package
        def load(self, model_path: str, adapter_path: str | None = None, draft_model_path: str | None = None) -> Any:
            if model_path not in names:
                raise ValueError(f"model {model_path!r} is not served here; use {config['alias']!r}")
            if adapter_path is not None or draft_model_path not in {None, "default_model"}:
                raise ValueError("adapters and draft models of a request are not loaded")
            return super().load("default_model", None, "default_model")

    server.ModelProvider = OneModel


def _load_before_binding(server: Any) -> None:
    run = server.run

    def loaded_run(host: str, port: int, provider: Any, *args: Any, **kwargs: Any) -> None:
        provider.load_default()
        if provider.model is None:
            raise ValueError("the model was not loaded")
        _say("[mlx] model loaded")
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, _stop)
        run(host, port, provider, *args, **kwargs)

    server.run = loaded_run


def _die_with_the_worker(server: Any) -> None:
    """A dead generation thread ends the process; the library would leave an HTTP server without a worker."""
    generator = server.ResponseGenerator
    work = getattr(generator, "_run_generate", None)
    if work is None:
        return

    def guarded(self: Any) -> None:
        work(self)
        if getattr(self, "_generation_failed", False):
            os._exit(1)

    generator._run_generate = guarded  # noqa: SLF001 - the library offers no hook


def _answer(handler: Any, status: int, body: object) -> None:
    data = json.dumps(body).encode()
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


def _patch_http(server: Any, config: dict[str, Any]) -> None:
    """/v1/models names the alias (the library would scan the Hugging Face cache), and the key is checked."""
    handler = server.APIHandler
    keys = [key for key in os.environ.get(_KEY, "").split(",") if key]
    get, post = handler.do_GET, handler.do_POST

    def models(self: Any) -> None:
        ids = dict.fromkeys((config["alias"], config["model"]))
        rows = [{"id": name, "object": "model", "created": self.created, "owned_by": "mlx"} for name in ids]
        _answer(self, 200, {"object": "list", "data": rows})

    def allowed(self: Any) -> bool:
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        return not keys or any(hmac.compare_digest(given.encode(), key.encode()) for key in keys)

    def do_get(self: Any) -> None:
        if self.path in _OPEN_PATHS or allowed(self):
            get(self)
        else:
            _answer(self, 401, {"error": {"message": "Invalid API Key", "type": "authentication_error", "code": 401}})

    def do_post(self: Any) -> None:
        if allowed(self):
            post(self)
        else:
            _answer(self, 401, {"error": {"message": "Invalid API Key", "type": "authentication_error", "code": 401}})

    handler.handle_models_request = models
    handler.do_GET, handler.do_POST = do_get, do_post


def _has_template(folder: str) -> bool:
    if any(os.path.isfile(os.path.join(folder, name)) for name in ("chat_template.jinja", "chat_template.json")):  # noqa: PTH113, PTH118
        return True
    try:
        with open(os.path.join(folder, "tokenizer_config.json"), encoding="utf-8") as file:  # noqa: PTH118, PTH123
            return bool(json.load(file).get("chat_template"))
    except FileNotFoundError:
        return False


def _server_argv(config: dict[str, Any]) -> list[str]:
    argv = ["--model", config["model"], "--host", config["host"], "--port", str(config["port"])]
    if config.get("chatTemplate") and not _has_template(config["model"]):
        argv += ["--chat-template", config["chatTemplate"]]
    return [*argv, *config.get("args", [])]


def _serve(path: str) -> None:
    """Serve until a signal. Leaves by os._exit, because MLX's own threads abort an orderly interpreter shutdown."""
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - see _HERE
        config: dict[str, Any] = json.load(file)
    if not os.path.isfile(os.path.join(config["model"], "config.json")):  # noqa: PTH113, PTH118
        raise FileNotFoundError(f"no config.json in {config['model']}")
    os.environ.update(dict.fromkeys(_OFFLINE, "1"))
    server = _server_module()
    _set_limits(server, config)
    _serve_one_model(server, config)
    _load_before_binding(server)
    _die_with_the_worker(server)
    _patch_http(server, config)
    sys.argv = ["mlx_lm.server", *_server_argv(config)]
    server.main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def main(argv: list[str]) -> int:
    """See the module's text. Returns the exit code; a failed start never returns."""
    if argv == ["--version"]:
        sys.stdout.write(f"version: mlx-lm {metadata.version('mlx-lm')} (mlx {metadata.version('mlx')})\n")
        return 0
    if argv == ["--help"]:
        sys.argv = ["mlx_lm.server", "--help"]
        _server_module().main()
        return 0
    if len(argv) != 2 or argv[0] != "--config":
        _say(f"error: invalid argument: {argv[0] if argv else '(none)'}; usage: mlx_sidecar.py --config FILE")
        return 1
    _serve(argv[1])
    return 0


if __name__ == "__main__":
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or ".") != _HERE]
    sys.excepthook = _die
    threading.excepthook = _die_in_thread
    sys.exit(main(sys.argv[1:]))
