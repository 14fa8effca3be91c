"""Everything that draws: the HTML page, its sections, pictures, console tables."""
