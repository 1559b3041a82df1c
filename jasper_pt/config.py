"""Model and data settings: the published YAML files as frozen dataclasses, read strictly.

    config = load_config("configs/asr/quartznet15x5_speedp-online-1.15_speca.yaml", ["name=Mine"])

Keys are those of the published recipe. Unknown, missing and mistyped keys are errors that name the file (or the
override) and the key. Two keys are ours: a file may start from another (`base: <file beside it>`) and state only its
differences (`overrides: {dotted.path: value}`), so that variants are rows, not copies.

Units: durations in seconds, frequencies in Hz unless "bins", masks in feature frames (10 ms) or mel bins.
"""

import ast
import collections
import dataclasses
import difflib
import math
import os
import re
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml

from runkit.errors import UserError

CONFIG_DIR = Path(__file__).resolve().parents[1] / "configs" / "asr"
MODEL_SECTIONS = ("quartznet", "jasper")
BLANK = "<BLANK>"
MAX_WINDOW = 10.0  # s
MAX_BYTES = 1 << 20  # of a file; the published ones have 4 kB, and this reader takes some 10 s a MB
MAX_VALUES = 100_000  # in a file, all aliases written out
MAX_DIGITS = 100

# YAML key where it differs from the field's name.
_KEYS = {"audio": "audio_dataset", "features": "filterbank_features"}


# ----------------------------------------------------------------------------------------------------- sections
@dataclasses.dataclass(frozen=True)
class SpeedPerturbation:
    """Playback at a random rate; rate > 1 is faster and shorter. `discrete`: one of min_rate, 1, max_rate."""

    min_rate: float = 0.85
    max_rate: float = 1.15
    discrete: bool = False
    p: float = 0.1
    rng: None = None  # published, always null

    def __post_init__(self):
        _require(0 < self.min_rate <= self.max_rate < math.inf, "0 < min_rate <= max_rate is needed")
        _require_probability(self.p)


@dataclasses.dataclass(frozen=True)
class GainPerturbation:
    """Random gain in dB."""

    min_gain_dbfs: float = -10.0
    max_gain_dbfs: float = 10.0
    p: float = 0.1
    rng: None = None

    def __post_init__(self):
        _require(
            -math.inf < self.min_gain_dbfs <= self.max_gain_dbfs < math.inf,
            "numbers are needed, and min_gain_dbfs must not be greater than max_gain_dbfs",
        )
        _require_probability(self.p)


@dataclasses.dataclass(frozen=True)
class ShiftPerturbation:
    """Random shift in time, in milliseconds."""

    min_shift_ms: float = -5.0
    max_shift_ms: float = 5.0
    p: float = 0.1
    rng: None = None

    def __post_init__(self):
        _require(
            -math.inf < self.min_shift_ms <= self.max_shift_ms < math.inf,
            "numbers are needed, and min_shift_ms must not be greater than max_shift_ms",
        )
        _require_probability(self.p)


@dataclasses.dataclass(frozen=True)
class NoisePerturbation:
    """Noise added to the signal (arXiv 1412.5567): a random part of a random recording of `manifests`, which need no
    transcripts; where there are none, generated noise whose power falls as 1 / frequency^exponent (0 white, 1 pink, 2
    brown), from 50 Hz on. The ratio of signal to noise is that of their mean powers over the utterance, in dB."""

    manifests: tuple[str, ...] = ()
    min_snr_db: float = 0.0
    max_snr_db: float = 30.0
    min_exponent: float = 0.0
    max_exponent: float = 2.0
    p: float = 0.5

    def __post_init__(self):
        _require(
            -math.inf < self.min_snr_db <= self.max_snr_db < math.inf,
            "numbers are needed, and min_snr_db must not be greater than max_snr_db",
        )
        _require(0 <= self.min_exponent <= self.max_exponent <= 4, "0 <= min_exponent <= max_exponent <= 4 is needed")
        _require_probability(self.p)


