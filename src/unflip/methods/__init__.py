"""Methods: what to learn from a batch, and what to do between epochs; one file per method."""

from unflip.registry import Entry, Registry

methods = Registry(
    "method",
    Entry("unflip", "a committee that judges every label out of sample", "unflip.methods.unflip:Unflip"),
    Entry("standard", "cross-entropy on the given labels", "unflip.methods.standard:Standard"),
    Entry("gce", "generalised cross-entropy, a loss less affected by wrong labels", "unflip.methods.gce:GCE"),
    Entry("sl", "symmetric cross-entropy: cross-entropy plus its reverse", "unflip.methods.sl:SL"),
    Entry("coteaching+", "two networks select examples for each other", "unflip.methods.coteaching:Coteaching"),
    Entry("lrt", "label correction by likelihood ratio (AdaCorr)", "unflip.methods.lrt:LRT"),
    Entry("plc", "progressive label correction", "unflip.methods.plc:PLC"),
    Entry("mddc", "plc with mean-based calibration of the class Gaussians", "unflip.methods.recipes:mddc"),
    Entry("cddc", "plc with covariance-based calibration of the class Gaussians", "unflip.methods.recipes:cddc"),
    Entry("dividemix", "two networks split the data and guess doubtful labels", "unflip.methods.dividemix:DivideMix"),
    Entry("dividemix-m", "dividemix with mean-based calibration", "unflip.methods.recipes:dividemix_m"),
    Entry("dividemix-c", "dividemix with covariance-based calibration", "unflip.methods.recipes:dividemix_c"),
)
