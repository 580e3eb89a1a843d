"""How long a benchmark takes: launches, rounds, and what is timed in each."""

from __future__ import annotations

from dataclasses import dataclass

from storage.errors import ConfigurationError


@dataclass(frozen=True)
class Profile:
    """The size of a benchmark.

    Parameters
    ----------
    launches
        Fresh processes.
    rounds
        Rounds in each launch; a round times one block of every candidate.
    block_s
        Least seconds of a block.
    warm_up_calls, warm_up_s
        Least number of calls, and least seconds, before a candidate's first timed block.
    single_calls
        Calls timed one by one, for percentiles, over all launches.
    single_s
        Most seconds for these calls per candidate and launch.
    repeats
        Whether an inconclusive benchmark is repeated once. A quick one is not: two launches seldom settle what two did
        not, and who asks for it wants to wait two minutes, not four.
    """

    name: str
    launches: int
    rounds: int
    block_s: float = 0.1
    warm_up_calls: int = 10
    warm_up_s: float = 1.0
    single_calls: int = 1000
    single_s: float = 0.3
    repeats: bool = True


PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile("quick", launches=2, rounds=4, single_s=0.1, repeats=False),
        Profile("standard", launches=5, rounds=8),
        Profile("full", launches=10, rounds=10),
    )
}


def profile_named(name: str) -> Profile:
    """The profile of that name.

    Raises
    ------
    ConfigurationError
        There is none.
    """
    try:
        return PROFILES[name]
    except KeyError:
        raise ConfigurationError(f'There is no profile "{name}".', hint=f"Use one of: {', '.join(PROFILES)}.") from None
