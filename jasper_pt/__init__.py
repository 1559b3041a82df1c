"""QuartzNet and Jasper speech recognition in PyTorch: from audio and transcripts to a trained, transcribing model."""

import os

# How long an idle thread of a parallel loop spins before it sleeps; read once, when PyTorch is loaded. libgomp's own
# is milliseconds, in which it takes the core from whoever has work. Measured on two cores, training QuartzNet 15x5 in
# bf16: alone 107 seconds of audio a second with either; beside other programs 33 with this, 5 to 14 with the default.
os.environ.setdefault("GOMP_SPINCOUNT", "3000")
