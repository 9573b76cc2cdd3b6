"""The race: contenders in separate processes, timed side by side.

A *sitting* is what one invocation measures. A run makes *laps* (`attnlab.runs.execute`). A lap makes one visit to each
workload whose winner is still open. `compare` visits its one workload several times. In a *visit*, each contender that
still takes part has one fresh process. A visit has *rounds*. In a round each contender has one *turn*; slow contenders
have turns in some rounds only. In a turn, the inputs are overwritten and some *calls* are timed, while all other
workers are stopped. Peak memory is measured in a separate visit without rounds.
"""