@dataclasses.dataclass(frozen=True)
class ImpulsePerturbation:
    """The signal as heard in a room (Ko et al., ICASSP 2017): filtered with a random impulse response of `manifests`;
    where there are none, with a generated one: the direct sound, then noise that falls by 60 dB in rt60 (s) (Polack
    1988), of which the direct sound has `drr_db` times the power."""

    manifests: tuple[str, ...] = ()
    min_rt60: float = 0.2
    max_rt60: float = 0.8
    min_drr_db: float = 0.0
    max_drr_db: float = 12.0
    p: float = 0.5

    def __post_init__(self):
        _require(0 < self.min_rt60 <= self.max_rt60 <= 10, "0 < min_rt60 <= max_rt60 <= 10 (s) is needed")
        _require(
            -math.inf < self.min_drr_db <= self.max_drr_db < math.inf,
            "numbers are needed, and min_drr_db must not be greater than max_drr_db",
        )
        _require_probability(self.p)


@dataclasses.dataclass(frozen=True)
class AudioConfig:
    """`audio_dataset`: which utterances are used and what is done to their waveforms.

    `normalize_transcripts`: true applies the English rules where the labels are the English ones and the
    alphabet-neutral rules elsewhere; "english" forces the former, false only drops characters without a label.
    """

    sample_rate: int = 16000
    min_duration: float = 0.1
    max_duration: float = math.inf
    pad_to_max_duration: bool = False
    max_utts: int = 0  # 0: all
    normalize_transcripts: bool | Literal["english"] = True
    sort_by_duration: bool = False
    trim_silence: bool = False
    speed_perturbation: SpeedPerturbation | None = None
    gain_perturbation: GainPerturbation | None = None
    shift_perturbation: ShiftPerturbation | None = None
    impulse_perturbation: ImpulsePerturbation | None = None
    noise_perturbation: NoisePerturbation | None = None
    ignore_offline_speed_perturbation: bool = False

    def __post_init__(self):
        _require(self.sample_rate > 0, "sample_rate must be positive")
        _require(0 <= self.min_duration < self.max_duration, "0 <= min_duration < max_duration is needed")
        _require(self.max_utts >= 0, "max_utts must not be negative (0: all)")
        _require(
            not self.pad_to_max_duration or math.isfinite(self.max_duration), "pad_to_max_duration needs a max_duration"
        )


@dataclasses.dataclass(frozen=True)
class SpecAugmentConfig:
    """SpecAugment (arXiv 1904.08779): so many masks, each with a width from the closed interval [min, max].

    Time masks by an utterance's frames T ("adaptive", arXiv 1912.05533), where these are not 0: their number is
    min(max_time_masks, floor(adaptive_multiplicity * T)) in place of time_masks, their greatest width
    floor(adaptive_size * T) in place of max_time.
    """

    freq_masks: int = 0
    min_freq: int = 0  # mel bins
    max_freq: int = 10
    time_masks: int = 0
    min_time: int = 0  # frames
    max_time: int = 10
    adaptive_multiplicity: float = 0.0  # 0.04 in the paper
    adaptive_size: float = 0.0  # 0.04 in the paper
    max_time_masks: int = 20  # as in the paper

    def __post_init__(self):
        _require(
            0 <= self.adaptive_multiplicity <= 1 and 0 <= self.adaptive_size <= 1,
            "adaptive_multiplicity and adaptive_size are shares of the frames, from 0 to 1",
        )
        _require(0 <= self.max_time_masks <= 1000, "max_time_masks must be from 0 to 1000")
        _require(min(self.freq_masks, self.time_masks) >= 0, "the number of masks must not be negative")
        _require(0 <= self.min_freq <= self.max_freq, "0 <= min_freq <= max_freq is needed")
        _require(0 <= self.min_time <= self.max_time, "0 <= min_time <= max_time is needed")


@dataclasses.dataclass(frozen=True)
class CutoutConfig:
    """Cutout (arXiv 1708.04552): `masks` rectangles of mel bins by frames."""

    masks: int = 0
    min_freq: int = 20
    max_freq: int = 20
    min_time: int = 5
    max_time: int = 5

    def __post_init__(self):
        _require(self.masks >= 0, "masks must not be negative")
        _require(0 <= self.min_freq <= self.max_freq, "0 <= min_freq <= max_freq is needed")
        _require(0 <= self.min_time <= self.max_time, "0 <= min_time <= max_time is needed")


