"""What started servers answer over HTTP. Small reads on loopback with the standard library, many servers at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

import msgspec

from gezelctl.config.secrets import Secret
from gezelctl.observe.threads import each
from gezelctl.observe.types import Live

TIMEOUT_S = 1.0
_NO_KEY = "asks for an API key that is not at hand"
_BODY_LIMIT_BYTES = 4 * 1024 * 1024

T = TypeVar("T")


class Target(NamedTuple):
    """Where a server answers. `engine` decides what is asked: MLX servers have only /health and /v1/models."""

    name: str
    engine: str
    host: str
    port: int
    api_key: Secret | None = None

    @property
    def reached_at(self) -> str:
        """The address to connect to; a server on all addresses is asked on loopback."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - mapping, not binding


class Answer(NamedTuple):
    """An HTTP answer; status 0 = none came, and `body` says why."""

    status: int
    body: bytes


class _Error(msgspec.Struct):
    message: str = ""


class _Failure(msgspec.Struct):
    error: _Error = msgspec.field(default_factory=_Error)


class _Model(msgspec.Struct):
    id: str
    aliases: tuple[str, ...] = ()


class _Models(msgspec.Struct):
    data: tuple[_Model, ...]


class _Settings(msgspec.Struct):
    n_ctx: int = 0


class _Props(msgspec.Struct):
    total_slots: int = 0
    model_path: str = ""
    build_info: str = ""
    default_generation_settings: _Settings = msgspec.field(default_factory=_Settings)


class _Slot(msgspec.Struct):
    n_ctx: int = 0
    speculative: bool = False
    is_processing: bool = False


def read_live(targets: Iterable[Target], timeout_s: float = TIMEOUT_S) -> dict[str, Live]:
    """What each target answers, by name. A slow or dead server delays the others by a share of its timeout only."""
    return {target.name: live for target, live in each(targets, lambda target: ask_server(target, timeout_s)).items()}


def ask_server(target: Target, timeout_s: float = TIMEOUT_S) -> Live:
    """Health first; the rest only of a server that is ready."""
    answers = _answers(target, timeout_s)
    health = next(answers)
    if health.status != 200:
        return _not_ready(health)
    models_answer = next(answers)
    models = _decode(models_answer, _Models)
    if models_answer.status == 401:
        return Live(health="Ready", message=_NO_KEY)
    if models is None:
        return Live(health="Failed", message="/health says ok, but /v1/models does not answer as an OpenAI server")
    names = tuple(dict.fromkeys(name for model in models.data for name in (model.id, *model.aliases)))
    if target.engine == "mlx":
        return Live(health="Ready", model_ids=names)
    props_answer, slots_answer = next(answers), next(answers)
    props = _decode(props_answer, _Props) or _Props()
    slots = _decode(slots_answer, tuple[_Slot, ...])
    return Live(
        health="Ready",
        model_ids=names,
        model_path=props.model_path,
        context_tokens=slots[0].n_ctx if slots else props.default_generation_settings.n_ctx,
        slots=len(slots) if slots else props.total_slots,
        slots_busy=sum(slot.is_processing for slot in slots or ()),
        speculation=slots[0].speculative if slots else None,
        build=props.build_info,
        message=_NO_KEY if 401 in (props_answer.status, slots_answer.status) else "",
    )


def _not_ready(answer: Answer) -> Live:
    """503 is llama.cpp's answer from binding the port until the model is loaded (server_http middleware)."""
    if answer.status == 0:
        return Live(health="Unknown", message=answer.body.decode("utf-8", "replace"))
    failure = _decode_body(answer.body, _Failure)
    message = failure.error.message if failure else ""
    if answer.status == 503:
        return Live(health="Loading", message=message or "not ready yet")
    return Live(health="Failed", message=f"/health answers {answer.status}" + (f": {message[:200]}" if message else ""))


def _answers(target: Target, timeout_s: float) -> Iterator[Answer]:
    """The answers to each path in turn, over one connection where the server keeps it."""
    import http.client

    host = target.reached_at
    connection = http.client.HTTPConnection(host, target.port, timeout=timeout_s)
    headers = {"Authorization": f"Bearer {target.api_key.reveal()}"} if target.api_key else {}
    try:
        for path in ("/health", "/v1/models", "/props", "/slots"):
            try:
                connection.request("GET", path, headers=headers)
                response = connection.getresponse()
                yield Answer(response.status, response.read(_BODY_LIMIT_BYTES))
            except TimeoutError:
                connection.close()
                yield Answer(0, f"{path} did not answer within {timeout_s:g} s".encode())
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                reason = getattr(error, "strerror", None) or type(error).__name__
                yield Answer(0, f"{path} on {host}:{target.port}: {reason}".encode())
    finally:
        connection.close()


def _decode(answer: Answer, kind: type[T]) -> T | None:
    return _decode_body(answer.body, kind) if answer.status == 200 else None


def _decode_body(body: bytes, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
