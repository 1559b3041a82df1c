"""A speech model behind a real Triton server: the texts are those of run_inference, whatever is sent."""

import json
import re

import numpy as np
import pytest
import soundfile
import torch

import jasper_pt
from jasper_pt import build_lm, decode, exported, run_export, run_inference
from runkit.errors import UserError
from tests import triton_server

torch.set_num_threads(1)
pytestmark = pytest.mark.xdist_group("asr_triton")  # its models are made once
PROTOCOLS = ("http", "grpc")


@pytest.fixture(scope="module")
def export(trained, corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "out"
    flags = (
        f"--ckpt {trained} --ema --val_manifests {corpus}/all.json --dataset_dir {corpus} --output_dir {folder} --int8"
    )
    assert run_export.main(flags.split()) == 0
    return folder


@pytest.fixture(scope="module")
def expected(trained, corpus, tmp_path_factory):
    """The texts of run_inference, in the manifest's order."""
    folder = tmp_path_factory.mktemp("inference")
    flags = f"""--cpu --ckpt {trained} --ema --val_manifests {corpus}/all.json --dataset_dir {corpus} --num_workers 0
        --output_dir {folder} --save_predictions {folder}/texts"""
    assert run_inference.main(flags.split()) == 0
    return (folder / "texts").read_text().split("\n")


# ----------------------------------------------------------------------------------------------- without a server
def test_an_export_alone_recognises_what_the_model_does(export, trained, corpus):
    recognizer, model = exported.load(export), jasper_pt.load(trained)
    paths = [corpus / f"{i}.wav" for i in range(12)]
    ours = recognizer.transcribe([recognizer.read(path) for path in paths])
    theirs = model.transcribe(paths)
    for found, wanted in zip(ours, theirs, strict=True):
        assert found.text == wanted.text and found.duration == wanted.duration
        assert [(w.text, w.start, w.end) for w in found.words] == [(w.text, w.start, w.end) for w in wanted.words]
        assert [w.confidence for w in found.words] == pytest.approx([w.confidence for w in wanted.words], abs=1e-3)


def test_greedy_tokens_of_arrays_are_those_of_tensors():
    rng = np.random.default_rng(0)
    log_probs = np.log(rng.dirichlet(np.full(4, 0.3), (5, 40))).astype(np.float32)
    lengths = np.array([40, 17, 1, 0, 40])
    ours = exported.greedy_tokens(log_probs, lengths)
    theirs = decode.greedy_tokens(torch.from_numpy(log_probs), torch.from_numpy(lengths))
    for found, wanted in zip(ours, theirs, strict=True):
        assert (found.ids, found.frames, list(found.ends)) == (wanted.ids, wanted.frames, list(wanted.ends))
        assert found.confidences == pytest.approx(wanted.confidences, rel=1e-6)


def test_a_changed_file_is_refused(export, tmp_path):
    with pytest.raises(UserError, match=r"it has no metadata\.json; scripts/export_asr\.sh makes"):
        exported.load(tmp_path)
    for path in export.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "model.onnx").write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"model\.onnx is missing, or is not what metadata\.json describes"):
        exported.load(tmp_path)


# -------------------------------------------------------------------------------------------------- with a server
@pytest.fixture(scope="module")
def repository(export, corpus, tmp_path_factory):
    """A model that decodes greedily and batches, the quantised one, and one that knows a language."""
    triton_server.require()
    folder = tmp_path_factory.mktemp("triton")
    texts = [json.loads(line)["text"] for line in (corpus / "all.json").read_text().splitlines()]
    (folder / "corpus.txt").write_text("\n".join(texts))
    build_lm.main(["--text", f"{folder}/corpus.txt", "--order", "2", "--output", f"{folder}/lm.arpa"])
    (folder / "decoder.yaml").write_text("decoder: beam\nlm: lm.arpa\nwidth: 8\n")
    make, models = "jasper_pt.serving.repository", folder / "models"
    triton_server.make(make, export, models, "--triton_dyn_batching_delay=20", "--max_seconds=10", "--max_bytes=500000")
    triton_server.make(make, export, models, "--triton_model_name=int8", "--onnx_file=model_int8.onnx")
    triton_server.make(make, export, models, "--triton_model_name=beam", f"--decoder_config={folder}/decoder.yaml")
    return models


@pytest.fixture(scope="module")
def server(repository):
    with triton_server.running(repository) as running:
        yield running


