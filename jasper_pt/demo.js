"use strict";
const $ = (id) => document.getElementById(id);
const RATE = 16000; // Hz, of what the microphone's sound is sent as
let recorder = null, words = [];

function say(text, isError = false) {
  $("status").textContent = text;
  $("status").className = isError ? "error" : "";
}

// From red (unsure) to white (sure).
function colour(confidence) {
  return confidence >= 0.95 ? "transparent" : `hsl(${Math.round(50 * Math.max(0, confidence))} 90% 85%)`;
}

function play(word) {
  $("player").currentTime = word.start;
  $("player").play();
}

function show(result, sound) {
  words = result.words.map((word) => {
    const span = document.createElement("span");
    span.textContent = word.text;
    span.style.background = colour(word.confidence);
    span.title = `${word.start.toFixed(2)} to ${word.end.toFixed(2)} s, confidence ${word.confidence.toFixed(2)}`;
    span.addEventListener("click", () => play(word));
    return { ...word, span };
  });
  $("text").replaceChildren(...words.flatMap((word) => [word.span, " "]));
  const table = document.createElement("table");
  table.insertRow().innerHTML = "<th>word</th><th>from (s)</th><th>to (s)</th><th>confidence</th>";
  for (const word of result.words) {
    const row = table.insertRow();
    for (const [text, kind] of [[word.text, ""], [word.start.toFixed(2), "n"], [word.end.toFixed(2), "n"], [word.confidence.toFixed(2), "n"]]) {
      const cell = row.insertCell();
      cell.textContent = text;
      cell.className = kind;
    }
  }
  $("table").replaceChildren(table);
  URL.revokeObjectURL($("player").src);
  $("player").src = URL.createObjectURL(sound);
  $("player").hidden = false;
}

$("player").addEventListener("timeupdate", () => {
  const now = $("player").currentTime;
  for (const word of words) word.span.classList.toggle("now", word.start <= now && now < word.end);
});

async function transcribe(sound) {
  $("send").disabled = true;
  say("Listening …");
  try {
    const response = await fetch("transcribe", {
      method: "POST",
      headers: { "Content-Type": sound.type || "application/octet-stream" },
      body: sound,
    });
    const result = await response.json();
    if (!response.ok) throw new Error(result.error);
    show(result, sound);
    say(result.words.length ? `${result.duration.toFixed(1)} s of sound in ${result.seconds.toFixed(2)} s` : "No words were heard.");
  } catch (problem) {
    say(problem.message, true);
  } finally {
    $("send").disabled = false;
  }
}

$("send").addEventListener("click", () => {
  const [file] = $("file").files;
  if (file) transcribe(file);
  else say("Choose a sound file first, or record.", true);
});

// What the browser recorded, in a form of its own, as a WAV file of 16-bit samples.
async function asWav(blob) {
  const context = new OfflineAudioContext(1, 1, RATE);
  const samples = (await context.decodeAudioData(await blob.arrayBuffer())).getChannelData(0);
  const view = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const letters = (at, text) => [...text].forEach((letter, i) => view.setUint8(at + i, letter.charCodeAt(0)));
  letters(0, "RIFF"); view.setUint32(4, 36 + 2 * samples.length, true); letters(8, "WAVEfmt ");
  view.setUint32(16, 16, true); view.setUint16(20, 1, true); view.setUint16(22, 1, true);
  view.setUint32(24, RATE, true); view.setUint32(28, 2 * RATE, true); view.setUint16(32, 2, true); view.setUint16(34, 16, true);
  letters(36, "data"); view.setUint32(40, 2 * samples.length, true);
  samples.forEach((sample, i) => view.setInt16(44 + 2 * i, Math.round(32767 * Math.max(-1, Math.min(1, sample))), true));
  return new Blob([view], { type: "audio/wav" });
}

$("record").addEventListener("click", async () => {
  if (recorder) {
    recorder.stop();
    return;
  }
  try {
    const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
    const pieces = [];
    recorder = new MediaRecorder(stream);
    recorder.addEventListener("dataavailable", (event) => pieces.push(event.data));
    recorder.addEventListener("stop", async () => {
      const type = recorder.mimeType;
      recorder = null;
      stream.getTracks().forEach((track) => track.stop());
      $("record").textContent = "Record";
      $("record").className = "plain";
      try {
        await transcribe(await asWav(new Blob(pieces, { type })));
      } catch (problem) {
        say(`The recording cannot be used: ${problem.message}`, true);
      }
    });
    recorder.start();
    $("record").textContent = "Stop";
    $("record").className = "recording";
    say("Speak; then press Stop.");
  } catch (problem) {
    recorder = null;
    say(`No microphone: ${problem.message}`, true);
  }
});
