"""The experiments: which claims each is about, and how it is run. Nothing heavy is imported before one runs."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from lnverify.claims.empirical.effect import Outcome
from lnverify.errors import FrameworkError, UsageError

COMMAND = "lnverify claims --empirical"
INSTALL = {"torch": "pip install torch", "sklearn": "pip install scikit-learn", "matplotlib": "pip install matplotlib"}
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Experiment:
    """name: as asked for, and of its file torch_<name>.py; claims: ids in the ledger; arms: how often it tells."""

    name: str
    title: str
    claims: tuple[str, ...]
    arms: int
    needs: tuple[str, ...] = ("torch", "sklearn")

    @property
    def command(self) -> str:
        """How to run it."""
        return f"{COMMAND} {self.name}"

    def run(self, tell: Tell) -> Outcome:
        """Run it at full size."""
        module = importlib.import_module(f"lnverify.claims.empirical.torch_{self.name}")
        start = time.perf_counter()
        outcome: Outcome = module.run(tell=tell)
        return replace(outcome, seconds=time.perf_counter() - start)


EXPERIMENTS = (
    Experiment("convergence", "Steps to a loss, with and without layer norm in recurrent cells", ("A80", "B12"), 18),
    Experiment("rates", "Learning rates that work, with and without layer norm", ("B21",), 8),
    Experiment("scales", "Scales of the initial weights that work, with and without layer norm", ("B21",), 2),
    Experiment("batches", "Layer norm and batch norm with batches of 4 and of 128", ("A81", "B11"), 6),
    Experiment("maps", "Layer norm and batch norm in a small convolutional network", ("A60",), 3),
    Experiment("time", "Gradients through time in a recurrent network", ("A45", "B45", "A80"), 2, ("torch",)),
    Experiment("depth", "Gradients through the blocks of a Transformer", ("B47",), 3, ("torch",)),
    Experiment("cost", "Time of layer norm beside the product before it", ("B70",), 1, ("torch",)),
)


def experiments_of(claim: str) -> tuple[Experiment, ...]:
    """The experiments about a claim, by its id."""
    return tuple(entry for entry in EXPERIMENTS if claim in entry.claims)


def select_experiments(words: tuple[str, ...] = ()) -> tuple[Experiment, ...]:
    """The experiments with these names, or about the claims with these ids; all without a word.

    Raises UsageError for a word that is neither.
    """
    chosen: list[str] = []
    for word in words:
        fits = [e.name for e in EXPERIMENTS if e.name == word.lower() or word.upper() in e.claims]
        if not fits:
            names = ", ".join(entry.name for entry in EXPERIMENTS)
            raise UsageError(f"there is no experiment {word!r}, nor one about a claim with that id: there are {names}.")
        chosen += fits
    return tuple(entry for entry in EXPERIMENTS if entry.name in chosen or not words)


def check_installed(packages: tuple[str, ...]) -> None:
    """Find out before a run what is missing. Raises FrameworkError with the command that installs it."""
    for package in packages:
        try:
            importlib.import_module(package)
        except ImportError:
            name = INSTALL[package].split()[-1]
            raise FrameworkError(f"--empirical needs {name}, which cannot be imported: {INSTALL[package]}.") from None


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread of torch: sums have one order, and a time is that of one core."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
