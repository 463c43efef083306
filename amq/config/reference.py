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

A broker needs only the store directory that it shares with the other brokers of its group. All other options have a
default.

    amq start --store /mnt/shared/amq --transport stomp://0.0.0.0:61613

`amq config show` prints the effective value of every option and its source. `amq config check FILE` finds the errors in
a file. [conf/amq.toml](../conf/amq.toml) lists every option at its default, commented out.

## Where values come from

A later source wins over an earlier one:

1. the defaults on this page;
2. the TOML file given to `amq start`, each option below the section under which this page lists it, or the
   [configuration of another broker](migration.md);
3. environment variables: `AMQ_` and the name in capitals, so `AMQ_STORE_LIMIT` for `storeLimit`;
4. `-o KEY=VALUE`, also `-o SECTION.KEY=VALUE`;
5. `--store`, `--name` and `--transport`.

A default follows the options that are set: `memoryLimit = 4MiB` alone lowers `maxFrameSize` and `maxTransactionSize`
to 4 MiB, and a larger `maxFrameSize` raises `maxTransactionSize`. `amq config show` names such values. Only
`memoryLimit` is never raised.

The broker does not start with an unknown option, a wrong unit, a value out of range, or options that contradict each
other. The error names each of them, with file and line, and says what to write instead. A variable that begins with
`AMQ_` and resembles no option is ignored with a warning, because other programs use such names, too. `AMQ_URL`,
`AMQ_LOGIN` and `AMQ_PASSCODE` belong to the client commands and cause no warning.

Relative paths in the file are relative to the file's directory, elsewhere to the working directory. `~` is the home
directory.

## Options of single destinations

    [destinations."orders.>"]
    queueLimit = "2GiB"

    [destinations."orders.audit"]
    queueLimitPolicy = "fail"

Options marked *single destinations* can have other values for some destinations. The name of such a table is a
destination's name or a pattern. `.` separates words, `*` stands for one word, and `>` at the end for all further words,
also none. `orders.>` matches `orders`, `orders.eu` and `orders.eu.north`; `orders.*` matches only the second of them.
Write the name without `queue://`, and in quotes because of the dots.

If several patterns match, each option comes from the most specific pattern that sets it. Patterns are compared word by
word from the left: a word is more specific than `*`, and `*` than `>`. In the example `orders.audit` has the limit
2 GiB and the policy fail. An option that no pattern sets has the value of its section. Such tables stand in the file
only, and apply as soon as it is saved.

## Units

| Kind | Written as |
|---|---|
| duration | whole milliseconds (`2000`) or text with a unit: `"500ms"`, `"2s"`, `"1m"`, `"1.5h"`, `"1d"` |
| size | bytes (`1048576`) or text with a unit: `"32MiB"`, `"1GiB"` (powers of 1024), `"10MB"` (powers of 1000) |
| number | a whole number, no unit |
| list of addresses | `["stomp://broker1.example.com:61613"]`, or blank; at most 8 |
| list of URLs | `["stomp://0.0.0.0:61613"]`; with commas between in the environment and after `-o` |

## Changes while the broker runs

The broker watches the file. Options marked *live* apply as soon as it is saved, to new connections and to later actions
of existing ones. The log names options that wait for a restart. A file with an error changes nothing, and the log
reports it; so does a file whose live options contradict others that wait for a restart. SIGHUP also reads the file
again: use it if the file system does not report changes, for example of a file edited on another host. The broker then
always logs the result. If a file does not answer for 10 s (its mount hangs), the broker logs that and goes on.

"""


def example_file() -> str:
    """The text of conf/amq.toml: every option at its default, commented out, with its help."""
    lines = [
        "# Every option of an amq broker, at its default. Remove the # in front of an option to change it.",
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
        "",
        *_comment("Options of single destinations: * stands for one word of a name, > for all further words."),
        *_comment(f"Possible: {', '.join(option.key for option in OPTIONS if option.destination)}."),
        f'#    [{TABLE}."orders.>"]',
        '#    queueLimit = "2GiB"',
        '#    queueLimitPolicy = "drop-oldest"',
    ]
    return "\n".join(lines) + "\n"


def reference_page() -> str:
    """The text of docs/configuration.md."""
    parts = [_INTRODUCTION]
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
    """The default of `option` as it stands in a TOML file."""
    text = _EXAMPLE_VALUES.get(option.key, option.format(option.parse(option.default)))
    if option.kind in (Kind.TRANSPORTS, Kind.ADDRESSES):
        return f"[{', '.join(_quote(url) for url in text.split(',') if url)}]"
    return text if option.kind.is_bare else _quote(text)


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
