"""Model files on disk: finding them, checking them, and turning their tensors into float32 arrays.

This room knows file formats and tensor names; it knows nothing about models, engines or kernels.
"""
