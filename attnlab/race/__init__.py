"""The race: contenders in processes of their own, timed side by side.

A *sitting* is what one invocation measures. A run makes *laps*, each one visit to every workload with an open question;
`compare` has one workload. A *visit* is one fresh process of each contender. It has *rounds*, in which each contender
has a *turn*: its inputs are drawn anew, and some *calls* are timed, while all others are stopped.
"""
