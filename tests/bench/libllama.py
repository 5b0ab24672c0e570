"""Ask an installed llama.cpp library what a model and a context would allocate, to the byte and without allocating it.

llama.cpp can load a model with `no_alloc`: it lays every buffer out and allocates nothing, which is how
`llama-fit-params` measures. That program prints whole MiB; here the same library is called through ctypes and its
memory breakdown is read as it is. The parameter structs are addressed by offset, so `Library` checks the defaults of
the build that it knows (b11434) and refuses any other layout.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec

GGML_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "iq4_nl": 20, "bf16": 30}
FLASH_ATTN = {"auto": -1, "off": 0, "on": 1}
CPU_EXPERTS = r"\.ffn_(up|down|gate_up|gate)_(ch|)exps"
BREAKDOWN = "_Z26llama_get_memory_breakdownPK13llama_context"
MODEL_BYTES = 80
CONTEXT_BYTES = 160


class Usage(msgspec.Struct, frozen=True):
    """Bytes of one buffer type, as llama_context::memory_breakdown has them."""

    model: int
    context: int
    compute: int


class Setting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One way to open a model, in the terms of llama_model_params and llama_context_params."""

    n_ctx: int = 512
    n_batch: int = 2048
    n_ubatch: int = 512
    slots: int = 1
    unified: bool = False
    rs_seq: int = 0
    outputs: int = 0
    type_k: str = "f16"
    type_v: str = "f16"
    flash_attn: str = "auto"
    swa_full: bool = False
    kv_offload: bool = True
    op_offload: bool = True
    ngl: int = -1
    split: tuple[float, ...] = ()
    cpu_moe: int = 0
    load_mtp: bool = False
    mtp_context: bool = False
    devices: int = 0
    """How many of the registered devices to use, 0 = host only."""


class RefusedError(Exception):
    """llama.cpp would not load the model or open the context; the text is its log."""


