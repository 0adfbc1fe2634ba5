"""Methods: what to learn from a batch, and what to do between epochs; one file a method."""

from unflip.registry import Entry, Registry

methods = Registry(
    "method",
    Entry("standard", "cross-entropy on the labels as they came", "unflip.methods.standard:Standard"),
    Entry("gce", "generalised cross-entropy, a loss that wrong labels pull less", "unflip.methods.gce:GCE"),
    Entry("sl", "symmetric cross-entropy: cross-entropy plus its reverse", "unflip.methods.sl:SL"),
)
