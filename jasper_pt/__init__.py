"""QuartzNet and Jasper speech recognition in PyTorch: from audio and transcripts to a trained, transcribing model."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from jasper_pt.recognizer import Decoder, Recognizer

# How long an idle thread of a parallel loop spins before it sleeps; read once, when PyTorch is loaded. libgomp's own
# is milliseconds, in which it takes the core from whoever has work. Measured on two cores, training QuartzNet 15x5 in
# bf16: alone 107 seconds of audio a second with either; beside other programs 33 with this, 5 to 14 with the default.
os.environ.setdefault("GOMP_SPINCOUNT", "3000")


def load(
    path: str | os.PathLike,
    device: "str | torch.device | None" = None,
    precision: str | None = None,
    decoder: "Decoder | None" = None,
    ema: bool = True,
) -> "Recognizer":
    """A recognizer with the weights of a checkpoint; see recognizer.load. (Only this brings PyTorch.)"""
    from jasper_pt import recognizer

    return recognizer.load(path, device, precision, decoder, ema)
