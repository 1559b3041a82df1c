"""Exports an acoustic model for other runtimes, and checks the exports against the model on real utterances.

    python -m jasper_pt.run_export --ckpt QuartzNet_best_checkpoint.pt --val_manifests dev.json \
        --dataset_dir DATA --output_dir OUT --int8

OUT gets model.onnx (features [B,F,T] float32 and lengths [B] int64 in; log_probs [B,T',V] and output_lengths [B] out;
B and T are dynamic, padding is masked inside), model.pt2 (the same as a torch.export program), features.onnx (audio
[B,N] float32 and lengths [B] int64 in, both in samples; features and feature_lengths out), model_int8.onnx with --int8,
and metadata.json. An export that does not agree with the model is an error, and OUT then stays as it was.
"""

import argparse
import copy
import hashlib
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

if __package__ in (None, ""):  # started by path: python jasper_pt/run_export.py
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import torch
from torch import Tensor, nn

from jasper_pt import checkpoint
from jasper_pt.config import Config, FeatureConfig
from jasper_pt.decode import greedy
from jasper_pt.evaluation import Forward
from jasper_pt.exported import onnx_function, widened
from jasper_pt.fast import fold_batch_norm
from jasper_pt.features import LogMel
from jasper_pt.loader import AsrBatch, EvalLoader, Reader, filter_utterances
from jasper_pt.manifest import read_manifest
from jasper_pt.metrics import ErrorCounts, word_errors
from jasper_pt.model import AcousticModel, Frames
from jasper_pt.recordings import pad
from jasper_pt.run_inference import choose_config, load_model
from runkit.errors import UserError, run_main
from runkit.exports import check_output_dir, package_versions, quantize, write_metadata
from runkit.files import atomic_directory, sha256_file
from runkit.log import RunLog

OPSET = 18
TOLERANCE = 1e-3  # of log-probabilities of valid frames; float32 sums in another order differ by about 1e-5
# Of those from exported features: quiet bands beside loud ones differ more, since the transform's sums do.
FEATURES_TOLERANCE = 1e-2
MIN_FRAMES = 3  # T of the exports: the strided first convolution of the traced program cannot take fewer
PACKAGES = ("torch", "onnx", "onnxruntime", "onnxscript")


class TracedFrames(Frames):
    """Frames whose mask is always made, by operations on tensors alone: a tracer cannot look at the lengths."""

    def __init__(self, lengths: Tensor, total: int, masked: bool = True):
        self.lengths, self.total, self.masked = lengths, total, masked
        self.valid, self.padding = None, None
        if masked:
            self.padding = (torch.arange(total, device=lengths.device) >= lengths[:, None])[:, None]


class ExportedForm(nn.Module):
    """A frozen copy of an acoustic model with BatchNorm folded into the convolutions, in a form that can be traced."""

    def __init__(self, model: AcousticModel):
        super().__init__()
        model = copy.deepcopy(model).eval().requires_grad_(False)
        for block in model.encoder.layers:
            for branch in (getattr(block, block.names[0]), *block.res):
                fold_batch_norm(branch)
        self.encoder, self.decoder, self.masked = model.encoder, model.decoder, model.masked

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """features [B,F,T], lengths [B] int64 -> log_probs [B,T',V], output_lengths [B]; see AcousticModel.forward."""
        frames = TracedFrames(lengths, features.shape[2], self.masked)
        x, frames = self.encoder(frames.zero(features), frames)
        return self.decoder(x), frames.lengths


