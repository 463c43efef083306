"""Names and patterns of destinations, as options write them."""

from __future__ import annotations

from amq.core.destination import ANY_REST, ANY_WORD, REST_TEXT, WORD_TEXT, pattern_words

TEXT_CHARS_MAX = 4096  # of the value of an option


def parse_pattern(text: str) -> tuple[str, ...]:
    """The words of a pattern. Raises ValueError with a sentence that tells the cure."""
    if len(text) > TEXT_CHARS_MAX:
        raise ValueError(f"is longer than {TEXT_CHARS_MAX} characters")
    words = pattern_words(text)
    if not all(words):
        raise ValueError('has an empty word: write words with one dot between, such as "orders.eu.>"')
    if "/" in text or any(character.isspace() or not character.isprintable() for character in text):
        raise ValueError('must be a bare name or pattern such as "orders.>": no queue://, no slash, no space')
    if ANY_REST in words[:-1]:
        raise ValueError('has a ">" before its end: ">" stands for all further words, "*" for one')
    for word in words:
        if word not in (ANY_WORD, ANY_REST) and (WORD_TEXT in word or REST_TEXT in word):
            raise ValueError(f'has the word "{word}": "*" and ">" each stand for whole words')
    return words
