"""Stamp: what the features of an image depend on besides the image, kept with features and with models of them."""

from dataclasses import asdict, dataclass
from shlex import quote


@dataclass(frozen=True)
class Stamp:
    """How images became features; a model that learnt from features needs new ones that were made in the same way."""

    backbone: str
    weights: str
    """Hash of the backbone's weights."""
    image_size: int
    image_resize: int
    resample: str

    def differences(self, other: "Stamp") -> list[str]:
        """Say what is different in ``other``: ``image_size 224, not 112``."""
        mine, theirs = asdict(self), asdict(other)
        return [f"{key} {theirs[key]}, not {value}" for key, value in mine.items() if theirs[key] != value]

    def command(self, images: str, out: str = "new.npz") -> str:
        """Return the command that makes such features of ``images``; weights from a file have to be named besides."""
        resample = f" --resample {self.resample}" if self.resample != "bilinear" else ""
        sizes = f"--image-size {self.image_size} --image-resize {self.image_resize}"
        return f"unflip embed {quote(images)} --backbone {self.backbone} {sizes}{resample} --out {out}"
