"""A library: a directory that remembers videos, wherever they lie, so that they can be searched.

scanning    which files are videos
catalogue   what is known of files and videos: SQLite
windows     a long video in stretches that a method can take in
layout      the directory: what is where, who may write, which generation serves
tokens      from kept features to tokens in an index
looking     what is in the places of a library, beside what its catalogue knows
reports     what a run tells, in numbers and in words
writing     a library that is open for writing
running     from files to features to tokens, one video after the other
reindexing  new tokens from features that were kept
indexing    both, done to a library
watching    again whenever something has changed
filters     which of the videos are searched
summary     what a library holds, in words
"""
