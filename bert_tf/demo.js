"use strict";
const $ = (id) => document.getElementById(id);

function say(text, isError = false) {
  $("status").textContent = text;
  $("status").className = isError ? "error" : "";
}

// The answer within its surroundings; offsets count code points, strings UTF-16 units.
function inContext(context, start, end) {
  const points = Array.from(context), part = (from, to) => points.slice(Math.max(0, from), to).join("");
  const line = document.createElement("div"), mark = document.createElement("mark");
  mark.textContent = part(start, end);
  line.append(start > 60 ? "…" : "", part(start - 60, start), mark, part(end, end + 60), end + 60 < points.length ? "…" : "");
  return line;
}

function show(answer, context) {
  const box = document.createElement("div"), text = document.createElement("b"), asked = document.createElement("span");
  box.className = "answer";
  asked.className = "soft";
  asked.textContent = `${answer.question} (probability ${answer.probability.toFixed(2)})`;
  text.textContent = answer.answer || "The text does not say.";
  box.append(asked, text);
  if (answer.answer) box.append(inContext(context, answer.start, answer.end));
  $("answers").prepend(box);
}

$("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const context = $("context").value, question = $("question").value;
  $("ask").disabled = true;
  say("Reading …");
  try {
    const response = await fetch("answer", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ context, questions: [question] }),
    });
    const result = await response.json();
    if (!response.ok) throw new Error(result.error);
    result.answers.forEach((answer) => show(answer, context));
    say(`${result.seconds.toFixed(2)} s`);
  } catch (problem) {
    say(problem.message, true);
  } finally {
    $("ask").disabled = false;
  }
});
