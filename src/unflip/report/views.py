"""Views: the picture of an example or the beginning of its text, for pages that hold everything themselves."""

from dataclasses import dataclass

from unflip.data.preview import Pictures, Rows
from unflip.errors import InputError, UnflipError
from unflip.report.page import embedded
from unflip.runs.folder import Run

_SIDE = 160  # pixels
_CHARACTERS = 300  # of a text


@dataclass(frozen=True)
class Views:
    """What there is to see of a run's examples: pictures, texts or neither."""

    pictures: Pictures | None = None
    rows: Rows | None = None
    note: str | None = None
    """Why pictures or texts are missing, if they are."""

    @property
    def small(self) -> bool:
        """Whether the pictures are so small that single pixels should stay visible."""
        return self.pictures is not None and self.pictures.media_type == "image/png"

    def picture(self, place: int) -> str | None:
        """Return a picture as a data URL; None if there is none or its file was damaged or removed since the run."""
        if self.pictures is None:
            return None
        try:
            return embedded(self.pictures.thumbnail(place, _SIDE), self.pictures.media_type)
        except InputError:
            return None

    def text(self, place: int) -> str | None:
        """Return the beginning of a text, in one line; None where examples are no texts."""
        text = self.rows.text(place) if self.rows else None
        if text is None:
            return None
        line = " ".join(text[: 4 * _CHARACTERS].split())
        return line if len(line) <= _CHARACTERS and len(text) <= 4 * _CHARACTERS else f"{line[:_CHARACTERS].rstrip()}…"


def open_views(run: Run, data: str | None) -> Views:
    """Find the pictures or texts of a run; ``data`` is where the data is now, if it was moved."""
    what = "images"
    try:
        pictures = run.pictures(data)
        if pictures is not None:
            return Views(pictures)
        if run.text_columns:
            what = "texts"
            if (rows := run.rows(data)) is not None:
                return Views(rows=rows)
        if data is not None:
            raise InputError(
                f"--data {data}: holds no pictures or texts, and a report shows nothing else of it; leave it out"
            )
    except UnflipError as error:
        if data is not None:  # given explicitly
            raise
        return Views(note=f"The {what} are missing ({error}).")
    return Views()
