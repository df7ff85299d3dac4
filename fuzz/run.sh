#!/bin/sh
# Fuzz the scanning core, then compare it with the Python core: fuzz/run.sh [SECONDS] [JOBS] [CASES]
# Prints the number of inputs tried; if an input breaks a core, fails and prints its name.
set -eu

seconds=${1:-120}
jobs=${2:-2}
cases=${3:-10000}
here=$(cd "$(dirname "$0")" && pwd)
out=$here/out
python=${PYTHON:-$here/../.venv/bin/python}
[ -x "$python" ] || python=python3

clang=$(command -v clang || command -v clang-14 || true)
if [ -z "$clang" ]; then
    echo "fuzz: clang is not installed; run: apt install clang libclang-rt-14-dev llvm" >&2
    exit 2
fi

mkdir -p "$out/corpus" "$out/findings"
if ! "$clang" -g -O2 -Wall -Wextra -fsanitize=fuzzer,address,undefined \
    -fno-sanitize-recover=all "$here/scan_fuzz.c" -o "$out/scan_fuzz"; then
    echo "fuzz: if the sanitizer libraries are missing, run: apt install libclang-rt-14-dev" >&2
    exit 2
fi
"$python" "$here/seeds.py" "$out/seeds"

# Each job is a process; all jobs share the corpus.
rm -f "$out"/job-*.log
running=""
for job in $(seq "$jobs"); do
    "$out/scan_fuzz" -max_total_time="$seconds" -max_len=2048 -timeout=10 -rss_limit_mb=1024 \
        -use_value_profile=1 -reload=10 -print_final_stats=1 -dict="$here/scan.dict" \
        -artifact_prefix="$out/findings/" "$out/corpus" "$out/seeds" >"$out/job-$job.log" 2>&1 &
    running="$running $!"
done
failed=0
for process in $running; do
    wait "$process" || failed=1
done

executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$out"/job-*.log |
    awk '{ sum += $1 } END { print sum + 0 }')
echo "$executions executions in $seconds s by $jobs jobs, $(ls "$out/corpus" | wc -l) inputs kept"
if [ "$failed" -ne 0 ]; then
    grep -h -E 'check failed:|runtime error|ERROR|SUMMARY|Test unit written' "$out"/job-*.log >&2 || true
    echo "fuzz: repeat a finding with: fuzz/out/scan_fuzz fuzz/out/findings/NAME" >&2
    exit 1
fi
"$python" "$here/differential.py" --cases "$cases" --jobs "$jobs"
