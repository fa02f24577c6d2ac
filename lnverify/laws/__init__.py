"""The built-in laws, one file per family; every module here is imported by `lnverify.law.load_laws`.

A law judges Evaluations. It knows cases, bounds and outcomes; it never sees an adapter, a framework or the
runner. To add one: a function here, a mutant that it kills in `lnverify/mutants/`, a page in `docs/laws/`.
"""
