"""Compiled code: how kernels are compiled and kept on disk, vectors as values of numba, work on threads.

Users are the trainer (``learners/kernels``) and the ring arithmetic (``crypto/ring_kernels``).
"""
