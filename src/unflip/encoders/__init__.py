"""Encoders map raw examples to feature vectors; one module per kind of example, and one per text encoder."""

from unflip.registry import Entry, Registry

encoders = Registry(
    "encoder",
    [
        Entry("images", "images, by a pretrained backbone", "unflip.encoders.image:ImageEncoder"),
        Entry("table", "columns of numbers, categories, dates and texts", "unflip.encoders.table:TableEncoder"),
    ],
)  # of subclasses of unflip.encoders.base.Encoder

_SENTENCES = "sentence-transformers:NAME, a model of that package (extra `sentence-transformers`)"
text_encoders = Registry(
    "text encoder",
    [
        Entry("wordllama", "mean of token vectors, 256 features (extra `text`)", "unflip.encoders.wordllama:WordLlama"),
        Entry("tfidf", "tf-idf of character n-grams, reduced by SVD; no extra", "unflip.encoders.tfidf:Tfidf"),
        Entry("sentence-transformers", _SENTENCES, "unflip.encoders.sentence_transformers:named", True),
    ],
)  # of subclasses of unflip.encoders.base.TextEncoder
