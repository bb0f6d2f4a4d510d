"""The inspection report: panels with a figure, a sentence and a table each, on one HTML page."""
