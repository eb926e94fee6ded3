"""Plays training jobs against a planner, as a process of its own; `planner_load.py` starts it.

It reads one JSON object from its command line, prints one JSON object when it is done, and holds its sessions open
until its standard input ends. Reports are encoded beforehand and sent as bytes, so that it takes little of the machine
from the planner.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from typing import Any

import grpc
import grpc.aio
from load_jobs import JobSize, encode_report_of, encode_streamed, encode_variants, make_spec

from taot_api.codec import encode_session_spec
from taot_api.v1 import planner_pb2 as pb

CALL_SECONDS = 60.0
"""Deadline of a call; far above what is measured."""

SERVICE = "/taot_api.v1.PlannerService"


class Job:
    """One job: a session, somebody who reports, and somebody who watches its plans."""

    def __init__(self, channel: grpc.aio.Channel, *, name: str, size: JobSize, recent_reports: int | None) -> None:
        self._request = encode_session_spec(make_spec(size, name=name, recent_reports=recent_reports))
        self._open = channel.unary_unary(
            f"{SERVICE}/OpenSession", response_deserializer=pb.OpenSessionResponse.FromString
        )
        self._report = channel.unary_unary(f"{SERVICE}/ReportRouting")
        self._stream = channel.stream_stream(
            f"{SERVICE}/StreamReports", response_deserializer=pb.StreamReportsResponse.FromString
        )
        self._watch = channel.unary_stream(
            f"{SERVICE}/WatchPlans", response_deserializer=pb.WatchPlansResponse.FromString
        )
        self._close = channel.unary_unary(f"{SERVICE}/CloseSession")
        self._session_id = ""
        self._sent_seconds: dict[int, float] = {}
        self._planned: asyncio.Event = asyncio.Event()
        self._next_step = 0
        self.newest_planned = -1
        """Step of the newest plan that has come."""
        self.latencies: list[float] = []
        """Seconds from sending a report to its plan at the watcher."""
        self.num_taken = 0
        """Reports that the planner has taken, by its answers."""

    async def open(self) -> asyncio.Task[None]:
        """Opens the session and begins to watch it; the task ends with the session."""
        response = await self._open(self._request.SerializeToString(), timeout=CALL_SECONDS, wait_for_ready=True)
        self._session_id = response.session.session_id
        return asyncio.create_task(self._read_plans())

    async def close(self) -> None:
        """Closes the session."""
        request = pb.CloseSessionRequest(session_id=self._session_id)
        await self._close(request.SerializeToString(), timeout=CALL_SECONDS)

    async def report(self, variants: list[bytes]) -> int:
        """Sends the report of the next step; returns the step."""
        step, message = self._next_report(variants)
        await self._report(message, timeout=CALL_SECONDS)
        self.num_taken += 1
        return step

    async def stream(self, variants: list[bytes], *, until_seconds: float, in_flight: int) -> None:
        """Sends reports over one call, as fast as the planner takes them, with `in_flight` unanswered."""
        call, has_room = self._stream(timeout=20 * CALL_SECONDS), asyncio.Event()
        num_sent = num_answered = 0

        async def read_answers() -> None:
            nonlocal num_answered
            try:
                async for answer in call:
                    if answer.refused_reports:
                        raise RuntimeError(f"the planner has refused a report: {answer.refused_reports[0].status!r}")
                    self.num_taken += answer.answered_count - num_answered
                    num_answered = answer.answered_count
                    has_room.set()
            finally:
                has_room.set()  # whoever waits looks whether there are answers to come

        reading = asyncio.create_task(read_answers())
        while time.perf_counter() < until_seconds and not reading.done():
            if num_sent - num_answered < in_flight:
                await call.write(encode_streamed(self._next_report(variants)[1]))
                num_sent += 1
            else:
                has_room.clear()
                await has_room.wait()
        await call.done_writing()
        await reading
        assert num_answered == num_sent, "the planner answers every report"

    def _next_report(self, variants: list[bytes]) -> tuple[int, bytes]:
        step, self._next_step = self._next_step, self._next_step + 1
        self._sent_seconds[step] = time.perf_counter()
        return step, encode_report_of(self._session_id, step, variants[step % len(variants)])

    async def await_plan(self, step: int) -> None:
        """Waits for the plan of a step, or of a later one."""
        while self.newest_planned < step:
            self._planned.clear()
            await asyncio.wait_for(self._planned.wait(), CALL_SECONDS)

    async def _read_plans(self) -> None:
        request = pb.WatchPlansRequest(session_id=self._session_id)
        try:
            async for response in self._watch(request.SerializeToString(), timeout=20 * CALL_SECONDS):
                step = response.plan.source_step
                self.latencies.append(time.perf_counter() - self._sent_seconds[step])
                self.newest_planned = step
                self._planned.set()
        except grpc.aio.AioRpcError:
            return  # its session has been closed


async def play_closed(job: Job, variants: list[bytes], *, num_reports: int) -> None:
    """Reports when the plan of the report before has come."""
    for _ in range(num_reports):
        await job.await_plan(await job.report(variants))


async def play_open(job: Job, variants: list[bytes], *, num_reports: int, reports_per_second: float) -> None:
    """Reports at a steady rate, whether plans have come or not."""
    start = time.perf_counter()
    calls = []
    for index in range(num_reports):
        await asyncio.sleep(max(0.0, start + index / reports_per_second - time.perf_counter()))
        calls.append(asyncio.create_task(job.report(variants)))
    steps = await asyncio.gather(*calls)
    await job.await_plan(max(steps))


async def play_calls(job: Job, variants: list[bytes], *, until_seconds: float, in_flight: int) -> None:
    """Reports as fast as the planner takes them, with `in_flight` calls at a time."""

    async def send() -> None:
        while time.perf_counter() < until_seconds:
            await job.report(variants)

    await asyncio.gather(*(send() for _ in range(in_flight)))


async def play(task: dict[str, Any]) -> None:
    """Plays the jobs of a task, prints what came of it, and ends them when standard input does."""
    size = JobSize(*task["size"])
    variants = encode_variants(size)
    options = [("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(task["address"], options=options) as channel:
        jobs = [
            Job(channel, name=f"{task['name']}-{index}", size=size, recent_reports=task["recent_reports"])
            for index in range(task["jobs"])
        ]
        watches = [await job.open() for job in jobs]
        for job in jobs:  # what is needed once is not what is measured
            await play_closed(job, variants, num_reports=task["warm_reports"])
            job.latencies = []
        warm = sum(job.num_taken for job in jobs)
        print("begins", flush=True)
        usage, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        await asyncio.gather(*(_play_one(job, variants, task, start) for job in jobs))
        seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
        result = {
            "seconds": seconds,
            "cpu_seconds": after.ru_utime + after.ru_stime - usage.ru_utime - usage.ru_stime,
            "accepted": sum(job.num_taken for job in jobs) - warm,
            "warm": warm,
            "latencies_J": [job.latencies for job in jobs],
        }
        print(json.dumps(result), flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        for job in jobs:
            await job.close()
        await asyncio.gather(*watches)


def _play_one(job: Job, variants: list[bytes], task: dict[str, Any], start: float) -> Any:
    if task["way"] == "closed":
        return play_closed(job, variants, num_reports=task["reports"])
    if task["way"] == "open":
        return play_open(job, variants, num_reports=task["reports"], reports_per_second=task["reports_per_second"])
    until_seconds, in_flight = start + task["seconds"], task["in_flight"]
    if task["way"] == "calls":
        return play_calls(job, variants, until_seconds=until_seconds, in_flight=in_flight)
    assert task["way"] == "stream"
    return job.stream(variants, until_seconds=until_seconds, in_flight=in_flight)


if __name__ == "__main__":
    asyncio.run(play(json.loads(sys.argv[1])))
