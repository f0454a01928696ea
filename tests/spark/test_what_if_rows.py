"""What if, on Spark: the rows are those that one process comes to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coterie.base.errors import CoterieError

CAPTURES = Path(__file__).resolve().parents[3] / "shared" / "captures" / "kafka-4.3.1"

pytestmark = pytest.mark.skipif(not CAPTURES.is_dir(), reason="the captures are not beside this checkout")


def test_spark_answers_what_one_process_answers_and_refuses_what_it_refuses(spark: Any):
    from coterie.cli.history import histories_in
    from coterie.simulate.what_if.what_if import answers, questions
    from coterie.spark.history import read_directory
    from coterie.spark.whatif import SCHEMA, what_if

    found = read_directory(spark, CAPTURES)
    asked = ["group.instance.id=on|off"]
    told = what_if(found, asked)

    wanted = [question for one in asked for question in questions(one)]
    here = [tuple(row) for history in histories_in(CAPTURES) for row in answers(history, wanted)]
    rows = [(*row[:3], tuple(row.causes), *row[4:]) for row in told.collect()]
    assert told.schema == SCHEMA
    assert len(rows) == 5 * 3
    assert sorted(rows) == sorted(here)
    with pytest.raises(CoterieError, match=r"did you mean group\.instance\.id"):
        what_if(found, ["group.instance.ids=on"])
