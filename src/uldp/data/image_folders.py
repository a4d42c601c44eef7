"""Folders of images as tables: CLASS/USER/IMAGE, or CLASS/IMAGE with a table ``users.csv`` of whose they are."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Final

from uldp.data.files import read_table
from uldp.data.image_columns import IMAGE_ENDINGS

if TYPE_CHECKING:
    import pandas as pd

USERS: Final = "users.csv"


def read_image_folder(folder: Path, wanted: Collection[str] | None) -> pd.DataFrame:
    """A row for each image below the folder: its file, its class (the first folder), its user.

    Args:
        folder: Where the classes are.
        wanted: The columns that matter; users are looked for only if theirs is among them. None for all.

    Raises:
        ValueError: There are no images; or some have no user, or one that nobody knows.
    """
    import pandas as pd

    files = sorted(
        (path.relative_to(folder) for path in folder.rglob("*") if path.suffix.lower() in IMAGE_ENDINGS),
        key=lambda path: path.parts,
    )
    files = [path for path in files if not any(part.startswith(".") for part in path.parts)]
    if not files:
        raise ValueError(f"a folder without images ({', '.join(IMAGE_ENDINGS)})")
    table = {
        "file": [path.as_posix() for path in files],
        "label": [path.parts[0] if len(path.parts) > 1 else "" for path in files],
    }
    if wanted is None or "user" in wanted:
        table["user"] = _users(folder, files)
    return pd.DataFrame(table, dtype="str")


def _users(folder: Path, files: list[Path]) -> list[str]:
    """Whose each image is."""
    if not (folder / USERS).is_file():
        lost = sum(len(path.parts) < 3 for path in files)
        if lost:
            reason = f"{lost} of {len(files)} images are not in folders CLASS/USER, and there is no {USERS}"
            raise ValueError(f"{reason} with the columns file and user that says whose they are")
        return [path.parts[1] for path in files]
    known = _read_users(folder / USERS)
    names = [path.as_posix() for path in files]
    lost = sum(name not in known for name in names)
    if lost or len(known) > len(names):
        left = len(known) - (len(names) - lost)
        raise ValueError(f"{USERS} lacks {lost} of the images and names {left} that are not there")
    return [known[name] for name in names]


def _read_users(file: Path) -> dict[str, str]:
    table = read_table(file, USERS, ("file", "user"))
    if set(table.columns) != {"file", "user"}:
        raise ValueError(f"{USERS} needs the columns file and user")
    names = [Path(name.strip()).as_posix() for name in table["file"]]
    if len(set(names)) < len(names):
        raise ValueError(f"{USERS} names an image twice")
    return dict(zip(names, table["user"], strict=True))
