"""Parts that benchmarks/cuda.py runs, each as a separate process: python -m cuda_parts refl [--tiny],
with this checkout and its folder benchmarks on PYTHONPATH.

A part writes its figures to the file named by $FIGURES, again after each figure, so that a part that is cut
off leaves those that it has. Errors within a part are recorded and the part continues;
it then ends with exit code 1.
"""
