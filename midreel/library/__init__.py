"""A library: a directory that remembers videos, wherever they lie, so that they can be searched.

scanning    which files are videos
catalogue   what is known of files and videos: SQLite
windows     a long video in stretches that a method can take in
layout      the directory: what is where, who may write, which generation serves
tokens      from kept features to tokens in an index
indexing    from files to features to tokens, one video after the other; and new tokens from kept features
watching    again whenever something has changed
filters     which of the videos are searched
summary     what a library holds, in words
"""