class ExportedFeatures(LogMel):
    """LogMel in a form that can be traced: the transform of each window as a convolution with cosines and sines, which
    every runtime has, and no length of Python's. (Padding to a maximal duration is left to who wants it.)"""

    max_frames = 0
    basis: Tensor  # [2 * (n_fft // 2 + 1), 1, win_length]

    def __init__(self, config: FeatureConfig):
        super().__init__(config)
        bins = torch.arange(self.n_fft // 2 + 1, dtype=torch.float64)
        angles = 2 * torch.pi / self.n_fft * bins[:, None] * torch.arange(config.win_length, dtype=torch.float64)
        basis = torch.cat([angles.cos(), angles.sin()]) * self.window.double()
        self.register_buffer("basis", basis.float()[:, None], persistent=False)

    def mel_energies(self, audio: Tensor, lengths: Tensor) -> Tensor:
        """As LogMel.mel_energies."""
        valid = torch.arange(audio.shape[1], device=audio.device) < lengths[:, None]
        # So many zeros that the last window is the one that belongs to the last frame.
        signal = nn.functional.pad(audio * valid, (0, self.config.win_length - 1 - self.lead))
        if self.config.preemph:
            signal = signal - self.config.preemph * nn.functional.pad(signal, (1, 0))[:, :-1]
        signal = torch.cat([signal[:, 1 : self.lead + 1].flip(1), signal], dim=1)
        parts = nn.functional.conv1d(signal[:, None], self.basis, stride=self.hop_length)
        real, imaginary = parts.chunk(2, dim=1)  # [B, n_fft // 2 + 1, T]
        return self.fb @ (real * real + imaginary * imaginary)


class Score(NamedTuple):
    """Of an export on some utterances: texts, their word errors, and the distance from the model."""

    texts: list[str]
    errors: ErrorCounts
    max_difference: float  # of log-probabilities of valid frames


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Flags have the names they have in run_inference."""
    parser = argparse.ArgumentParser(prog="run_export", description=__doc__.split("\n\n")[0])
    flag = parser.add_argument
    flag("--ckpt", required=True, help="checkpoint, .nemo archive or training folder")
    flag("--model_config", help="YAML file; default: what the checkpoint was saved with")
    flag("--ema", action="store_true", help="the moving average of the weights")
    flag("--labels", metavar="FILE", help="one label a line, in order, instead of the configuration's")
    flag("--override_config", action="append", default=[], metavar="PATH=VALUE", help="changes the configuration")
    flag("--val_manifests", nargs="+", required=True, help="utterances on which the exports are checked and scored")
    flag("--calibration_manifests", nargs="+", help="utterances for --int8's ranges; default: --val_manifests")
    flag("--dataset_dir", help="folder that audio paths in the manifests start from")
    flag("--batch_size", type=int, default=16, help="utterances a batch")
    flag("--calibration_batches", type=int, default=4, help="batches that --int8 takes ranges from")
    flag("--int8", action="store_true", help="also model_int8.onnx: static quantisation by ONNX Runtime")
    flag("-o", "--output_dir", required=True, help="a folder of its own; an earlier one is replaced")
    args = parser.parse_args(argv)
    args.seed = 0
    return args


def main(argv: list[str] | None = None) -> int:
    """Exports, checks, writes. Raises UserError for what a user can fix, and for an export that is not the model."""
    args = parse_arguments(argv)
    for name in ("batch_size", "calibration_batches"):
        if getattr(args, name) < 1:
            raise UserError(f"--{name} is {getattr(args, name)}; it must be 1 or more")
    versions = package_versions(PACKAGES, "scripts/setup.sh asr")
    check_output_dir(Path(args.output_dir))
    args.ckpt = str(checkpoint.find_model(args.ckpt))
    contents = checkpoint.read(args.ckpt)
    config = choose_config(args, contents)
    log = RunLog(None)
    model = load_model(args, config, contents, log)
    loader = load_batches(args.val_manifests, args, config)
    batches = list(loader)
    with atomic_directory(args.output_dir) as folder:
        # -------------------------------------------------------------------------- export
        form, onnx_file, program_file = ExportedForm(model), folder / "model.onnx", folder / "model.pt2"
        program = export_program(form, config)
        torch.export.save(program, program_file)
        export_onnx(program, onnx_file)
        features_file = folder / "features.onnx"
        export_features(ExportedFeatures(config.input_val.features), features_file)

        # -------------------------------------------------------------------------- check
        reference = [forward_of(model)(batch.features, batch.feature_lengths) for batch in batches]
        expected = score(forward_of(model), batches, reference, config)
        scores = {"model": expected}
        for file, forward in (
            (program_file, forward_of(torch.export.load(program_file).module())),
            (onnx_file, onnx_forward(onnx_file)),
        ):
            scores[file.name] = score(forward, batches, reference, config)
            check_parity(file.name, scores[file.name], expected)
        heard = list(exported_features(features_file, loader.reader, batches))
        scores[features_file.name] = score(forward_of(model), heard, reference, config)
        check_parity(features_file.name, scores[features_file.name], expected, FEATURES_TOLERANCE)
        if args.int8:
            calibration = iter(load_batches(args.calibration_manifests or args.val_manifests, args, config))
            int8_file = folder / "model_int8.onnx"
            feeds = (
                {"features": batch.features.numpy(), "lengths": batch.feature_lengths.numpy()}
                for batch in itertools.islice(calibration, args.calibration_batches)
            )
            quantize(onnx_file, int8_file, "Conv", feeds)
            scores[int8_file.name] = score(onnx_forward(int8_file), batches, reference, config)

        # -------------------------------------------------------------------------- tell
        figures = {name: describe(each, expected) for name, each in scores.items()}
        for name, figure in figures.items():
            print(
                f"{name:<16} WER {figure['wer']:6.2f} %, max abs difference {figure['max_abs_difference']:.2e}, "
                f"{figure['texts_changed']} of {len(expected.texts)} texts changed"
            )
        metadata = {
            "config": config.to_dict(),
            "labels": list(config.labels),
            "labels_sha256": hashlib.sha256("\n".join(config.labels).encode()).hexdigest(),
            "checkpoint": Path(args.ckpt).name,
            "checkpoint_sha256": sha256_file(args.ckpt),
            "ema": args.ema,
            "opset": OPSET,
            "min_frames": MIN_FRAMES,
            "min_samples": min_samples(config.input_val.features),
            "frame_seconds": config.frame_seconds,
            "versions": versions,
            "scores": figures,
        }
        write_metadata(folder, metadata)
    return 0


def load_batches(manifests: Sequence[str], args: argparse.Namespace, config: Config) -> EvalLoader:
    """The utterances of manifests as run_inference sees them."""
    utterances = [utterance for path in manifests for utterance in read_manifest(path, args.dataset_dir)]
    utterances, _ = filter_utterances(utterances, config, train=False)
    if not utterances:
        raise UserError(f"{', '.join(manifests)}: no utterances to check the export on")
    return EvalLoader(utterances, config, args.batch_size)


# ---------------------------------------------------------------------------------------------------------- export
def export_program(form: ExportedForm, config: Config) -> torch.export.ExportedProgram:
    """The model as a program for any B, and T from MIN_FRAMES."""
    features = torch.zeros(2, config.encoder.in_feats, 96)
    lengths = torch.tensor([96, 50])
    batch, time = torch.export.Dim("batch"), torch.export.Dim("time", min=MIN_FRAMES)
    shapes = {"features": {0: batch, 2: time}, "lengths": {0: batch}}
    return torch.export.export(form, (features, lengths), dynamic_shapes=shapes)


def export_onnx(program: torch.export.ExportedProgram, path: Path) -> None:
    """Writes the program as ONNX, weights inside the file."""
    torch.onnx.export(
        program, f=str(path), dynamo=True, opset_version=OPSET, external_data=False, verbose=False,
        input_names=["features", "lengths"], output_names=["log_probs", "output_lengths"],
    )  # fmt: skip


def export_features(features: ExportedFeatures, path: Path) -> None:
    """Writes the features as ONNX, for any B, and N from min_samples."""
    samples = min_samples(features.config)
    audio, lengths = torch.zeros(2, 10 * samples), torch.tensor([10 * samples, 5 * samples])
    batch, time = torch.export.Dim("batch"), torch.export.Dim("samples", min=samples)
    shapes = {"audio": {0: batch, 1: time}, "lengths": {0: batch}}
    program = torch.export.export(features, (audio, lengths), dynamic_shapes=shapes)
    # The exporter's optimizer takes log_guard for zero and leaves it out.
    torch.onnx.export(
        program, f=str(path), dynamo=True, opset_version=OPSET, external_data=False, verbose=False, optimize=False,
        input_names=["audio", "lengths"], output_names=["features", "feature_lengths"],
    )  # fmt: skip


def min_samples(config: FeatureConfig) -> int:
    """N that features.onnx takes at least; shorter audio is given with zeros behind it."""
    return config.win_length


# ----------------------------------------------------------------------------------------------------------- check
def forward_of(module: nn.Module) -> Forward:
    """A module as a function without gradients."""

    def forward(features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            return module(features, lengths)

    return forward


def exported_features(path: Path, reader: Reader, batches: Sequence[AsrBatch]) -> Iterator[AsrBatch]:
    """The batches with the features that features.onnx makes of their audio."""
    forward = onnx_forward(path, names=("audio", "lengths"))
    for batch in batches:
        audio, lengths = pad([reader.read(index, epoch=None).audio for index in batch.indices])
        audio = widened(audio, min_samples(reader.features))
        features, frames = forward(torch.from_numpy(audio), torch.from_numpy(lengths))
        features = nn.functional.pad(features, (0, batch.features.shape[2] - features.shape[2]))  # pad_to_max_duration
        yield batch._replace(features=features, feature_lengths=frames)


def onnx_forward(
    path: str | Path, threads: int | None = None, names: tuple[str, str] = ("features", "lengths")
) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """An exported file under ONNX Runtime on the CPU, called as the model is; names: of its inputs."""
    function = onnx_function(Path(path), names, threads or torch.get_num_threads())

    def forward(values: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        values, lengths = map(torch.from_numpy, function(values.numpy(), lengths.to(torch.int64).numpy()))
        return values, lengths

    return forward


def score(forward: Forward, batches: Sequence[AsrBatch], reference: Sequence[tuple], config: Config) -> Score:
    """Runs the batches; reference: the model's outputs for each."""
    texts, errors, difference = [], ErrorCounts(), 0.0
    for batch, (expected, expected_lengths) in zip(batches, reference, strict=True):
        log_probs, lengths = forward(batch.features, batch.feature_lengths)
        if not torch.equal(lengths, expected_lengths) or log_probs.shape != expected.shape:
            raise UserError(f"the export returns lengths {lengths.tolist()}, the model {expected_lengths.tolist()}")
        for row, wanted, length in zip(log_probs, expected, lengths.tolist(), strict=True):
            if length:
                distance = (row[:length] - wanted[:length]).abs().max().item()
                difference = max(difference, distance) if distance == distance else float("nan")
        hypotheses = greedy(log_probs, lengths, config.labels)
        errors += word_errors(batch.transcripts, hypotheses)
        texts += hypotheses
    return Score(texts, errors, difference)


def check_parity(name: str, found: Score, expected: Score, tolerance: float = TOLERANCE) -> None:
    """Raises UserError unless an export agrees with the model."""
    if not found.max_difference <= tolerance or found.texts != expected.texts:
        changed = sum(a != b for a, b in zip(found.texts, expected.texts, strict=True))
        raise UserError(
            f"{name} does not agree with the model: log-probabilities differ by up to {found.max_difference:.2e} "
            f"(allowed {tolerance:g}), {changed} of {len(expected.texts)} texts; nothing was written"
        )


def describe(found: Score, expected: Score) -> dict[str, float]:
    return {
        "wer": 100 * found.errors.wer,
        "max_abs_difference": found.max_difference,
        "texts_changed": sum(a != b for a, b in zip(found.texts, expected.texts, strict=True)),
    }


if __name__ == "__main__":
    run_main(main)
