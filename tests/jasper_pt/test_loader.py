"""Batches: which utterances, in which order, how augmented, and that nothing else has a say in it."""

import dataclasses
import json
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from jasper_pt.config import Config, load_config
from jasper_pt.loader import (
    EvalLoader,
    TrainLoader,
    default_workers,
    eval_plan,
    filter_utterances,
    in_order,
)
from jasper_pt.manifest import Utterance
from jasper_pt.text import decode, normalize, normalize_any, transcript_rules
from runkit.errors import UserError

RATE = 16000
PLAIN = (
    "input_train.audio_dataset.speed_perturbation=null",
    "input_train.filterbank_features.spec_augment=null",
    "input_train.filterbank_features.dither=0",
)


def make_config(*overrides) -> Config:
    return load_config("quartznet5x5.yaml", overrides)


def utterance(path, transcript, duration, **fields) -> Utterance:
    base = Utterance(Path(path), transcript, duration, None, 0.0, ((Path(path), 1.0, duration),), Path(path).name)
    return base._replace(**fields)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> list[Utterance]:
    """26 noises of 0.4 to 1.65 s."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("corpus")
    rng = np.random.default_rng(0)
    utterances = []
    for i in rng.permutation(26):
        duration = 0.4 + 0.05 * int(i)
        path = folder / f"{i:02d}.wav"
        soundfile.write(path, rng.standard_normal(round(duration * RATE)) * 0.1, RATE)
        utterances.append(utterance(path, "abcdefghijklmnopqrstuvwxyz"[: i + 1][-8:], duration))
    return utterances


def equal(a, b) -> bool:
    return all(torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y for x, y in zip(a, b, strict=True))


# ---------------------------------------------------------------------------------------------------- transcripts
def test_rules_follow_configuration_and_labels():
    config = make_config()
    audio = config.input_val.audio
    assert transcript_rules(audio.normalize_transcripts, config.labels) is normalize
    assert transcript_rules(audio.normalize_transcripts, (*config.labels, "ä")) is normalize_any
    assert transcript_rules(audio.normalize_transcripts, "абв") is normalize_any
    english = make_config("input_val.audio_dataset.normalize_transcripts=english").input_val.audio
    assert transcript_rules(english.normalize_transcripts, (*config.labels, "ä")) is normalize
    with pytest.raises(UserError, match="labels a to z"):
        transcript_rules(english.normalize_transcripts, "абв")
    unknown = Counter()
    off = make_config("input_val.audio_dataset.normalize_transcripts=false").input_val.audio
    assert transcript_rules(off.normalize_transcripts, config.labels)("Ab 1 c", config.labels, unknown) == "b  c"
    assert unknown == Counter("A1")


# ------------------------------------------------------------------------------------------------------ filtering
def test_case_a09_targets_longer_than_the_output_are_left_out_and_named(shared):
    rows = [json.loads(line) for line in (shared / "cases/A09/manifest.jsonl").read_text().splitlines()]
    utterances = [utterance(f"{i}-{row['audio_filepath']}", row["text"], row["duration"]) for i, row in enumerate(rows)]
    kept, report = filter_utterances(utterances, make_config(), train=True)
    assert kept == utterances[2:]
    assert report.infeasible == (("0-short.wav", 57, 15), ("1-short.wav", 21, 15))
    (line,) = [line for line in report.lines() if "CTC" in line]
    assert line.startswith("2 left out") and "0-short.wav (needs 57 frames, has 15)" in line
    # Evaluation scores them all the same.
    assert filter_utterances(utterances, make_config(), train=False)[0] == utterances
    # A model without the stride of 2 has twice the frames.
    assert len(filter_utterances(utterances, make_config(), train=True, stride=1)[0]) == 3


def test_durations_and_number_are_limited():
    utterances = [utterance(f"{i}.wav", "a", duration) for i, duration in enumerate([0.05, 3, 17, 2, 16.7, 5])]
    kept, report = filter_utterances(utterances, make_config("input_train.audio_dataset.max_utts=2"), train=True)
    assert [u.key for u in kept] == ["1.wav", "3.wav"]
    assert (report.too_short, report.too_long, report.beyond_max_utts) == (("0.wav",), ("2.wav",), 2)
    assert report.kept == 2 and report.kept_seconds == 5
    assert sum("left out" in line for line in report.lines()) == 3


def test_unknown_characters_are_counted():
    _, report = filter_utterances(
        [utterance("a.wav", "abc 漢漢", 2), utterance("b.wav", "漢", 99)], make_config(), train=True
    )
    assert report.unknown == Counter({"漢": 2})
    assert any("2 characters" in line and "漢" in line for line in report.lines())


def test_nothing_left_is_an_error_with_the_reasons():
    with pytest.raises(UserError, match=r"none of 1 utterances is left\n1 left out, shorter than min_duration: x.wav"):
        filter_utterances([utterance("x.wav", "a", 0.01)], make_config(), train=True)


# ------------------------------------------------------------------------------------------------- order of training
def flat(loader, epoch=0):
    return [index for batch in loader.plan(epoch)[0] for index in batch]


def test_an_epoch_takes_every_utterance_once_as_far_as_whole_updates_go(corpus):
    loader = TrainLoader(corpus, make_config(), 4, grad_accumulation=2, seed=5, num_workers=0)
    assert (loader.updates_per_epoch, loader.left_out) == (3, 2)
    left_out = set()
    for epoch in range(20):
        taken = flat(loader, epoch)
        assert len(taken) == len(set(taken)) == 24
        left_out |= set(range(26)) - set(taken)
    assert len(left_out) > 15  # not always the same ones


def test_order_follows_from_seed_and_epoch(corpus):
    def plan(seed, epoch):
        return flat(TrainLoader(corpus, make_config(), 4, seed=seed, num_workers=0), epoch)

    assert plan(1, 3) == plan(1, 3)
    assert len({tuple(plan(seed, epoch)) for seed in (1, 2) for epoch in range(4)}) == 8
    # Other company too, not only another order of the same batches.
    batches = [{frozenset(plan(1, epoch)[i : i + 4]) for i in range(0, 24, 4)} for epoch in range(4)]
    assert not batches[0] & batches[1] & batches[2] & batches[3]


def test_updates_do_not_depend_on_how_they_are_dealt(corpus):
    def updates(batch_size, accumulation, world_size):
        """Each update as the set of its batches, those as sets of utterances."""
        loaders = [
            TrainLoader(corpus, make_config(), batch_size, accumulation, rank, world_size, seed=3, num_workers=0)
            for rank in range(world_size)
        ]
        shape = (loaders[0].updates_per_epoch, -1, batch_size)
        whole = np.concatenate([np.reshape(loader.plan(2)[0], shape) for loader in loaders], axis=1)
        return [frozenset(map(frozenset, update)) for update in whole.tolist()]

    def members(*factors):
        return [frozenset().union(*update) for update in updates(*factors)]

    assert updates(3, 4, 1) == updates(3, 2, 2) == updates(3, 1, 4)
    assert members(12, 1, 1) == members(1, 12, 1) == members(2, 3, 2) == members(3, 4, 1)


def test_micro_batches_are_dealt_to_any_number_of_processes(corpus):
    """The same ones, each once, as wide, counts as equal as can be."""

    def update(world_size, **options):
        loaders = [
            TrainLoader(corpus, make_config(), 2, 2, rank, world_size, 3, 0, processes=3, **options)
            for rank in range(world_size)
        ]
        parts = [
            (start, tuple(batch), width)
            for loader in loaders
            for (start, _), batch, width in zip(loader.shares, *loader.plan(1), strict=False)
        ]
        return [len(loader.shares) for loader in loaders], sorted(parts)

    counts, parts = zip(*map(update, (1, 2, 3, 4, 8)), strict=True)
    assert counts == ([6], [3, 3], [2, 2, 2], [1, 1, 2, 2], [1] * 6 + [0, 0])
    assert all(other == parts[0] for other in parts) and [start for start, *_ in parts[0]] == [0, 2, 4, 6, 8, 10]

    # Normalised together: rounds of 6, each cut into as many parts as there are processes.
    counts, parts = zip(*(update(world_size, together=True) for world_size in (1, 4)), strict=True)
    assert counts == ([2], [2] * 4) and [start for start, *_ in parts[1]] == [0, 1, 3, 4, 6, 7, 9, 10]
    for i, (_, whole, width) in enumerate(parts[0]):
        shares = parts[1][4 * i : 4 * i + 4]
        assert sum((share for _, share, _ in shares), ()) == whole and {share[2] for share in shares} == {width}
    with pytest.raises(UserError, match="6 utterances are normalised together, fewer than 7 processes"):
        update(7, together=True)


def test_batches_hold_similar_durations(corpus):
    utterances = [utterance("x.wav", "a", 1 + 15 * i / 1000, key=str(i)) for i in range(1000)]

    def padding(**options):
        config = make_config("input_train.audio_dataset.speed_perturbation.p=1")
        loader = TrainLoader(utterances, config, 16, seed=0, num_workers=0, **options)
        seconds = loader.reader.seconds(0)[np.array(loader.plan(0)[0])]  # [updates, B], after the change of speed
        return 1 - seconds.sum() / (seconds.max(1) * 16).sum()

    assert padding(length_jitter=0.0) < 0.02 < padding() < 0.12 < padding(length_jitter=100.0)


def test_sort_by_duration_goes_from_short_to_long(corpus):
    loader = TrainLoader(
        corpus, make_config(*PLAIN, "input_train.audio_dataset.sort_by_duration=true"), 4, num_workers=0
    )
    durations = [corpus[i].duration for i in flat(loader, 7)]
    assert durations == sorted(durations)


def test_processes_share_long_batches(corpus):
    ranks = [TrainLoader(corpus, make_config(*PLAIN), 3, 4, rank, 2, num_workers=0) for rank in (0, 1)]
    seconds = [sum(corpus[i].duration for i in flat(loader)) for loader in ranks]
    assert abs(seconds[0] - seconds[1]) < 0.05 * seconds[0]


def test_an_impossible_plan_is_refused(corpus):
    with pytest.raises(UserError, match=r"26 training utterances .* 8 x accumulation 2 x processes 2 = 32"):
        TrainLoader(corpus, make_config(), 8, 2, 0, 2)
    with pytest.raises(UserError, match="rank 2 of 2"):
        TrainLoader(corpus, make_config(), 1, 1, 2, 2)
    with pytest.raises(UserError, match="seed -1"):
        TrainLoader(corpus, make_config(), 1, seed=-1)
    with pytest.raises(ValueError, match="start_update 9"):
        TrainLoader(corpus, make_config(), 4, num_workers=0).epoch(0, start_update=9)


# ------------------------------------------------------------------------------------------------ training batches
@pytest.fixture(scope="module")
def augmented() -> Config:
    return make_config(
        "input_train.audio_dataset.speed_perturbation.p=0.5",
        "input_train.filterbank_features.spec_augment.max_time=20",
        "input_train.filterbank_features.dither=1e-3",
    )


def test_batches_do_not_depend_on_workers_and_resume_anywhere(corpus, augmented):
    def batches(workers, start=0):
        loader = TrainLoader(corpus, augmented, 4, 2, seed=1, num_workers=workers)
        return list(loader.epoch(3, start_update=start))

    straight = batches(0)
    assert len(straight) == 6
    for workers in (1, 3):
        assert all(map(equal, batches(workers), straight))
    assert all(map(equal, batches(2, start=1), straight[2:]))
    assert batches(2, start=3) == []


def test_augmentation_does_not_depend_on_the_batch(corpus, augmented):
    def rows(batch_size, accumulation, world_size=1):
        found = {}
        for rank in range(world_size):
            loader = TrainLoader(corpus, augmented, batch_size, accumulation, rank, world_size, seed=1, num_workers=0)
            for batch in loader.epoch(3):
                for key, row, n in zip(batch.keys, batch.features, batch.feature_lengths.tolist(), strict=True):
                    found[key] = row[:, :n]
                    assert not row[:, n:].any()
        return found

    expected = rows(12, 1)
    assert len(expected) == 24 and any((row == 0).any() for row in expected.values())
    for other in (rows(2, 6), rows(3, 2, 2)):
        assert other.keys() == expected.keys()
        for key, row in other.items():
            torch.testing.assert_close(row, expected[key], atol=2e-4, rtol=0)


def test_processes_see_what_one_process_would(corpus, augmented):
    """As wide and, put together, the very batches: BatchNorm over all processes then sees the same padding."""
    config = make_config("input_train.audio_dataset.speed_perturbation.p=1")
    (one,) = [list(TrainLoader(corpus, config, 12, seed=1, num_workers=0).epoch(0))]
    options = {"seed": 1, "num_workers": 0, "together": True}
    ranks = [list(TrainLoader(corpus, config, 4, 1, rank, 3, **options).epoch(0)) for rank in range(3)]
    for whole, *parts in zip(one, *ranks, strict=True):
        assert len({part.features.shape for part in parts}) == 1
        assert whole.keys == [key for part in parts for key in part.keys]
        torch.testing.assert_close(torch.cat([part.features for part in parts]), whole.features, atol=2e-4, rtol=0)


def test_epochs_are_augmented_differently(corpus, augmented):
    loader = TrainLoader(corpus, augmented, 26, seed=1, num_workers=0)
    first, second = (
        {key: row for batch in loader.epoch(e) for key, row in zip(batch.keys, batch.features, strict=True)}
        for e in (0, 1)
    )
    assert sum(first[key].shape == second[key].shape and torch.equal(first[key], second[key]) for key in first) == 0


def test_a_batch_is_complete(corpus):
    config = make_config(*PLAIN)
    for batch in TrainLoader(corpus, config, 4, seed=1, num_workers=0).epoch(0):
        assert batch.features.dtype == torch.float32 and batch.features.shape[:2] == (4, 64)
        assert batch.features.shape[2] % 16 == 0 and batch.targets.dtype == batch.target_lengths.dtype == torch.int64
        for row, index in enumerate(batch.indices):
            source = corpus[index]
            length = int(batch.target_lengths[row])
            assert batch.keys[row] == source.key and batch.transcripts[row] == source.transcript
            assert decode(batch.targets[row, :length].tolist(), config.labels) == source.transcript
            assert not batch.targets[row, length:].any()
            assert batch.durations[row] == pytest.approx(source.duration)
            assert int(batch.feature_lengths[row]) == pytest.approx(source.duration * 100, abs=1)


def test_offline_copies_are_drawn_unless_ignored(corpus, tmp_path):
    copies = []
    for speed in (0.9, 1.0, 1.1):
        soundfile.write(
            tmp_path / f"{speed}.wav", np.random.default_rng(0).standard_normal(round(RATE / speed)) * 0.1, RATE
        )
        copies.append((tmp_path / f"{speed}.wav", speed, 1 / speed))
    source = utterance(copies[1][0], "a", 1.0, speeds=tuple(copies))

    def frames(*overrides):
        loader = TrainLoader([source], make_config(*PLAIN, *overrides), 1, num_workers=0)
        return Counter(int(batch.feature_lengths[0]) for epoch in range(60) for batch in loader.epoch(epoch))

    assert frames() == {100: 60}  # the published online configuration ignores them
    drawn = frames("input_train.audio_dataset.ignore_offline_speed_perturbation=false")
    assert set(drawn) == {112, 100, 91} and min(drawn.values()) > 8


def test_parts_of_files_and_trimming(tmp_path):
    speech = np.random.default_rng(0).standard_normal(RATE) * 0.1
    soundfile.write(tmp_path / "long.wav", np.concatenate([np.zeros(RATE), speech, np.zeros(RATE)]), RATE)
    whole = utterance(tmp_path / "long.wav", "a", 3.0)
    part = utterance(tmp_path / "long.wav", "a", 0.5, offset=1.25)
    unknown = utterance(tmp_path / "long.wav", "a", 0.0, offset=1.0)

    def lengths(trim):
        loader = EvalLoader(
            [whole, part, unknown], make_config(f"input_val.audio_dataset.trim_silence={trim}"), 3, num_workers=0
        )
        (batch,) = loader
        order = np.argsort(batch.indices)
        assert np.array(batch.durations)[order].tolist() == [3.0, 0.5, 2.0]  # trimming does not count
        return batch.feature_lengths[order].tolist()

    assert lengths("false") == [300, 50, 200]
    trimmed = lengths("true")
    assert trimmed[1] == 50 and 100 <= trimmed[2] <= trimmed[0] <= 126


# ------------------------------------------------------------------------------------------------------ evaluation
@pytest.mark.parametrize(
    ("batch_size", "world_size", "seconds"),
    [(1, 1, 1e9), (4, 1, 1e9), (7, 2, 3.0), (26, 3, 1e9), (50, 4, 4.0), (3, 30, 1e9)],
)
def test_evaluation_takes_every_utterance_exactly_once(corpus, batch_size, world_size, seconds):
    seen = []
    for rank in range(world_size):
        loader = EvalLoader(
            corpus, make_config(), batch_size, rank, world_size, num_workers=0, max_batch_seconds=seconds
        )
        batches = loader.plan
        assert len(batches) == len(loader)
        for batch in batches:
            assert len(batch) <= batch_size
            longest = max(corpus[i].duration for i in batch)
            assert len(batch) == 1 or longest * len(batch) <= seconds
        seen += [i for batch in batches for i in batch]
    assert sorted(seen) == list(range(26))


def test_evaluation_is_not_augmented_and_repeats(corpus, augmented):
    runs = [list(EvalLoader(corpus, augmented, 4, num_workers=workers)) for workers in (0, 2)]
    assert len(runs[0]) == 7 and all(map(equal, *runs))
    durations = [corpus[i].duration for batch in runs[0] for i in batch.indices]
    assert durations == sorted(durations, reverse=True)
    alone = {batch.indices[0]: batch for batch in EvalLoader(corpus, augmented, 1, num_workers=0)}
    for batch in runs[0]:
        for row, index in enumerate(batch.indices):
            n = int(batch.feature_lengths[row])
            torch.testing.assert_close(batch.features[row, :, :n], alone[index].features[0, :, :n], atol=2e-4, rtol=0)


def test_eval_plan_takes_an_utterance_longer_than_the_limit_alone():
    assert eval_plan([1, 50, 2, 0], 8, 10) == [[1], [2, 0, 3]]
    assert eval_plan([], 8) == []


def test_unreadable_files_are_named(corpus, tmp_path):
    (tmp_path / "text.wav").write_text("not audio")
    broken = [*corpus[:3], utterance(tmp_path / "text.wav", "a", 1.0), utterance(tmp_path / "gone.wav", "a", 0.9)]
    for workers in (0, 2):
        with pytest.raises(UserError, match=r"(text|gone)\.wav"):
            list(EvalLoader(broken, make_config(), 2, num_workers=workers))
        with pytest.raises(UserError, match=r"(text|gone)\.wav"):
            list(TrainLoader(broken, make_config(), 5, num_workers=workers).epoch(0))
    problems = []
    loader = EvalLoader(
        broken, make_config(), 2, num_workers=2, on_error=lambda u, error: problems.append((u.key, str(error)))
    )
    assert sorted(i for batch in loader for i in batch.indices) == [0, 1, 2]
    assert [key for key, _ in problems] == ["text.wav", "gone.wav"] and all(key in text for key, text in problems)


# ---------------------------------------------------------------------------------------------------------- threads
def audio_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("audio")]


def test_threads_end_with_the_iterator(corpus):
    batches = TrainLoader(corpus, make_config(), 2, num_workers=3).epoch(0)
    next(batches)
    assert audio_threads()
    batches.close()
    assert not audio_threads()
    with pytest.raises(ZeroDivisionError):
        list(in_order([[1, 0], [1]], lambda x: 1 / x, 2))
    assert not audio_threads()


def test_reading_stays_a_few_batches_ahead():
    started = []
    results = in_order(([i, i] for i in range(100)), started.append, 2)
    next(results)
    assert 2 <= len(started) <= 8
    results.close()


def test_default_workers_share_the_machine(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1000")
    assert default_workers() == 1
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    assert 1 <= default_workers() <= 8


def test_training_needs_its_section(corpus):
    with pytest.raises(UserError, match="input_train"):
        TrainLoader(corpus, dataclasses.replace(make_config(), input_train=None), 2)


# ------------------------------------------------------------------------------------------- options for accuracy
@pytest.fixture(scope="module")
def options() -> Config:
    return make_config(
        "input_train.audio_dataset.noise_perturbation.p=0.7",
        "input_train.audio_dataset.impulse_perturbation.p=0.5",
        "input_train.filterbank_features.spec_augment.adaptive_multiplicity=0.05",
        "input_train.filterbank_features.spec_augment.adaptive_size=0.1",
    )


def test_options_depend_on_neither_workers_processes_nor_resumes(corpus, options):
    def batches(rank=0, world_size=1, workers=0, start=0):
        loader = TrainLoader(
            corpus,
            options,
            4,
            1,
            rank,
            world_size,
            seed=1,
            num_workers=workers,
            processes=3,
            views=2,
        )
        return list(loader.epoch(3, start_update=start))

    one = batches()
    assert len(one) == 6 and all(batch.second_view.shape == batch.features.shape for batch in one)
    assert all(map(equal, batches(workers=2), one)) and all(map(equal, batches(start=1), one[3:]))
    found = {tuple(batch.keys): batch for rank in range(3) for batch in batches(rank, 3)}
    assert len(found) == 6
    for batch in one:
        assert equal(found[tuple(batch.keys)], batch)


def test_the_second_view_has_other_masks_of_the_same_features(corpus):
    quiet = ("input_train.filterbank_features.spec_augment.freq_masks=0", *PLAIN[::2])
    masked = make_config(*quiet, "input_train.filterbank_features.spec_augment.max_time=20")
    plain = make_config(*PLAIN)
    views = list(TrainLoader(corpus, masked, 26, seed=1, num_workers=0, views=2).epoch(0))
    (batch,) = views
    (single,) = TrainLoader(corpus, masked, 26, seed=1, num_workers=0).epoch(0)
    (whole,) = TrainLoader(corpus, plain, 26, seed=1, num_workers=0).epoch(0)
    assert single.second_view is None and torch.equal(single.features, batch.features)
    assert not torch.equal(batch.features, batch.second_view)
    for view in (batch.features, batch.second_view):
        kept = view.any(1, keepdim=True)  # [B, 1, T]: what no mask hides
        assert kept.any() and torch.equal(view, whole.features * kept)


def test_noise_is_for_training_only(corpus, options):
    (plain,) = EvalLoader(corpus[:4], make_config(*PLAIN), 4, num_workers=0)
    (same,) = EvalLoader(corpus[:4], options, 4, num_workers=0)
    assert torch.equal(plain.features, same.features)


def test_subwords_leave_more_room_for_ctc():
    config = make_config()
    tight = utterance("a.wav", "abababab", 0.15)  # 8 characters, 8 output frames
    kept, _ = filter_utterances([tight], config, train=True)
    assert kept
    short = tight._replace(duration=0.13)
    with pytest.raises(UserError, match="needs 8 frames, has 7"):
        filter_utterances([short], config, train=True)
    subwords = dataclasses.replace(config, labels=(*config.labels, "ab", " ab"))
    kept, _ = filter_utterances([short], subwords, train=True)  # " ab" "ab" "ab" "ab": 4, and 2 between equal ones
    assert kept
