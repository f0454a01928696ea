"""What `python -m bench.pairs` reads of what `python -m bench` prints."""

from __future__ import annotations

import pytest
from bench.__main__ import line_of
from bench.figures import Figure, Goal, Samples
from bench.pairs import FIGURE


@pytest.mark.parametrize("unit", ["x", "ms", "records/s", "M records/s", "%", ""])
@pytest.mark.parametrize("samples", [{"coterie": [1234.5]}, {"coterie": [1234.5], "kafka": [3.0]}], ids=len)
def test_a_figure_of_any_unit_is_read_back(unit: str, samples: Samples):
    figure = Figure("claim", "records: read, two cores", unit, Goal(1.0, "own", at_most=True), samples)

    found = FIGURE.match(line_of(figure))

    assert found is not None
    assert (found["what"], found["value"]) == ("records: read, two cores", "1,234.500")
