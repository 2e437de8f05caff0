"""Messages to a shop, made of parts, so that the tree needs no files of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .tally_topics import TOPICS

_OPENINGS = (
    "",
    "hello, ",
    "hi, ",
    "good morning, ",
    "sorry to bother you again, ",
    "please help: ",
)
_CLOSINGS = (
    "", ".", " thanks!", " please look into it.", " i have been waiting since monday.",
    " my order number is {number}.", " could you reply today?",
)  # fmt: skip
_THINGS = ("lamp", "keyboard", "bicycle helmet", "kettle", "backpack", "printer", "headphones")
_BODIES = {
    "billing": (
        "you charged me twice for the {thing}", "the invoice for the {thing} has the wrong address",
        "i was billed {number} euros too much", "my refund for the {thing} never arrived",
        "which taxes are on the receipt", "the discount code was not subtracted from the price",
    ),
    "delivery": (
        "my {thing} has not arrived yet", "the parcel with the {thing} was left at a neighbour",
        "where is my shipment now", "the courier never rang at my door",
        "can i change the delivery address of the {thing}", "tracking says lost in the depot",
    ),
    "fault": (
        "the {thing} broke after {number} days", "the {thing} does not switch on",
        "there is a crack in the {thing}", "the {thing} makes a loud noise and stops working",
        "a screw of the {thing} was missing in the box", "the battery of the {thing} gets too hot",
    ),
    "account": (
        "i cannot log in to my account", "the password reset mail does not come",
        "please delete my profile and all my data", "someone else uses my user name",
        "how do i change my email address", "my account was locked after {number} attempts",
    ),
    "praise": (
        "i love my new {thing}", "great service, the {thing} is wonderful",
        "best shop ever, i will come back", "your support team was so friendly and quick",
        "the {thing} is even better than i hoped", "five stars for the lovely {thing}",
    ),
}  # fmt: skip


def write(count: int, seed: int) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Write messages.

    Returns:
        The messages, and the index in `TOPICS` of each.
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, len(TOPICS), count)

    def one(label: int) -> str:
        parts = (_OPENINGS, _BODIES[TOPICS[label]], _CLOSINGS)
        text = "".join(part[rng.integers(len(part))] for part in parts)
        return _misspelt(
            text.format(thing=_THINGS[rng.integers(len(_THINGS))], number=rng.integers(2, 9999)),
            rng,
        )

    return [one(int(label)) for label in labels], labels


def _misspelt(text: str, rng: np.random.Generator) -> str:
    """Exchange two neighbouring letters of some messages."""
    if rng.random() < 0.7:
        return text
    at = int(rng.integers(len(text) - 1))
    return text[:at] + text[at + 1] + text[at] + text[at + 2 :]
