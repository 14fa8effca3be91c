"""What scores mean: tidy tables of scores, comparisons of algorithms, published tables reproduced."""
