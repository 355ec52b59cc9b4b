"""`torch.compile` of an editor's denoiser: of the blocks that it repeats, compiled once for all of a kind.

Compiled blocks compute what the plain ones do, up to rounding. Hooks of the denoiser, as of mask guidance,
stay outside. The first call compiles for its size; from the second size on, sizes are dynamic. Inductor keeps
its kernels on disk (TORCHINDUCTOR_CACHE_DIR), where later runs find them.
"""

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class Compilation:
    """A backend of `torch.compile` that counts its graphs and the compiler's time.

    Where compiling fails, as without a compiler, graphs run as they are; one warning says so, and no further
    graph is tried.
    """

    backend: str = "inductor"
    graphs: int = 0
    seconds: float = 0.0
    failure: str | None = None  # why graphs run as they are

    def __str__(self) -> str:
        if self.failure is not None:
            return f"compile: not compiled ({self.failure})"
        return f"compile: {self.graphs} graphs, {self.seconds:.1f} s in the compiler"

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        """Called by torch with each graph that it meets."""
        if self.failure is not None:
            return graph.forward
        from torch._dynamo import lookup_backend  # slow to import

        began = time.monotonic()
        try:
            compiled = lookup_backend(self.backend)(graph, inputs)
        except Exception as error:  # compilers fail in many ways, and none of them is to end a run
            self.failure = (str(error).strip() or type(error).__name__).splitlines()[0]
            warnings.warn(
                f"compile: nothing was compiled, blocks run as they are: {self.failure}", stacklevel=2
            )
            return graph.forward
        self.graphs += 1
        self.seconds += time.monotonic() - began
        return compiled


def compile_blocks(denoiser: Any, backend: str = "inductor") -> Compilation:
    """Compiles the blocks that a denoiser repeats, in place, each kind at its first call.

    Returns:
        The record of it, to print once something was sampled.
    """
    compilation = Compilation(backend)
    denoiser.compile_repeated_blocks(backend=compilation)
    return compilation
