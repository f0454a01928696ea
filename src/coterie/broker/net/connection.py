"""One client's connection to a broker, without input or output: bytes come in, answers go to a transport.

Requests are cut from the stream and answered one at a time in order. As in Apache Kafka, a connection's next
request is looked at only when the one before it has been answered, so a parked join holds back its own
connection and no other. A parked fetch does not: it answers early when another kind of request is behind it.
Nor does a produce that waits for its batches to last: the next produce is begun, and answered behind it.

A `Connection` is told what happens by the names of `asyncio.Protocol`'s callbacks, and acts by the names of
asyncio's transports: `server` puts sockets around it, the swarm and the tests networks of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from types import GeneratorType
from typing import TYPE_CHECKING, Any, cast

from coterie.base.errors import Corrupt
from coterie.broker.net.behind import SIZE, UNREAD_BYTES_MAX, LateAnswers, is_another_kind
from coterie.broker.net.context import (
    SILENT,
    UNKNOWN_ORIGIN,
    WAITS,
    Answerless,
    Context,
    Hangup,
    Read,
    origin_of,
)
from coterie.broker.net.large import LARGE_BYTES, ROOM_FROM, LargeAnswer, LargeRequest, room_for
from coterie.broker.net.transport import do_nothing
from coterie.broker.runtime.pieces import straight_on
from coterie.wire.api.apis import ApiKey
from coterie.wire.api.codec import encode_response_parts, read_request_header
from coterie.wire.api.piecemeal import decode_in_pieces, decode_light, encode_in_pieces

if TYPE_CHECKING:
    from mmap import mmap

    from coterie.broker.fastpath.commits import KnownCommit
    from coterie.broker.fastpath.heartbeats import KnownHeartbeat
    from coterie.broker.net.request_queue import RequestQueue
    from coterie.broker.net.transport import GatheringWriter, Transport
    from coterie.broker.node import Handler, Node
    from coterie.broker.runtime.groups import ShardHost
    from coterie.broker.runtime.pieces import Pieces
    from coterie.wire.api.codec import RequestHeader

HEARTBEAT, PRODUCE = ApiKey.HEARTBEAT.to_bytes(2, "big"), ApiKey.PRODUCE.to_bytes(2, "big")
JOINED_BYTES_MAX = 1 << 16  # an answer up to this size, or several, are joined and written at once
LIGHT_STOPS = 64  # what took no more of them is written whole


class Connection:
    """One client: the bytes that are not answered yet, and whether a request is in flight."""

    __slots__ = (
        "_awaiting", "_buffer", "_cancel", "_closed", "_flush", "_held", "_hold", "_in_flight", "_large",
        "_late", "_longest", "_paused_reading", "_peer_closed", "_pumping", "_queue", "_rest", "_send",
        "_send_parts", "_writable", "commit", "heard", "heartbeat", "node", "origin", "peer",
        "quiet_since_ms", "transport",
    )  # fmt: skip

    transport: Transport

    def __init__(self, node: Node, queue: RequestQueue | None = None) -> None:
        """Without a `queue` every request is answered as soon as it is read."""
        self.node = node
        self._queue = queue
        self.peer = "?"
        self.origin = UNKNOWN_ORIGIN
        self._buffer = bytearray()
        self._large: LargeRequest | None = None
        self._in_flight = False
        self._pumping, self._hold, self._flush = False, do_nothing, do_nothing
        self._closed = False
        # Whether the peer has closed, and what it sent before without wanting an answer is still to be done.
        self._peer_closed = False
        self._writable = True
        self._rest: LargeAnswer | None = None
        self._paused_reading = False
        self._awaiting: Context | None = None
        self._late: LateAnswers | None = None  # those of produces before that one
        self._cancel: Callable[[], None] | None = None
        self._held = 0  # bytes in the buffer, as the node was last told
        self._longest = node.settings.socket_request_max_bytes + SIZE.size
        self.heard = False
        self.quiet_since_ms = 0
        self.heartbeat: KnownHeartbeat | None = None  # what the fast path remembers
        self.commit: KnownCommit | None = None

    # -- what happens to it

    def connection_made(
        self, transport: Transport, *, descriptor: int = -1, writer: GatheringWriter | None = None
    ) -> None:
        """Take a connection's other side; drop it at once where there is no room for one more.

        `descriptor` is the socket's. `writer` takes the answers, where the transport itself is not to.
        """
        self.transport = transport
        self._send = (writer or transport).write
        self._send_parts = (writer or transport).writelines
        if writer is not None:
            self._hold, self._flush = writer.hold, writer.flush
        address = transport.get_extra_info("peername")
        own_address = transport.get_extra_info("sockname")
        if address is None or own_address is None:  # it connected and reset at once, as port checks do
            self.node.peers.resets += 1
            self._end()
            return
        host, port = address[:2]
        self.peer = f"{host}:{port}"
        self.origin = origin_of(own_address[:2], host)
        if not self.node.peers.join(self, descriptor):
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        """Go on, as Apache Kafka does, with what came before without wanting an answer (acks=0)."""
        self.node.peers.leave(self)
        waiting, self._awaiting = self._awaiting, None
        if waiting is not None:
            waiting.hung_up()
        elif self._cancel is not None:
            self._cancel()
        if self._rest is not None or self._late:
            self._forget()
        if self._closed or not (self._in_flight or self._buffer or self._large is not None):
            self._closed = True
            return
        self._peer_closed = self._writable = True
        self._pump()

    def pause_writing(self) -> None:
        """Take note that the transport holds something: nothing more is answered until it has gone."""
        self._writable = False
        if not self._closed:
            self.node.peers.owe(self, self.unsent)

    def resume_writing(self) -> None:
        """Take note that the transport holds nothing any more, and go on."""
        self._writable = True
        self.node.peers.owe(self, self.unsent)
        if self._rest is None:
            self._pump()
        else:
            self._write_on()

    def data_received(self, data: bytes) -> None:
        """Take what has come, and answer the requests that are whole with it."""
        self.heard = True
        waits = self._in_flight or self._late
        if not (waits or self._buffer or self._large) and self._writable and self._whole(data):
            self._take(data)  # the common case: one whole request, nothing before it, nothing behind it
            return
        if self._closed:
            return
        rest = data if waits or not self._writable or self._large else self._take_ahead(data)
        if not self._closed:  # by what came first
            self._buffer += rest if self._large is None else self._large.gather(rest)
        self._pump(taken=rest is not data)

    # -- among the others

    @property
    def waits(self) -> bool:
        """Whether an answer is owed."""
        return self._in_flight or bool(self._late)

    @property
    def unsent(self) -> int:
        """How many bytes of the last answer are still to be sent."""
        return self.transport.get_write_buffer_size() + (0 if self._rest is None else self._rest.left)

    @property
    def closing(self) -> bool:
        """Whether nothing but its last bytes is still to go."""
        return self.transport.is_closing()

    def drop(self, reason: str | None) -> None:
        """End this connection at once, with what it holds; without a reason nothing is logged."""
        if reason is not None:
            self.node.peers.seldom.warn("%s %s; its connection is closed", self.peer, reason)
        self._end()

    def _end(self) -> None:
        self._forget()
        self.transport.abort()

    # -- frames

    def _whole(self, data: bytes) -> bool:
        return 4 <= len(data) <= self._longest and SIZE.unpack_from(data)[0] == len(data) - 4

    def _take_ahead(self, data: bytes) -> bytes:
        """Answer what is whole with what has just come, as long as none is owed an answer; return the rest.

        It is copied once: a producer's requests are long, and several come at a time.
        """
        begun, at = self._buffer, 0
        if 0 < len(begun) < SIZE.size:
            return data
        self._pumping = True
        self._hold()
        try:
            while self._writable and not (self._in_flight or self._closed or len(begun) + len(data) - at < 4):
                (size,) = SIZE.unpack_from(begun or data, 0 if begun else at)
                end = at + SIZE.size + size - len(begun)
                if not 0 <= size <= self._longest - SIZE.size or end > len(data):
                    break
                frame = b"".join((begun, data[at:end])) if begun else data[at:end]
                begun.clear()
                at = end
                self._take(frame)
        finally:
            self._pumping = False
            self._flush()
        return data[at:] if at else data

    def _pump(self, *, taken: bool = False) -> None:
        """Answer what has come whole, one request after the other, as long as none is owed an answer.

        `taken` when some of what came has been answered already.
        """
        if self._pumping:
            return
        self._pumping = True
        self._hold()
        try:
            while self._writable and not self._closed:
                if self._in_flight:
                    if not (self._buffer and (self._overlaps() or self._hurries())):
                        break
                elif self._late and not self._produces_next():
                    break
                elif self._large is not None:
                    if self._large.missing:
                        break
                    taken = True
                    self._take_large()
                elif (frame := self._next_frame()) is not None:
                    taken = True
                    self._take(frame)
                elif self._large is None:
                    break
        finally:
            self._pumping = False
            self._flush()
        if self._peer_closed:
            return
        held = len(self._buffer) + (0 if self._large is None else self._large.held)
        if held != self._held:
            self._held = held
            self.node.peers.hold(self, held, anew=taken)
        self.balance_reading()

    def _hurries(self) -> bool:
        """Return whether what is in flight answers now, with what there is: a fetch that waits for more."""
        waiting = self._awaiting
        if waiting is None or not is_another_kind(self._buffer, waiting.api_key):
            return False
        try:
            return waiting.hurry()
        except Exception:  # noqa: BLE001  a handler's mistake
            self._fail()
            return False

    def _overlaps(self) -> bool:
        """Return whether the next request is begun now: a produce, behind one whose batches are placed."""
        waiting, late = self._awaiting, self._late
        if waiting is None or not waiting.placed or (late and late.enough) or not self._produces_next():
            return False
        late = self._late = LateAnswers() if late is None else late
        late.expect(waiting)
        self._awaiting, self._in_flight = None, False
        return True

    def _produces_next(self) -> bool:
        return self._large is None and self._buffer[4:6] == PRODUCE

    def _next_frame(self) -> bytes | None:
        """Return the next request with its size, None before all of it has come."""
        buffer = self._buffer
        if len(buffer) < 4:
            return None
        (size,) = SIZE.unpack_from(buffer)
        if not 0 <= size <= self.node.settings.socket_request_max_bytes:
            limit = self.node.settings.socket_request_max_bytes
            self._hang_up(f"announced a request of {size} bytes (socket.request.max.bytes={limit})")
            return None
        if len(buffer) < 4 + size:
            if size > LARGE_BYTES and len(buffer) >= ROOM_FROM:
                self._begin_large(size)
            return None
        frame = bytes(memoryview(buffer)[: 4 + size])
        del buffer[: 4 + size]
        return frame

    def _begin_large(self, size: int) -> None:
        """Make room for the large request that the buffer begins, and put there what has come of it."""
        room = self._room_for(size)
        if room is not None:
            self._large = LargeRequest(room, size)
            self._buffer = bytearray(self._large.gather(memoryview(self._buffer)[SIZE.size :]))

    def _room_for(self, size: int) -> mmap | None:
        """Return room for a large request; where there is none, end the connection and say so."""
        try:
            return room_for(size)
        except OSError as error:  # what the process may have is used up
            why = f"for which there is no memory ({error.strerror})"
            self._hang_up(f"announced a request of {size} bytes, {why}")
            return None

    def balance_reading(self) -> None:
        """Read nothing more while enough waits here (whoever takes it out comes by again), or anywhere."""
        waits = self.waits or not self._writable
        enough = self.node.peers.reading_paused or (waits and len(self._buffer) > UNREAD_BYTES_MAX)
        if enough and not self._paused_reading and not self._closed:
            self._paused_reading = True
            self.transport.pause_reading()
        elif self._paused_reading and not enough and not self._closed:
            self._paused_reading = False
            self.transport.resume_reading()

    # -- requests

    def _take(self, sized: bytes) -> None:
        """Answer one request, given with its size in front."""
        if self._peer_closed:
            self._answer_by_handler(sized)
            return
        if sized[4:6] == HEARTBEAT:
            self._take_heartbeat(sized)
        elif self._queue is None or self._queue.admits():
            self.answer(sized)
        else:
            self._in_flight = True
            self._queue.enqueue(self, sized)

    def _take_heartbeat(self, sized: bytes) -> None:
        """Answer a heartbeat at once, however many requests are queued, unless it needs its handler."""
        answer = self.node.fast_path.heartbeats.answer(self, sized)
        if isinstance(answer, bytes):
            self._send(answer)
            if self._queue is not None and self._queue.pending:
                self._queue.run_if_due()
        elif answer is None or isinstance(answer, Read):
            if self._queue is None or self._queue.admits():
                self._answer_by_handler(sized, answer)
            else:
                self._in_flight = True
                self._queue.enqueue(self, sized, answer)
        else:
            self._in_flight = True
            self._await_append(answer, sized)

    def _await_append(self, host: ShardHost, sized: bytes) -> None:
        """Look at a heartbeat again once its shard has appended what it holds."""
        host.hold(lambda: self._resume(self._take, sized))

    def _take_large(self) -> None:
        """Answer the large request that has come whole. It has no fast path."""
        assert self._large is not None
        large, self._large = self._large, None
        # kio copies what it reads, and has no words for what it cannot get.
        room = self._room_for(len(large.room))
        if room is None:
            return
        room.close()
        frame = memoryview(large.room).toreadonly()
        self._in_flight = True
        self._work(self._serve_large(cast(bytes, frame)))  # it is read as bytes are

    def _serve_large(self, frame: bytes) -> Pieces[None]:
        header = read_request_header(frame)
        handler = self.node.handlers[header[:2]]
        if handler is None:
            self._serve(header, lambda *_: self.node.refuse_version(header), None)
        else:
            yield from self._serve_in_pieces(header, handler, frame)

    def answer_queued(self, sized: bytes, read: Read | None) -> None:
        """Answer a request that had to wait in the queue, and whatever has come behind it.

        `read` is what a heartbeat was read as: the fast path has had it already.
        """
        self._in_flight = False
        if not self._closed:
            if self._peer_closed or sized[4:6] == HEARTBEAT:
                self._answer_by_handler(sized, read)
            else:
                self.answer(sized)
            self._pump()

    def _resume(self, answer: Callable[[bytes], None], sized: bytes) -> None:
        self._in_flight = False
        if not self._closed:
            (self._answer_by_handler if self._peer_closed else answer)(sized)
            self._pump()

    def answer(self, sized: bytes) -> None:
        """Answer a request by the fast path if it has one, any other by its handler."""
        take = self.node.fast_path[sized[4:6]]
        outcome = None if take is None else take(self, sized)
        if not isinstance(outcome, Answerless):
            self._answer_by_handler(sized, outcome)

    def _answer_by_handler(self, sized: bytes, read: Read | None = None) -> None:
        try:
            header = read_request_header(sized, SIZE.size) if read is None else read.header
            handler = self.node.handlers[header[:2]]
            if handler is None:
                self._serve(header, lambda *_: self.node.refuse_version(header), None)
            elif read is not None:
                self._serve(header, handler, read.request)
            elif (request := decode_light(header, sized)) is not None:
                self._serve(header, handler, request)
            else:
                self._in_flight = True
                self._work(self._serve_in_pieces(header, handler, sized))
        except (Corrupt, Hangup) as refusal:
            self._refuse(refusal)
        except Exception:  # noqa: BLE001  a handler's mistake
            self._fail()

    def _serve_in_pieces(self, header: RequestHeader, handler: Handler, frame: bytes) -> Pieces[None]:
        request = yield from decode_in_pieces(header, frame)
        if not self._closed:
            self._serve(header, handler, request)
            self._pump()

    def _work(self, pieces: Pieces[None]) -> None:
        """Do in pieces what the answer to a request takes."""
        rooted = self._rooted(pieces)
        if self._queue is None:
            straight_on(rooted)
        else:
            self._queue.work(rooted)

    def _rooted(self, pieces: Pieces[None]) -> Pieces[None]:
        try:
            yield from pieces
        except (Corrupt, Hangup) as refusal:
            self._refuse(refusal)
        except Exception:  # noqa: BLE001  the same, of a request that is answered in pieces
            self._fail()

    def _fail(self) -> None:
        """Tell of the mistake of ours that is being handled: it ends this connection, never the broker."""
        self.node.peers.mistakes.exception("a request of %s failed; its connection is closed", self.peer)
        self._close()

    def _refuse(self, refusal: Corrupt | Hangup) -> None:
        what = f"sent what cannot be read: {refusal}" if isinstance(refusal, Corrupt) else str(refusal)
        self._hang_up(what)

    def _serve(self, header: RequestHeader, handler: Handler, request: Any) -> None:
        if self._peer_closed and (header.api_key != ApiKey.PRODUCE or request is None or request.acks != 0):
            self._forget()
            return
        self._in_flight = True
        self._awaiting = context = Context(header, self.origin, self._answer)
        if (response := handler(context, request)) is not WAITS:
            self._answer(context, response)

    def _answer(self, context: Context, response: Any) -> None:
        """Send the answer that is awaited; one that comes in pieces is sent when it is whole."""
        if self._closed:
            return
        if self._peer_closed and type(response) is not GeneratorType and response is not SILENT:
            self._forget()
            return
        if type(response) is GeneratorType:
            self._work(self._answer_in_pieces(context, response))
            return
        try:
            parts = [] if response is SILENT else encode_response_parts(context.correlation_id, response)
            self._finish(context, parts)
        except Exception:  # noqa: BLE001  whoever brings the answer has others to bring
            self._fail()

    def _answer_in_pieces(self, context: Context, pieces: Pieces[Any]) -> Pieces[None]:
        result, stops = None, 0
        try:
            while True:
                result = yield pieces.send(result)
                stops += 1
        except StopIteration as done:
            response = done.value
        if response is WAITS:
            self._pump()
            return
        parts: list[bytes] = []
        if response is not SILENT and stops > LIGHT_STOPS:
            parts = yield from encode_in_pieces(context.correlation_id, response)
        elif response is not SILENT:
            parts = encode_response_parts(context.correlation_id, response)
        self._finish(context, parts)

    def _finish(self, context: Context, parts: list[bytes]) -> None:
        if self._closed:
            return
        if self._peer_closed and parts:
            self._forget()
            return
        if self._late:
            self._finish_late(self._late, context, parts)
            return
        assert self._peer_closed or self._awaiting is context, f"answered twice: {context.api_key}"
        self._awaiting = None
        size = sum(map(len, parts))
        if size > LARGE_BYTES:
            self._rest = LargeAnswer(parts, size)
            self.node.peers.owe(self, self.unsent)  # all of it is held from now on, whatever the socket takes
            if self._rest is not None:
                self._write_on()
            return
        self._in_flight = False
        if size:
            self._write(parts, size)
        if self._buffer and not self._pumping:
            self._pump()

    def _finish_late(self, late: LateAnswers, context: Context, parts: list[bytes]) -> None:
        """Send an answer and those that waited for it, or keep it for those before it."""
        if self._awaiting is context:
            late.expect(context)
            self._awaiting, self._in_flight = None, False
        ready = late.take(context, parts)
        if ready:
            self._write(ready, sum(map(len, ready)))
        if late.closes and not late:
            self._close()
        else:
            self._pump()  # also for a large one that has come whole

    def _write_on(self) -> None:
        """Write of a large answer as much as is taken; `resume_writing` goes on."""
        rest = self._rest
        assert rest is not None
        if not rest.under_way:
            rest.under_way = True
            self._flush()
            self._work(self._write_in_pieces(rest))

    def _write_in_pieces(self, rest: LargeAnswer) -> Pieces[None]:
        yield from rest.write(self.transport.write, lambda: self._writable and self._rest is rest)
        if self._rest is rest and not rest.left:
            self._rest, self._in_flight = None, False
            self.node.peers.owe(self, self.unsent)
            self._pump()

    def answer_later(self, cancel: Callable[[], None] | None = None) -> None:
        """Take note that the answer comes later; `cancel` is called when the client hangs up before it."""
        self._in_flight, self._cancel = True, cancel

    def answer_by_handler(self, sized: bytes) -> None:
        """Answer a commit by its handler: the fast path has come to nothing."""
        self._resume(self._answer_by_handler, sized)

    def send_answer(self, frame: bytes) -> None:
        """Send the answer that comes later, and go on with what has come behind it."""
        if self._peer_closed:
            self._forget()
        if self._closed:
            return
        self._in_flight = False
        self._cancel = None
        self._send(frame)
        if self._buffer and not self._pumping:
            self._pump()

    # -- writing

    def _write(self, parts: list[bytes], size: int) -> None:
        if size <= JOINED_BYTES_MAX:
            self._send(b"".join(parts))
        else:
            self._send_parts(parts)

    def _hang_up(self, reason: str) -> None:
        """Close the connection once what came before is answered, and that has been sent."""
        self.node.peers.seldom.warn("%s %s; its connection is closed", self.peer, reason)
        if self._late:
            self._late.closes, self._in_flight, self._awaiting = True, True, None
            self._buffer = bytearray()
        else:
            self._close()

    def _close(self) -> None:
        self._forget()
        self._flush()
        self.transport.close()

    def _forget(self) -> None:
        """Do nothing more for this connection."""
        self._closed = True
        self._buffer = bytearray()
        self._large = self._rest = self._late = None
