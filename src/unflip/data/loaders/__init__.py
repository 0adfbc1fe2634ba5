"""Loaders: one file per kind of data; see :class:`unflip.data.loader.Loader`."""