class _ModelParams(ctypes.Structure):
    _fields_ = [("raw", ctypes.c_uint64 * (MODEL_BYTES // 8))]


class _ContextParams(ctypes.Structure):
    _fields_ = [("raw", ctypes.c_uint64 * (CONTEXT_BYTES // 8))]


class _Override(ctypes.Structure):
    _fields_ = [("pattern", ctypes.c_char_p), ("buft", ctypes.c_void_p)]


_LogCallback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


class Library:
    """libllama and libggml of one build; `devices` are the RPC devices added with `add_rpc`."""

    def __init__(self, folder: Path) -> None:
        for name in ("libggml-base.so.0", "libggml-cpu.so.0", "libggml-rpc.so.0", "libggml.so.0"):
            ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL)
        self._ggml = ctypes.CDLL(str(folder / "libggml.so.0"), mode=ctypes.RTLD_GLOBAL)
        self._base = ctypes.CDLL(str(folder / "libggml-base.so.0"), mode=ctypes.RTLD_GLOBAL)
        self._rpc = ctypes.CDLL(str(folder / "libggml-rpc.so.0"), mode=ctypes.RTLD_GLOBAL)
        self._llama = ctypes.CDLL(str(folder / "libllama.so.0"))
        self.log: list[str] = []
        self.devices: list[int] = []
        self._callback = _LogCallback(self._on_log)
        self._llama.llama_log_set(self._callback, None)
        self._llama.llama_backend_init()
        self._bind()
        self._model_defaults = self._defaults("llama_model_default_params", MODEL_BYTES)
        self._context_defaults = self._defaults("llama_context_default_params", CONTEXT_BYTES)
        self._check_layout()

    def _on_log(self, _level: int, text: bytes | None, _data: object) -> None:
        self.log.append((text or b"").decode(errors="replace"))

    def _bind(self) -> None:
        pointers = (
            (self._llama, "llama_model_load_from_file", (ctypes.c_char_p, _ModelParams)),
            (self._llama, "llama_init_from_model", (ctypes.c_void_p, _ContextParams)),
            (self._llama, BREAKDOWN, (ctypes.c_void_p, ctypes.c_void_p)),
            (self._base, "ggml_backend_buft_name", (ctypes.c_void_p,)),
            (self._base, "ggml_backend_dev_buffer_type", (ctypes.c_void_p,)),
            (self._base, "ggml_backend_reg_dev_get", (ctypes.c_void_p, ctypes.c_size_t)),
            (self._ggml, "ggml_backend_dev_by_type", (ctypes.c_int,)),
            (self._ggml, "ggml_backend_register", (ctypes.c_void_p,)),
            (self._rpc, "ggml_backend_rpc_add_server", (ctypes.c_char_p,)),
        )
        for library, name, arguments in pointers:
            function = getattr(library, name)
            function.restype = ctypes.c_char_p if name == "ggml_backend_buft_name" else ctypes.c_void_p
            function.argtypes = list(arguments)
        for name in ("llama_free", "llama_model_free"):
            getattr(self._llama, name).argtypes = [ctypes.c_void_p]
        self._base.ggml_backend_reg_dev_count.argtypes = [ctypes.c_void_p]
        self._base.ggml_backend_reg_dev_count.restype = ctypes.c_size_t

    def _defaults(self, name: str, size: int) -> bytes:
        buffer = ctypes.create_string_buffer(size + 64)
        getattr(self._llama, name)(buffer)
        return buffer.raw[:size]

    def _check_layout(self) -> None:
        flags = self._model_defaults[72:78]
        head = struct.unpack_from("<7I", self._context_defaults, 0)
        types = struct.unpack_from("<2i", self._context_defaults, 104)
        switches = self._context_defaults[128:134]
        if (flags, head, types, switches) != (
            bytes([0, 0, 1, 0, 0, 0]),
            (512, 2048, 512, 1, 0, 0, 1),
            (1, 1),
            bytes([0, 1, 1, 1, 1, 0]),
        ):
            raise RuntimeError("llama.cpp's parameter structs are not those of b11434")

    def add_rpc(self, endpoint: str) -> None:
        """Register the devices of one ggml-rpc-server, given as host:port."""
        registry = self._rpc.ggml_backend_rpc_add_server(endpoint.encode())
        if not registry:
            raise RuntimeError(f"no ggml-rpc-server at {endpoint}")
        self._ggml.ggml_backend_register(registry)
        for index in range(self._base.ggml_backend_reg_dev_count(registry)):
            self.devices.append(self._base.ggml_backend_reg_dev_get(registry, index))

    def measure(self, path: Path, setting: Setting) -> dict[str, Usage]:
        """Bytes by buffer type (`CPU`, `CPU_REPACK`, `RPC0[host:port]`, …) for a model file opened by `setting`."""
        self.log.clear()
        keep: list[object] = []
        model = self._llama.llama_model_load_from_file(str(path).encode(), self._model_params(setting, keep))
        if not model:
            raise RefusedError("".join(self.log))
        try:
            context = self._llama.llama_init_from_model(model, self._context_params(setting))
            if not context:
                raise RefusedError("".join(self.log))
            try:
                return dict(self._breakdown(context))
            finally:
                self._llama.llama_free(context)
        finally:
            self._llama.llama_model_free(model)

    def _model_params(self, setting: Setting, keep: list[object]) -> _ModelParams:
        raw = bytearray(self._model_defaults)
        devices = (ctypes.c_void_p * (setting.devices + 1))(*self.devices[: setting.devices], None)
        split = (ctypes.c_float * 64)(*setting.split)
        keep += [devices, split]
        struct.pack_into("<Q", raw, 0, ctypes.addressof(devices))
        if setting.cpu_moe:
            overrides = self._cpu_overrides(setting.cpu_moe)
            keep.append(overrides)
            struct.pack_into("<Q", raw, 8, ctypes.addressof(overrides))
        struct.pack_into("<i", raw, 16, setting.ngl)
        struct.pack_into("<i", raw, 24, 0)
        if setting.split:
            struct.pack_into("<Q", raw, 40, ctypes.addressof(split))
        raw[76] = 1
        raw[77] = setting.load_mtp
        return _ModelParams.from_buffer_copy(bytes(raw))

    def _cpu_overrides(self, layers: int) -> ctypes.Array[_Override]:
        cpu = self._ggml.ggml_backend_dev_by_type(0)
        buft = self._base.ggml_backend_dev_buffer_type(cpu)
        patterns = [f"blk\\.{layer}{CPU_EXPERTS}".encode() for layer in range(layers)]
        return (_Override * (layers + 1))(*[_Override(pattern, buft) for pattern in patterns], _Override(None, None))

    def _context_params(self, setting: Setting) -> _ContextParams:
        raw = bytearray(self._context_defaults)
        outputs = setting.outputs
        head = (setting.n_ctx, setting.n_batch, setting.n_ubatch, setting.slots, setting.rs_seq, outputs, outputs)
        struct.pack_into("<7I", raw, 0, *head)
        struct.pack_into("<i", raw, 36, int(setting.mtp_context))
        struct.pack_into("<i", raw, 52, FLASH_ATTN[setting.flash_attn])
        struct.pack_into("<2i", raw, 104, GGML_TYPES[setting.type_k], GGML_TYPES[setting.type_v])
        raw[129] = setting.kv_offload
        raw[131] = setting.op_offload
        raw[132] = setting.swa_full
        raw[133] = setting.unified
        return _ContextParams.from_buffer_copy(bytes(raw))

    def _breakdown(self, context: int) -> Iterator[tuple[str, Usage]]:
        """Walk the std::map (libstdc++ red-black tree) that llama_get_memory_breakdown returns through a pointer."""
        tree = ctypes.create_string_buffer(48)
        getattr(self._llama, BREAKDOWN)(tree, context)
        pending = [struct.unpack_from("<Q", tree.raw, 16)[0]]
        while pending:
            node = pending.pop()
            if not node:
                continue
            _color, _parent, left, right, buft, model, cache, compute = struct.unpack("<8Q", ctypes.string_at(node, 64))
            pending += [left, right]
            yield self._base.ggml_backend_buft_name(buft).decode(), Usage(model, cache, compute)
