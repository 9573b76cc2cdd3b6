"""Is the softmax a Boltzmann distribution, identity by identity?"""

from attnlab.pytest_plugin.plugin import Confirmed


def test_thermodynamics(confirmed: Confirmed, backend: str) -> None:
    """ln Z, energy, heat capacity and response obey the identities to the precision of the format."""
    confirmed("thermodynamics", backend)
