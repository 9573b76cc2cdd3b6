#!/bin/bash
# A sweep over hosts that one can log in to and that share a folder: no cluster, no daemon.
#   docs/sweeps/hosts.sh PLAN.toml SWEEP HOST...
# The plan is cut into three shards a host; of N hosts each takes every Nth shard. What is interrupted goes on when the
# same is called again; a host that another sweep measures on is waited for.
set -eu
plan=$1 sweep=$2
shift 2
count=$((3 * $#))
if [ ! -e "$sweep/sweep.json" ]; then
  attnlab sweep "$plan" --shards "$count" --cut --out "$sweep"
fi
shards=$(find "$sweep/shards" -mindepth 1 -maxdepth 1 | wc -l)
place=$(cd "$sweep" && pwd)
first=0
for host in "$@"; do
  for shard in $(seq "$first" "$#" "$((shards - 1))"); do
    echo "attnlab sweep --out '$place' --shard $shard"
  done | ${REMOTE:-ssh} "$host" sh &
  first=$((first + 1))
done
wait
attnlab sweep --report --out "$sweep"
