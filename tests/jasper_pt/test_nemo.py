"""NeMo's archives: made here by hand, read, compared with another implementation of the network, and written."""

import gzip
import io
import json
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor, nn

from jasper_pt import checkpoint, nemo, nemo_dle_model_converter
from jasper_pt.config import parse_config
from jasper_pt.features import LogMel
from jasper_pt.model import build_model
from runkit.errors import UserError

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "truth_nemo_conf"
GERMAN = [*" abcdefghijklmnopqrstuvwxyzäöüß"]


def block(filters: int, kernel: int, **settings) -> dict:
    defaults = {"repeat": 1, "stride": [1], "dilation": [1], "dropout": 0.0, "residual": False, "separable": True}
    return {"filters": filters, "kernel": [kernel]} | defaults | settings


QUARTZNET = [
    block(16, 11, stride=[2]),
    block(16, 13, repeat=3, residual=True),
    block(24, 15, repeat=2, residual=True),
    block(24, 9, dilation=[2]),
    block(32, 1, separable=False),
]
JASPER = [
    block(16, 11, stride=[2], separable=False),
    block(16, 5, repeat=2, residual=True, residual_dense=True, separable=False),
    block(24, 7, repeat=2, residual=True, residual_dense=True, separable=False),
    block(24, 9, repeat=2, residual=True, residual_dense=True, separable=False),
    block(32, 1, separable=False),
]


def nemo_yaml(blocks: list[dict], labels: list[str] = GERMAN, **changes) -> dict:
    """The settings of an archive, as NeMo's examples have them."""
    return {
        "sample_rate": 16000,
        "target": "nemo.collections.asr.models.ctc_models.EncDecCTCModel",
        "train_ds": {"manifest_filepath": None, "max_duration": 15.0, "trim_silence": True, "labels": labels},
        "validation_ds": {"manifest_filepath": None, "labels": labels},
        "optim": {"name": "novograd", "lr": 0.01},
        "preprocessor": {
            "_target_": "nemo.collections.asr.modules.AudioToMelSpectrogramPreprocessor", "normalize": "per_feature",
            "window_size": 0.02, "sample_rate": 16000, "window_stride": 0.01, "window": "hann", "features": 64,
            "n_fft": 512, "frame_splicing": 1, "dither": 1e-5, "stft_conv": False,
        },
        "spec_augment": {"rect_freq": 50, "rect_masks": 5, "rect_time": 120},
        "encoder": {
            "_target_": "nemo.collections.asr.modules.ConvASREncoder", "feat_in": 64, "activation": "relu",
            "conv_mask": True, "jasper": blocks,
        },
        "decoder": {
            "_target_": "nemo.collections.asr.modules.ConvASRDecoder", "feat_in": blocks[-1]["filters"],
            "num_classes": len(labels), "vocabulary": labels,
        },
    } | changes  # fmt: skip


