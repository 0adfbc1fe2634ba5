"""Callbacks for the trainers of other libraries, one file each; they need the extra of the same name."""
