"""Small training runs and measurements on what the ledger calls empirical: `lnverify claims --empirical`.

`experiments` lists them, `effect` says what one returns and bounds it over seeds, `tasks` makes the data. A file for
each experiment, torch_<name>.py, holds its `run`; `torch_layers`, `torch_recurrent` and `torch_training` are what
they share. A result here is a measurement: it passes or fails nothing.
"""
