"""Networks: ``encode(inputs) -> features``, ``head(features) -> logits``; one file an architecture."""

from unflip.registry import Entry, Registry

networks = Registry(
    "network",
    Entry("mlp", "fully connected layers, for feature arrays", "unflip.networks.mlp:MLP"),
)
