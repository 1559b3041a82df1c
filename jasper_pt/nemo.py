"""NeMo's model archives (.nemo) of QuartzNet and Jasper: read without running anything in them, and written.

A .nemo file is a tar, plain or gzipped, that holds `model_config.yaml` and `model_weights.ckpt` (a PyTorch state dict).

    NeMo                                      here
    encoder.encoder.N.mconv.M.conv.weight     encoder.layers.N.mconv.M.weight   (Jasper: .conv. for .mconv.)
    encoder.encoder.N.res.I.J.conv.weight     encoder.layers.N.res.I.J.weight
    decoder.decoder_layers.0.weight           decoder.layers.0.weight
    preprocessor.featurizer.{fb,window}       made from the settings

Settings that change what the network computes are taken over or, where there is no counterpart, refused by name.
"""

import gzip
import io
import math
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import torch
import yaml
from torch import Tensor

from jasper_pt.config import BlockConfig, Config, FeatureConfig, parse_config, read_yaml
from jasper_pt.features import LogMel
from runkit.errors import UserError
from runkit.files import atomic_open

CONFIG, WEIGHTS = "model_config.yaml", "model_weights.ckpt"
MAX_BYTES = {CONFIG: 1 << 20, WEIGHTS: 4 << 30}
MAX_MEMBERS = 1000  # tokenizers and the like lie beside the two
SUFFIX = ".nemo"
LOG_GUARD = 2.0**-24  # NeMo's, added to the mel energies
MAX_DURATION = 16.7  # s, of NeMo's examples, where the archive does not say

# What damaged archives raise, beside OSError.
_BROKEN = (EOFError, ValueError, OverflowError, zlib.error, tarfile.TarError)

# Keys with one value that means what is done here, and others that do not.
_FEATURES_FIXED = {
    "frame_splicing": (1,),
    "mag_power": (2.0,),
    "mel_norm": ("slaney",),
    "log_zero_guard_type": ("add",),
    "exact_pad": (False,),
    "pad_value": (0, 0.0),
}
_BLOCK_FIXED = {"se": (False,), "heads": (-1,), "kernel_size_factor": (1, 1.0), "stride_last": (False,)}
_ENCODER_FIXED = {"residual_mode": ("add",), "normalization_mode": ("batch",), "norm_groups": (-1, 1)}


# ------------------------------------------------------------------------------------------------------------- reading
def read(path: str | Path) -> dict[str, Any]:
    """An archive as checkpoint.read gives one of ours: state_dict, ema_state_dict (None), config, labels.

    Raises UserError naming file and cause: damaged, not such an archive, or a model that is not supported.
    """
    members = read_members(path)
    config = parse_config(to_config(read_yaml(members[CONFIG], f"{path}: {CONFIG}"), str(path)), str(path))
    try:
        weights = torch.load(io.BytesIO(members[WEIGHTS]), map_location="cpu", weights_only=True)
    except Exception as error:  # RuntimeError, UnpicklingError, EOFError, KeyError, ...
        cause = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"{path}: cannot read {WEIGHTS}: {cause}") from error
    if not isinstance(weights, dict) or not all(isinstance(value, Tensor) for value in weights.values()):
        raise UserError(f"{path}: {WEIGHTS} is no state dict of tensors")
    state = from_nemo_names(weights, config.family)
    return {"state_dict": state, "ema_state_dict": None, "config": config.to_dict(), "labels": list(config.labels)}


