"""The page that transcribes: a real file, a microphone that plays one, and what is no sound."""

from pathlib import Path

import numpy as np
import pytest
import soundfile

from jasper_pt import demo, recognizer
from jasper_pt.model import build_model
from runkit.web import Action
from tests.browser import chromium, open_page
from tests.jasper_pt.test_streaming import RATE, config, hears_tones, say
from tests.runkit.test_web import running, send

SPOKEN = Path(__file__).resolve().parents[3] / "shared" / "data" / "speech_odd"


@pytest.fixture(scope="module")
def address():
    chosen = config(normalize=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recognizer, "evaluation_form", lambda *_: hears_tones)  # so that what is said is known
        listening = recognizer.Recognizer(build_model(chosen), chosen, "cpu")
    actions = {"/transcribe": Action(demo.transcribing(listening), demo.CONTENT_TYPES, demo.MAX_BYTES)}
    with running(demo.PAGE, actions) as address:
        yield address


def write(path: Path, text: str) -> Path:
    soundfile.write(path, say(text), RATE)
    return path


def test_a_file_is_transcribed(address: str, tmp_path: Path):
    status, result = send(f"{address}/transcribe", write(tmp_path / "a.flac", "abc de").read_bytes(), "audio/flac")
    assert status == 200
    assert result["text"] == "abc de"
    first, second = result["words"]
    assert (first["text"], second["text"]) == ("abc", "de")
    assert first["start"] < first["end"] <= second["start"] < second["end"] <= result["duration"]
    assert 0 < first["confidence"] <= 1


def test_real_recordings_of_any_form(address: str):
    if not SPOKEN.is_dir():
        pytest.skip(f"no {SPOKEN}")
    for path in sorted(SPOKEN.glob("jfk.*")):
        status, result = send(f"{address}/transcribe", path.read_bytes(), "audio/mpeg")
        assert status == 200 and result["duration"] == pytest.approx(11.0, abs=0.2)


def test_what_is_no_sound_is_told(address: str, tmp_path: Path):
    for body, kind, status, message in (
        (b"not audio at all", "audio/wav", 422, "no sound format"),
        (b"", "audio/wav", 422, "is empty"),
        (b"{}", "application/json", 415, "content type"),
        (bytes(demo.MAX_BYTES + 1), "audio/wav", 413, "more than 50 MB"),
    ):
        found, result = send(f"{address}/transcribe", body, kind)
        assert found == status and message in result["error"]
    soundfile.write(tmp_path / "long.wav", np.zeros(601 * 8000, np.int16), 8000)
    found, result = send(f"{address}/transcribe", (tmp_path / "long.wav").read_bytes(), "audio/wav")
    assert found == 422 and "601 s of sound; 600 s are the most" in result["error"]
    assert send(f"{address}/transcribe", write(tmp_path / "a.wav", "de").read_bytes(), "audio/wav")[1]["text"] == "de"


@pytest.mark.xdist_group("browser")
@pytest.mark.parametrize("width", [1280, 360])
def test_upload_in_a_browser(address: str, tmp_path: Path, width: int):
    with chromium() as browser:
        page, problems = open_page(browser, width)
        page.goto(address)
        page.set_input_files("#file", write(tmp_path / "a.wav", "abc de"))
        page.click("#send")
        page.locator("#text span", has_text="de").wait_for()
        assert page.inner_text("#text").split() == ["abc", "de"]
        assert page.locator("#table tr").count() == 3
        assert page.locator("audio").is_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        (tmp_path / "b.wav").write_text("no sound")
        page.set_input_files("#file", tmp_path / "b.wav")
        page.click("#send")
        page.locator("#status.error", has_text="no sound format").wait_for()
        assert [problem for problem in problems if "422" not in problem] == []


@pytest.mark.xdist_group("browser")
def test_the_microphone_in_a_browser(address: str, tmp_path: Path):
    """Chromium's fake microphone plays a file over and over."""
    played = write(tmp_path / "played.wav", "abc,abc,abc,")
    arguments = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream",
                 f"--use-file-for-fake-audio-capture={played}"]  # fmt: skip
    with chromium(*arguments) as browser:
        page, problems = open_page(browser, permissions=["microphone"])
        page.goto(address)
        page.click("#record")
        page.locator("#record.recording").wait_for()
        page.wait_for_timeout(4000)
        page.click("#record")
        page.locator("#text span").first.wait_for()
        assert problems == []
        assert "abc" in page.inner_text("#text")
        page.close()
