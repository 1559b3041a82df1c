"""The presets of scripts/configs: 15 words each, and the published batches and rates."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "scripts" / "configs" / "pretrain_config.sh"
TEXT = CONFIG.read_text(encoding="utf-8")
PRESETS = re.findall(r"^([a-z]\w*)\(\)", TEXT, re.MULTILINE)
# The published table: micro-batches, evaluation batch, rates, precision, XLA, GPUs.
PUBLISHED = {
    "dgxa100_8gpu_fp16": "64 16 8 7.5e-4 5e-4 fp16 true 8",
    "dgxa100_8gpu_tf32": "64 8 8 7.5e-4 5e-4 tf32 true 8",
    "dgx2_16gpu_fp16": "64 8 8 3.75e-4 2.5e-4 fp16 true 16",
    "dgx2_16gpu_fp32": "32 8 8 3.75e-4 2.5e-4 fp32 true 16",
    "dgx1_8gpu_fp16": "16 4 8 7.5e-4 5e-4 fp16 true 8",
    "dgx1_8gpu_fp32": "8 2 8 7.5e-4 5e-4 fp32 true 8",
}


def sourced(command: str) -> subprocess.CompletedProcess:
    return subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True)


def preset(name: str) -> list[str]:
    result = sourced(f"source scripts/configs/pretrain_config.sh && {name}")
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


def test_all_presets_are_known():
    assert sorted(PRESETS) == sorted([*PUBLISHED, "cpu_tiny"])


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_presets(name: str):
    words = preset(name)
    assert words[:8] == PUBLISHED[name].split()
    assert words[8:12] == ["2000", "200", "7820", "100"] and words[14:] == ["large"]
    gpus, per_gpu, accumulation = int(words[7]), map(int, words[:2]), map(int, words[12:14])
    assert [b * n * gpus for b, n in zip(per_gpu, accumulation, strict=True)] == [65536, 32768]
    assert [float(rate) * gpus for rate in words[3:5]] == [6e-3, 4e-3]


@pytest.mark.parametrize("name", [*PUBLISHED, "cpu_tiny"])
def test_presets_start_as_documented(name: str):
    """The command in the file's header, with each preset; what it prints agrees with the words."""
    (usage,) = re.findall(r"^# usage: (.*) dgxa100_8gpu_fp16\)$", TEXT, re.MULTILINE)
    result = sourced(f"RESULTS_DIR=/r {usage} {name}) --dry-run")
    assert result.returncode == 0, result.stderr
    words = preset(name)
    assert len(words) == 15
    for phase, batch, accumulation, rate in ((1, 0, 12, 3), (2, 1, 13, 4)):
        gbs = int(words[batch]) * int(words[accumulation]) * int(words[7])
        (line,) = {line for line in result.stdout.splitlines() if line.startswith(f"phase {phase}: ")}
        assert f"global batch {gbs} " in line
        effective = float(re.search(r"effective learning rate (\S+)", line)[1])
        assert effective == pytest.approx(float(words[rate]) * int(words[7]), rel=1e-9)
        if name in PUBLISHED:
            assert f"{(7038, 1564)[phase - 1]} updates" in line


def test_a_batch_that_does_not_divide_is_refused():
    result = sourced("source scripts/configs/pretrain_config.sh && _published 60 8 7.5e-4 5e-4 fp16 8")
    assert result.returncode == 1 and result.stdout == ""
    assert "65536 is not divisible by 60 sequences x 8 GPUs" in result.stderr
