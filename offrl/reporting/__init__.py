"""Everything that is shown, by any command.

Foundations: `console` (the terminal), `canvas` (PNG pictures), `progress` (bars).
One file per thing that is shown, with its table, picture and files: `data_card`, `run_scores` and `run_picture`,
`selection` and `selection_splits`, `selection_benchmark`, `published_table`, `comparison`, `dynamics`, `training_help`.
The HTML page: `report` makes it from what `collect` gathers, with `sections` and `selection_sections`, whose blocks are
from `page` and whose pictures are from `pictures`.
"""
