"""The table behind `loglines`: phrases of llama.cpp, ggml, the dynamic loader and MLX, and what to do about each."""

from __future__ import annotations

import re
from typing import Literal

import msgspec


class Rule(msgspec.Struct, frozen=True):
    """`pattern` may name a group `what`, which `summary` and `cure` can show. Earlier rules win within a line."""

    code: str
    pattern: re.Pattern[str]
    summary: str
    cure: str
    retry: Literal["no", "once", "replan"] = "no"


class Exit(msgspec.Struct, frozen=True):
    """A failure that only the exit status names."""

    code: str
    summary: str
    cure: str
    retry: Literal["no", "once", "replan"] = "no"


def _rule(code: str, phrases: str, summary: str, cure: str, *, retry: Literal["no", "once", "replan"] = "no") -> Rule:
    """`phrases`: one regular expression a line, of which one may name the group `what`."""
    pattern = "|".join(line.strip() for line in phrases.strip().splitlines())
    return Rule(code, re.compile(pattern), summary, cure, retry)


_REFETCH = "Run gezelctl apply again; it verifies the file and fetches it anew."
_OTHER_BUILD = "Use an engine build for this machine."
_NEWER = "Use a newer engine build."
_LESS = "Lower context or slots, quantise kvCache, or offload fewer layers."

