"""The race: contenders in processes of their own, timed side by side.

A *sitting* is what one invocation measures. A run makes *laps* (`attnlab.runs.execute`), each one visit to every
workload whose winner is still open; `compare` visits its one workload again and again. A *visit* is one fresh process
of each contender that is still asked. It has *rounds*, in which each contender has a *turn*, a slow one in some of them
only: its inputs are overwritten, and some *calls* are timed, while all other workers are stopped. Memory has a visit of
its own, without rounds.
"""
