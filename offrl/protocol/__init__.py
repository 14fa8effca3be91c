"""What scores mean: normalisation, statistics, reproducing and comparing published tables."""
