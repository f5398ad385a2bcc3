"""How well a method finds videos, and the moments in them.

metrics   ranks, recalls, SumR; overlap of moments: numbers from tensors
moments   ways to predict the one part of a video that a query describes, to be compared
evaluate  a method on batches of videos and queries, one pair of batches at a time -> Report
tables    Markdown, CSV, JSON and LaTeX tables; TREC run files
collapse  how alike the queries, and the tokens, of one video are; how much of the text space is left
plots     learning curves, histograms of similarities, a query's relevance over a video
"""