@dataclasses.dataclass(frozen=True)
class FeatureConfig:
    """`filterbank_features`: from waveform to normalised log-mel features.

    Defaults are the values of all published files (the published class had others: 8000 Hz, Hamming, pad_align 8).
    """

    sample_rate: int = 16000
    window_size: float = 0.02
    window_stride: float = 0.01
    window: Literal["hann", "hamming", "blackman", "bartlett", "none"] = "hann"
    normalize: Literal["per_feature", "all_features"] | None = "per_feature"
    n_fft: int | None = None  # None: the next power of two of the window
    preemph: float | None = 0.97
    n_filt: int = 64
    lowfreq: float = 0.0
    highfreq: float | None = None  # None: half the sample rate
    log: bool = True
    log_guard: float = 1e-20  # added before the logarithm, so that digital silence stays finite (ours; NeMo: 2^-24)
    dither: float = 1e-5
    pad_align: int = 16  # frames
    pad_to_max_duration: bool = False
    max_duration: float = math.inf
    frame_splicing: Literal[1] = 1  # the published code refuses other values too
    spec_augment: SpecAugmentConfig | None = None
    cutout_augment: CutoutConfig | None = None

    def __post_init__(self):
        _require(self.sample_rate > 0, "sample_rate must be positive")
        _require(
            0 < self.window_stride <= self.window_size <= MAX_WINDOW and self.hop_length > 0,
            f"0 < window_stride <= window_size <= {MAX_WINDOW} (s) is needed, and a stride of one sample at least",
        )
        _require(self.n_filt > 0 and self.pad_align > 0, "n_filt and pad_align must be positive")
        _require(0 < self.log_guard < math.inf, "log_guard must be positive")
        _require(0 <= self.dither < math.inf, "dither must be a number, and not negative")
        _require(self.preemph is None or math.isfinite(self.preemph), "preemph must be a number")
        _require(
            self.n_fft is None or self.n_fft >= self.win_length,
            f"n_fft must not be shorter than the window of {self.win_length} samples",
        )
        high = self.sample_rate / 2 if self.highfreq is None else self.highfreq
        _require(
            0 <= self.lowfreq < high <= self.sample_rate / 2, "0 <= lowfreq < highfreq <= sample_rate / 2 is needed"
        )

    @property
    def win_length(self) -> int:
        """Window in samples."""
        return int(self.sample_rate * self.window_size)

    @property
    def hop_length(self) -> int:
        """Stride of the window in samples."""
        return int(self.sample_rate * self.window_stride)

    @property
    def fft_length(self) -> int:
        """Points of the FFT."""
        return self.n_fft or 2 ** math.ceil(math.log2(self.win_length))


@dataclasses.dataclass(frozen=True)
class InputConfig:
    """`input_train` or `input_val`. Both halves must agree where they share a key."""

    audio: AudioConfig
    features: FeatureConfig

    def __post_init__(self):
        for key in ("sample_rate", "max_duration", "pad_to_max_duration"):
            audio, features = getattr(self.audio, key), getattr(self.features, key)
            _require(
                audio == features,
                f"{key} must be the same in audio_dataset ({audio}) and filterbank_features ({features}); set both",
            )


def _single(default: Any = dataclasses.MISSING) -> Any:
    """A field given as a number or, in the published way, as a list of one."""
    return dataclasses.field(default=default, metadata={"single": True})


@dataclasses.dataclass(frozen=True)
class BlockConfig:
    """One block of the encoder: `repeat` x (convolution, normalisation, activation, dropout), then the residual sum."""

    filters: int
    kernel_size: int = _single()
    repeat: int = 3
    kernel_size_factor: float = 1.0
    stride: int = _single(1)
    dilation: int = _single(1)
    padding: Literal["same"] = "same"
    dropout: float = 0.2
    residual: bool = True
    residual_dense: bool = False
    groups: int = 1
    separable: bool = False
    heads: Literal[-1] = -1  # the published code accepts no other value
    normalization: Literal["batch", "group", "instance", "layer"] = "batch"
    norm_groups: int = 1  # -1: one group a channel

    def __post_init__(self):
        for key in ("filters", "kernel_size", "repeat", "kernel_size_factor", "stride", "dilation", "groups"):
            _require(getattr(self, key) > 0, f"{key} must be positive")
        _require(self.kernel_size * self.kernel_size_factor < 1 << 31, "kernel_size * kernel_size_factor is too large")
        _require(0 <= self.dropout < 1, "dropout must be in [0, 1)")
        _require(self.stride == 1 or self.dilation == 1, "stride and dilation cannot both be greater than 1")
        _require(self.residual or not self.residual_dense, "residual_dense needs residual: true")
        _require(not self.residual or self.stride == 1, "a residual block cannot have a stride")
        _require(self.filters % self.groups == 0, f"filters {self.filters} is not a multiple of groups {self.groups}")
        groups = self.filters if self.norm_groups == -1 else self.norm_groups
        _require(
            groups > 0 and self.filters % groups == 0,
            f"norm_groups {self.norm_groups} must divide filters {self.filters} (-1: one group a channel)",
        )

    @property
    def kernel(self) -> int:
        """Taps after `kernel_size_factor`: made odd, so that 'same' padding keeps the length."""
        return max(int(self.kernel_size * self.kernel_size_factor), 1) // 2 * 2 + 1


