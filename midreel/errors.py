"""The exceptions that midreel raises. Each message states the value, the expectation and the remedy.

A class exists where a caller reacts differently. Catch `MidreelError` to catch all of them.

MidreelError
├── BadSetting          an argument or option is out of range: fix the call
│   ├── UnknownName     no method, dataset, backbone or option has this name: the message lists the names
│   └── BadQuery        a query is empty, or its operators are misplaced: fix the query
├── BadBatch            arrays or tensors do not fit together: fix the code that made them
├── BadPackage          an optional or third-party package is missing or cannot be used: install or update it
├── BadAnnotation       annotations contradict themselves or their videos: fix the dataset
├── BadModel            a model, checkpoint or export cannot be read: choose another or download it again
├── BadRun              a run folder belongs to another run or is damaged: choose another folder
├── TrainingDiverged    a loss is not a number: change the recipe
├── UnreadableVideo     a file yields no frames: skip it
│   └── MissingVideo    the file is missing or its disk cannot be read: try again later
├── BadFeatures         features are empty, not finite or of the wrong width: extract the video again
├── MissingFeatures     features were not extracted: extract them
├── FingerprintMismatch features come from another backbone or other settings: use the same ones
├── BadStore            a feature store is damaged or of another version: repair it
├── BadIndex            an index is damaged or of another version: rebuild it from the features
│   └── MissingTokens   the index does not contain this video: leave it out of the result
├── BadLibrary          a library is damaged or of another version: repair it
│   └── MissingLibrary  no library is there: create it, or mount its disk
├── MissingFeedback     there is no feedback with this id: list what there is
├── Unreachable         a server, a cluster or another process does not answer: start it, or try again later
├── Locked              another process is writing to the store, index, library or run: try again later
└── Unwritable          the disk is full or the folder is read-only: free space and run again
"""

from collections.abc import Iterable
from difflib import get_close_matches

NEAR = 0.7  # difflib's ratio: a change of one letter in three is too much, one in four is a typing error


class MidreelError(Exception):
    """The base class of all exceptions that midreel raises on purpose."""


class BadSetting(MidreelError, ValueError):
    """An argument, an option or a value in a settings file is out of range."""


class UnknownName(BadSetting):
    """No method, dataset, backbone or option has this name."""

    @classmethod
    def among(cls, kind: str, name: object, known: Iterable[str], *, listed: str = "") -> "UnknownName":
        """Return the error for a wrong name, with the nearest known name and all known names.

        Args:
            kind: The kind of thing that is named, such as "method".
            name: The wrong name.
            known: All valid names.
            listed: Where the names are listed. The message then refers to that place and does not list them.
        """
        names = list(known)
        spellings = {each.lower(): each for each in names}
        near = [spellings[each] for each in get_close_matches(str(name).lower(), spellings, n=1, cutoff=NEAR)]
        all_of_them = f"all {len(names)} are listed in {listed}" if listed else f"choose one of: {', '.join(names)}"
        if near:
            return cls(f"no {kind} {name!r}; did you mean {near[0]!r}? {all_of_them[0].upper()}{all_of_them[1:]}")
        return cls(f"no {kind} {name!r}; {all_of_them}")


class BadQuery(BadSetting):
    """A query has no words, or its operators do not fit together."""


class BadBatch(MidreelError, ValueError):
    """Arrays or tensors have the wrong shape, type or values, or contradict each other."""


class BadPackage(MidreelError, ValueError):
    """An optional package is not installed, or a method of a third-party package cannot be used."""


class BadAnnotation(MidreelError, ValueError):
    """Annotations cannot be read, contradict themselves, or do not fit their videos."""


class BadModel(MidreelError, ValueError):
    """A model folder or checkpoint cannot be read, or an export does not compute what the model computes."""


class BadRun(MidreelError, ValueError):
    """A run folder belongs to another run, or has damaged files."""


class TrainingDiverged(MidreelError, ValueError):
    """A loss is not a number, so training stopped."""


class UnreadableVideo(MidreelError, ValueError):
    """A file cannot be decoded into frames."""


class MissingVideo(UnreadableVideo):
    """A video file does not exist, or its disk cannot be read now."""


class BadFeatures(MidreelError, ValueError):
    """The features of a video are empty, not finite, or of the wrong width."""


class MissingFeatures(MidreelError, ValueError):
    """The features of a video or query were not extracted."""


class FingerprintMismatch(MidreelError, ValueError):
    """Features were made with another backbone or other settings than expected."""


class BadStore(MidreelError, ValueError):
    """A feature store is damaged, or of another version."""


class BadIndex(MidreelError, ValueError):
    """An index is damaged, of another version, or of another library."""


class MissingTokens(BadIndex):
    """The index does not contain a video, or only a part of its tokens."""


class BadLibrary(MidreelError, ValueError):
    """A folder is a damaged library, or a library of another version."""


class MissingLibrary(BadLibrary):
    """A folder is not a library, or does not exist."""


class MissingFeedback(MidreelError, ValueError):
    """A library has no feedback with this id."""


class Unreachable(MidreelError, ValueError):
    """A server, a cluster or another process does not answer, has ended, or refuses the connection."""


class Locked(MidreelError, ValueError):
    """Another process is writing to the feature store, the index, the library or the run."""


class Unwritable(MidreelError, ValueError):
    """The disk is full, or the folder cannot be written."""


def expect_text(name: str, text: str) -> None:
    """Raise BadSetting if a text is not valid UTF-8.

    Python turns invalid bytes of a command line into lone surrogates.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadSetting(f"{name} is {text!r}, expected UTF-8. Check the encoding of your terminal.") from error
