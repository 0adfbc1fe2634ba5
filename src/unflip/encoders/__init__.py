"""Encoders: raw examples in, rows of features out; one file per kind of example, and one per text encoder."""

from unflip.registry import Entry, Registry

encoders = Registry(
    "encoder",
    Entry("images", "images, by a pretrained backbone", "unflip.encoders.image:ImageEncoder"),
    Entry("table", "columns of numbers, categories, dates and texts", "unflip.encoders.table:TableEncoder"),
)  # of classes of unflip.encoders.base.Encoder

text_encoders = Registry(
    "text encoder",
    Entry(
        "wordllama",
        "mean of token vectors that come with the package wordllama (extra `text`); 256 features",
        "unflip.encoders.wordllama:WordLlama",
    ),
    Entry("tfidf", "tf-idf of pieces of words, reduced by SVD; needs no extra", "unflip.encoders.tfidf:Tfidf"),
    Entry(
        "sentence-transformers",
        "as sentence-transformers:NAME, a model of that package (extra `sentence-transformers`)",
        "unflip.encoders.sentence_transformers:named",
        True,
    ),
)  # of classes of unflip.encoders.base.TextEncoder
