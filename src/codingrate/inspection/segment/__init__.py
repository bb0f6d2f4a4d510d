"""Objects in images that a model was not trained to find: MaskCut, and masks from the class token's attention."""
