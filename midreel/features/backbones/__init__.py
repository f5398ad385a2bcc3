"""Backbones: frozen encoders of images and texts."""
