"""Evaluation: measure how well a method finds videos, and the moments in them.

metrics     ranks, recalls, SumR, overlap of moments
statistics  intervals over seeds and videos, tests between rows, power
moments     predictors of the moment that a query describes
evaluate    the evaluation of a method on batches of videos and queries
tables      tables in Markdown, LaTeX, CSV and JSON; TREC run files
collapse    similarity of the queries, and of the tokens, of one video
plots       learning curves, histograms of similarities, relevance over time
"""
