"""The form in which checks report."""

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Offence:
    """One place where the text breaks a rule. `text` is what the allow-list names."""

    path: str
    line: int
    check: str
    message: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.check}: {self.message}: {self.text}"
