"""A recording on disk: the newest file and a few older ones, so that it never fills the disk."""

from pathlib import Path

#: A file ends at this size, and so many are kept: `R`, and `R.1`, `R.2`, … from newer to older.
SIZE = 512 * 1024 * 1024
FILES = 4


class RecordingFile:
    """Appends line by line to `path`; the file that is full becomes `path.1`. Not safe across threads."""

    def __init__(self, path: Path, *, size: int = SIZE, files: int = FILES) -> None:
        self._path, self._size, self._files = path, size, files
        self._file = path.open("ab", buffering=0)
        self._written = self._file.tell()
        self._begun = True  # a process that starts knows nothing of what stands there already

    def write(self, line: bytes) -> None:
        self._file.write(line + b"\n")
        self._written += len(line) + 1

    def begun(self) -> bool:
        """Turns a full file over. True once per file, and once per process."""
        if self._written >= self._size:
            self._turn()
            return True
        begun, self._begun = self._begun, False
        return begun

    def close(self) -> None:
        self._file.close()

    def _turn(self) -> None:
        self._file.close()
        for number in range(self._files - 1, 0, -1):
            older = self._path if number == 1 else self._numbered(number - 1)
            if older.exists():
                older.replace(self._numbered(number))
        self._file = self._path.open("ab", buffering=0)
        self._written, self._begun = 0, False

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")