@dataclasses.dataclass(frozen=True)
class EncoderConfig:
    """The stack of blocks."""

    blocks: tuple[BlockConfig, ...]
    init: Literal["xavier_uniform", "xavier_normal", "kaiming_uniform", "kaiming_normal"] = "xavier_uniform"
    in_feats: int = 64
    frame_splicing: Literal[1] = 1
    activation: Literal["relu", "selu", "hardtanh"] = "relu"
    use_conv_masks: bool = True

    def __post_init__(self):
        _require(len(self.blocks) > 0, "blocks must not be empty")
        _require(self.in_feats > 0, "in_feats must be positive")


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
    """The 1x1 convolution to the labels."""

    in_feats: int = 1024
    init: Literal["xavier_uniform", "xavier_normal", "kaiming_uniform", "kaiming_normal"] = "xavier_uniform"


@dataclasses.dataclass(frozen=True)
class Config:
    """A whole file. `family` is the name of its model section and decides the names in the state dict."""

    name: str
    labels: tuple[str, ...]
    family: Literal["quartznet", "jasper"]
    input_val: InputConfig
    encoder: EncoderConfig
    decoder: DecoderConfig
    input_train: InputConfig | None = None  # absent in models imported for inference only

    def __post_init__(self):
        _require(re.fullmatch(r"[\w.-]+", self.name), f"name {self.name!r} must be letters, digits, '_', '.' and '-'")
        repeated = sorted(label for label, count in collections.Counter(self.labels).items() if count > 1)
        _require(len(self.labels) > 0 and not repeated, f"labels must be given once each; repeated or none: {repeated}")
        _require("" not in self.labels and BLANK not in self.labels, f"labels must not hold '' or {BLANK}")
        lacking = sorted(set("".join(self.labels)) - set(self.labels))
        _require(not lacking, f"each character of a subword must be a label of its own; labels lack {lacking}")
        for name in ("input_train", "input_val"):
            section = getattr(self, name)
            _require(
                section is None or section.features.n_filt == self.encoder.in_feats,
                f"{name}.filterbank_features.n_filt must equal {self.family}.encoder.in_feats",
            )
        last = self.encoder.blocks[-1].filters
        _require(
            self.decoder.in_feats == last,
            f"{self.family}.decoder.in_feats is {self.decoder.in_feats} but the last block has {last} filters",
        )

    @property
    def stride(self) -> int:
        """Feature frames an output frame."""
        return math.prod(block.stride for block in self.encoder.blocks)

    @property
    def frame_seconds(self) -> float:
        """From one output frame to the next."""
        features = self.input_val.features
        return self.stride * features.hop_length / features.sample_rate

    @property
    def n_classes(self) -> int:
        """V: labels and the blank, which is the last."""
        return len(self.labels) + 1

    def to_dict(self) -> dict[str, Any]:
        """The file's content with every key stated, in plain types; `parse_config` reads it back."""
        model = {"encoder": _plain(self.encoder), "decoder": _plain(self.decoder)}
        inputs = {"input_val": _plain(self.input_val)}
        if self.input_train is not None:
            inputs["input_train"] = _plain(self.input_train)
        return {"name": self.name, "labels": list(self.labels), **inputs, self.family: model}


