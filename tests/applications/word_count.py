"""Words of many pages."""

import re
from collections import Counter

import dandelion as dd

WORD = re.compile(r"\w+")
STOP = {"the", "a", "of"}


def words(page):
    return [word for word in WORD.findall(page.lower()) if word not in STOP]


@dd.function
def count(page: str) -> dict:
    return Counter(words(page))


@dd.function
def total(counts: list[dict]) -> dict:
    return sum(map(Counter, counts), Counter())


@dd.composition
def word_count(pages):
    return total(count(dd.each(pages)))
