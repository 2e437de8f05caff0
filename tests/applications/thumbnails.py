"""Thumbnails of pictures, and a contact sheet of them."""

import io

import numpy as np
from PIL import Image

import dandelion as dd

SIZE = (32, 32)


@dd.function
def thumbnail(picture: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(picture)) as image:
        return np.asarray(image.convert("RGB").resize(SIZE))


@dd.function
def sheet(thumbnails: list[np.ndarray]) -> bytes:
    png = io.BytesIO()
    Image.fromarray(np.hstack(thumbnails)).save(png, "PNG")
    return png.getvalue()


@dd.composition
def contact_sheet(pictures):
    return sheet(thumbnail(dd.each(pictures)))
