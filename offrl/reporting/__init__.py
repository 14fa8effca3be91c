"""Everything that is shown: tables and progress on the terminal, pictures, the HTML page and its sections."""
