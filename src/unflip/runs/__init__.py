"""The run folder: configuration, model, label table and results."""
