"""Two administrators and their clients at one broker: what one does in pieces meets everybody else's."""
