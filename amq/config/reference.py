"""The option table as documents: conf/amq.toml, which `python -m amq.config.reference` writes, and the second half of
docs/configuration.md, which `make docs` adds to the site and `amq config reference` prints.

Invariant: no text about one option is written by hand; a test compares conf/amq.toml with the table.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

from amq.config.destination_options import TABLE
from amq.config.option import SECTIONS, Option, ValueKind
from amq.config.schema import BY_KEY, OPTIONS

EXAMPLE_PATH = "conf/amq.toml"
PAGE_PATH = "docs/configuration.md"
_PLACEHOLDER = "<!-- `make docs` replaces the rest of this page. -->\n"
_COMMENT_CHARS = 110
_EXAMPLE_VALUES = {"store": "/mnt/shared/amq"}  # where the default, blank, would not show what to write


def example_file() -> str:
    """The text of conf/amq.toml: every option at its default, commented out, with its help."""
    lines = [
        "# Every option of an amq broker, at its default. Remove the # in front of an option to change it.",
        '# Durations: milliseconds or "500ms", "2s", "1m". Sizes: bytes or "64KiB", "32MiB", "1GiB", "10MB".',
        "# Generated from amq/config/ by `python -m amq.config.reference`; `amq config reference` says more.",
    ]
    for section, about in SECTIONS.items():
        lines += ["", *_comment(about), f"[{section}]"]
        for option in OPTIONS:
            if option.section == section:
                lines += ["", *_comment(option.help), *_comment(f"Why change it: {option.why}")]
                lines += _comment(f"{_facts(option)}.")
                lines.append(f"#{option.key} = {toml_value(option)}")
    lines += [
        "",
        *_comment("Options of single destinations: * stands for one word of a name, > for all further words."),
        *_comment(f"Possible: {', '.join(option.key for option in OPTIONS if option.destination)}."),
        f'#    [{TABLE}."orders.>"]',
        '#    queueLimit = "2GiB"',
        '#    queueLimitPolicy = "drop-oldest"',
    ]
    return "\n".join(lines) + "\n"


def complete(written: str, generated: str) -> str:
    """The page of the site: `written` as it is in the repository, with `generated` in place of what ends it there."""
    beginning, placeholder, _ = written.partition(_PLACEHOLDER)
    assert placeholder, "the page has no place for the generated part"
    return beginning + generated


def options_text() -> str:
    """Every option, by sections, in Markdown."""
    parts = list[str]()
    for section, about in SECTIONS.items():
        parts.append(f"## [{section}]\n\n{about}\n\n")
        parts += [_entry(option) for option in OPTIONS if option.section == section]
    parts.append(
        "## Names in other brokers\n\nOptions that have another name in ActiveMQ, Artemis or RabbitMQ. Meaning and "
        "unit may differ in detail.\n\n| There | Here |\n|---|---|\n"
    )
    parts += [f"| `{name}` | `{option.key}` |\n" for name, option in sorted(_elsewhere())]
    return "".join(parts)


def toml_value(option: Option) -> str:
    """The default of `option` as it is in a TOML file."""
    text = _EXAMPLE_VALUES.get(option.key, option.format(option.parse(option.default)))
    if option.kind in (ValueKind.TRANSPORTS, ValueKind.ADDRESSES):
        return f"[{', '.join(_quote(url) for url in text.split(',') if url)}]"
    return text if option.kind.is_bare else _quote(text)


def help_text(key: str) -> str:
    """One line for `--help` and `amq config show`: what the option is, its values and its default."""
    option = BY_KEY[key]
    return f"{option.help} ({_facts(option)}.)"


def main(root: str = ".") -> None:
    """Write conf/amq.toml below `root`, the top of the repository."""
    target = Path(root, EXAMPLE_PATH)
    target.parent.mkdir(exist_ok=True)
    target.write_text(example_file(), encoding="utf-8")


def _entry(option: Option) -> str:
    default = option.format(option.parse(option.default))
    rows = [f"### {option.key}\n\n{option.help}\n"]
    rows.append(f"- {option.kind.words}{_allowed(option)}; default {f'`{default}`' if default else 'blank'}")
    change = "live" if option.reload else "needs a restart"
    rows.append(f"- scope {option.scope.value}; {change}; environment `{option.variable}`")
    if option.minimum_reason:
        rows.append(f"- why not less: {option.minimum_reason}")
    rows.append(f"- why change it: {option.why}")
    return "\n".join(rows) + "\n\n"


def _facts(option: Option) -> str:
    default = option.format(option.parse(option.default))
    change = "applies live" if option.reload else "needs a restart"
    kind = option.kind.words[0].upper() + option.kind.words[1:]
    return f"{kind}{_allowed(option)}; default {default or 'blank'}; {change}"


def _allowed(option: Option) -> str:
    allowed = option.range_text()
    return f", {allowed}" if allowed else ""


def _elsewhere() -> list[tuple[str, Option]]:
    return [(name, option) for option in OPTIONS for name in option.elsewhere]


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, _COMMENT_CHARS, break_on_hyphens=False)]


def _quote(text: str) -> str:
    return f'"{text}"'


if __name__ == "__main__":
    main(*sys.argv[1:2])
