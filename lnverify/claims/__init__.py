"""What is said about layer normalization, claim by claim, with a verdict and evidence that runs.

`ledger` holds the nouns (Document, Claim) and the registry, `reading` what evidence returns, `balls` the numbers
it computes with; then a file for each topic, as listed in `ledger.TOPICS`. `table1` decides the paper's Table 1, and
`empirical/` measures what can only be measured.
"""
