package main

// Offset commits: members of settled groups, each committing one partition of the topic again and again.

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"time"
)

// commits returns how many offset commits a second the broker answered; the topic must exist.
func commits(address string, count, size int, warm int64, measured time.Duration) map[string]any {
	sessionTimeoutMs = patientSessionMs // a broker that flushes each commit keeps some waiting for long
	all := stableGroups(address, count, size)
	frames := make([]*commitFrame, len(all))
	for i, m := range all {
		frames[i] = m.commitFrame(i%size, "")
	}
	var done int64
	work := func(i int, m *member) { m.commit(frames[i]) }
	eachUntil(all, work, func(int) bool { return atomic.AddInt64(&done, 1) > warm })
	return rateOf(all, work, measured)
}

// commitFrame is a request that commits one partition, ready but for its correlation id and its offset.
type commitFrame struct {
	frame    []byte
	offsetAt int
	next     int64
}

func (m *member) commitFrame(partition int, metadata string) *commitFrame {
	w := request(keyOffsetCommit, 9)
	w.text(m.group)
	w.int32(m.generation)
	w.text(m.id)
	w.null() // instance id
	w.count(1)
	w.text(topic)
	w.count(1)
	w.int32(int32(partition))
	offsetAt := len(w.frame)
	w.int64(0)
	w.int32(-1) // leader epoch
	w.text(metadata)
	w.tags()
	w.tags()
	w.tags()
	return &commitFrame{frame: w.whole(), offsetAt: offsetAt}
}

func (m *member) commit(c *commitFrame) {
	c.next++
	binary.BigEndian.PutUint64(c.frame[c.offsetAt:], uint64(c.next))
	m.askToCommit(c.frame)
}

// askToCommit sends a request that is whole but for its correlation id; any error in the answer ends the program.
func (c *conn) askToCommit(frame []byte) {
	r := &reader{rest: c.ask(frame), what: "OffsetCommit"}
	r.tags()
	r.int32() // throttle
	for topics := r.count(); topics > 0; topics-- {
		r.text()
		for partitions := r.count(); partitions > 0; partitions-- {
			r.int32()
			if code := r.int16(); code != none {
				fail(fmt.Errorf("OffsetCommit answered error %d", code))
			}
			r.tags()
		}
		r.tags()
	}
}
