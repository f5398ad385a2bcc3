"""What a method has learned, beyond whether it finds the video.

collapse  how alike the queries, and the tokens, of one video have become; how much of the backbone's text space is left
plots     learning curves, histograms of similarities, a query's relevance over a video
"""