class Network:
    """The network written straight from the papers, on one utterance, with weights under NeMo's names.

    Mini-batch norms in evaluation, residual sums behind the last norm of a block; everything in float64.
    """

    def __init__(self, blocks: list[dict], classes: int, seed: int = 0):
        self.blocks, self.weights = blocks, {}
        self.generator = torch.Generator().manual_seed(seed)
        channels, dense = 64, []
        for n, b in enumerate(blocks):
            dense += [channels] * b.get("residual_dense", False)  # blocks before the first of these do not count
            earlier = dense if b.get("residual_dense") else [channels]
            index = 0
            inputs = channels
            for repetition in range(b["repeat"]):
                index += 2 * (repetition > 0)  # activation and dropout
                if b["separable"]:
                    self.convolution(f"{n}.mconv.{index}", inputs, 1, b["kernel"][0])
                    self.convolution(f"{n}.mconv.{index + 1}", b["filters"], inputs, 1)
                    index += 2
                else:
                    self.convolution(f"{n}.mconv.{index}", b["filters"], inputs, b["kernel"][0])
                    index += 1
                self.norm(f"{n}.mconv.{index}", b["filters"])
                index += 1
                inputs = b["filters"]
            if b["residual"]:
                for i, size in enumerate(earlier):
                    self.convolution(f"{n}.res.{i}.0", b["filters"], size, 1)
                    self.norm(f"{n}.res.{i}.1", b["filters"])
            channels = b["filters"]
        self.weights["decoder.decoder_layers.0.weight"] = self.draw(classes, channels, 1)
        self.weights["decoder.decoder_layers.0.bias"] = self.draw(classes)
        self.weights["preprocessor.featurizer.window"] = torch.hann_window(320, periodic=False)
        self.weights["preprocessor.featurizer.fb"] = torch.zeros(1, 64, 257)

    def draw(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator) / max(1.0, float(np.prod(shape[1:]))) ** 0.5

    def convolution(self, name: str, outputs: int, inputs: int, taps: int) -> None:
        self.weights[f"encoder.encoder.{name}.conv.weight"] = self.draw(outputs, inputs, taps)

    def norm(self, name: str, size: int) -> None:
        prefix = f"encoder.encoder.{name}"
        self.weights |= {
            f"{prefix}.weight": 1 + 0.1 * self.draw(size),
            f"{prefix}.bias": 0.1 * self.draw(size),
            f"{prefix}.running_mean": 0.1 * self.draw(size),
            f"{prefix}.running_var": 1 + 0.1 * self.draw(size).abs(),
            f"{prefix}.num_batches_tracked": torch.tensor(7),
        }

    def forward(self, features: Tensor) -> Tensor:
        """features [64, T] -> log-probabilities [T', V]."""
        w = {name: value.double() for name, value in self.weights.items()}

        def conv(x, name, stride=1, dilation=1):
            kernel = w[f"encoder.encoder.{name}.conv.weight"]
            groups = x.shape[0] // kernel.shape[1]
            padding = dilation * (kernel.shape[2] - 1) // 2
            return nn.functional.conv1d(x[None], kernel, None, stride, padding, dilation, groups)[0]

        def norm(x, name):
            p = f"encoder.encoder.{name}"
            scale = w[f"{p}.weight"] / (w[f"{p}.running_var"] + 1e-3).sqrt()
            return (x - w[f"{p}.running_mean"][:, None]) * scale[:, None] + w[f"{p}.bias"][:, None]

        x, dense = features.double(), []
        for n, b in enumerate(self.blocks):
            dense += [x] * b.get("residual_dense", False)
            earlier = dense if b.get("residual_dense") else [x]
            y, index = x, 0
            for repetition in range(b["repeat"]):
                if repetition:
                    y, index = y.relu(), index + 2
                y = conv(y, f"{n}.mconv.{index}", b["stride"][0], b["dilation"][0])
                index += 1
                if b["separable"]:
                    y = conv(y, f"{n}.mconv.{index}")
                    index += 1
                y, index = norm(y, f"{n}.mconv.{index}"), index + 1
            if b["residual"]:
                for i, source in enumerate(earlier):
                    y = y + norm(conv(source, f"{n}.res.{i}.0"), f"{n}.res.{i}.1")
            x = y.relu()
        kernel, bias = w["decoder.decoder_layers.0.weight"][:, :, 0], w["decoder.decoder_layers.0.bias"]
        return (kernel @ x + bias[:, None]).T.log_softmax(-1)


