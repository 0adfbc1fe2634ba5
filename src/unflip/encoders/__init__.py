"""Encoders map raw examples to feature vectors; one module per kind of example, and one of text encoders."""

from unflip.registry import Entry, Registry

encoders = Registry(
    "encoder",
    [
        Entry("images", "images, by a pretrained backbone", "unflip.encoders.image:ImageEncoder"),
        Entry("table", "columns of numbers, categories, dates and texts", "unflip.encoders.table:TableEncoder"),
    ],
)  # of subclasses of unflip.encoders.base.Encoder

_SENTENCES = "sentence-transformers:NAME, any model of that package; needs the `sentence-transformers` extra"
text_encoders = Registry(
    "text encoder",
    [
        Entry("wordllama", "mean of token vectors; needs the `text` extra", "unflip.encoders.text:WordLlama"),
        Entry("tfidf", "tf-idf of character n-grams, reduced by SVD; no extra", "unflip.encoders.text:Tfidf"),
        Entry("sentence-transformers", _SENTENCES, "unflip.encoders.text:named", family=True),
    ],
)  # of subclasses of unflip.encoders.text.TextEncoder
