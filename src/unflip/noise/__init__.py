"""Noise: clean labels in, noisy labels out.

``recipe.parse`` reads "pmd1:0.35 + sym:0.30" and ``corrupt.corrupt`` applies it; ``pmd`` and
``transition`` hold the mathematics. Reading a recipe imports no torch.
"""
