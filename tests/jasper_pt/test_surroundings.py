"""Rooms and noise: levels, spectra and timing by their definitions; random choices that belong to the utterance."""

import json

import numpy as np
import pytest
import soundfile

from jasper_pt.config import AudioConfig, ImpulsePerturbation, NoisePerturbation
from jasper_pt.surroundings import (
    Surroundings,
    add_noise,
    coloured_noise,
    impulse_response,
    make_surroundings,
    read_sounds,
    reverberate,
)
from runkit.errors import UserError

RATE = 16000
SPEECH = np.random.default_rng(1).standard_normal(8000).astype(np.float32) * 0.1


def power(x):
    return float(np.mean(np.square(x, dtype=np.float64)))


@pytest.mark.parametrize("snr_db", [-5.0, 0.0, 20.0])
def test_noise_has_the_level_asked_for(snr_db):
    noise = np.sin(np.arange(8000)).astype(np.float32)
    noisy = add_noise(SPEECH, noise, snr_db)
    assert noisy.dtype == np.float32
    assert 10 * np.log10(power(SPEECH) / power(noisy - SPEECH)) == pytest.approx(snr_db, abs=1e-3)


def test_silence_is_left_alone():
    silence = np.zeros(100, np.float32)
    assert not add_noise(silence, np.ones(100), 0).any()
    assert np.array_equal(add_noise(SPEECH[:100], silence, 0), SPEECH[:100])
    assert not reverberate(silence, np.ones(10, np.float32)).any()


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0])
def test_the_power_density_falls_with_the_exponent(exponent):
    rng = np.random.default_rng(0)
    noises = [coloured_noise(8192, exponent, RATE, rng) for _ in range(200)]
    density = np.mean([np.abs(np.fft.rfft(noise)) ** 2 for noise in noises], axis=0)
    hertz = np.fft.rfftfreq(8192, 1 / RATE)
    heard = hertz >= 50
    slope, _ = np.polyfit(np.log(hertz[heard]), np.log(density[heard]), 1)
    assert slope == pytest.approx(-exponent, abs=0.05)
    assert density[~heard].max() < 1e-6 * density.max()
    assert np.mean([power(noise) for noise in noises]) == pytest.approx(1, rel=0.05)
    assert coloured_noise(1, exponent, RATE, rng).shape == (1,)


def test_a_generated_room_has_its_decay_and_its_ratio():
    response = impulse_response(0.5, 6.0, RATE, np.random.default_rng(0)).astype(np.float64)
    assert len(response) == 8000 and response[0] == 1
    assert 10 * np.log10(1 / np.square(response[1:]).sum()) == pytest.approx(6, abs=0.01)
    level = 10 * np.log10([power(part) for part in response[1:].reshape(-1)[:7980].reshape(20, -1)])
    slope, _ = np.polyfit((np.arange(20) + 0.5) * 399 / RATE, level, 1)
    assert slope == pytest.approx(-60 / 0.5, rel=0.05)  # dB a second


def test_reverberation_is_convolution_in_time_with_the_direct_sound():
    response = np.array([0.1, -0.2, 1.0, 0.5, 0.25], np.float32)
    wet = np.convolve(SPEECH.astype(np.float64), response)[2 : 2 + len(SPEECH)]
    expected = wet * np.sqrt(power(SPEECH) / power(wet))
    np.testing.assert_allclose(reverberate(SPEECH, response), expected, atol=1e-6)
    np.testing.assert_allclose(reverberate(SPEECH, np.array([0, -2.0], np.float32)), -SPEECH, atol=1e-6)


# ---------------------------------------------------------------------------------------------------------- choices
BOTH = AudioConfig(noise_perturbation=NoisePerturbation(p=1.0), impulse_perturbation=ImpulsePerturbation(p=1.0))


def test_choices_follow_from_seed_epoch_and_key():
    surroundings = make_surroundings(BOTH)
    first = surroundings(SPEECH, 0, 1, "a")
    assert first.shape == SPEECH.shape and first.dtype == np.float32
    assert np.array_equal(make_surroundings(BOTH)(SPEECH, 0, 1, "a"), first)
    for owner in ((1, 1, "a"), (0, 2, "a"), (0, 1, "b")):
        assert not np.array_equal(surroundings(SPEECH, *owner), first)


def test_the_share_of_noisy_utterances_is_p():
    surroundings = Surroundings(AudioConfig(noise_perturbation=NoisePerturbation(p=0.3)))
    changed = [not np.array_equal(surroundings(SPEECH[:16], 0, 1, str(i)), SPEECH[:16]) for i in range(1000)]
    assert np.mean(changed) == pytest.approx(0.3, abs=0.05)
    assert make_surroundings(AudioConfig()) is None


@pytest.fixture
def recordings(tmp_path):
    """A manifest without transcripts: a long ramp, and a short alternation."""
    soundfile.write(tmp_path / "ramp.wav", np.linspace(0, 0.9, 4 * RATE), RATE, subtype="FLOAT")
    soundfile.write(tmp_path / "short.wav", np.tile([0.5, -0.25, -0.25, 0.0], 25), RATE, subtype="FLOAT")
    rows = [{"audio_filepath": name, "duration": d} for name, d in (("ramp.wav", 4.0), ("short.wav", 0.00625))]
    (tmp_path / "noise.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path / "noise.jsonl"


def test_recorded_noise_is_a_random_part_or_a_loop(recordings):
    surroundings = Surroundings(AudioConfig(noise_perturbation=NoisePerturbation((str(recordings),))))
    ramps, loops = [], []
    for seed in range(40):
        part = surroundings.recorded_noise(8000, np.random.default_rng(seed))
        assert part.shape == (8000,)
        (ramps if (np.diff(part) >= 0).all() else loops).append(part)
    assert len({float(part[0]) for part in ramps}) > 10 and max(part[-1] for part in ramps) <= 0.9
    np.testing.assert_allclose([np.diff(part).mean() * RATE * 4 for part in ramps], 0.9, rtol=1e-3)
    assert loops and all(np.array_equal(part[100:7900], part[:7800]) for part in loops)
    assert len({tuple(part[:4].tolist()) for part in loops}) == 4  # begins anywhere


def test_recorded_rooms(recordings):
    room = ImpulsePerturbation((str(recordings),), p=1.0)
    wet = Surroundings(AudioConfig(impulse_perturbation=room))(SPEECH, 0, 1, "a")
    assert wet.shape == SPEECH.shape and power(wet) == pytest.approx(power(SPEECH), rel=1e-4)


def test_what_cannot_be_read_is_told(recordings, tmp_path):
    with recordings.open("a") as stream:
        stream.write('\n{"audio_filepath": "absent.wav", "duration": 1.0}\n')
    with pytest.warns(UserWarning, match="1 utterances left out"):
        assert len(read_sounds([recordings])) == 2
    with pytest.raises(UserError, match=r"absent\.jsonl"):
        Surroundings(AudioConfig(noise_perturbation=NoisePerturbation((str(tmp_path / "absent.jsonl"),))))
