"""Noise: clean labels in, noisy labels out.

``recipe.parse`` reads "pmd1:0.35 + sym:0.30" and ``corrupt.corrupt`` applies it; ``pmd``, ``transition``, ``maps``
and ``definition`` hold the mathematics. Reading a recipe imports no torch.
"""
