"""Starts steps on the ranks of one model replica and waits for their results."""

from turing_engine.plan.plan import Plan, Result
from turing_engine.run.masks import Masks
from turing_engine.run.runner import Runner


class Ticket:
    """A launched step."""

    def __init__(self, runner: Runner, plan: Plan, masks: Masks | None) -> None:
        self._runner = runner
        self._plan = plan
        self._masks = masks

    def wait(self) -> Result:
        """Return what the step computed; raises what the runner raised."""
        return self._runner.run(self._plan, self._masks)


class Executor:
    """One rank, in this process: the step is computed in ``Ticket.wait``, on the waiting thread."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def launch(self, plan: Plan, masks: Masks | None = None) -> Ticket:
        """Hand ``plan`` to the ranks; ``masks`` are for the one that samples."""
        return Ticket(self._runner, plan, masks)

    def close(self) -> None:
        """Free the device."""
        self._runner.close()
