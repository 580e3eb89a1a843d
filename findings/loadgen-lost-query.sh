#!/usr/bin/env bash
# A test of MLPerf's LoadGen never ends if one query is not answered, and no test follows one whose callback raised.
#
# Versions: mlcommons-loadgen 6.0.17, Python 3.11.
#
# StartTest waits for all issued queries. Its C++ function AbortTest is not bound in Python. If the callback that issues
# queries raises, StartTest passes the exception on, but its threads remain: the next StartTest in the same process ends
# the process with "terminate called without an active exception".
#
# Why it surprises: a worker process that dies is an ordinary event in a measurement of many candidates.
#
# Cost: one candidate that crashes takes all other candidates' results with it, or hangs the measurement.
#
# The last lines show the processor time per request of a generator whose two worker processes do nothing, with a pipe
# for requests and a pipe for answers: LoadGen's latencies end when its own process reads the answer, so every answer
# wakes it up. nightquant's generator takes about half of that (`python -m benchmarks.capacity`, "busy").
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --quiet mlcommons-loadgen==6.0.17
cd "$work"
cat > probe.py <<'PY'
import os
import sys
import threading
import time

import mlperf_loadgen as lg


def start(issue, rate=1000, count=100):
    settings = lg.TestSettings()
    settings.scenario, settings.mode = lg.TestScenario.Server, lg.TestMode.PerformanceOnly
    settings.server_target_qps = rate
    settings.min_query_count = settings.max_query_count = count
    settings.min_duration_ms = 0
    settings.server_coalesce_queries = True
    library = lg.ConstructQSL(1, 1, lambda samples: None, lambda samples: None)
    lg.StartTest(lg.ConstructFastSUT(issue, lambda: None), library, settings)


def answer(ids):
    lg.QuerySamplesComplete([lg.QuerySampleResponse(each, 0, 0) for each in ids])


def lose(ids, _):
    answer(ids[1:])


def fail(ids, _):
    raise RuntimeError("a worker died")


def workers(rate):
    requests, queue = os.pipe()
    answers, done = os.pipe()
    processes = []
    for _ in range(2):
        processes.append(os.fork())
        while processes[-1] == 0:
            os.write(done, os.read(requests, 8))

    def read():
        while True:
            read_bytes = os.read(answers, 1 << 16)
            answer([int.from_bytes(read_bytes[i : i + 8], "little") for i in range(0, len(read_bytes), 8)])

    threading.Thread(target=read, daemon=True).start()
    used, began = time.process_time(), time.monotonic()
    start(lambda ids, _: os.write(queue, b"".join(each.to_bytes(8, "little") for each in ids)), rate, rate)
    used = time.process_time() - used
    print(f"{rate} requests per second: {used / rate * 1e6:.0f} us each, busy {used / (time.monotonic() - began):.0%}")
    for process in processes:
        os.kill(process, 9)
    sys.stdout.flush()
    os._exit(0)


if sys.argv[1] == "lose":
    start(lose)
elif sys.argv[1] == "fail":
    for _ in range(2):
        try:
            start(fail)
        except RuntimeError as error:
            print("raised:", error, flush=True)
else:
    workers(int(sys.argv[1]))
PY
code=0
timeout 20 venv/bin/python probe.py lose || code=$?
echo "a lost query: exit code $code (124: still waiting after 20 s)"
[ "$code" = 124 ]
code=0
venv/bin/python probe.py fail || code=$?
echo "a test after a callback that raised: exit code $code (134: aborted)"
[ "$code" = 134 ]
for rate in 1000 10000 50000; do
  venv/bin/python probe.py "$rate"
done
