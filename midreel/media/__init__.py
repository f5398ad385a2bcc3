"""Video files: containers, decoding, cutting. The only package that imports PyAV."""
