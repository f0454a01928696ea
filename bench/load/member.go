package main

// A member of a group on a connection of its own, one request at a time, as consumers speak.

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"
)

// Kafka's error codes that a member acts on.
const (
	none                   = 0
	concurrentTransactions = 51
	coordinatorLoading     = 14
	coordinatorNotThere    = 15
	notCoordinator         = 16
	illegalGeneration      = 22
	rebalanceInProgress    = 27
	memberIDRequired       = 79
	patientSessionMs       = 1_800_000 // as long as a broker allows by default: nobody beats for these members
	rebalanceTimeoutMs     = 60000
	answerWithin           = 120 * time.Second
	betweenPolls           = 5 * time.Millisecond
	betweenCoordinatorAsk  = 50 * time.Millisecond
)

// What every member subscribes to, and where commits go.
const topic = "bench"

type conn struct {
	socket      net.Conn
	incoming    *bufio.Reader
	answer      []byte
	correlation uint32
}

func dial(address string) *conn {
	socket, err := net.DialTimeout("tcp", address, 10*time.Second)
	if err != nil {
		fail(err)
	}
	return &conn{socket: socket, incoming: bufio.NewReaderSize(socket, 16<<10)}
}

// ask sends a frame and returns the answer's bytes after the correlation id; they last until the next ask.
func (c *conn) ask(frame []byte) []byte {
	c.correlation++
	binary.BigEndian.PutUint32(frame[8:], c.correlation)
	if _, err := c.socket.Write(frame); err != nil {
		fail(err)
	}
	var size [4]byte
	if _, err := io.ReadFull(c.incoming, size[:]); err != nil {
		fail(err)
	}
	n := int(binary.BigEndian.Uint32(size[:]))
	if cap(c.answer) < n {
		c.answer = make([]byte, n)
	}
	c.answer = c.answer[:n]
	if _, err := io.ReadFull(c.incoming, c.answer); err != nil {
		fail(err)
	}
	if got := binary.BigEndian.Uint32(c.answer); got != c.correlation {
		fail(fmt.Errorf("answer to request %d came for request %d", got, c.correlation))
	}
	return c.answer[4:]
}

type member struct {
	*conn
	group, id  string
	sessionMs  int32
	generation int32
	beat       []byte // this generation's heartbeat, ready but for its correlation id
}

func newMember(address, group string) *member {
	m := &member{conn: dial(address), group: group, sessionMs: int32(sessionTimeoutMs)}
	// A limit for the whole run: a broker that does not answer must not hang the bench.
	if err := m.socket.SetDeadline(time.Now().Add(10 * answerWithin)); err != nil {
		fail(err)
	}
	return m
}

// sessionTimeoutMs is that of the members who beat.
var sessionTimeoutMs = 30_000

// findCoordinator asks until there is one, as clients do; it also makes a broker create its internal topic.
func findCoordinator(address, group string) string {
	c := dial(address)
	defer c.socket.Close()
	w := request(keyFindCoordinator, 3)
	w.text(group)
	w.int8(0)
	w.tags()
	for tries := 0; tries < 600; tries++ {
		r := &reader{rest: c.ask(w.whole()), what: "FindCoordinator"}
		r.tags()
		r.int32() // throttle
		if r.int16() == none {
			r.text()  // message
			r.int32() // node
			host := r.text()
			return fmt.Sprintf("%s:%d", host, r.int32())
		}
		time.Sleep(betweenCoordinatorAsk)
	}
	fail(fmt.Errorf("no coordinator for %s after 30 s", group))
	return ""
}

// join asks until it is in a generation; returns the members' ids if this one leads.
func (m *member) join() []string {
	for {
		r := &reader{rest: m.ask(m.joinRequest()), what: "JoinGroup"}
		r.tags()
		r.int32() // throttle
		code, generation := r.int16(), r.int32()
		r.text() // protocol type
		r.text() // protocol
		leader := r.text()
		r.take(1) // whether the leader may skip the assignment
		id := r.text()
		switch code {
		case none:
			m.id, m.generation = id, generation
			m.beat = m.heartbeatRequest()
			return membersIfLeading(r, leader == id)
		case memberIDRequired:
			m.id = id
		case coordinatorLoading, coordinatorNotThere, notCoordinator:
			time.Sleep(betweenCoordinatorAsk)
		default:
			fail(fmt.Errorf("JoinGroup answered error %d", code))
		}
	}
}

func membersIfLeading(r *reader, leads bool) []string {
	if !leads {
		return nil
	}
	ids := make([]string, r.count())
	for i := range ids {
		ids[i] = r.text()
		r.text() // instance id
		r.take(r.count())
		r.tags()
	}
	return ids
}

func (m *member) joinRequest() []byte {
	w := request(keyJoinGroup, 9)
	w.text(m.group)
	w.int32(m.sessionMs)
	w.int32(rebalanceTimeoutMs)
	w.text(m.id)
	w.null() // instance id
	w.text("consumer")
	w.count(1)
	w.text("range")
	w.bytes(subscription())
	w.tags()
	w.null() // reason
	w.tags()
	return w.whole()
}

// subscription is a ConsumerProtocolSubscription v1: one topic, no user data, nothing owned.
func subscription() []byte {
	out := []byte{0, 1, 0, 0, 0, 1, 0, byte(len(topic))}
	out = append(out, topic...)
	return append(out, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0)
}

// assignment is a ConsumerProtocolAssignment v1 of one partition of the topic.
func assignment(partition int) []byte {
	out := []byte{0, 1, 0, 0, 0, 1, 0, byte(len(topic))}
	out = append(out, topic...)
	out = append(out, 0, 0, 0, 1)
	out = binary.BigEndian.AppendUint32(out, uint32(partition))
	return append(out, 0xff, 0xff, 0xff, 0xff)
}

// sync sends the assignment if this member leads, and returns the code of the answer.
func (m *member) sync(ids []string) int16 {
	w := request(keySyncGroup, 5)
	w.text(m.group)
	w.int32(m.generation)
	w.text(m.id)
	w.null() // instance id
	w.text("consumer")
	w.text("range")
	w.count(len(ids))
	for i, id := range ids {
		w.text(id)
		w.bytes(assignment(i))
		w.tags()
	}
	w.tags()
	r := &reader{rest: m.ask(w.whole()), what: "SyncGroup"}
	r.tags()
	r.int32() // throttle
	return r.int16()
}

func (m *member) heartbeatRequest() []byte {
	w := request(keyHeartbeat, 4)
	w.text(m.group)
	w.int32(m.generation)
	w.text(m.id)
	w.null() // instance id
	w.tags()
	return w.whole()
}

func (m *member) heartbeat() int16 {
	r := &reader{rest: m.ask(m.beat), what: "Heartbeat"}
	r.tags()
	r.int32() // throttle
	return r.int16()
}

// settle joins and syncs until a sync succeeds.
func (m *member) settle() {
	for {
		switch code := m.sync(m.join()); code {
		case none:
			return
		case rebalanceInProgress, illegalGeneration:
		default:
			fail(fmt.Errorf("SyncGroup answered error %d", code))
		}
	}
}
