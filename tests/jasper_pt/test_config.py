"""config.py and the files in configs/asr."""

import json
import math

import pytest

from jasper_pt.config import CONFIG_DIR, BlockConfig, load_config, parse_config, resolve_config_path
from runkit.errors import UserError

QUARTZNET = "quartznet15x5_speedp-online-1.15_speca"
PUBLISHED = [
    QUARTZNET,
    "quartznet15x5_speedp-online-1.15_speca_drop0.2",
    "jasper10x5dr_speca",
    "jasper10x5dr_speedp-offline",
    "jasper10x5dr_speedp-offline_speca",
    "jasper10x5dr_speedp-offline_speca_nomask",
    "jasper10x5dr_speedp-online-discrete",
    "jasper10x5dr_speedp-online-discrete_speca",
    "jasper10x5dr_speedp-online_speca",
]
OURS = ["quartznet5x5", "quartznet_quickstart", "quartznet10x5", "quartznet15x5", "jasper5x3", "jasper10x5dr"]
ENGLISH = [" ", *"abcdefghijklmnopqrstuvwxyz", "'"]


def write(tmp_path, text, name="model.yaml"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def fails(message, *arguments):
    """The UserError that loading raises, in which `message` must occur."""
    with pytest.raises(UserError) as caught:
        load_config(*arguments)
    assert message in str(caught.value)
    return str(caught.value)


# ------------------------------------------------------------------------------------------- the files we ship
def test_the_files_are_the_published_ones_and_ours():
    assert sorted(path.stem for path in CONFIG_DIR.glob("*.yaml")) == sorted(PUBLISHED + OURS)


@pytest.mark.parametrize("name", PUBLISHED + OURS)
def test_every_file_loads_and_survives_the_round_trip(name):
    config = load_config(name)
    assert list(config.labels) == ENGLISH
    assert config.n_classes == 29
    assert config.name == {"quartznet": "QuartzNet", "jasper": "Jasper"}[config.family]
    assert config.input_train.audio.trim_silence and config.input_val.audio.trim_silence
    assert parse_config(config.to_dict()) == config
    assert parse_config(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize("name", PUBLISHED + OURS)
def test_every_file_states_its_claim(name):
    text = (CONFIG_DIR / f"{name}.yaml").read_text(encoding="utf-8")
    header = [line for line in text.splitlines() if line.startswith("#")]
    assert any("parameters" in line for line in header)
    assert any(f"MODEL_CONFIG=configs/asr/{name}.yaml" in line for line in header)


@pytest.mark.parametrize(
    "name, truth", [("quartznet15x5", "quartznet_15x5.json"), ("jasper10x5dr", "jasper_10x5dr.json")]
)
def test_architecture_is_that_of_independent_files(shared, name, truth):
    truth = json.loads((shared / "data" / "truth_nemo_conf" / truth).read_text(encoding="utf-8"))
    config = load_config(name)
    rows = [
        {
            "filters": block.filters,
            "kernel": block.kernel,
            "repeat": block.repeat,
            "residual": block.residual,
            "separable": block.separable,
            "stride": block.stride,
            "dilation": block.dilation,
            "dropout": block.dropout,
        }
        | ({"residual_dense": block.residual_dense} if "residual_dense" in truth["encoder_blocks"][0] else {})
        for block in config.encoder.blocks
    ]
    assert rows == truth["encoder_blocks"]
    assert list(config.labels) == truth["labels"]
    assert config.encoder.use_conv_masks == truth["conv_mask"]
    assert config.encoder.activation == truth["activation"]
    features, expected = config.input_val.features, truth["preprocessor"]
    assert features.n_filt == expected.pop("features")
    assert all(getattr(features, key) == value for key, value in expected.items())
    assert config.input_train.audio.max_duration == truth["train_ds"]["max_duration"]


def test_variants_differ_in_what_their_names_say():
    base = load_config(QUARTZNET)
    dropped = load_config(QUARTZNET + "_drop0.2")
    assert {block.dropout for block in base.encoder.blocks} == {0.0}
    assert {block.dropout for block in dropped.encoder.blocks} == {0.2}
    assert (dropped.input_train.features.spec_augment.max_freq, base.input_train.features.spec_augment.max_freq) == (
        20,
        15,
    )
    offline = load_config("jasper10x5dr_speedp-offline").input_train
    assert offline.audio.speed_perturbation is None and not offline.audio.ignore_offline_speed_perturbation
    assert offline.features.spec_augment is None
    discrete = load_config("jasper10x5dr_speedp-online-discrete_speca").input_train
    assert discrete.audio.speed_perturbation.discrete and discrete.features.spec_augment.time_masks == 2
    assert not load_config("jasper10x5dr_speedp-offline_speca_nomask").encoder.use_conv_masks


def test_names_of_the_published_command_lines_are_found():
    expected = CONFIG_DIR / f"{QUARTZNET}.yaml"
    for name in (QUARTZNET, f"{QUARTZNET}.yaml", f"configs/{QUARTZNET}.yaml", f"configs/asr/{QUARTZNET}.yaml"):
        assert resolve_config_path(name).samefile(expected)
    with pytest.raises(UserError, match=r"configs/quartznet5x6\.yaml.*did you mean quartznet5x5\.yaml"):
        resolve_config_path("configs/quartznet5x6.yaml")
    with pytest.raises(UserError, match="elsewhere"):  # other folders are taken at their word
        resolve_config_path("elsewhere/quartznet5x5.yaml")


# ----------------------------------------------------------------------------------------------------- overrides
def test_overrides_take_the_type_of_the_key():
    config = load_config(
        "quartznet5x5",
        [
            "input_train.audio_dataset.max_duration=10",
            "input_train.filterbank_features.max_duration=10.0",
            "input_train.audio_dataset.speed_perturbation.discrete=true",
            "input_val.audio_dataset.max_utts=5.0",
            "input_train.filterbank_features.cutout_augment.masks=3",
            "quartznet.encoder.blocks.1.dropout=0.5",
            "input_train.filterbank_features.dither=1e-4",
            "name=Mine",
        ],
    )
    assert config.input_train.audio.max_duration == config.input_train.features.max_duration == 10.0
    assert config.input_train.audio.speed_perturbation.discrete is True
    assert config.input_val.audio.max_utts == 5
    assert config.input_train.features.cutout_augment.masks == 3  # a section that the file does not have
    assert [block.dropout for block in config.encoder.blocks[:3]] == [0.0, 0.5, 0.0]
    assert config.input_train.features.dither == 1e-4
    assert config.name == "Mine"


def test_override_of_an_aliased_block_changes_that_block_only():
    config = load_config("quartznet15x5", ["quartznet.encoder.blocks.2.repeat=7"])
    assert [block.repeat for block in config.encoder.blocks[:5]] == [1, 5, 7, 5, 5]
    config = load_config("quartznet15x5", ["quartznet.encoder.blocks.*.dropout=0.1"])
    assert {block.dropout for block in config.encoder.blocks} == {0.1}


def test_sections_can_be_switched_off():
    for word in ("null", "None"):
        config = load_config("quartznet5x5", [f"input_train.audio_dataset.speed_perturbation={word}"])
        assert config.input_train.audio.speed_perturbation is None
    unlimited = ["input_train.audio_dataset.max_duration=inf", "input_train.filterbank_features.max_duration=inf"]
    assert load_config("quartznet5x5", unlimited).input_train.audio.max_duration == math.inf


@pytest.mark.parametrize(
    "override, message",
    [
        ("input_train.audio_dataset.max_durations=3", "did you mean 'max_duration'?"),
        ("input_train.audio_dataset.trim_silence=1", "expected true or false, got 1"),
        ("input_val.audio_dataset.sample_rate=8000.5", "expected a whole number"),
        ("input_val.audio_dataset.sample_rate=True", "expected a whole number"),
        ("quartznet.encoder.blocks.99.dropout=0.1", "an index from 0 to 7"),
        ("quartznet.encoder.blocks.*.dropout=1", "dropout must be in [0, 1)"),
        ("quartznet.encoder.activation=tanh", "one of 'relu', 'selu', 'hardtanh'"),
        ("input_train.audio_dataset.max_duration=3", "max_duration must be the same in audio_dataset (3.0)"),
        ("input_val.filterbank_features.sample_rate=8000", "sample_rate must be the same"),
        ("quartznet.decoder.in_feats=512", "the last block has 1024 filters"),
        ("quartznet.encoder.in_feats=80", "n_filt must equal quartznet.encoder.in_feats"),
        ("name.x=3", "nothing below name"),
        ("jasper.encoder.init=xavier_normal", "expected one of the sections"),
        ("no equals sign", "exactly one '='"),
        ("a=b=c", "exactly one '='"),
    ],
)
def test_overrides_that_are_wrong_name_themselves_and_the_cause(override, message):
    error = fails(message, "quartznet5x5", [override])
    assert override in error or "quartznet5x5.yaml" in error


# ------------------------------------------------------------------------------------------------- broken files
MINIMAL = """
name: Small
labels: [a, b]
input_val: {audio_dataset: {}, filterbank_features: {}}
quartznet:
  encoder:
    blocks: [{filters: 8, kernel_size: 5, separable: true, residual: false, repeat: 1}]
  decoder: {in_feats: 8}
"""


def test_a_small_file_gets_defaults(tmp_path):
    config = load_config(write(tmp_path, "\ufeff" + MINIMAL.replace("\n", "\r\n")))  # BOM and CR do not matter
    assert config.input_train is None
    assert config.input_val.audio.max_duration == math.inf
    features = config.input_val.features
    assert (features.win_length, features.hop_length, features.fft_length) == (320, 160, 512)
    assert (features.window, features.pad_align, features.n_filt) == ("hann", 16, 64)
    assert config.encoder.blocks == (
        BlockConfig(filters=8, kernel_size=5, separable=True, residual=False, repeat=1, dropout=0.2),
    )


def test_numbers_and_lists_of_one_are_the_same(tmp_path):
    one = load_config(write(tmp_path, MINIMAL))
    other = load_config(write(tmp_path, MINIMAL.replace("kernel_size: 5", "kernel_size: [5], stride: [1]")))
    assert one == other
    fails("list of one", write(tmp_path, MINIMAL.replace("kernel_size: 5", "kernel_size: [5, 7]")))


@pytest.mark.parametrize(
    "size, factor, kernel", [(33, 1.0, 33), (33, 0.5, 17), (34, 1.0, 35), (11, 0.01, 1), (7, 2.0, 15)]
)
def test_kernel_size_factor_keeps_kernels_odd(size, factor, kernel):
    assert BlockConfig(filters=8, kernel_size=size, kernel_size_factor=factor).kernel == kernel


@pytest.mark.parametrize(
    "before, after, message",
    [
        ("labels: [a, b]", "labels: [a, b]\nlabels: [c]", ":4:1: key 'labels' is repeated"),
        ("repeat: 1}", "repeat: 1, repeat: 2}", "key 'repeat' is repeated"),
        ("name: Small\n", "", "name: is missing"),
        ("filters: 8, ", "", "quartznet.encoder.blocks.0.filters: is missing"),
        ("filters: 8", "filters: eight", "blocks.0.filters: expected a whole number, got 'eight'"),
        ("filters: 8", "filter: 8", "blocks.0.filter: unknown key; did you mean 'filters'?"),
        ("kernel_size: 5", "kernel_size: 5, heads: 4", "heads: expected one of -1"),
        ("kernel_size: 5", "kernel_size: 5, stride: 2, dilation: 2", "stride and dilation"),
        ("residual: false", "residual: true, stride: 2", "a residual block cannot have a stride"),
        ("residual: false", "residual: false, residual_dense: true", "residual_dense needs residual"),
        ("kernel_size: 5", "kernel_size: 5, groups: 3", "filters 8 is not a multiple of groups 3"),
        ("kernel_size: 5", "kernel_size: 5, norm_groups: 3", "norm_groups 3 must divide filters 8"),
        ("audio_dataset: {}", "audio_dataset: {sample_rate: 8000}", "sample_rate must be the same"),
        ("audio_dataset: {}", "audio_dataset: {speed_perturbation: {p: 2}}", "p must be a probability"),
        ("filterbank_features: {}", "filterbank_features: {frame_splicing: 2}", "expected one of 1, got 2"),
        ("filterbank_features: {}", "filterbank_features: {n_fft: 256}", "shorter than the window of 320 samples"),
        ("filterbank_features: {}", "filterbank_features: {}, dali: {}", "input_val.dali: unknown key"),
        ("labels: [a, b]", "labels: [a, a]", "repeated or none: ['a']"),
        ("labels: [a, b]", "labels: [a, <BLANK>]", "must not hold"),
        ("name: Small", "name: a/b", "name 'a/b' must be"),
        ("decoder: {in_feats: 8}", "decode: {in_feats: 8}", "must hold 'encoder' and 'decoder'"),
        ("blocks: [{", "blocks: [{{", "model.yaml:"),
        (MINIMAL, "- a list", "expected a mapping of keys"),
    ],
)
def test_broken_files_are_named_with_the_key(tmp_path, before, after, message):
    assert before in MINIMAL
    assert "model.yaml" in fails(message, write(tmp_path, MINIMAL.replace(before, after, 1)))


def test_base_files(tmp_path):
    write(tmp_path, MINIMAL, "base.yaml")
    child = write(
        tmp_path, "base: base.yaml\noverrides: {name: Other, quartznet.encoder.blocks.0.repeat: 3}", "child.yaml"
    )
    config = load_config(child)
    assert config.name == "Other" and config.encoder.blocks[0].repeat == 3
    grandchild = write(tmp_path, "base: child.yaml", "grandchild.yaml")
    assert load_config(grandchild, ["name=Third"]).name == "Third"
    fails("does not exist", write(tmp_path, "base: none.yaml"))
    fails("leads back here", write(tmp_path, "base: model.yaml"))
    fails("['name']", write(tmp_path, "base: base.yaml\nname: Other"))
    fails("unknown key", write(tmp_path, "base: base.yaml\noverrides: {names: Other}"))


def test_a_file_that_is_not_there_or_not_text(tmp_path):
    fails("no model config", tmp_path / "none.yaml")
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"name: caf\xe9")
    fails("not UTF-8 at byte 9", path)


def test_options_for_accuracy_are_off_unless_asked_for():
    config = load_config("quartznet5x5")
    audio, spec = config.input_train.audio, config.input_train.features.spec_augment
    assert audio.noise_perturbation is None and audio.impulse_perturbation is None
    assert spec.adaptive_multiplicity == spec.adaptive_size == 0
    changed = load_config(
        "quartznet5x5",
        [
            "input_train.audio_dataset.noise_perturbation.manifests=['a.json', 'b.json']",
            "input_train.audio_dataset.impulse_perturbation={'max_rt60': 1}",
            "input_train.filterbank_features.spec_augment.adaptive_multiplicity=0.04",
        ],
    )
    assert changed.input_train.audio.noise_perturbation.manifests == ("a.json", "b.json")
    assert changed.input_train.audio.impulse_perturbation.max_rt60 == 1.0
    assert parse_config(changed.to_dict()) == changed


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("input_train.audio_dataset.noise_perturbation.min_snr_db=40", "min_snr_db must not be greater"),
        ("input_train.audio_dataset.noise_perturbation.max_exponent=5", "max_exponent <= 4"),
        ("input_train.audio_dataset.noise_perturbation.snr=3", "unknown key"),
        ("input_train.audio_dataset.noise_perturbation.manifests=a.json", "expected a list"),
        ("input_train.audio_dataset.impulse_perturbation.min_rt60=0", "0 < min_rt60"),
        ("input_train.audio_dataset.impulse_perturbation.p=2", "must be a probability"),
        ("input_train.filterbank_features.spec_augment.adaptive_size=4", "from 0 to 1"),
        ("labels=['a', 'bc']", r"labels lack \['b', 'c'\]"),
    ],
)
def test_wrong_options_are_named(override, message):
    with pytest.raises(UserError, match=message):
        load_config("quartznet5x5", [override])
