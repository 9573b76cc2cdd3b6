# %% [markdown]
# # Which attention on my machine?
#
# Three ways to compute the same attention are raced on this machine: PyTorch's fused kernel, the formula in plain
# PyTorch, and in NumPy. The race is small and takes a minute.
#
# A **backend** is one implementation. A **workload** is one question, put to all: how long, how many heads,
# which number format. A **verdict** is an answer with a 95 % interval.

# %%
import matplotlib.pyplot as plt

import attnlab
from attnlab.race.admission import Limits

plan = attnlab.Plan.grid(
    lengths=(64, 256, 1024),
    heads=(4,),
    contenders=("torch_eager", "torch_sdpa", "numpy_vectorized"),
    ceilings=False,
    experiments=("none",),
    control=False,
    limits=Limits(workload_seconds=1.0, visits=3, most_visits=3),
)
run = attnlab.run(plan, "my-run")
print(
    len(run.results),
    "results,",
    sum(one.outcome == "measured" for one in run.results),
    "measured",
)

# %% [markdown]
# Every backend ran in three visits, each with fresh processes and inputs. Only the one that was timed could run, and it
# was checked against float64 first. The results are one table:

# %%
table = run.frame()
latency = table[table.quantity == "latency"].pivot(
    index="queries", columns="contender", values="value"
)
print((1e3 * latency).round(3).to_string(header=True), "\nmilliseconds a call, median")

# %% torch_sdpa takes the least time of a call at 64, 256 and 1024 keys, numpy_vectorized the most
figure, axes = plt.subplots(figsize=(6, 3.8), layout="constrained")
colours = ("#D55E00", "#222222", "#1F5FBF")
beside = ("center", "bottom", "top")
for name, colour, mark, va in zip(latency, colours, "os^", beside, strict=True):
    ms = 1e3 * latency[name]
    axes.plot(ms.index, ms, f"{mark}-", color=colour)
    axes.text(1250, ms[1024], name, color=colour, va=va)
axes.set(
    xscale="log",
    yscale="log",
    xlabel="queries and keys",
    ylabel="ms a call, 4 heads of 64, float32",
    title=f"{latency.iloc[-1].idxmin()} has the lowest median at n = 1024",
)
axes.set_xticks(latency.index, latency.index)
axes.minorticks_off()

# %% [markdown]
# How sure is that? Each visit gives one ratio of times, and the interval is taken over the visits. So a speedup may
# differ from the ratio of two medians:

# %%
from attnlab.stats.intervals import verdicts_against

for length in (64, 256, 1024):
    answers = [one for one in run.results if one.workload.queries == length]
    for name, found in verdicts_against(answers, "torch_eager").items():
        interval = f"[{1 / found.high:.2f}, {1 / found.low:.2f}]" if found.low else ""
        print(
            f"n = {length}: {name} is {found.kind}, speedup over torch_eager {1 / found.ratio:.2f} {interval}"
        )

# %% [markdown]
# `faster` and `slower`: the whole interval lies beyond one percent. `equivalent`: it lies within. `undecided`:
# anything else. Three visits make wide intervals. The folder `my-run` holds everything, and `attnlab report my-run`
# makes the report with a verdict.
#
# [How to read a verdict](../verdicts.md) explains it. For a model that you know, see
# [the questions page](../which-question.md).
