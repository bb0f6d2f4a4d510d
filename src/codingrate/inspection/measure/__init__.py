"""Measures of a model: the trace of a forward pass, rates by layer, subspaces, attention, logit lens, sparse units."""
