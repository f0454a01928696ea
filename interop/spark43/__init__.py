"""The tests of `format("coterie")`, its sinks and the history on PySpark 4.3; the lock holds 4.2."""
