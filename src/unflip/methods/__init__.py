"""Methods for training with noisy labels, one file each, and their registry."""

from unflip.registry import Entry, Registry

methods = Registry(
    "method",
    [
        Entry("unflip", "cross-fitted ensemble that scores and corrects labels", "unflip.methods.unflip.pixels:unflip"),
        Entry("standard", "cross-entropy on the given labels", "unflip.methods.base:Standard"),
        Entry("gce", "generalized cross-entropy, a noise-robust loss", "unflip.methods.gce:GCE"),
        Entry("sl", "symmetric cross-entropy: cross-entropy plus its reverse", "unflip.methods.sl:SL"),
        Entry("coteaching+", "two networks select examples for each other", "unflip.methods.coteaching:Coteaching"),
        Entry("lrt", "label correction by likelihood ratio (AdaCorr)", "unflip.methods.lrt:LRT"),
        Entry("plc", "progressive label correction", "unflip.methods.plc:PLC"),
        Entry("mddc", "plc with mean-based calibration of the class Gaussians", "unflip.methods.mddc:mddc"),
        Entry("cddc", "plc with covariance-based calibration of the class Gaussians", "unflip.methods.mddc:cddc"),
        Entry("elr", "cross-entropy with a penalty that keeps early predictions", "unflip.methods.elr:ELR"),
        Entry("elr+", "elr with two networks, averaged weights and mixup", "unflip.methods.elr:ELRPlus"),
        Entry("ssr", "relabels confident examples, trains where neighbors agree", "unflip.methods.ssr:SSR"),
        Entry(
            "dividemix", "two networks split the data to train semi-supervised", "unflip.methods.dividemix:DivideMix"
        ),
        Entry("dividemix-m", "dividemix with mean-based calibration", "unflip.methods.dividemix:dividemix_m"),
        Entry("dividemix-c", "dividemix with covariance-based calibration", "unflip.methods.dividemix:dividemix_c"),
    ],
)
SUFFIXES = {"m": "mean", "c": "covariance"}
"""NAME-m and NAME-c are the method NAME with calibration."""
calibrators = tuple(SUFFIXES.values())
"""Kinds of calibration; each has a section of options."""