def _require(condition: Any, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _require_probability(p: float) -> None:
    _require(0 <= p <= 1, f"p must be a probability, got {p}")


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        plain = {}
        for field in dataclasses.fields(value):
            item = _plain(getattr(value, field.name))
            plain[_KEYS.get(field.name, field.name)] = [item] if field.metadata.get("single") else item
        return plain
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


# ----------------------------------------------------------------------------------------------------- reading
def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Reads a YAML file and applies `dotted.path=value` overrides.

    A value is a Python literal (true, false, null and inf too), else a string; it must have the type of the key, save
    that numbers interchange (2.0 for a whole number). `blocks.3.dropout` names one block, `blocks.*.dropout` all of
    them. Raises UserError naming file or override, key and cause.
    """
    path = resolve_config_path(path)
    return parse_config(_read_with_base(path, ()), str(path), overrides)


def parse_config(raw: Mapping[str, Any], source: str = "config", overrides: Sequence[str] = ()) -> Config:
    """The same for a mapping already read, such as the one stored in a checkpoint; `source` names it in errors."""
    raw = _independent(raw)
    if not isinstance(raw, dict):
        raise UserError(f"{source}: expected a mapping of keys, got {type(raw).__name__}")
    reader = _Reader(source)
    for override in overrides:
        key, value = _split_override(override)
        _assign(raw, key, value, f"override {override!r}")
        reader.overridden[key] = override
    return reader.config(raw)


def resolve_config_path(path: str | Path) -> Path:
    """The file itself, or the one of this name in configs/asr/.

    Command lines of the published recipe say configs/<name>.yaml; a bare <name> will do too. Raises UserError listing
    what there is.
    """
    path = Path(path)
    if path.is_file():
        return path
    name = path.name if path.suffix == ".yaml" else f"{path.name}.yaml"
    if path.parts[-2:-1] in [(), ("configs",), ("asr",)] and (CONFIG_DIR / name).is_file():
        return CONFIG_DIR / name
    known = sorted(file.name for file in CONFIG_DIR.glob("*.yaml"))
    guess = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {guess[0]}? " if guess else ""
    raise UserError(f"no model config {path}; {hint}{CONFIG_DIR} has {', '.join(known)}")


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses repeated keys and reads 1e-5 as a number (YAML 1.2).

    It also refuses aliases that stand for more than MAX_VALUES ("billion laughs") or for themselves, numbers of over
    MAX_DIGITS, and halves of surrogate pairs.
    """

    def __init__(self, stream):
        super().__init__(stream)
        self._sizes: dict[int, int] = {}  # of finished nodes by id(), aliases written out

    def compose_node(self, parent, index):
        is_alias, mark = self.check_event(yaml.AliasEvent), self.peek_event().start_mark
        node = super().compose_node(parent, index)
        if is_alias:
            if id(node) not in self._sizes:
                raise yaml.composer.ComposerError(None, None, "an alias of what it is a part of", mark)
            return node
        parts = node.value if isinstance(node, yaml.CollectionNode) else []
        children = [child for part in parts for child in (part if isinstance(part, tuple) else (part,))]
        self._sizes[id(node)] = 1 + sum(self._sizes[id(child)] for child in children)
        if self._sizes[id(node)] > MAX_VALUES:
            raise yaml.composer.ComposerError(None, None, f"more than {MAX_VALUES} values, all aliases counted", mark)
        return node

    def compose_scalar_node(self, anchor):
        node = super().compose_scalar_node(anchor)
        if node.tag == "tag:yaml.org,2002:int" and len(node.value) > MAX_DIGITS:
            raise yaml.composer.ComposerError(None, None, f"a number of {len(node.value)} digits", node.start_mark)
        if re.search("[\ud800-\udfff]", node.value):
            raise yaml.composer.ComposerError(None, None, "half of a surrogate pair, no character", node.start_mark)
        return node

    def compose_mapping_node(self, anchor):
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            name = str(key.value)
            if name in seen and key.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(None, None, f"key {name!r} is repeated", key.start_mark)
            seen.add(name)
        return node


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), "-+0123456789"
)


