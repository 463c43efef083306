"""The option table as documents: conf/amq.toml and docs/configuration.md. `python -m amq.config.reference` writes both.

Invariant: nothing about an option is written by hand in these two files; a test compares them with the table.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

from amq.config.destinations import TABLE
from amq.config.option import SECTIONS, Kind, Option
from amq.config.schema import BY_KEY, OPTIONS

EXAMPLE_PATH = "conf/amq.toml"
PAGE_PATH = "docs/configuration.md"
_COMMENT_CHARS = 110
_EXAMPLE_VALUES = {"store": "/mnt/shared/amq"}  # where the default, blank, would not show what to write

_INTRODUCTION = """\
# Configuration

<!-- Generated from amq/config/schema.py by `python -m amq.config.reference`: change it there. -->

A broker needs one thing: the store directory that it shares with the other brokers of its group.
Everything else has a default.

    amq start --store /mnt/shared/amq --transport stomp://0.0.0.0:61613

`amq config show` prints the effective value of every option and where it came from; `amq config check FILE` says what
is wrong with a file. [conf/amq.toml](../conf/amq.toml) is a file with every option, commented out at its default.

## Where values come from

The later wins:

1. the defaults on this page;
2. the TOML file given to `amq start`: each option below the section that this page lists it under;
3. environment variables: `AMQ_` and the name in capitals, `lockKeepAlivePeriod` is `AMQ_LOCK_KEEP_ALIVE_PERIOD`;
4. `-o KEY=VALUE`, also `-o SECTION.KEY=VALUE`;
5. `--store`, `--name` and `--transport`.

An unknown option, a wrong unit, a value out of range and options that contradict each other stop the broker from
starting. The error names each of them, with file and line, and says what to write instead. Variables that start with
`AMQ_` and resemble no option are ignored with a warning, because other programs use such names too; `AMQ_URL`,
`AMQ_LOGIN` and `AMQ_PASSCODE`, which are for the commands that talk to a broker, without one.

Relative paths in the file are relative to the file's directory, elsewhere to the working directory; `~` is the home
directory.

## Options of single destinations

    [destinations."orders.>"]
    queueLimit = "2GiB"

    [destinations."orders.audit"]
    queueLimitPolicy = "fail"

The options that are marked *single destinations* can have other values for some of them. A table's name is a
destination's name or a pattern: `.` separates words, `*` stands for one word, `>` at the end for all further words,
also none. `orders.>` is `orders`, `orders.eu` and `orders.eu.north`; `orders.*` is only the second of them. Write the
name without `queue://` and in quotes, since it holds dots.

Where several patterns match, each option comes from the most specific one that sets it: compared word by word from the
left, a word is more specific than `*`, and `*` than `>`. So above `orders.audit` has the limit of 2 GiB and the policy
fail. What no pattern sets has the value of the section that this page lists it under. Such tables stand in the file
only, and apply as soon as it is saved.

## Units

| Kind | Written as |
|---|---|
| duration | whole milliseconds (`2000`) or text with a unit: `"500ms"`, `"2s"`, `"1m"`, `"1.5h"`, `"1d"` |
| size | bytes (`1048576`) or text with a unit: `"32MiB"`, `"1GiB"` (powers of 1024), `"10MB"` (powers of 1000) |
| number | a whole number, no unit |
| list of URLs | `["stomp://0.0.0.0:61613"]`; with commas between in the environment and after `-o` |

## Changes while the broker runs

The file is watched. Options marked *live* apply as soon as it is saved, to new connections and to what existing
connections do next; for the others the log says that they wait for a restart. A file with an error changes nothing and
is reported, and so does one whose live options contradict what still waits for a restart. SIGHUP reads the file again
too, where the file system does not tell of changes (a file edited on another host).

"""


def example_file() -> str:
    """The text of conf/amq.toml: every option at its default, commented out, with its help."""
    lines = [
        "# Every option of an amq broker, at its default. Take away the # in front of an option to change it.",
        '# Durations: milliseconds or "500ms", "2s", "1m". Sizes: bytes or "64KiB", "32MiB", "1GiB", "10MB".',
        "# Generated from amq/config/schema.py by `python -m amq.config.reference`; docs/configuration.md says more.",
    ]
    for section, about in SECTIONS.items():
        lines += ["", *_comment(about), f"[{section}]"]
        for option in OPTIONS:
            if option.section == section:
                lines += ["", *_comment(option.help), *_comment(f"Why change it: {option.why}")]
                lines += _comment(f"{_facts(option)}.")
                lines.append(f"#{option.key} = {toml_value(option)}")
    lines += [
        "", *_comment("What single destinations have of their own: * stands for one word of a name, > for the rest."),
        *_comment(f"Possible: {', '.join(option.key for option in OPTIONS if option.destination)}."),
        f'#    [{TABLE}."orders.>"]', '#    queueLimit = "2GiB"', '#    queueLimitPolicy = "drop-oldest"',
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def reference_page() -> str:
    """The text of docs/configuration.md."""
    parts = [_INTRODUCTION]
    for section, about in SECTIONS.items():
        parts.append(f"## [{section}]\n\n{about}\n\n")
        parts += [_entry(option) for option in OPTIONS if option.section == section]
    parts.append(
        "## Names in other brokers\n\nAn option that is called otherwise in ActiveMQ, Artemis or RabbitMQ; meaning and "
        "unit may differ in detail.\n\n| There | Here |\n|---|---|\n"
    )
    parts += [f"| `{name}` | `{option.key}` |\n" for name, option in sorted(_elsewhere())]
    return "".join(parts)


def toml_value(option: Option) -> str:
    """The default of `option` as it stands in a TOML file."""
    text = _EXAMPLE_VALUES.get(option.key, option.format(option.parse(option.default)))
    if option.kind is Kind.TRANSPORTS:
        return f"[{', '.join(_quote(url) for url in text.split(','))}]"
    return text if option.kind in (Kind.INTEGER, Kind.BOOLEAN) else _quote(text)


def help_text(key: str) -> str:
    """One line for `--help` and `amq config show`: what the option is, its values and its default."""
    option = BY_KEY[key]
    return f"{option.help} ({_facts(option)}.)"


def main(root: str = ".") -> None:
    """Write both files below `root`, the top of the repository."""
    for path, text in ((EXAMPLE_PATH, example_file()), (PAGE_PATH, reference_page())):
        target = Path(root, path)
        target.parent.mkdir(exist_ok=True)
        target.write_text(text, encoding="utf-8")


def _entry(option: Option) -> str:
    default = option.format(option.parse(option.default))
    rows = [f"### {option.key}\n\n{option.help}\n"]
    rows.append(f"- {option.kind.words}{_allowed(option)}; default {f'`{default}`' if default else 'blank'}")
    where = "; single destinations" if option.destination else ""
    rows.append(f"- {'live' if option.reload else 'needs a restart'}{where}; environment `{option.variable}`")
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
