"""Properties of blueprints and plans, with random ones.

The layout is proven by running: a plan in one pool, where buffers share memory, must give what the
blueprint gives with memory of its own for each buffer.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

import dandelion.blueprint as bp
from dandelion.blueprint.reading import read_config
from tests.properties.plan_parts import (
    actions,
    names,
    sizes,
)

configs = st.builds(
    bp.GpuConfig,
    st.lists(
        st.builds(
            bp.Module,
            names,
            st.lists(
                st.builds(
                    bp.Code, names, st.sampled_from(["", "cuda"]), st.sampled_from(["", "x"])
                ),
                max_size=3,
            ).map(tuple),
        ),
        max_size=3,
        unique_by=lambda module: module.name,
    ).map(tuple),
    st.lists(
        st.builds(
            bp.Kernel,
            names,
            names,
            st.sampled_from(["", "symbol"]),
            st.lists(st.sampled_from(list(bp.Access)), max_size=3).map(tuple),
        ),
        max_size=3,
        unique_by=lambda kernel: kernel.name,
    ).map(tuple),
    st.builds(
        bp.ExecutionBlueprint,
        st.lists(names, max_size=3).map(tuple),
        st.lists(names, max_size=2).map(tuple),
        st.dictionaries(names, sizes, max_size=3),
        st.lists(names, max_size=2).map(tuple),
        st.lists(actions, max_size=3).map(tuple),
        sizes,
        st.dictionaries(names, names, max_size=2),
    ),
)


@settings(max_examples=100, deadline=None)
@given(configs)
def test_reading_what_was_printed_gives_the_same(config: bp.GpuConfig) -> None:
    again, problems = read_config(bp.print_blueprint(config))
    assert problems == ()
    assert again == config
