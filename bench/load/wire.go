package main

// The bytes of the requests that this program sends, all in their flexible versions, written by hand: a
// generator that spends its time in a codec would measure the codec.

import (
	"encoding/binary"
	"fmt"
)

const (
	keyProduce         = 0
	keyOffsetCommit    = 8
	keyFindCoordinator = 10
	keyJoinGroup       = 11
	keyHeartbeat       = 12
	keySyncGroup       = 14
	keyInitProducerID  = 22
	keyEndTxn          = 26
	keyTxnOffsetCommit = 28
)

// clientID is what every request names, and what member ids begin with.
var clientID = "coterie-bench"

// writer appends Kafka's primitive types to a frame; the first four bytes are the frame's size.
type writer struct{ frame []byte }

// request begins a frame: room for the size, then a flexible request header. The correlation id is at byte 8.
func request(key, version int16) *writer {
	w := &writer{frame: make([]byte, 4, 512)}
	w.int16(key)
	w.int16(version)
	w.int32(0)
	w.int16(int16(len(clientID)))
	w.frame = append(w.frame, clientID...)
	w.tags()
	return w
}

// whole returns the frame with its size filled in.
func (w *writer) whole() []byte {
	binary.BigEndian.PutUint32(w.frame, uint32(len(w.frame)-4))
	return w.frame
}

func (w *writer) int8(n int8)   { w.frame = append(w.frame, byte(n)) }
func (w *writer) int16(n int16) { w.frame = binary.BigEndian.AppendUint16(w.frame, uint16(n)) }
func (w *writer) int32(n int32) { w.frame = binary.BigEndian.AppendUint32(w.frame, uint32(n)) }
func (w *writer) int64(n int64) { w.frame = binary.BigEndian.AppendUint64(w.frame, uint64(n)) }
func (w *writer) tags()         { w.frame = append(w.frame, 0) }
func (w *writer) null()         { w.frame = append(w.frame, 0) }

func (w *writer) count(n int) { w.frame = binary.AppendUvarint(w.frame, uint64(n)+1) }

func (w *writer) text(s string) {
	w.count(len(s))
	w.frame = append(w.frame, s...)
}

func (w *writer) bytes(b []byte) {
	w.count(len(b))
	w.frame = append(w.frame, b...)
}

// reader takes Kafka's primitive types from an answer; a short answer ends the program.
type reader struct {
	rest []byte
	what string
}

func (r *reader) take(n int) []byte {
	if n < 0 || n > len(r.rest) {
		fail(fmt.Errorf("%s: the answer ends %d bytes early", r.what, n-len(r.rest)))
	}
	taken := r.rest[:n]
	r.rest = r.rest[n:]
	return taken
}

func (r *reader) int16() int16 { return int16(binary.BigEndian.Uint16(r.take(2))) }
func (r *reader) int32() int32 { return int32(binary.BigEndian.Uint32(r.take(4))) }

func (r *reader) int64() int64 { return int64(binary.BigEndian.Uint64(r.take(8))) }

func (r *reader) count() int {
	n, used := binary.Uvarint(r.rest)
	if used <= 0 {
		fail(fmt.Errorf("%s: no length where one must be", r.what))
	}
	r.rest = r.rest[used:]
	return int(n) - 1
}

func (r *reader) text() string {
	n := r.count()
	if n < 0 {
		return ""
	}
	return string(r.take(n))
}

func (r *reader) tags() {
	for n := r.count() + 1; n > 0; n-- {
		r.count()
		r.take(r.count() + 1)
	}
}
