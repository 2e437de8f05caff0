"""Rules for elementary functions, remainders and powers.

The code generator's own formulas lose digits for some arguments: cosines of large numbers, inverse
functions of numbers whose square overflows, remainders with a long quotient, powers of integers.
Those here hold over the whole range of the type.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from dandelion.export.aten import NotSupported, Step, Tensor, rule

_SQUARE_IS_ALL = 1e8
"""From here on, 1 is below the last digit of a square, also in float64."""
_TURNS = 3
"""How often the argument of an arc tangent is halved, which leaves at most tan(pi / 32)."""
_ARC = [(-1) ** n / (2 * n + 1) for n in range(8)]
"""The series of the arc tangent, by the square of the argument."""
_ERROR = [2 / math.sqrt(math.pi) * (-1) ** n / math.factorial(n) / (2 * n + 1) for n in range(7)]
"""The series of the error function, likewise."""
_AREA = [1 / (2 * n + 1) for n in range(10)]
"""That of the inverse hyperbolic tangent."""
_SINH = [1 / math.factorial(2 * n + 1) for n in range(9)]
"""That of the hyperbolic sine."""
_GROWTH = [1 / math.factorial(n + 1) for n in range(12)]
"""The series of (exp(x) - 1) / x."""
_WHOLE = {"float32": 2.0**23, "float64": 2.0**52}
"""From here on, all numbers are whole."""
_UPPER_HALF = {"float32": ("int32", -1 << 12), "float64": ("int64", -1 << 27)}
"""The integer type of the same size, and a mask that leaves half of the digits."""


def _is_float(step: Step) -> bool:
    return step.dtype.startswith(("float", "bfloat"))


def _computed(step: Step) -> str:
    """The type that operands have here."""
    return step.dtype if step.dtype == "float64" else "float32"


# --- logarithms and exponentials ----------------------------------------------------------------


@rule("log1p")
def log1p(step: Step, x: Tensor) -> Tensor:
    """log(1 + x), which would lose the digits of a small x: that is 2 atanh(x / (2 + x))."""
    ratio = x / (x + 2)
    return (x.abs() < 0.5).where(ratio * _series(ratio * ratio, _AREA) * 2, (x + 1).log())


@rule("expm1")
def expm1(step: Step, x: Tensor) -> Tensor:
    """exp(x) - 1, for a small x by its series."""
    return (x.abs() < 0.5).where(x * _series(x, _GROWTH), x.exp() - 1)


@rule("erf")
def _erf(step: Step, x: Tensor) -> Tensor:
    return (x.abs() < 0.5).where(x * _series(x * x, _ERROR), x.erf())


# --- trigonometric functions ----------------------------------------------------------------------


@rule("cos")
def _cos(step: Step, x: Tensor) -> Tensor:
    half = (x * 0.5).sin()  # half of x is exact, its difference from a multiple of pi is not
    return 1 - half * half * 2


@rule("tan")
def _tan(step: Step, x: Tensor) -> Tensor:
    return x.sin() / _cos(step, x)


def _arc(ratio: Tensor) -> Tensor:
    """The arc tangent of a number from 0 to 1."""
    for _ in range(_TURNS):
        ratio = ratio / ((ratio * ratio + 1).sqrt() + 1)
    return ratio * _series(ratio * ratio, _ARC) * 2**_TURNS


def _series(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """The sum of the powers of `x` with these coefficients, beginning with that of 1."""
    *others, last = coefficients
    found = x * last + others.pop()
    for coefficient in reversed(others):
        found = found * x + coefficient
    return found


@rule("atan")
def _atan(step: Step, x: Tensor) -> Tensor:
    size = x.abs()
    beyond = size > 1
    arc = _arc(beyond.where(1 / size, size))
    return _with_sign(beyond.where(math.pi / 2 - arc, arc), x)


@rule("atan2")
def _atan2(step: Step, y: Tensor, x: Tensor) -> Tensor:
    across, up = x.abs(), y.abs()
    steep = up > across
    short, long = steep.where(across, up), steep.where(up, across)
    ratio = short.eq(long).where(1.0, short / long)  # of two infinite numbers, too
    arc = _arc(long.eq(0).where(0.0, ratio))
    arc = steep.where(math.pi / 2 - arc, arc)
    return _with_sign((x < 0).where(math.pi - arc, arc), y)


@rule("asin")
def _asin(step: Step, x: Tensor) -> Tensor:
    return _atan(step, x / ((1 - x) * (1 + x)).sqrt())


@rule("acos")
def _acos(step: Step, x: Tensor) -> Tensor:
    return _atan(step, ((1 - x) / (1 + x)).sqrt()) * 2


# --- hyperbolic functions -------------------------------------------------------------------------


@rule("tanh")
def _tanh(step: Step, x: Tensor) -> Tensor:
    grown = expm1(step, x.abs() * 2)
    return _with_sign((x.abs() > 20).where(1.0, grown / (grown + 2)), x)


@rule("sinh")
def _sinh(step: Step, x: Tensor) -> Tensor:
    half = (x.abs() * 0.5).exp()  # twice as far from the largest number
    far = half * 0.5 * half - (-x.abs()).exp() * 0.5
    return (x.abs() < 1).where(x * _series(x * x, _SINH), _with_sign(far, x))


@rule("asinh")
def _asinh(step: Step, x: Tensor) -> Tensor:
    size = x.abs()
    near = log1p(step, size + size * size / ((size * size + 1).sqrt() + 1))
    return _with_sign((size < _SQUARE_IS_ALL).where(near, size.log() + math.log(2)), x)


@rule("acosh")
def _acosh(step: Step, x: Tensor) -> Tensor:
    above = x - 1
    near = log1p(step, above + (above * (above + 2)).sqrt())
    found = (x < _SQUARE_IS_ALL).where(near, x.log() + math.log(2))
    return (x < 1).where(math.nan, found)


@rule("atanh")
def _atanh(step: Step, x: Tensor) -> Tensor:
    return log1p(step, x * 2 / (1 - x)) * 0.5


def _with_sign(size: Tensor, x: Tensor) -> Tensor:
    return (x < 0).where(-size, size)


# --- signs and whole numbers ----------------------------------------------------------------------


@rule("sign")
def _sign(step: Step, x: Tensor) -> Tensor:
    if step.dtype == "bool":
        return x
    dtype = _computed(step) if _is_float(step) else step.dtype
    return step.tensors.cast(x > 0, dtype) - step.tensors.cast(x < 0, dtype)


@rule("round")
def _round(step: Step, x: Tensor) -> Tensor:
    return _nearest(step, x) if _is_float(step) else x


def _nearest(step: Step, x: Tensor) -> Tensor:
    return (x.abs() < _WHOLE[_computed(step)]).where(x.round(), x)


# --- remainders -----------------------------------------------------------------------------------


def _as_tensor(step: Step, value: Any) -> Tensor:
    is_number = isinstance(value, int | float)
    return step.tensors.full((), value, _computed(step)) if is_number else value


@rule("fmod.Tensor", "fmod.Scalar")
def _fmod(step: Step, x: Tensor, y: Any) -> Tensor:
    if not _is_float(step):
        return x - x.div(y, rounding_mode="trunc") * y
    y = _as_tensor(step, y)
    rest = x
    for _ in range(2):  # a quotient may have more digits than the type
        rest = _reduced(step, rest, y)
    over = (rest * x < 0) & rest.ne(0)  # the quotient was rounded up
    rest = over.where(rest + _with_sign(y.abs(), x), rest)
    return (rest.eq(rest) & (rest.abs() >= y.abs())).where(0.0, rest)


def _reduced(step: Step, x: Tensor, y: Tensor) -> Tensor:
    """Take the whole multiple of `y` from `x`, with all digits of the product."""
    quotient = (x / y).trunc()
    rest = x
    for part in _halves(step, quotient):
        for other in _halves(step, y):
            rest = rest - part * other
    return quotient.eq(0).where(x, rest)


def _halves(step: Step, x: Tensor) -> tuple[Tensor, Tensor]:
    """Two numbers with half of the digits each, whose sum is `x`."""
    integer, mask = _UPPER_HALF[_computed(step)]
    upper = step.tensors.bits(step.tensors.bits(x, integer) & mask, _computed(step))
    return upper, x - upper


@rule("remainder.Tensor", "remainder.Scalar")
def _remainder(step: Step, x: Tensor, y: Any) -> Tensor:
    if not _is_float(step):
        return x % y
    rest = _fmod(step, x, y)
    return ((rest != 0) & ((rest < 0) != (y < 0))).where(rest + y, rest)


@rule("div.Tensor_mode", "div.Scalar_mode")
def _div(step: Step, x: Tensor, y: Any, rounding_mode: str | None = None) -> Tensor:
    if rounding_mode is None:
        return x / y
    if rounding_mode == "floor":
        return _floor_divide(step, x, y)
    return x.div(y, rounding_mode=rounding_mode)


@rule("floor_divide")
def _floor_divide(step: Step, x: Tensor, y: Any) -> Tensor:
    """The largest whole number whose product with `y` is not beyond `x`."""
    if not _is_float(step):
        return x.div(y, rounding_mode="floor")
    y = _as_tensor(step, y)
    quotient = (x - _remainder(step, x, y)) / y  # whole but for rounding
    return y.eq(0).where(x / y, _nearest(step, quotient))


# --- powers ---------------------------------------------------------------------------------------


@rule("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")
def _pow(step: Step, x: Any, y: Any) -> Tensor:
    if not _is_float(step):
        return _integer_power(step, x, y)
    if isinstance(x, int | float):
        if x <= 0:
            raise NotSupported(f"powers of the number {x}")
        return (y * math.log2(x)).exp2()
    if isinstance(y, int | float) and y == 0.5:
        return x.sqrt()
    return x.pow(y)


def _integer_power(step: Step, x: Any, y: Any) -> Tensor:
    """Multiply the squares of `x` that the bits of the exponent select; it wraps as torch's."""
    if isinstance(y, int):
        return x.pow(y)
    left, found = (y < 0).where(-y, y), y * 0 + 1
    for bit, square in enumerate(_squares(step, x)):
        found = ((left >> bit) & 1).ne(0).where(found * square, found)
        if bit % _STORED == _STORED - 1:
            found = step.tensors.store(found)
    if isinstance(x, int):
        return found if x in (1, -1) else (y < 0).where(0, found)
    odd = x.eq(1) | (x + 1).eq(0)  # the only ones whose negative powers are not 0
    return ((y < 0) & odd.logical_not()).where(0, found)


def _squares(step: Step, x: Any) -> Iterator[Any]:
    """Give `x`, its square, the square of that, for each bit of an exponent."""
    signed = not step.dtype.startswith("u")
    bits = _BITS[step.dtype]
    for bit in range(bits - signed):
        yield x
        x = x * x
        if not isinstance(x, int):
            x = step.tensors.store(x) if bit % _STORED == _STORED - 1 else x
        else:
            x %= 1 << bits
            x -= (x >> (bits - 1) << bits) * signed


_STORED = 8
"""The code generator computes bounds of all values, which may get too long."""
_BITS = {"int8": 8, "uint8": 8, "int16": 16, "int32": 32, "int64": 64}
