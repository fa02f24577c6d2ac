"""What became of a subject over its commits: speed as ratios, accuracy as error over bound, verdicts.

Rules of this folder: numbers of different machines, of different settings and of different versions of lnverify are
never compared, for each is a series of its own; seconds are not kept. Nothing here runs a subject: the files that
`lnverify check --json` and `lnverify bench --json` wrote are read (reading.py), kept in one SQLite file (store.py),
searched for changes (changes.py) and shown or handed on (page.py, exports.py).
"""
