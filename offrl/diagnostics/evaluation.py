"""."""

MEASUREMENTS = ()
