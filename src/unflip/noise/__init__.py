"""Label noise: clean labels in, noisy labels out.

``recipe.parse`` reads "pmd1:0.35 + sym:0.30" and ``corrupt.corrupt`` applies it; ``pmd`` and ``transition`` hold the
mathematics. Parsing a recipe does not import torch.
"""