RULES: tuple[Rule, ...] = (
    _rule("ARG_UNKNOWN", r"^error: invalid argument: (?P<what>\S+)", "the engine does not know the flag {what}",
          "Remove {what}, or use a build that has it."),
    _rule("ARG_UNKNOWN", r"error: unrecognized arguments: (?P<what>\S+)", "the engine does not know the flag {what}",
          "Remove {what}, or use a build that has it."),
    _rule("ARG_VALUE", r"^mlx_lm\.server: error: argument (?P<what>\S+): ", "the engine refuses the value of {what}",
          "Correct the value that the line names."),
    _rule("ARG_REMOVED", r'^error while handling argument "(?P<what>[^"]+)": the argument has been removed',
          "this engine build has dropped the flag {what}", "Use the flag that the line names."),
    _rule("ENV_VALUE", r'^error while handling environment variable "(?P<what>[^"]+)"',
          "the environment variable {what} holds a value that the engine refuses", "Unset {what}."),
    _rule("ARG_VALUE", r'^error while handling argument "(?P<what>[^"]+)"', "the engine refuses the value of {what}",
          "Correct the value that the line names."),
    _rule("ARG_VALUE", r"^error: --model is required", "no model was given", "Set model or source."),
    _rule("PORT", r"couldn't bind HTTP server socket, hostname: \S+, port: (?P<what>\d+)",
          "port {what} cannot be bound: it is taken, or the host name does not resolve",
          "Free the port, or set another one."),
    _rule("PORT", r"""\[Errno (?:48|98)\].*[Aa]ddress already in use
                      WinError 10048""",
          "the port is taken by another process", "Free the port, or set another one."),
    _rule("FILE_MISSING", r"failed to open GGUF file '(?P<what>[^']*)'", "the engine cannot open {what}",
          "Check that the file exists and that this user may read it."),
    _rule("FILE_MISSING", r"""failed to open .*: Permission denied
                              No safetensors found in
                              ^FileNotFoundError:
                              ^NotADirectoryError:""",
          "a model file is missing or may not be read", "Run gezelctl apply; it restores the payload."),
    _rule("NOT_GGUF", r"invalid magic characters: '(?P<what>.{0,8})', expected 'GGUF'",
          "the file is not a GGUF: it begins with '{what}'", _REFETCH),
    _rule("NOT_GGUF", r"""failed to read magic
                          invalid magic number
                          unknown \(magic, version\) combination""",
          "the file is not a GGUF that this engine can read", _REFETCH),
    _rule("GGUF_VERSION", r"""GGUFv1 is no longer supported
                              bad GGUF version
                              this GGUF file is version \d+ but
                              is extremely large, is there a mismatch between the host and model endianness""",
          "the GGUF version is not one that this engine reads", "Use a GGUF version 3 file in little-endian order."),
    _rule("GGUF_TRUNCATED", r"""is not within the file bounds, model is corrupted or incomplete
                                unexpectedly reached end of file""",
          "the GGUF file is shorter than its header says", _REFETCH),
    _rule("SPLIT", r"""failed to load GGUF split from
                       illegal split file idx
                       invalid split file (?:idx|name)
                       corrupted model: \d+ tensors expected but \d+ found
                       invalid model: tensor '.*' is duplicated""",
          "the shards of the model do not belong together, or one is missing", _REFETCH),
    _rule("ARCH_UNSUPPORTED", r"unknown model architecture: '(?P<what>[^']*)'",
          "this engine build does not know the architecture '{what}'", _NEWER),
    _rule("ARCH_UNSUPPORTED", r"""unknown pre-tokenizer type
                                  unknown tokenizer: '
                                  has invalid ggml type 39\b
                                  Model type \S+ not supported""",
          "the model needs something that this engine build does not have", _NEWER),
    _rule("GGUF_CORRUPT", r"""number of (?:tensors|key value pairs) is -?\d+ but must be in
                              string length \d+ exceeds maximum
                              duplicate (?:key|tensor name)
                              key \d+ is empty
                              has invalid GGUF type
                              tensor name \d+ is too long
                              invalid number of dimensions
                              has invalid number of elements
                              may cause overflow errors
                              has invalid ggml type
                              not a multiple of block size
                              has offset \d+, expected
                              alignment \d+ is not a power of 2
                              failed to seek to beginning of data section
                              key '.*' must be of type
                              buffer pointer must be aligned""",
          "the GGUF file is damaged", _REFETCH),
    _rule("WRONG_ROLE", r"""CLIP cannot be used as main model
                            Failed to load CLIP model from
                            failed to load multimodal model
                            failed to get memory usage of mmproj
                            mismatch between text model .* and mmproj""",
          "a file is used in the wrong role, or the projector belongs to another model",
          "Use the projector (mmproj) that was made for this model."),
    _rule("DRAFT", r"""failed to load draft model
                       failed to create MTP context
                       context type MTP requested but model doesn't contain MTP layers
                       DFlash model has no target_layer_ids
                       Speculative decoding requires a trimmable prompt cache""",
          "speculative decoding cannot start", "Remove spec, or use a drafter that was made for this model.",
          retry="replan"),
    _rule("MODEL_INCOMPATIBLE", r"""key not found in model:
                                    has wrong type \w+ but expected type
                                    check_tensor_dims: tensor '.*' (?:not found|has wrong shape)
                                    missing tensor '
                                    wrong number of tensors; expected
                                    cannot find tokenizer (?:vocab|merges) in model file
                                    LLAMA_MAX_LAYERS
                                    Received \d+ parameters not in model
                                    Missing \d+ parameters
                                    Tokenizer class \S+ does not exist""",
          "the model's contents do not fit what the engine expects of its architecture",
          "Use an engine version that supports this model, or another conversion of it."),
    _rule("DRIVER", r"""CUDA driver version is insufficient
                        no kernel image is available for execution
                        CUDA error (?:35|209)\b
                        incompatible API version""",
          "the engine build does not fit the graphics driver or card", _OTHER_BUILD),
    _rule("OOM_DEVICE", r"""cudaMalloc failed: out of memory
                            CUDA error: (?:out of memory|memory allocation)
                            hipMalloc failed
                            (?:failed|unable) to allocate (?P<what>(?:CUDA|ROCm|Vulkan|Metal|SYCL)\d*) buffer
                            ErrorOutOfDeviceMemory
                            OutOfDeviceMemoryError
                            VK_ERROR_OUT_OF_DEVICE_MEMORY
                            ggml_vulkan: .*(?:allocation|memory).*failed
                            kIOGPUCommandBufferCallbackErrorOutOfMemory
                            Insufficient Memory
                            \[METAL\] Command buffer execution failed""",
          "the device ran out of memory", _LESS, retry="replan"),
    _rule("OOM_HOST", r"""insufficient memory \(attempted to allocate
                          (?:failed|unable) to allocate CPU buffer
                          mmap failed: Cannot allocate memory
                          failed to allocate buffer for kv cache
                          failed to allocate compute pp buffers
                          ctx->mem_buffer != NULL
                          std::bad_alloc
                          ^MemoryError""",
          "the host ran out of memory", _LESS, retry="replan"),
    _rule("KV_TYPE", r"""quantized V cache requires flash_attn
                         model does not support different K .* and V .* cache types
                         does not divide n_embd_head""",
          "the engine cannot use this KV cache type", "Set kvCache: f16, or turn flash attention on."),
    _rule("CTX", r"""n_seq_max must be <= 256
                     GGML_ASSERT\(n_outputs >= 1\)""",
          "the context or the slot count is outside what the engine takes", "Correct context and slots."),
    _rule("TEMPLATE", r"""the supplied chat template is not supported
                          failed to initialize chat template
                          Parser Error:
                          failed to apply template:
                          Jinja Exception
                          tokenizer\.chat_template is not set""",
          "the chat template cannot be used", "Correct chatTemplate or chatTemplateFile."),
    _rule("DEVICE_LOST", r"""DeviceLostError
                             ErrorDeviceLost
                             \bXid\b
                             HipVMM Failure
                             illegal memory access
                             unspecified launch failure
                             device-side assert""",
          "the graphics device stopped answering", "Look at the system log; a driver update may help.", retry="once"),
    _rule("DEVICE_ERROR", r"CUDA error: (?P<what>.*)", "the graphics device reported: {what}", _OTHER_BUILD),
    _rule("LIBS", r"error while loading shared libraries: (?P<what>[^:]+):", "the library {what} is missing",
          "Install the package that holds {what}, or use another engine build."),
    _rule("LIBS", r"""version `GLIBC(?:XX)?_[\d.]+' not found
                      Library not loaded:
                      image not found
                      ^(?:ModuleNotFound|Import)Error:
                      requires the \S+ library but it was not found
                      error: the embedded server is not installed""",
          "something that the engine needs is not installed", "Install what the line names."),
    _rule("CPU_ISA", r"""Illegal instruction
                         trap invalid opcode""",
          "the build uses instructions that this CPU does not have", _OTHER_BUILD),
    _rule("DOWNLOAD", r"""failed to download model
                          failed with status code: \d+
                          HTTPLIB failed
                          failed to resolve commit
                          exactly one out metadata, path_model, and file must be defined
                          Fetching \d+ files""",
          "the engine tried to download a model", "Use model or source, so that gezelctl fetches and verifies it."),
    _rule("GRAMMAR", r"failed to parse grammar", "the grammar cannot be parsed", "Correct the grammar."),
    _rule("ASSERTION", r"(?P<what>GGML_ASSERT\(.*)", "the engine stopped at a check of its own: {what}",
          "Try another engine build; report it to llama.cpp with the whole log."),
)  # fmt: skip

