"""Escape untrusted text before printing; and words that several messages share."""

import shlex
import unicodedata
from pathlib import Path

HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")  # of Unicode's categories: control characters, and what shows nothing


def readable(text: str, keep: str = "") -> str:
    """The text with what does not show itself written out, such as control characters and bytes that are no text.

    ESC becomes \\x1b, a line break \\n. Those in `keep` stay as they are.
    """
    return "".join(repr(one)[1:-1] if one not in keep and unicodedata.category(one) in HIDDEN else one for one in text)


def one_line(text: str, longest: int = 2000) -> str:
    """A message of a backend as a part of ours: one readable line, cut where it is too long."""
    line = readable(" ".join(text.split()))
    return line if len(line) <= longest else f"{line[:longest]} …"


def counted(number: int, noun: str) -> str:
    """1 picture, 1,000 pictures. The noun takes an s."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


started = ["qcn"]  # the command that runs: in `qcn.cli.main` maybe a user's file that adds a network (docs/ideas.md)


def command_line(*words: object) -> str:
    """A command to copy into a shell, also where a folder has spaces in its name, or begins with a dash."""
    return shlex.join(
        f"./{word}" if isinstance(word, Path) and str(word).startswith("-") else str(word) for word in words
    )
