"""Six shapes of functions: one and many values, several results, options, files."""

from collections.abc import Iterator

import dandelion as dd


@dd.function
def shout(text: str) -> str:
    return text.upper()


@dd.function
def add(numbers: list[int]) -> int:
    return sum(numbers)


@dd.function
def lines(page: str) -> Iterator[str]:
    yield from page.splitlines()


@dd.function(outputs=["even", "odd"])
def divide(numbers: list[int]) -> tuple[list[int], list[int]]:
    return [n for n in numbers if n % 2 == 0], [n for n in numbers if n % 2]


@dd.function
def greet(name: str, greeting: str = "Hello", title: str | None = None) -> str:
    return f"{greeting} {title} {name}" if title else f"{greeting} {name}"


@dd.function(files={"stop.txt": b"the\na\n"})
def without_stop_words(text: str) -> str:
    stop = dd.files["stop.txt"].decode().split()
    return " ".join(word for word in text.split() if word not in stop)
