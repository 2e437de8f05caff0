"""Strategies for parts of plans."""

from __future__ import annotations

from hypothesis import strategies as st

import dandelion.blueprint as bp

names = st.sampled_from(["A", "B", "cfg", "weights_1", "größe"])
numbers = st.integers(-(2**70), 2**70)
dtypes = st.sampled_from(list(bp.ScalarType))
plain_sizes: st.SearchStrategy[bp.Size] = st.one_of(
    st.builds(bp.Absolute, numbers),
    st.builds(bp.Sizeof, names),
    st.builds(bp.FromInput, names, st.integers(-5, 100)),
    st.builds(bp.Elements, names, dtypes),
    st.builds(bp.ByBatch, numbers, st.booleans()),
)


sizes: st.SearchStrategy[bp.Size] = st.recursive(
    plain_sizes,
    lambda inner: st.one_of(
        st.builds(bp.Add, st.lists(inner, min_size=1, max_size=3).map(tuple)),
        st.builds(bp.Mul, st.lists(inner, min_size=1, max_size=3).map(tuple)),
        st.builds(bp.CeilDiv, inner, inner),
    ),
    max_leaves=6,
)


@st.composite
def scalars(draw: st.DrawFn) -> bp.Scalar:
    dtype = draw(dtypes)
    if dtype.is_float:
        return bp.Scalar(dtype, draw(st.floats(allow_nan=False, allow_infinity=False)))
    return bp.Scalar(
        dtype, draw(numbers | sizes.filter(lambda size: not isinstance(size, bp.Absolute)))
    )


arguments = st.one_of(st.builds(bp.Ptr, names), scalars(), st.builds(bp.Raw, st.binary(max_size=9)))
launch_configs = st.builds(bp.LaunchConfig, *[sizes] * 7)
kernels = st.builds(
    bp.ExecKernel, names, st.lists(arguments, max_size=4).map(tuple), launch_configs
)


places = st.builds(bp.BufferPart, names, sizes)
matrices = st.builds(bp.Matrix, names, sizes, st.booleans(), st.none() | sizes, st.none() | sizes)
factors = st.floats(-1e300, 1e300)
gemms = st.builds(
    bp.Gemm, matrices, matrices, matrices, *[sizes] * 4, st.none() | matrices, factors, factors,
    st.none() | places, *map(st.sampled_from, (bp.BiasAxis, bp.ElementType, bp.Computation)),
    st.sampled_from(bp.Activation),
)  # fmt: skip


pairs = st.tuples(sizes, sizes)
convolutions = st.builds(
    bp.Conv2d, places, places, places, *[sizes] * 5, *[pairs] * 4, sizes, st.none() | places,
    st.none() | places, *map(st.sampled_from, (bp.ImageLayout, bp.ElementType, bp.Computation)),
    st.sampled_from(bp.Activation),
)  # fmt: skip


plain_actions = st.one_of(
    kernels,
    st.builds(bp.CopyBuffer, names, names),
    st.builds(bp.ZeroBuffer, names),
    gemms,
    convolutions,
)


actions: st.SearchStrategy[bp.Action] = st.recursive(
    plain_actions,
    lambda inner: st.one_of(
        st.builds(bp.Repeat, sizes, st.lists(inner, max_size=3).map(tuple)),
        st.builds(
            bp.Candidates,
            st.lists(st.lists(inner, max_size=2).map(tuple), max_size=3).map(tuple),
        ),
        st.builds(
            bp.Choose,
            st.lists(sizes, max_size=2).map(tuple),
            st.lists(
                st.builds(
                    bp.Case,
                    st.integers(0, 9),
                    st.lists(inner, max_size=3).map(tuple),
                    st.dictionaries(names, sizes, max_size=2),
                ),
                max_size=2,
            ).map(tuple),
        ),
        st.builds(bp.RepeatWhile, sizes, names, st.lists(inner, max_size=3).map(tuple)),
    ),
    max_leaves=5,
)
