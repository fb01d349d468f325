"""What can go wrong, by who has to act.

    MillstreamError
      CheckFailed       exit 1: a check found something (a finding, not a fault of use)
      UsageError        exit 2: wrong command line, wrong folder, impossible request
        RecipeError     exit 2: the recipe is wrong; names the file, line and field
      InputError        exit 3: the data is bad; names the file and the record
      SetupError        exit 3: the machine lacks something; says how to get it
      Interrupted       exit 3: somebody stopped the work; what was done is saved

Every message is one line: what is wrong with the value, what was expected, what to do.
``millstream.cli.main`` is the only place that catches them.
"""


class MillstreamError(Exception):
    """Base of all errors that a user can act on."""

    exit_code = 3


class CheckFailed(MillstreamError):
    """A verification ran to its end and found a difference."""

    exit_code = 1


class UsageError(MillstreamError):
    """The request cannot be carried out as it was made."""

    exit_code = 2


class RecipeError(UsageError):
    """The recipe does not describe something that can be built or trained."""


class InputError(MillstreamError):
    """A file is missing, short, altered or malformed."""


class SetupError(MillstreamError):
    """The machine or the Python environment lacks something."""


class Interrupted(MillstreamError):
    """The work was stopped from outside, and can be gone on with."""