def read_yaml(content: bytes, source: str | Path) -> dict:
    """A YAML file's mapping, read strictly (see _Loader). Raises UserError naming `source`, line and cause."""
    try:
        if len(content) > MAX_BYTES:
            raise UserError(f"{source}: has more than {MAX_BYTES} bytes; a model config has at most that")
        raw = yaml.load(content.decode("utf-8-sig"), Loader=_Loader)
    except UnicodeDecodeError as error:
        raise UserError(f"{source}: not UTF-8 at byte {error.start}") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise UserError(f"{source}{where}: {error.problem}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{source}: {error}") from error
    except (ValueError, OverflowError, LookupError, AttributeError, TypeError) as error:
        # What PyYAML raises where a text does not fit its tag: 2001-99-99, 0x, !!bool x, !!timestamp x.
        raise UserError(f"{source}: a value does not fit its type ({error})") from error
    except RecursionError as error:
        raise UserError(f"{source}: its lists or mappings are nested too deeply") from error
    if not isinstance(raw, dict):
        raise UserError(f"{source}: expected a mapping of keys, got {type(raw).__name__}")
    return raw


def _read_with_base(path: Path, chain: tuple[Path, ...]) -> dict:
    try:
        with open(path, "rb") as stream:
            raw = read_yaml(stream.read(MAX_BYTES + 1), path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    if "base" not in raw:
        return raw
    base = path.parent / str(raw.pop("base"))
    exists = os.path.isfile(base)  # False for a name that cannot be one, too
    if not exists or base.resolve() in chain:
        raise UserError(f"{path}: base {base} {'leads back here' if exists else 'does not exist'}")
    merged = _independent(_read_with_base(base, (*chain, path.resolve())))
    differences = raw.pop("overrides", {})
    if raw or not isinstance(differences, dict):
        raise UserError(
            f"{path}: a file with a base holds 'base' and 'overrides' (a mapping), not {sorted(raw) or 'this'}"
        )
    for key, value in differences.items():
        _assign(merged, str(key), _independent(value), f"{path}: overrides: {key}")
    return merged


def _independent(value: Any) -> Any:
    """A copy in which aliases of one YAML anchor no longer share anything: an override changes what it names only."""
    if isinstance(value, Mapping):
        return {key: _independent(item) for key, item in value.items()}
    return [_independent(item) for item in value] if isinstance(value, list | tuple) else value


def _split_override(override: str) -> tuple[str, Any]:
    key, equals, text = override.partition("=")
    if not equals or not key or "=" in text:
        raise UserError(f"override {override!r}: expected dotted.path=value with exactly one '='")
    words = {"true": True, "false": False, "null": None, "inf": math.inf}
    if text.lower() in words:
        return key, words[text.lower()]
    try:
        return key, ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return key, text


def _assign(raw: dict, key: str, value: Any, where: str) -> None:
    """Sets a dotted path; sections that are absent or null on the way are made (the strict reading judges them)."""
    nodes: list[Any] = [raw]
    *sections, leaf = key.split(".")
    for part in sections:
        nodes = [child for node in nodes for child in _children(node, part, where)]
    for node in nodes:
        if isinstance(node, list):
            for index in _indices(node, leaf, where):
                node[index] = _independent(value)
        elif isinstance(node, dict):
            node[leaf] = _independent(value)
        else:
            raise UserError(f"{where}: there is nothing below {'.'.join(sections)} (it is {node!r})")


def _children(node: Any, part: str, where: str) -> list[Any]:
    if isinstance(node, list):
        return [node[index] for index in _indices(node, part, where)]
    if not isinstance(node, dict):
        raise UserError(f"{where}: there is no {part!r} in {node!r}")
    if node.get(part) is None:
        node[part] = {}
    return [node[part]]


def _indices(node: list, part: str, where: str) -> Sequence[int]:
    if part == "*":
        return range(len(node))
    if not part.isdecimal() or int(part) >= len(node):
        raise UserError(f"{where}: {part!r} must be '*' or an index from 0 to {len(node) - 1}")
    return [int(part)]


class _Reader:
    """Checks a mapping against the dataclasses and builds them; every error names where the value came from."""

    def __init__(self, source: str):
        self.source = source
        self.overridden: dict[str, str] = {}

    def error(self, path: str, problem: str) -> UserError:
        by = [text for key, text in self.overridden.items() if _touches(key, path)]
        return UserError(f"{f'override {by[-1]!r}' if by else self.source}: {path}: {problem}")

    def config(self, raw: dict) -> Config:
        families = [key for key in MODEL_SECTIONS if key in raw]
        if len(families) != 1:
            raise UserError(
                f"{self.source}: expected one of the sections {' and '.join(MODEL_SECTIONS)}, got {families}"
            )
        (family,) = families
        model = raw.pop(family)
        if not isinstance(model, dict) or set(model) != {"encoder", "decoder"}:
            raise self.error(family, "must hold 'encoder' and 'decoder', and nothing else")
        values = {
            "family": family,
            "encoder": self.value(EncoderConfig, model["encoder"], f"{family}.encoder"),
            "decoder": self.value(DecoderConfig, model["decoder"], f"{family}.decoder"),
        }
        for name in self._keys(Config, raw, "", skip=tuple(values)):
            values[name] = self._field(Config, name, raw, "")
        return self._make(Config, values, "")

    def _keys(self, cls: type, raw: dict, path: str, skip: Sequence[str] = ()) -> list[str]:
        """Names of the fields that `raw` states, after refusing unknown and missing keys."""
        fields = [field for field in dataclasses.fields(cls) if field.name not in skip]
        known = {_KEYS.get(field.name, field.name): field for field in fields}
        for key in raw:
            if key not in known:
                full = f"{path}.{key}".lstrip(".")
                guess = difflib.get_close_matches(str(key), known, 1)
                hint = f"did you mean {guess[0]!r}? " if guess else ""
                raise self.error(full, f"unknown key; {hint}known here: {', '.join(known)}")
        for key, field in known.items():
            if key not in raw and field.default is dataclasses.MISSING:
                raise self.error(f"{path}.{key}".lstrip("."), "is missing")
        return [field.name for key, field in known.items() if key in raw]

    def _field(self, cls: type, name: str, raw: dict, path: str) -> Any:
        field = next(field for field in dataclasses.fields(cls) if field.name == name)
        key = _KEYS.get(name, name)
        value, full = raw[key], f"{path}.{key}".lstrip(".")
        if field.metadata.get("single") and isinstance(value, list):
            if len(value) != 1:
                raise self.error(full, f"expected a number or a list of one, got {value!r}")
            value = value[0]
        return self.value(typing.get_type_hints(cls)[name], value, full)

    def value(self, kind: Any, value: Any, path: str) -> Any:
        """`value` as `kind`; raises UserError where it does not fit."""
        if dataclasses.is_dataclass(kind):
            if not isinstance(value, dict):
                raise self.error(path, f"expected a mapping of keys, got {value!r}")
            return self._make(
                kind, {name: self._field(kind, name, value, path) for name in self._keys(kind, value, path)}, path
            )
        if typing.get_origin(kind) in (types.UnionType, typing.Union):
            *kinds, last = sorted(typing.get_args(kind), key=dataclasses.is_dataclass)
            return self.value(next((k for k in kinds if _fits(k, value)), last), value, path)
        if typing.get_origin(kind) is tuple:
            if not isinstance(value, list):
                raise self.error(path, f"expected a list, got {value!r}")
            return tuple(self.value(kind.__args__[0], item, f"{path}.{i}") for i, item in enumerate(value))
        if not _fits(kind, value):
            raise self.error(path, f"expected {_kind_name(kind)}, got {value!r}")
        return float(value) if kind is float else int(value) if kind is int else value

    def _make(self, cls: type, values: dict, path: str) -> Any:
        try:
            return cls(**values)
        except ValueError as error:
            if not path:
                raise UserError(f"{self.source}: {error}") from error
            raise self.error(path, str(error)) from error


def _touches(override: str, path: str) -> bool:
    """Whether one of two dotted paths is the other or lies above it; `*` stands for any index."""
    return all(a == b or a == "*" for a, b in zip(override.split("."), path.split("."), strict=False))


def _fits(kind: Any, value: Any) -> bool:
    if typing.get_origin(kind) is Literal:
        return any(value == choice and type(value) is type(choice) for choice in kind.__args__)
    if kind is types.NoneType:
        return value is None
    if kind in (int, float):
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if kind is float and isinstance(value, float):
            return not math.isnan(value)
        return abs(value) < 1 << 63 and (kind is float or float(value).is_integer())
    return isinstance(value, kind)


def _kind_name(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return "one of " + ", ".join(map(repr, kind.__args__))
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", types.NoneType: "null"}
    return names[kind]