def read_members(path: str | Path) -> dict[str, bytes]:
    """The two files of an archive. Nothing is unpacked to disk, and links, folders and other files are passed over."""
    path = Path(path)
    found: dict[str, bytes] = {}
    try:
        with open(path, "rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            with gzip.open(file) if packed else file as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
                for count, member in enumerate(archive):
                    if count == MAX_MEMBERS:
                        raise UserError(f"{path}: holds more than {MAX_MEMBERS} files: it is no NeMo model")
                    name = member.name.removeprefix("./")
                    if name not in MAX_BYTES or not member.isreg():
                        continue
                    if name in found:
                        raise UserError(f"{path}: holds {name} twice")
                    if member.size > MAX_BYTES[name]:
                        raise UserError(f"{path}: {name} has {member.size} bytes; {MAX_BYTES[name]} are the most")
                    found[name] = _content(archive.extractfile(member), member.size)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except _BROKEN as error:
        raise UserError(f"{path}: is damaged, or no tar archive: {error}") from error
    if missing := [name for name in MAX_BYTES if name not in found]:
        raise UserError(f"{path}: holds no {' and no '.join(missing)}: it is no NeMo model, or was cut off")
    return found


def _content(stream: IO[bytes], size: int) -> bytes:
    content = stream.read(size)
    if len(content) < size:
        raise EOFError(f"it ends after {len(content)} of {size} bytes")
    return content


def to_config(nemo: Mapping[str, Any], source: str) -> dict[str, Any]:
    """NeMo's model_config.yaml as the mapping that parse_config reads; trainable too, with NeMo's augmentation."""
    target = str(nemo.get("target") or nemo.get("_target_") or "EncDecCTCModel")
    if not target.endswith("EncDecCTCModel"):
        raise UserError(f"{source}: is a {target}; QuartzNet and Jasper with characters (EncDecCTCModel) are supported")
    preprocessor, encoder, decoder = (_section(nemo, name, source) for name in ("preprocessor", "encoder", "decoder"))
    labels = decoder.get("vocabulary") or nemo.get("labels")
    if not isinstance(labels, list) or not labels:
        raise UserError(f"{source}: decoder.vocabulary: a list of labels is needed")
    blocks = [
        _block(block, f"{source}: encoder.jasper.{index}") for index, block in enumerate(_blocks(encoder, source))
    ]
    _refuse_others(encoder, _ENCODER_FIXED, f"{source}: encoder")
    family = "quartznet" if any(block["separable"] for block in blocks) else "jasper"
    features = _features(preprocessor, nemo, source)
    train, validation = (nemo[key] if isinstance(nemo.get(key), dict) else {} for key in ("train_ds", "validation_ds"))
    rate = features["sample_rate"]
    limit = {"max_duration": float(train.get("max_duration") or MAX_DURATION)}
    return {
        "name": "QuartzNet" if family == "quartznet" else "Jasper",
        "labels": [str(label) for label in labels],
        "input_val": {
            "audio_dataset": {"sample_rate": rate, "trim_silence": bool(validation.get("trim_silence", False))},
            "filterbank_features": features | {"dither": 0.0},
        },
        "input_train": {
            "audio_dataset": {
                "sample_rate": rate,
                "trim_silence": bool(train.get("trim_silence", False)),
                "min_duration": float(train.get("min_duration") or 0.1),
                **limit,
            },
            "filterbank_features": features | limit | _augmentation(nemo.get("spec_augment") or {}, source),
        },
        family: {
            "encoder": {
                "init": encoder.get("init_mode", "xavier_uniform"),
                "in_feats": encoder.get("feat_in", features["n_filt"]),
                "activation": encoder.get("activation", "relu"),
                "use_conv_masks": bool(encoder.get("conv_mask", True)),
                "blocks": blocks,
            },
            "decoder": {"in_feats": decoder.get("feat_in", blocks[-1]["filters"])},
        },
    }


def _section(nemo: Mapping[str, Any], name: str, source: str) -> dict[str, Any]:
    section = nemo.get(name)
    if not isinstance(section, dict):
        raise UserError(f"{source}: no section {name!r} in {CONFIG}")
    return section.get("params") if isinstance(section.get("params"), dict) else section


def _blocks(encoder: Mapping[str, Any], source: str) -> list[dict[str, Any]]:
    blocks = encoder.get("jasper")
    if not isinstance(blocks, list) or not blocks or not all(isinstance(block, dict) for block in blocks):
        raise UserError(f"{source}: encoder.jasper: a list of blocks is needed")
    return blocks


def _refuse_others(section: Mapping[str, Any], fixed: Mapping[str, tuple], where: str) -> None:
    for key, allowed in fixed.items():
        if section.get(key, allowed[0]) not in allowed:
            raise UserError(f"{where}.{key}: {section[key]!r} is not supported (only {allowed[0]!r})")


def _features(preprocessor: Mapping[str, Any], nemo: Mapping[str, Any], source: str) -> dict[str, Any]:
    where = f"{source}: preprocessor"
    _refuse_others(preprocessor, _FEATURES_FIXED, where)
    rate = preprocessor.get("sample_rate") or nemo.get("sample_rate") or 16000
    for samples, seconds in (("n_window_size", "window_size"), ("n_window_stride", "window_stride")):
        if preprocessor.get(samples):
            raise UserError(f"{where}.{samples}: is not supported; NeMo's files say {seconds}")
    pad = preprocessor.get("pad_to", 16)
    if not isinstance(pad, int):
        raise UserError(f"{where}.pad_to: {pad!r} is not supported (a number of frames)")
    guard = preprocessor.get("log_zero_guard_value", LOG_GUARD)
    if not isinstance(guard, int | float):
        named = {"tiny": torch.finfo(torch.float32).tiny, "eps": torch.finfo(torch.float32).eps}
        if guard not in named:
            raise UserError(f"{where}.log_zero_guard_value: {guard!r} is not supported (a number, 'tiny' or 'eps')")
        guard = named[guard]
    chosen = {"sample_rate": rate, "pad_align": max(pad, 1), "log_guard": float(guard)}
    chosen["n_filt"] = preprocessor.get("features", preprocessor.get("nfilt", 64))
    chosen["normalize"] = preprocessor.get("normalize", "per_feature") or None
    chosen["window"] = preprocessor.get("window", "hann") or "none"
    for key in ("window_size", "window_stride", "n_fft", "preemph", "lowfreq", "highfreq", "log", "dither"):
        if key in preprocessor:
            chosen[key] = preprocessor[key]
    return chosen


def _block(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    _refuse_others(block, _BLOCK_FIXED, where)
    known = {"kernel": "kernel_size"} | {
        key: key
        for key in ("filters", "repeat", "stride", "dilation", "dropout", "residual", "residual_dense", "separable",
                    "groups")
    }  # fmt: skip
    unknown = sorted(set(block) - set(known) - set(_BLOCK_FIXED) - {"residual_mode", "norm_groups", "normalization"})
    if unknown:
        raise UserError(f"{where}: unknown settings {', '.join(unknown)}")
    _refuse_others(block, {"residual_mode": ("add",), "normalization": ("batch",)}, where)
    return {"separable": False} | {known[key]: value for key, value in block.items() if key in known}


def _augmentation(augment: Mapping[str, Any], source: str) -> dict[str, Any]:
    """NeMo's SpectrogramAugmentation as ours."""
    found: dict[str, Any] = {}
    if augment.get("rect_masks"):
        found["cutout_augment"] = {
            "masks": augment["rect_masks"], "min_time": 0, "max_time": augment.get("rect_time", 5),
            "min_freq": 0, "max_freq": augment.get("rect_freq", 20),
        }  # fmt: skip
    if augment.get("freq_masks") or augment.get("time_masks"):
        width = augment.get("time_width", 10)
        if not isinstance(width, int):
            raise UserError(f"{source}: spec_augment.time_width: {width!r} is not supported (a number of frames)")
        found["spec_augment"] = {
            "freq_masks": augment.get("freq_masks", 0), "min_freq": 0, "max_freq": augment.get("freq_width", 10),
            "time_masks": augment.get("time_masks", 0), "min_time": 0, "max_time": width,
        }  # fmt: skip
    return found


def from_nemo_names(weights: Mapping[str, Tensor], family: str) -> dict[str, Tensor]:
    """NeMo's state dict under our names."""
    state = {}
    for name, tensor in weights.items():
        if name.startswith(("preprocessor.", "spec_augmentation.", "_wer", "loss.")):
            continue
        name = name.replace("encoder.encoder.", "encoder.layers.").replace("decoder.decoder_layers.", "decoder.layers.")
        name = name.replace(".conv.weight", ".weight")
        state[name if family == "quartznet" else name.replace(".mconv.", ".conv.")] = tensor
    return state


# ------------------------------------------------------------------------------------------------------------- writing
def write(path: str | Path, config: Config, state_dict: Mapping[str, Tensor]) -> None:
    """Writes an archive that NeMo's EncDecCTCModel.restore_from reads, whole or not at all.

    Raises UserError for what NeMo has no setting for.
    """
    weights = io.BytesIO()
    torch.save(to_nemo_names(state_dict, config), weights)
    text = yaml.safe_dump(from_config(config), sort_keys=False, allow_unicode=True)
    with atomic_open(path) as stream, tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in ((CONFIG, text.encode()), (WEIGHTS, weights.getvalue())):
            member = tarfile.TarInfo(f"./{name}")
            member.size, member.mode = len(content), 0o644
            archive.addfile(member, io.BytesIO(content))


def to_nemo_names(state_dict: Mapping[str, Tensor], config: Config) -> dict[str, Tensor]:
    """Our weights under NeMo's names, with the buffers of its front end."""
    front = LogMel(config.input_val.features)
    weights = {"preprocessor.featurizer.window": front.window, "preprocessor.featurizer.fb": front.fb[None]}
    inner = "conv.weight" if config.encoder.use_conv_masks else "weight"
    for name, tensor in state_dict.items():
        if name.startswith("encoder.layers.") and name.endswith(".weight") and tensor.dim() == 3:
            name = name.removesuffix("weight") + inner
        if config.family == "jasper":
            index, _, rest = name.removeprefix("encoder.layers.").partition(".")
            if name.startswith("encoder.layers.") and rest.startswith("conv."):
                name = f"encoder.layers.{index}.m{rest}"
        name = name.replace("encoder.layers.", "encoder.encoder.").replace("decoder.layers.", "decoder.decoder_layers.")
        weights[name] = tensor.detach().cpu().contiguous()
    return weights


def from_config(config: Config) -> dict[str, Any]:
    """The model_config.yaml of a model."""
    features, asr = config.input_val.features, "nemo.collections.asr.modules"
    preprocessor = {
        "_target_": f"{asr}.AudioToMelSpectrogramPreprocessor", "sample_rate": features.sample_rate,
        "normalize": features.normalize, "window_size": features.window_size, "window_stride": features.window_stride,
        "window": features.window, "features": features.n_filt, "n_fft": features.fft_length,
        "preemph": features.preemph, "lowfreq": features.lowfreq, "highfreq": features.highfreq, "log": features.log,
        "log_zero_guard_type": "add", "log_zero_guard_value": features.log_guard, "frame_splicing": 1,
        "dither": (config.input_train or config.input_val).features.dither, "pad_to": features.pad_align,
    }  # fmt: skip
    model = {
        "name": config.name, "target": "nemo.collections.asr.models.ctc_models.EncDecCTCModel",
        "sample_rate": features.sample_rate, "labels": list(config.labels), "preprocessor": preprocessor,
        "encoder": {
            "_target_": f"{asr}.ConvASREncoder", "feat_in": config.encoder.in_feats,
            "activation": config.encoder.activation, "conv_mask": config.encoder.use_conv_masks,
            "init_mode": config.encoder.init,
            "jasper": [_nemo_block(i, b) for i, b in enumerate(config.encoder.blocks)],
        },
        "decoder": {
            "_target_": f"{asr}.ConvASRDecoder", "feat_in": config.decoder.in_feats, "num_classes": len(config.labels),
            "vocabulary": list(config.labels),
        },
    }  # fmt: skip
    common = {"sample_rate": features.sample_rate, "labels": list(config.labels)}
    model["validation_ds"] = common | {"trim_silence": config.input_val.audio.trim_silence}
    if config.input_train is not None:
        audio = config.input_train.audio
        train = common | {"trim_silence": audio.trim_silence, "min_duration": audio.min_duration}
        if math.isfinite(audio.max_duration):
            train["max_duration"] = audio.max_duration
        model |= {"train_ds": train, "spec_augment": _nemo_augmentation(config.input_train.features)}
    return model


def _nemo_block(index: int, block: BlockConfig) -> dict[str, Any]:
    if block.normalization != "batch":
        raise UserError(f"encoder.blocks.{index}.normalization: NeMo's archives of this kind have batch norm only")
    return {
        "filters": block.filters, "repeat": block.repeat, "kernel": [block.kernel], "stride": [block.stride],
        "dilation": [block.dilation], "dropout": block.dropout, "residual": block.residual,
        "residual_dense": block.residual_dense, "separable": block.separable, "groups": block.groups,
    }  # fmt: skip


def _nemo_augmentation(features: FeatureConfig) -> dict[str, Any]:
    augment: dict[str, Any] = {"_target_": "nemo.collections.asr.modules.SpectrogramAugmentation"}
    if cut := features.cutout_augment:
        augment |= {"rect_masks": cut.masks, "rect_time": cut.max_time, "rect_freq": cut.max_freq}
    if masks := features.spec_augment:
        augment |= {"freq_masks": masks.freq_masks, "freq_width": masks.max_freq, "time_masks": masks.time_masks,
                    "time_width": masks.max_time}  # fmt: skip
    return augment


def is_archive(path: str | Path) -> bool:
    """Whether a file is to be read as .nemo, by its name."""
    return Path(path).suffix.lower() == SUFFIX
