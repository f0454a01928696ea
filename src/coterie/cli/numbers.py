"""Numbers in a range, as options and arguments take them."""

from __future__ import annotations

import click


class WholeNumber(click.IntRange):
    """A whole number. What is none is said to be no `whole number`, where click says `integer range`."""

    name = "whole number"


class Number(click.FloatRange):
    """A number, with digits behind the point or not."""

    name = "number"
