"""What README and docs say can be done: every command line of theirs is tried, every link of theirs leads somewhere."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "data" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMAND = re.compile(r"^(?:[A-Z_]+=\S* )*bash (?:scripts|data)/\S+\.sh\b.*$")


def blocks(text: str) -> list[str]:
    """Lines of code blocks, fenced or indented; a backslash joins lines."""
    lines, fenced = [], False
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            lines.append(re.sub(r"\s+#.*$", "", line).strip())
    return lines


def commands() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for line in blocks(page.read_text(encoding="utf-8")):
            if COMMAND.match(line) and not re.search(r"\[[a-z|]+\]|\.\.\.", line):  # not a pattern of usage
                found.append((str(page.relative_to(ROOT)), line))
    return list(dict.fromkeys(found))


def links() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if not re.match(r"[a-z]+:", target):
                found.append((str(page.relative_to(ROOT)), target))
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("page, line", commands(), ids=lambda value: value)
def test_a_command_line_is_understood(page: str, line: str, tmp_path: Path):
    """Run dry: its words and flags are read, checked, and what it would start is printed."""
    environment = {k: v for k, v in os.environ.items() if not re.match(r"(SQUAD|GLUE|DATA|RESULTS|BERT|ASR)_", k)}
    result = subprocess.run(
        ["bash", "-c", line],
        cwd=ROOT,
        env=environment | {"DRY_RUN": "true"},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    assert result.returncode == 0, f"{page}: {line}\n{result.stderr}"


@pytest.mark.parametrize("page, target", links(), ids=lambda value: value)
def test_a_link_leads_somewhere(page: str, target: str):
    path, _, anchor = target.partition("#")
    file = (ROOT / page).parent / path if path else ROOT / page
    assert file.exists(), f"{page}: {target}"
    if anchor:
        titles = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.M)
        anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
        assert anchor in anchors, f"{page}: no section {anchor} in {file.name}"


def test_files_that_are_named_exist():
    """Scripts, benchmarks and modules named in running text."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for name in re.findall(
            r"\b((?:scripts|benchmarks|configs|tests)/[\w/.]+\.(?:sh|py|yml|yaml|sub|json))\b", text
        ):
            assert (ROOT / name).exists(), f"{page.name}: {name}"
        for module in re.findall(r"python -m ((?:bert_tf|jasper_pt|data|runkit)(?:\.\w+)+)", text):
            path = ROOT / module.replace(".", "/")
            assert path.with_suffix(".py").exists() or (path / "__init__.py").exists(), f"{page.name}: {module}"


def test_messages_of_the_troubleshooting_page_are_those_of_the_code():
    sources = [path for folder in ("bert_tf", "jasper_pt", "runkit", "data") for path in (ROOT / folder).rglob("*.py")]
    sources += (ROOT / "scripts").rglob("*.sh")
    # Strings that are continued on the next line, and backslashes before quotes, are joined.
    code = "\n".join(re.sub(r'"\s*\n\s*f?"', "", path.read_text(encoding="utf-8")) for path in sources)
    for row in (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8").splitlines():
        message = re.match(r"\| `(.+?)` \|", row)
        for part in message[1].split("...") if message else []:
            assert part.strip() in code, f"{message[1]}: nothing says {part.strip()!r}"


def test_there_are_commands_and_links_to_look_at():
    assert len(commands()) > 20 and len(links()) > 20
    assert ("README.md", "bash scripts/quickstart.sh") in commands()
    assert shlex.split(commands()[0][1])[0] == "bash"
