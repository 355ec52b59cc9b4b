"""Weights that the package does not ship: real classes, random values."""

import pytest

from tests.scorers.golden.make_golden import write_random_weights


@pytest.fixture(scope="session")
def random_lpips(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with random AlexNet weights for LPIPS, laid out as the published ones."""
    folder = tmp_path_factory.mktemp("lpips")
    write_random_weights(folder, "alex")
    return str(folder)