def sound(protocol, outputs=("TRANSCRIPT",), model="jasper", **inputs):
    return {"protocol": protocol, "model": model, "inputs": inputs, "outputs": list(outputs)}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_clients_hear_what_run_inference_does(server, protocol, corpus, expected, tmp_path):
    address = f"localhost:{server.ports[protocol]}"
    done = server.run(
        "jasper_pt.serving.client", "--manifest_filename", corpus / "all.json", "--data_dir", corpus, "-u", address,
        "-i", protocol, "--concurrency", 12, "--output_dir", tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "transcripts.json").read_text())
    assert [row["text"] for row in rows] == expected
    assert [" ".join(word["text"] for word in row["words"]) for row in rows] == expected
    assert f"WER {0:.2f} % of" in done.stdout
    for model in ("beam", "int8"):
        done = server.run(
            "jasper_pt.serving.client", "--audio_filename", corpus / "0.wav", corpus / "1.wav", "-u", address, "-i",
            protocol, "--model_name", model, "--batch_size", 2,
        )  # fmt: skip
        lines = [line.partition(": ")[2] for line in done.stdout.splitlines()[:2]]
        assert lines == expected[:2], done.stderr


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_samples_say_what_their_file_does(server, protocol, corpus, expected):
    samples, _ = soundfile.read(corpus / "0.wav", dtype="float32")
    row = {"dtype": "float32", "values": [[*samples.tolist(), *[0.0] * 500]]}
    count = {"dtype": "int32", "values": [[len(samples)]]}
    outputs = ("TRANSCRIPT", "CONFIDENCE", "DURATION")
    (found,) = server.ask([sound(protocol, outputs, AUDIO_SIGNAL=row, NUM_SAMPLES=count)])
    assert found["TRANSCRIPT"] == expected[:1] and found["DURATION"] == pytest.approx([len(samples) / 16000])
    assert 0.5 < found["CONFIDENCE"][0] <= 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_cannot_be_answered_is_explained_and_the_server_goes_on(server, protocol, corpus, expected):
    def text(value, **also):
        return {"dtype": "bytes", "values": [[value]]} | also

    def numbers(values, dtype="float32"):
        return {"dtype": dtype, "values": values}

    refused = [
        ({"AUDIO_FILE": text("no sound")}, "in no sound format"),
        ({"AUDIO_FILE": text("")}, "the sound file is empty"),
        ({"AUDIO_FILE": {"size": 600_000}}, "1 MB; 0.5 MB are the most"),
        ({"AUDIO_FILE": {"size": 1_000_000_000 if protocol == "grpc" else 100_000_000}}, "0.5 MB are the most"),
        ({"AUDIO_SIGNAL": numbers([[0.0] * 200_000])}, "12 s of sound; 10 s are the most"),
        ({"AUDIO_SIGNAL": numbers([[float("nan")] * 9])}, "NaN or infinite samples"),
        ({"AUDIO_SIGNAL": numbers([[0.0] * 9]), "NUM_SAMPLES": numbers([[10]], "int32")}, "NUM_SAMPLES is 10"),
        ({"AUDIO_SIGNAL": numbers([[0.0] * 9], "int32")}, "data-type is 'INT32'"),
        ({"AUDIO_SIGNAL": numbers([[[0.0] * 9]])}, "unexpected shape for input 'AUDIO_SIGNAL'"),
        ({"AUDIO_FILE": text("a"), "AUDIO_SIGNAL": numbers([[0.0] * 9])}, "give either AUDIO_FILE"),
        ({"NUM_SAMPLES": numbers([[10]], "int32")}, "give either AUDIO_FILE"),
        ({"AUDIO_FILE": {"dtype": "bytes", "values": [["a"]] * 9}}, "batch-size must be <= 8"),
    ]
    good = {"AUDIO_FILE": {"file": str(corpus / "3.wav")}}
    requests = [sound(protocol, **inputs) for inputs, _ in refused] + [sound(protocol, **good)]
    *errors, last = server.ask(requests)
    for found, (inputs, message) in zip(errors, refused, strict=True):
        assert re.search(message, found.get("error", "no error")), (list(inputs), found)
    assert last["TRANSCRIPT"] == [expected[3]]


def test_many_clients_lose_nothing_and_are_measured(server, corpus, tmp_path):
    done = server.run(
        "jasper_pt.serving.perf", "--manifest_filename", corpus / "all.json", "--data_dir", corpus, "--clients", 1, 16,
        "--seconds", 3, "--warm_up", 0.5, "-u", f"localhost:{server.ports['grpc']}", "--output_dir", tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "latency.json").read_text())
    assert [row["clients"] for row in figures["rows"]] == [1, 16]
    for row in figures["rows"]:
        assert row["errors"] == 0 and row["requests"] > 10
        assert row["p50 ms"] <= row["p95 ms"] <= row["p99 ms"]
        assert row["recordings/s"] == pytest.approx(row["requests"] / 3)
    assert (tmp_path / "latency.png").read_bytes().startswith(b"\x89PNG")


def test_models_are_not_overwritten_unless_told(repository, export):
    with pytest.raises(Exception, match="returned non-zero exit status 2"):
        triton_server.make("jasper_pt.serving.repository", export, repository)
