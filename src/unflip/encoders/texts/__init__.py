"""Text encoders: a column of texts in, rows of features out; one file per encoder."""

from unflip.registry import Entry, Registry

text_encoders = Registry(
    "text encoder",
    Entry(
        "wordllama",
        "mean of token vectors that come with the package wordllama (extra `text`); 256 features",
        "unflip.encoders.texts.wordllama:WordLlama",
    ),
    Entry("tfidf", "tf-idf of pieces of words, reduced by SVD; needs no extra", "unflip.encoders.texts.tfidf:Tfidf"),
    Entry(
        "sentence-transformers",
        "as sentence-transformers:NAME, a model of that package (extra `sentence-transformers`)",
        "unflip.encoders.texts.sentence_transformers:named",
        True,
    ),
)
"""What texts are encoded with; a target is a class of :class:`unflip.encoders.texts.base.TextEncoder`."""
