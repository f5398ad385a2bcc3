"""Experiments: a dataset of videos, a recipe, and what comes out of it. Everything below meets here."""
