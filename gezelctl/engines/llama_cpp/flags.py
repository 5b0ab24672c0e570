"""What a llama-server build calls a setting: a dated table of spellings, confirmed by the build's own `--help`.

The table says what is known of names over time; the probe says what is true of the build at hand. A build number is
only used in messages, never to decide: packaged builds often print 0.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gezelctl.observe.types import EngineProbe, Flag


class Spelling(msgspec.Struct, frozen=True):
    """One name of a flag. `since`: first build known to have it; `gone`: first build known not to; 0 = not known."""

    name: str
    since: int = 0
    gone: int = 0


def _family(*names: str | Spelling) -> tuple[Spelling, ...]:
    return tuple(Spelling(n) if isinstance(n, str) else n for n in names)


FAMILIES: tuple[tuple[Spelling, ...], ...] = (
    _family(Spelling("--load-mode", since=10434), "-lm"),
    _family(
        Spelling("--spec-draft-n-max", since=10434),
        Spelling("--draft-max", gone=10434),
        Spelling("--draft-n", gone=10434),
        Spelling("--draft-n-max", gone=10434),
        Spelling("--draft", gone=10434),
    ),
    _family(
        Spelling("--spec-draft-n-min", since=10434),
        Spelling("--draft-min", gone=10434),
        Spelling("--draft-n-min", gone=10434),
    ),
    _family(Spelling("--spec-draft-model", since=10434), "--model-draft", "-md"),
    _family(Spelling("--spec-draft-ngl", since=10434), "--n-gpu-layers-draft", "--gpu-layers-draft", "-ngld"),
    _family(Spelling("--spec-draft-device", since=10434), "--device-draft", "-devd"),
    _family(Spelling("--spec-draft-threads", since=10434), "--threads-draft", "-td"),
    _family(Spelling("--spec-draft-threads-batch", since=10434), "--threads-batch-draft", "-tbd"),
    _family(Spelling("--spec-draft-type-k", since=10434), "--cache-type-k-draft", "-ctkd"),
    _family(Spelling("--spec-draft-type-v", since=10434), "--cache-type-v-draft", "-ctvd"),
    _family(Spelling("--spec-draft-p-min", since=10434), "--draft-p-min"),
    _family(Spelling("--spec-draft-p-split", since=10434), "--draft-p-split"),
    _family(Spelling("--spec-draft-override-tensor", since=10434), "--override-tensor-draft", "-otd"),
    _family(Spelling("--spec-draft-cpu-moe", since=10434), "--cpu-moe-draft", "-cmoed"),
    _family(Spelling("--spec-draft-n-cpu-moe", since=10434), "--n-cpu-moe-draft", "-ncmoed"),
    _family("--ui", "--webui"),
    _family("--no-ui", "--no-webui"),
    _family("--ctx-checkpoints", "--swa-checkpoints", "-ctxcp"),
    _family(
        Spelling("--checkpoint-min-step", since=10434),
        "-cms",
        Spelling("--checkpoint-every-n-tokens", gone=10434),
        Spelling("-cpent", gone=10434),
    ),
    _family("--embeddings", "--embedding"),
    _family("--n-gpu-layers", "--gpu-layers", "-ngl"),
    _family("--temp", "--temperature"),
    _family("--log-verbosity", "--verbosity", "-lv"),
    _family("--kv-unified", "-kvu"),
    _family("--no-kv-unified", "-no-kvu"),
    _family(Spelling("--kv-unified-per-slot", since=11434)),
    _family(Spelling("--mmproj-device", since=11434), "-mmdev"),
)
"""Newest spelling first. Measured by comparing the help of b10434 and b11434."""

LOAD_SWITCHES: tuple[Spelling, ...] = _family(
    Spelling("--mlock", gone=11434),
    Spelling("--mmap", gone=11434),
    Spelling("--no-mmap", gone=11434),
    Spelling("--direct-io", gone=11434),
    Spelling("-dio", gone=11434),
    Spelling("--no-direct-io", gone=11434),
    Spelling("-ndio", gone=11434),
)
"""Replaced by `--load-mode`, which says with one word what these said together."""

_LOAD_MODES: dict[str, tuple[str, ...]] = {
    "auto": (),
    "none": ("--no-mmap",),
    "mmap": ("--mmap",),
    "mlock": ("--mlock",),
    "mmap+mlock": ("--mmap", "--mlock"),
    "dio": ("--direct-io",),
}
_DEFAULT_SWITCHES = frozenset({"--mmap"})
"""Builds without `--load-mode` map the file unless told otherwise, and some have no flag to ask for it."""

UNKNOWN_ARITY = -1
_BY_NAME: dict[str, tuple[str, ...]] = {s.name: tuple(m.name for m in family) for family in FAMILIES for s in family}


class Match(msgspec.Struct, frozen=True):
    """A flag of the build, and the spelling of it to use, which may be its negation."""

    flag: Flag
    spelling: str

    @property
    def ident(self) -> str:
        """Equal for all spellings of one option, its negation included."""
        return self.flag.names[0]


class FlagSet:
    """The flags of one build, found by any spelling that the table or the build knows."""

    def __init__(self, probe: EngineProbe) -> None:
        self.label = f"{probe.backend} ({f'b{probe.build}' if probe.build else probe.version or probe.program})"
        self.assumed = probe.pending
        """An archive that is not unpacked yet: every flag is taken to exist, by its newest name."""
        self.removed = probe.removed
        self._names = probe.flags_by_name
        self._negations = probe.flags_by_negation

    def __contains__(self, name: str) -> bool:
        return self.find(name) is not None

    def find(self, name: str) -> Match | None:
        """The build's flag for `name`, by its newest spelling that the build has."""
        family = _BY_NAME.get(name, (name,))
        if self.assumed:
            return Match(Flag((family[0],), UNKNOWN_ARITY), family[0])
        for spelling in family:
            if spelling in self._negations:
                return Match(self._negations[spelling], spelling)
            if spelling in self._names:
                return Match(self._names[spelling], spelling)
        return None

    def find_key(self, key: str) -> Match | None:
        """As `find`, for an extraArgs key: dashes in front are optional, underscores count as dashes."""
        bare = key.lstrip("-").replace("_", "-")
        return self.find(f"--{bare}") or self.find(f"-{bare}")

    def nearest(self, name: str) -> str:
        """The most similar long flag of the build, "" when nothing is close."""
        import difflib

        names = [n for n in (*self._names, *self._negations) if n.startswith("--")]
        return next(iter(difflib.get_close_matches(name, names, n=1, cutoff=0.6)), "")


def load_mode_tokens(flags: FlagSet, mode: str) -> tuple[str, ...] | None:
    """The arguments for a load mode: `--load-mode X`, else the switches that say the same; None when impossible."""
    if (match := flags.find("--load-mode")) is not None:
        return (match.spelling, mode)
    if mode not in _LOAD_MODES:
        return None
    wanted = [name for name in _LOAD_MODES[mode] if name in flags or name not in _DEFAULT_SWITCHES]
    found = [flags.find(name) or (flags.find("-dio") if name == "--direct-io" else None) for name in wanted]
    return tuple(m.spelling for m in found if m) if all(found) else None


def load_mode_of(switches: Iterable[str]) -> str | None:
    """The load mode that the old switches ask for together; None when they contradict each other.

    `--no-mmap --mlock` is mlock, `--mmap --mlock` is mmap+mlock (llama.cpp, the change that brought --load-mode).
    """
    asked = {{"-dio": "--direct-io", "-ndio": "--no-direct-io"}.get(name, name) for name in switches}
    asked.discard("--no-direct-io")
    if asked == {"--no-mmap", "--mlock"}:
        return "mlock"
    return next((mode for mode, names in _LOAD_MODES.items() if set(names) == asked), None)
