"""Recordings of a denoiser's calls without a GPU."""

from rewardedit.diffusion.replaying import Replay


class Rerun(Replay):
    """Runs a recorded call again, on the tensors that it holds, where a GPU would replay its kernels."""

    calls = 0

    def can_record(self, tensors):
        return True

    def record(self, call):
        output = call()

        class Graph:
            def replay(_):
                self.calls += 1
                output[0].copy_(call()[0])

        return Graph(), output


class Frozen(Rerun):
    """Gives the output of the recorded call again: as kernels do that Python has no say in."""

    def record(self, call):
        _, output = super().record(call)

        class Graph:
            def replay(_):
                self.calls += 1

        return Graph(), output
