"""Files that are read again when they have changed. What cannot be used leaves in force what was read before."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

logger = logging.getLogger(__name__)

Value = TypeVar("Value")


class UnusableFileError(OSError):
    """A file that the planner was told to use and cannot use."""


class KeptFile(Generic[Value]):
    """What some files said when they could last be used."""

    def __init__(self, what: str, paths: tuple[Path, ...], read: Callable[[tuple[bytes, ...]], Value]) -> None:
        """Reads the files for the first time.

        Args:
            what: names them in logs and errors, such as `certificate`.
            paths: where they are.
            read: makes the value of their contents; raises ValueError or OSError for what it cannot use. Its messages
                are logged: they must not quote what is secret.

        Raises:
            UnusableFileError: when they cannot be used.
        """
        self.what = what
        self._paths, self._read = paths, read
        self._complaint = ""
        self._num_failures = 0
        try:
            self._contents = self._read_paths()
            self.value: Value = read(self._contents)
            """Replaced as a whole, so that any thread may look."""
        except (OSError, ValueError) as error:
            raise UnusableFileError(self._describe(error)) from error

    @property
    def is_refused(self) -> bool:
        """Whether the files have changed into something that cannot be used, twice in a row."""
        return bool(self._complaint)

    def refresh(self) -> bool:
        """Reads the files again; True when that has made a new value. Blocks on the disk, and never raises."""
        try:
            contents = self._read_paths()
            if contents == self._contents:
                self._complaint, self._num_failures = "", 0
                return False
            value = self._read(contents)
            if self._read_paths() != contents:
                return False  # being written: the next time
        except (OSError, ValueError) as error:
            self._num_failures += 1
            if self._num_failures > 1:  # the first may have been between two files that are replaced one by one
                self._complain(self._describe(error))
            return False
        self._contents, self.value, self._complaint, self._num_failures = contents, value, "", 0
        logger.info("the %s has changed and is in force", self.what)
        return True

    def _complain(self, complaint: str) -> None:
        if complaint != self._complaint:
            logger.error("%s; the last one stays in force", complaint)
        self._complaint = complaint

    def _read_paths(self) -> tuple[bytes, ...]:
        return tuple(path.read_bytes() for path in self._paths)

    def _describe(self, error: Exception) -> str:
        return f"cannot use the {self.what} in {', '.join(map(str, self._paths))}: {error}"
