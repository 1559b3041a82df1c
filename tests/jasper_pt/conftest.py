"""Speech of tones for the tests from end to end.

A letter is a tone of its own frequency, so that a small network learns to read them within seconds.
"""

import json

import numpy as np
import pytest
import soundfile

RATE, TONE = 16000, 0.12  # Hz; seconds a letter
LETTERS = "abcd"
CONFIG = """
name: QuartzNet
labels: [" ", a, b, c, d]
input_train: &input
  audio_dataset: {trim_silence: false, speed_perturbation: {min_rate: 0.95, max_rate: 1.05, p: 0.5}}
  filterbank_features: {n_filt: 64, spec_augment: {freq_masks: 1, max_freq: 4}}
input_val:
  audio_dataset: {trim_silence: false}
  filterbank_features: {n_filt: 64}
quartznet:
  encoder:
    blocks:
      - {filters: 24, repeat: 1, kernel_size: 5, stride: 2, residual: false, separable: true, dropout: 0.1}
      - {filters: 24, repeat: 2, kernel_size: 5, residual: true, separable: true, dropout: 0.1}
  decoder: {in_feats: 24}
"""


def speech(words, rng):
    """A tone for each letter, a pause for each blank, over a little noise: dither would change digital silence much."""
    times = np.arange(round(TONE * RATE)) / RATE
    tones = [0.5 * np.sin(2 * np.pi * 400 * (1 + LETTERS.find(c)) * times) * (c != " ") for c in words]
    audio = np.concatenate([tone * np.hanning(len(tone)) for tone in tones])
    return audio + 1e-3 * rng.standard_normal(len(audio))


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """12 utterances of 5 to 7 letters and blanks, their manifest, and the model configuration."""
    folder = tmp_path_factory.mktemp("tones")
    rng = np.random.default_rng(0)
    rows = []
    for i in range(12):
        words = " ".join("".join(rng.choice(list(LETTERS), 2)) for _ in range(2)) + "abc"[: i % 3]
        audio = speech(words, rng)
        soundfile.write(folder / f"{i}.wav", audio, RATE)
        rows.append({"audio_filepath": f"{i}.wav", "duration": len(audio) / RATE, "text": words})
    (folder / "all.json").write_text("\n".join(map(json.dumps, rows)))
    (folder / "model.yaml").write_text(CONFIG)
    return folder


@pytest.fixture(scope="session")
def trained(corpus, tmp_path_factory):
    """A checkpoint, with EMA weights, that reads the corpus without an error."""
    from jasper_pt import run_training

    output = tmp_path_factory.mktemp("trained")
    flags = f"""--cpu --model_config {corpus}/model.yaml --dataset_dir {corpus} --output_dir {output} --seed 1
        --train_manifests {corpus}/all.json --val_manifests {corpus}/all.json --gpu_batch_size 4
        --epochs 60 --lr 0.02 --lr_policy cosine --min_lr 0 --ema 0.9 --num_workers 0 --save_frequency 1000""".split()
    assert run_training.main(flags) == 0
    return output / "QuartzNet_epoch60_checkpoint.pt"