def archive(path: Path, settings: dict, weights: dict, packed: bool = False, prefix: str = "./", extra=()) -> Path:
    """A .nemo file as NeMo's save_to makes it: gzipped until version 1.?, plain since."""
    checkpoint_bytes = io.BytesIO()
    torch.save(weights, checkpoint_bytes)
    content = {nemo.CONFIG: yaml.safe_dump(settings).encode(), nemo.WEIGHTS: checkpoint_bytes.getvalue()}
    with tarfile.open(path, "w:gz" if packed else "w") as tar:
        folder = tarfile.TarInfo(prefix.rstrip("/") or ".")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name, data in [*content.items(), *extra]:
            member = tarfile.TarInfo(prefix + name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("blocks", [QUARTZNET, JASPER], ids=["quartznet", "jasper"])
def test_log_probabilities_are_those_of_the_network(tmp_path: Path, blocks: list[dict], packed: bool):
    network = Network(blocks, len(GERMAN) + 1)
    path = archive(tmp_path / "stt_de.nemo", nemo_yaml(blocks), network.weights, packed)
    contents = checkpoint.read(path)
    config = parse_config(contents["config"], "archive")
    assert config.labels == tuple(GERMAN)
    model = build_model(config).eval()
    checkpoint.load_weights(model, contents["state_dict"], path)
    features = torch.randn(2, 64, 61, generator=torch.Generator().manual_seed(1))
    features[1, :, 40:] = 0
    lengths = torch.tensor([61, 40])
    with torch.no_grad():
        log_probs, output_lengths = model(features, lengths)
    assert output_lengths.tolist() == [31, 20]
    for row, (frames, outputs) in enumerate(zip([61, 40], [31, 20], strict=True)):
        expected = network.forward(features[row, :, :frames])
        torch.testing.assert_close(log_probs[row, :outputs].double(), expected, atol=2e-5, rtol=0)


def test_front_end_follows_the_archive(tmp_path: Path):
    """Another guard of the logarithm, sample rate, window and normalisation, against NumPy."""
    front = {"sample_rate": 8000, "window_size": 0.025, "window_stride": 0.01, "window": "hamming", "features": 64,
             "n_fft": 256, "normalize": None, "preemph": 0.9, "pad_to": 0, "log_zero_guard_value": 1e-3}  # fmt: skip
    path = archive(tmp_path / "m.nemo", nemo_yaml(QUARTZNET, preprocessor=front), Network(QUARTZNET, 32).weights)
    config = parse_config(checkpoint.read(path)["config"], "archive").input_val.features
    samples = np.random.default_rng(0).normal(size=1600).astype(np.float32) * 0.1
    features, frames = LogMel(config)(torch.from_numpy(samples)[None], torch.tensor([1600]))
    assert features.shape == (1, 64, 20) and frames.tolist() == [20]
    emphasised = np.append(samples[0], samples[1:] - np.float32(0.9) * samples[:-1])
    padded = np.pad(emphasised, (128, 0), mode="reflect")
    padded = np.pad(padded, (0, 256))
    window = np.zeros(256)
    window[28:228] = np.hamming(200)
    for frame in (0, 5, 16):  # those at the end run into zeros (features.py)
        power = np.abs(np.fft.rfft(padded[80 * frame : 80 * frame + 256] * window)) ** 2
        expected = np.log(LogMel(config).fb.numpy() @ power + 1e-3)
        np.testing.assert_allclose(features[0, :, frame], expected, atol=2e-4)
    default = parse_config(nemo.to_config(nemo_yaml(QUARTZNET), "x"), "x").input_val.features
    assert default.log_guard == 2.0**-24 and default.pad_align == 16 and default.dither == 0.0


def test_training_settings_are_taken_over():
    config = parse_config(nemo.to_config(nemo_yaml(QUARTZNET), "x"), "x")
    train = config.input_train
    assert train.audio.max_duration == 15.0 and train.audio.trim_silence
    assert train.features.dither == 1e-5
    cut = train.features.cutout_augment
    assert (cut.masks, cut.max_time, cut.max_freq, cut.min_time) == (5, 120, 50, 0)


@pytest.mark.parametrize("name, parameters", [("quartznet_15x5", 18_924_381), ("jasper_10x5dr", 332_632_349)])
def test_published_architectures(name: str, parameters: int):
    if not SHARED.is_dir():
        pytest.skip(f"no {SHARED}")
    truth = json.loads((SHARED / f"{name}.json").read_text())
    blocks = [
        {**b, "kernel": [b["kernel"]], "stride": [b["stride"]], "dilation": [b["dilation"]]}
        for b in truth["encoder_blocks"]
    ]
    settings = nemo_yaml(blocks, truth["labels"])
    settings["preprocessor"] |= truth["preprocessor"]
    config = parse_config(nemo.to_config(settings, name), name)
    with torch.device("meta"):
        model = build_model(config)
    assert sum(p.numel() for p in model.parameters()) == parameters == truth["derived_param_count"]["with_decoder"]
    assert config.n_classes == truth["num_classes_with_blank"]
    features = config.input_val.features
    assert (features.n_filt, features.window_size, features.n_fft) == (64, 0.02, 512)


# ----------------------------------------------------------------------------------------------------------- writing
@pytest.mark.parametrize("blocks", [QUARTZNET, JASPER], ids=["quartznet", "jasper"])
def test_round_trip(tmp_path: Path, blocks: list[dict]):
    network = Network(blocks, len(GERMAN) + 1)
    source = archive(tmp_path / "a.nemo", nemo_yaml(blocks), network.weights)
    nemo_dle_model_converter.main([str(source), str(tmp_path)])
    first = checkpoint.read(tmp_path / "model.pt")
    assert yaml.safe_load((tmp_path / "model_config.yaml").read_text()) == first["config"]
    nemo_dle_model_converter.main([str(tmp_path / "model.pt"), str(tmp_path)])
    (target,) = (path for path in tmp_path.glob("*.nemo") if path != source)
    assert target.stem == ("quartznet" if blocks is QUARTZNET else "jasper")
    again = checkpoint.read(target)
    assert again["config"] == first["config"] and again["labels"] == first["labels"]
    members = nemo.read_members(target)
    weights = torch.load(io.BytesIO(members[nemo.WEIGHTS]), weights_only=True)
    assert set(weights) == set(network.weights)  # NeMo's own names
    for name, tensor in network.weights.items():
        if not name.startswith("preprocessor."):
            assert torch.equal(weights[name], tensor)
    assert weights["preprocessor.featurizer.fb"].shape == (1, 64, 257)
    with tarfile.open(target) as tar:
        assert tar.getnames() == ["./model_config.yaml", "./model_weights.ckpt"]
    settings = yaml.safe_load(members[nemo.CONFIG])
    assert settings["encoder"]["jasper"] == [
        {"residual_dense": False, "groups": 1} | block for block in blocks
    ]  # fmt: skip
    assert settings["decoder"]["num_classes"] == len(GERMAN)


def test_averaged_weights_are_exported_where_there_are_any(tmp_path: Path, capsys):
    config = parse_config(nemo.to_config(nemo_yaml(QUARTZNET), "x"), "x")
    raw, average = build_model(config).state_dict(), build_model(config).state_dict()
    contents = {"state_dict": raw, "ema_state_dict": average, "config": config.to_dict()}
    checkpoint.write(tmp_path / "m.pt", contents)
    name = "decoder.layers.0.weight"
    nemo_dle_model_converter.main([str(tmp_path / "m.pt"), str(tmp_path)])
    assert torch.equal(checkpoint.read(tmp_path / "quartznet.nemo")["state_dict"][name], average[name])
    nemo_dle_model_converter.main([str(tmp_path / "m.pt"), str(tmp_path), "--raw"])
    assert torch.equal(checkpoint.read(tmp_path / "quartznet.nemo")["state_dict"][name], raw[name])
    assert "averaged weights" in capsys.readouterr().out
    checkpoint.write(tmp_path / "bare.pt", {"state_dict": raw, "ema_state_dict": None})
    with pytest.raises(UserError, match="holds no configuration: give --dle_config_yaml"):
        nemo_dle_model_converter.main([str(tmp_path / "bare.pt"), str(tmp_path)])


# ------------------------------------------------------------------------------------------------------ what is refused
@pytest.mark.parametrize(
    "change, message",
    [
        (
            {"target": "nemo.collections.asr.models.EncDecCTCModelBPE"},
            r"EncDecCTCModelBPE; QuartzNet and Jasper with characters \(EncDecCTCModel\)",
        ),
        ({"decoder": {"feat_in": 32, "vocabulary": []}}, r"decoder\.vocabulary"),
        ({"encoder": {"jasper": []}}, r"encoder\.jasper: a list of blocks"),
        ({"encoder": {"jasper": [block(16, 3, se=True)]}}, r"encoder\.jasper\.0\.se: True is not supported"),
        ({"encoder": {"jasper": [block(16, 3, quantize=True)]}}, r"encoder\.jasper\.0: unknown settings quantize"),
        ({"encoder": {"jasper": [block(16, 3)], "normalization_mode": "group"}}, r"encoder\.normalization_mode"),
        ({"preprocessor": {"mag_power": 1.0}}, r"preprocessor\.mag_power: 1\.0 is not supported"),
        ({"preprocessor": {"log_zero_guard_type": "clamp"}}, r"preprocessor\.log_zero_guard_type"),
        ({"preprocessor": {"pad_to": "max"}}, r"preprocessor\.pad_to: 'max'"),
        ({"preprocessor": None}, "no section 'preprocessor'"),
    ],
)
def test_settings_without_a_counterpart_are_named(tmp_path: Path, change: dict, message: str):
    path = archive(tmp_path / "m.nemo", nemo_yaml(QUARTZNET) | change, {})
    with pytest.raises(UserError, match=message) as error:
        checkpoint.read(path)
    assert str(path) in str(error.value)


class Runs:
    """What must never run."""

    def __reduce__(self):
        return (pytest.fail, ("code of the archive ran",))


def test_nothing_in_an_archive_is_run(tmp_path: Path):
    path = tmp_path / "m.nemo"
    archive(path, nemo_yaml(QUARTZNET), {"a": torch.zeros(1)})
    members = nemo.read_members(path)
    for weights in (pickle.dumps(Runs()), pickle.dumps([1])):
        with tarfile.open(path, "w") as tar:
            for name, data in {**members, nemo.WEIGHTS: weights}.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        with pytest.raises(UserError, match=r"model_weights\.ckpt"):
            checkpoint.read(path)
    with pytest.raises(UserError, match=r"m2\.nemo"):
        checkpoint.read(archive(tmp_path / "m2.nemo", {"a": "!!python/object/apply:os.system [x]"}, {}))


def test_damaged_and_hostile_archives(tmp_path: Path):
    good = archive(tmp_path / "good.nemo", nemo_yaml(QUARTZNET), Network(QUARTZNET, 32).weights, packed=True)
    content = good.read_bytes()
    bad = tmp_path / "bad.nemo"
    for damaged in (b"", b"no archive at all", content[: len(content) // 2], gzip.compress(b"x" * 100)):
        bad.write_bytes(damaged)
        with pytest.raises(UserError, match=r"bad\.nemo"):
            checkpoint.read(bad)
    # Links and names that lead elsewhere are never followed: the members looked for are just not there.
    with tarfile.open(bad, "w") as tar:
        link = tarfile.TarInfo("./model_config.yaml")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
        outside = tarfile.TarInfo("../model_weights.ckpt")
        tar.addfile(outside, io.BytesIO())
    with pytest.raises(UserError, match=r"holds no model_config\.yaml and no model_weights\.ckpt"):
        checkpoint.read(bad)
    large = tarfile.TarInfo("model_config.yaml")
    large.size = 1 << 40
    bad.write_bytes(large.tobuf() + bytes(1024))
    with pytest.raises(UserError, match="has 1099511627776 bytes; 1048576 are the most"):
        checkpoint.read(bad)
    archive(bad, nemo_yaml(QUARTZNET), {}, extra=[(nemo.CONFIG, b"a: 1")])
    with pytest.raises(UserError, match=r"holds model_config\.yaml twice"):
        checkpoint.read(bad)
    archive(bad, nemo_yaml(QUARTZNET), {"a": torch.zeros(1)})
    with pytest.raises(UserError, match="does not fit the model"):
        nemo_dle_model_converter.main([str(bad), str(tmp_path)])
    assert not (tmp_path / "model.pt").exists()
