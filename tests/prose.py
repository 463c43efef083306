"""The prose of a document or of a Python file, without its code, and the sentences in it that are no plain English.

`python -m tests.prose DIR`, a part of `make lint`, fails where a sentence of a document, or of a text in the code,
begins with a relative clause. It writes the prose of every document below DIR, line for line, for linters that know no
Markdown: `make lint` runs proselint on it. DIR must be below build/, because the documents keep their names there.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from amq.cli import reference

ROOT = Path(__file__).resolve().parent.parent
PAGES = [path for pages in ("*.md", "docs/*.md", "examples/*/*.md") for path in sorted(ROOT.glob(pages))]
CODE = ("amq", "cli", "examples", "migrate", "spark")
_FENCED = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_INDENTED = re.compile(r"(?<=\n\n)(?:(?: {4}|\t).*\n|\n(?= {4}))+")
_INLINE = re.compile(r"`[^`\n]+`")
_TARGET = re.compile(r"\]\([^)\s]+\)")
_HEADING = re.compile(r"^(#+ .*)$", re.MULTILINE)

# A sentence begins at the start of a line, of a list's item or of a table's cell, and behind a full stop.
_START = r"(?:^[ ]*(?:[-*] +|\d+\. +)?|(?<=[.:;!?] )|(?<=\| )|(?<=\*\* )|(?<=^- \*\*))"
_RELATIVE = re.compile(
    _START + r"((?:Who|Whoever|What|Whatever|Which(?: ones)?|One (?:that|who|which)|Those (?:that|who)|That which"
    r"|(?:Of|To|For|By|From|With|In) (?:whom|what|which|who|whoever|whatever))\b[^.?!|]*[.?!|]?)",
    re.MULTILINE,
)


@functools.cache
def _generated() -> dict[Path, str]:
    return {ROOT / path: text for path, text in reference.pages(ROOT).items()}


def text_of(page: Path) -> str:
    """The page as the site shows it, with its generated part."""
    return _generated().get(page) or page.read_text()


def _blank(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n")


def of_document(text: str) -> str:
    """Markdown without code and link targets; the number of each line stays. A heading ends with a full stop."""
    for pattern in (_FENCED, _COMMENT, _INDENTED):
        text = pattern.sub(_blank, text)
    text = _TARGET.sub("]", _INLINE.sub("code", text))
    return _HEADING.sub(r"\1.", text)


def of_python(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each docstring and of each string with at least four words: help, errors, events of the log."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value.split()) >= 4:
            yield node.lineno, _INLINE.sub("code", node.value)


def relative_sentences(text: str) -> Iterator[tuple[int, str]]:
    """(line, sentence) of those that begin with a relative clause. Questions and headings may begin so."""
    for match in _RELATIVE.finditer(text):
        line = text.count("\n", 0, match.start(1))
        if not match[1].endswith("?") and not text.split("\n")[line].lstrip().startswith("#"):
            yield line + 1, " ".join(match[1].split())


def complaints() -> Iterator[str]:
    for page in PAGES:
        for line, text in relative_sentences(of_document(text_of(page))):
            yield f"{page.relative_to(ROOT)}:{line}: {text}"
    for path in (path for folder in CODE for path in sorted((ROOT / folder).rglob("*.py"))):
        for line, text in of_python(path.read_text()):
            yield from (f"{path.relative_to(ROOT)}:{line}: {found}" for _, found in relative_sentences(text))


def main(directory: Path) -> str | None:
    if ROOT / "build" not in directory.resolve().parents:
        return f"{directory} is not below build/: it would overwrite documents there"
    for page in PAGES:
        copy = directory / page.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(of_document(text_of(page)))
    found = list(complaints())
    return "\n".join(["name the subject first:", *found]) if found else None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
