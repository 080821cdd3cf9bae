"""A reference model of SPEC: lists and loops, and nothing that is there for speed.

It has no jobs of its own making: whoever drives it beside an engine tells it the ids and tokens
that the engine has drawn, and which job a pull has delivered; `next_ones` says which it may be.
`tests/stateful` compares the two after every step.

Not modelled: waits and wake-ups (`wait_for`, `wait_until_empty`, a pull with a timeout: nothing on
a virtual clock waits), workers and what they alone call, what events say, timelines, tags and
stacks, `flush`, `backup` and `verify`, what an unwritten commit loses in a crash, the bound on
completed jobs (`keep_completed`, `max_completed_bytes`), more than 512 jobs that come due at once,
custom back-off rules, late passes (a caller that steps by itself is never late), a restart at which
the clock has jumped.

Left open, since SPEC leaves it open: which of several jobs that are lost in one recovery comes
first, who comes first in a listing among those that entered their state in one millisecond, when
a job that is ready by a jump of the wall clock became so, and whether a job whose ttl ran out fails
at a pull or at the next sweep.
"""

from .jobs import Dlq as Dlq
from .jobs import Limits as Limits
from .jobs import ModelJob as ModelJob
from .jobs import ModelQueue as ModelQueue
from .jobs import Stalls as Stalls
from .logs import Logs
from .seen import Seen


class Model(Logs, Seen):
    """The whole of it: `clock` tells its time, `keep_results` is the configuration's."""
