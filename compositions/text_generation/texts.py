"""Functions `start_text` and `end_text`: texts to numbers and back. They run in a sandbox."""

import json
import math
import random
from array import array
from typing import Any

LENGTH = 128
LAYERS, WIDTH = 2, 32
EMPTY, END, FIRST = 0, 1, 2
NEVER = -1e9  # as the noise of a character that is not to be chosen
CHARACTERS = "".join(map(chr, range(32, 127)))
VOCABULARY = FIRST + len(CHARACTERS)


def start_text(prompt: Any, options: Any) -> dict[str, dict[str, bytes]]:
    """Start one text.

    Args:
        prompt: one item, UTF-8; its name is that of the text.
        options: none, or one item, JSON: ``temperature`` (0: always the likeliest character) and
            ``seed`` of the random numbers.

    Returns:
        sets `text` (int64[1, 128]: numbers of characters, `EMPTY` behind them), `noise`
        (float32[1, 128, 97], added to the scores of each position), `position` (int64[1]), `keys`
        and `values` (float32[1, 2, 128, 32]: nothing is stored yet).

    Raises:
        ValueError: the prompt is too long, or an option is not valid.
    """
    (item,) = prompt
    numbers = numbers_of(bytes(item.data).decode())
    found = json.loads(bytes(options[0].data)) if options else {}
    temperature, seed = options_of(found)
    stored = bytes(4 * LAYERS * LENGTH * WIDTH)
    sets = {
        "text": array("q", numbers + [EMPTY] * (LENGTH - len(numbers))).tobytes(),
        "noise": noise_of(temperature, f"{seed} {item.name}"),
        "position": bytes(8),
        "keys": stored,
        "values": stored,
    }
    return {name: {item.name: data} for name, data in sets.items()}


def numbers_of(text: str) -> list[int]:
    """Give the numbers of a text's characters; what the network does not know is left out."""
    known = [FIRST + ord(one) - ord(" ") for one in text.lower() if one in CHARACTERS]
    if len(known) > LENGTH - 2:
        raise ValueError(
            f"the prompt has {len(known)} characters; at most {LENGTH - 2} are allowed"
        )
    return known or [FIRST]


def options_of(found: Any) -> tuple[float, int]:
    """Check the options; returns the temperature and the seed."""
    if not isinstance(found, dict) or not found.keys() <= {"temperature", "seed"}:
        raise ValueError('options are like {"temperature": 0.8, "seed": 1}')
    temperature, seed = found.get("temperature", 0), found.get("seed", 0)
    if type(temperature) not in (int, float) or not 0 <= temperature <= 10:
        raise ValueError("temperature: a number from 0 to 10 is expected")
    if type(seed) is not int:
        raise ValueError("seed: an integer is expected")
    return float(temperature), seed


def noise_of(temperature: float, seed: str) -> bytes:
    """Draw what makes the largest of the sums a random choice: float32[128, 97].

    `EMPTY` is never chosen. A score plus Gumbel noise times the temperature is the largest with the
    probability that softmax of the scores over the temperature gives. Source: Gumbel, Statistical
    theory of extreme values and some practical applications, 1954; Maddison et al., A* sampling,
    2014.
    """
    made = array("f", bytes(4 * LENGTH * VOCABULARY))
    if temperature:
        draw = random.Random(seed).random
        numbers = (max(draw(), 1e-300) for _ in made)
        made = array("f", (-temperature * math.log(-math.log(u)) for u in numbers))
    for position in range(LENGTH):
        made[position * VOCABULARY + EMPTY] = NEVER
    return made.tobytes()


def end_text(text: Any) -> dict[str, dict[str, bytes]]:
    """Write one text.

    Args:
        text: one item, int64[1, 128].

    Returns:
        set `text`: one item, UTF-8, of the same name.
    """
    (item,) = text
    return {"text": {item.name: text_of(array("q", bytes(item.data))).encode()}}


def text_of(numbers: Any) -> str:
    """Read the characters; other numbers are left out."""
    return "".join(CHARACTERS[one - FIRST] for one in numbers if one >= FIRST)
