"""How well a method finds videos, and the moments in them.

metrics   ranks, recalls, SumR; overlap of moments: numbers from tensors
moments   ways to predict the one part of a video that a query describes, to be compared
evaluate  a method on batches of videos and queries, one pair of batches at a time -> Report
tables    Markdown, CSV, JSON and LaTeX tables; TREC run files
"""