LAST_RESORT: tuple[Rule, ...] = (
    _rule("GGUF_TRUNCATED", r"failed to read (?:key-value pairs|tensor info|tensor data|header)",
          "the GGUF header cannot be read to its end", _REFETCH),
    _rule("ENGINE_ERROR", r"^(?P<what>\w+(?:Error|Exception)): ", "the engine ended with {what}",
          "Read the whole log."),
    _rule("MODEL_LOAD", r"failed to (?:load model|create.context)", "the engine could not load the model",
          "Read the whole log."),
)  # fmt: skip
"""General lines, used only when nothing specific was said."""

GENERIC = re.compile(
    r"failed to load model|failed to create.context with model|exiting due to |cleaning up before exit"
    r"|encountered an error while trying to fit params"
    r"|failed to read (?:header|key-value pairs|tensor info|tensor data)"
)
"""Wrappers that follow every cause."""

HARMLESS = re.compile(
    r"failed to fit params to free device memory: .*abort"
    r"|failed to measure the memory of the extra model"
    r"|DEPRECATED: argument"
    r"|environment variable is set, but will be overwritten"
    r"|n_ctx_seq \(\d+\) [<>] n_ctx_train"
    r"|exceeds the training context"
    r"|GENERATION QUALITY WILL BE DEGRADED"
    r"|no usable GPU found"
    r"|security: no API key is set"
    r"|greater than the recommended max working set size"
    r"|model has unused tensor"
    r"|failed to parse chat template \(defaulting to chatml\)"
    r"|failed to initialize speculative decoding context"
    r"|target and draft vocabs are not compatible"
    r"|embeddings required but some input tokens were not marked"
    r'|"(?:GET|POST|OPTIONS) /\S* HTTP/1\.[01]" \d{3}'
    r"|done request: (?:GET|POST)"
)
"""Lines that look fatal and are not."""

RETRIED = re.compile(r"retrying without pipeline parallelism")

SILENT_LOSSES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"failed to initialize speculative decoding context|draft model is not eagle3"
                r"|requires a draft context"),
     "runs without speculative decoding"),
    (re.compile(r"target and draft vocabs are not compatible"),
     "runs without speculative decoding: the vocabularies of model and drafter differ"),
    (re.compile(r"failed to parse chat template \(defaulting to chatml\)"),
     "uses the chatml template, not the model's"),
    (re.compile(r"GENERATION QUALITY WILL BE DEGRADED"), "the GGUF names no pre-tokenizer; answers may be poor"),
    (re.compile(r"no usable GPU found|CUDA driver version is insufficient"), "runs on the CPU: no GPU can be used"),
    (re.compile(r"greater than the recommended max working set size"),
     "uses more than Metal's recommended working set and will be slow"),
    (re.compile(r"slot context \((?P<a>\d+)\) exceeds the training context of the model \((?P<b>\d+)\)"),
     "a slot is capped at {b} tokens, but memory for {a} is allocated"),
)  # fmt: skip

EXITS: dict[int, Exit] = {
    127: Exit("LIBS", "the program or one of its libraries was not found", "Reinstall the engine build."),
    126: Exit("NOT_EXECUTABLE", "the program may not be executed",
              "Set the execute bit, and check that the file system allows it."),
    -4: Exit("CPU_ISA", "the build uses instructions that this CPU does not have", _OTHER_BUILD),
    -6: Exit("ABORTED", "the engine aborted", "Read the whole log; another engine build may help."),
    -9: Exit("KILLED", "the process was killed, probably because the host ran out of memory", _LESS, "replan"),
    -11: Exit("CRASHED", "the engine crashed (segmentation fault)", "Try another engine build.", "once"),
    -15: Exit("TERMINATED", "something other than gezelctl ended the process", "Run gezelctl apply to start it again.",
              "once"),
    -1: Exit("TERMINATED", "the process ended with its terminal (SIGHUP)", "Run gezelctl apply to start it again.",
             "once"),
}  # fmt: skip
