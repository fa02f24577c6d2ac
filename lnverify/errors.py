"""One exception for each step of a check; every message is one sentence for the person at the keyboard.

Rules of this file: a user error says what was given, what is allowed and what to do. The command line turns
any `LnverifyError` into that sentence and the exit status of its class; nothing else may reach a user as a
traceback.
"""

from __future__ import annotations


class LnverifyError(Exception):
    """Base of every error that a user can cause. `exit_status` is what the command line returns for it."""

    exit_status = 2


class UsageError(LnverifyError):
    """An argument is not one of the allowed values (law id, dtype, device, profile, report file)."""


class TargetError(LnverifyError):
    """Step 'resolve': the target string names nothing that can be found."""


class FrameworkError(LnverifyError):
    """Step 'load': a framework or module that the target needs cannot be imported; says how to install it."""


class SignatureError(LnverifyError):
    """Step 'load': the parameters of a callable cannot be matched to x, weight, bias, eps, normalized_shape."""


class InternalError(LnverifyError):
    """A fault of lnverify itself, never of the subject."""

    exit_status = 4
