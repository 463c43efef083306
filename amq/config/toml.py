"""Values of options as TOML text, which the loader reads again as the same values."""

from __future__ import annotations

from amq.config.option import Option, Value


def value_text(option: Option, value: Value) -> str:
    """The value of `option` as it stands behind the `=` of a TOML file."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(quote, value))}]"
    text = option.format(value)
    return text if option.kind.is_bare else quote(text)


def quote(text: str) -> str:
    """A TOML basic string. Values hold no control characters: the loader rejects them."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
