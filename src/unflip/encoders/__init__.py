"""Encoders: raw examples in, rows of features out; one file per kind of example."""

from unflip.registry import Entry, Registry

encoders = Registry(
    "encoder",
    Entry("images", "images, by a pretrained backbone", "unflip.encoders.images:ImageEncoder"),
    Entry("table", "columns of numbers, categories, dates and texts", "unflip.encoders.table:TableEncoder"),
)
"""What data is encoded with; a target is a class of :class:`unflip.encoders.base.Encoder`."""
