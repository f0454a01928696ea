package main

// Transactions as Kafka's Java client has made them since 4.0 (KIP-890): records, offsets, end; nothing is added beforehand.

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"sync"
	"sync/atomic"
	"time"
)

const (
	transactionRecords   = 100
	recordBytes          = 100
	transactionTimeoutMs = 60000
	concurrentBackoff    = 20 * time.Millisecond // what the Java client waits when its last transaction still completes
	recordsPartitions    = 4
	batchHeaderBytes     = 61
)

// transactor is a transactional producer on a connection of its own, with a consumer group whose offsets it sends.
type transactor struct {
	*conn
	id          string
	producerID  int64
	epoch       int16
	partition   int32
	sequence    int32
	lastBatch   []byte
	groupOffset int64
}

// transactions returns how many transactions a second `count` producers commit together.
func transactions(address string, count int, warm int64, measured time.Duration) map[string]any {
	findCoordinator(address, newGroupName())
	all := make([]*transactor, count)
	for i := range all {
		all[i] = &transactor{conn: dial(address), id: fmt.Sprintf("%s-%d", newGroupName(), i), partition: int32(i % recordsPartitions)}
		all[i].findCoordinator()
		all[i].initProducer()
	}
	var done int64
	each := func(enough func() bool) {
		var wait sync.WaitGroup
		for _, t := range all {
			wait.Add(1)
			go func(t *transactor) {
				defer wait.Done()
				for t.transact(); !enough(); t.transact() {
				}
			}(t)
		}
		wait.Wait()
	}
	each(func() bool { return atomic.AddInt64(&done, 1) > warm })
	var counted int64
	begun := time.Now()
	each(func() bool { atomic.AddInt64(&counted, 1); return time.Since(begun) > measured })
	lasted := time.Since(begun).Seconds()
	return map[string]any{"per_second": float64(counted) / lasted, "transactions": counted, "seconds": lasted}
}

// again repeats a request while the broker says that the producer's last transaction still completes.
func (t *transactor) again(what string, ask func() int16) {
	for {
		switch code := ask(); code {
		case none:
			return
		case concurrentTransactions:
			time.Sleep(concurrentBackoff)
		case coordinatorLoading, coordinatorNotThere, notCoordinator:
			time.Sleep(betweenCoordinatorAsk)
		default:
			fail(fmt.Errorf("%s answered error %d", what, code))
		}
	}
}

func (t *transactor) findCoordinator() {
	w := request(keyFindCoordinator, 3)
	w.text(t.id)
	w.int8(1) // of transactions
	w.tags()
	t.again("FindCoordinator", func() int16 {
		r := &reader{rest: t.ask(w.whole()), what: "FindCoordinator"}
		r.tags()
		r.int32() // throttle
		return r.int16()
	})
}

func (t *transactor) initProducer() {
	w := request(keyInitProducerID, 5)
	w.text(t.id)
	w.int32(transactionTimeoutMs)
	w.int64(-1)
	w.int16(-1)
	w.tags()
	t.again("InitProducerId", func() int16 {
		r := &reader{rest: t.ask(w.whole()), what: "InitProducerId"}
		r.tags()
		r.int32() // throttle
		code := r.int16()
		t.producerID, t.epoch = r.int64(), r.int16()
		return code
	})
}

// transact is one transaction: 100 records in one batch, one offset of a group, commit.
func (t *transactor) transact() {
	t.again("Produce", t.produce)
	t.again("TxnOffsetCommit", t.sendOffset)
	t.again("EndTxn", t.end)
	t.sequence = 0 // EndTxn gave a new epoch
}

func (t *transactor) produce() int16 {
	w := request(keyProduce, 12)
	w.text(t.id)
	w.int16(-1) // acks=all
	w.int32(30000)
	w.count(1)
	w.text(topic)
	w.count(1)
	w.int32(t.partition)
	w.bytes(t.batch())
	w.tags()
	w.tags()
	w.tags()
	r := &reader{rest: t.ask(w.whole()), what: "Produce"}
	r.tags()
	r.count()
	r.text()
	r.count()
	r.int32()
	return r.int16()
}

// batch returns the transaction's records as a batch of this producer's epoch; only the header changes.
func (t *transactor) batch() []byte {
	if t.lastBatch == nil {
		t.lastBatch = emptyHeader(transactionRecords)
		for i := 0; i < transactionRecords; i++ {
			t.lastBatch = appendRecord(t.lastBatch, i, make([]byte, recordBytes))
		}
	}
	b := t.lastBatch
	binary.BigEndian.PutUint32(b[8:], uint32(len(b)-12))
	now := uint64(time.Now().UnixMilli())
	binary.BigEndian.PutUint64(b[27:], now)
	binary.BigEndian.PutUint64(b[35:], now)
	binary.BigEndian.PutUint64(b[43:], uint64(t.producerID))
	binary.BigEndian.PutUint16(b[51:], uint16(t.epoch))
	binary.BigEndian.PutUint32(b[53:], uint32(t.sequence))
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// emptyHeader is the header of a transactional batch of format 2 with what does not change filled in.
func emptyHeader(records int) []byte {
	b := make([]byte, batchHeaderBytes)
	b[16] = 2                                             // magic
	binary.BigEndian.PutUint32(b[12:], ^uint32(0))        // leader epoch: -1
	binary.BigEndian.PutUint16(b[21:], 1<<4)              // transactional
	binary.BigEndian.PutUint32(b[23:], uint32(records-1)) // last offset delta
	binary.BigEndian.PutUint32(b[57:], uint32(records))
	return b
}

func appendRecord(b []byte, delta int, value []byte) []byte {
	body := []byte{0, 0} // attributes, timestamp delta
	body = binary.AppendVarint(body, int64(delta))
	body = binary.AppendVarint(body, -1) // no key
	body = binary.AppendVarint(body, int64(len(value)))
	body = append(append(body, value...), 0) // no headers
	b = binary.AppendVarint(b, int64(len(body)))
	return append(b, body...)
}

func (t *transactor) sendOffset() int16 {
	t.groupOffset++
	w := request(keyTxnOffsetCommit, 5)
	w.text(t.id)
	w.text(t.id) // the group
	w.int64(t.producerID)
	w.int16(t.epoch)
	w.int32(-1) // generation: a group without members
	w.text("")
	w.null() // instance id
	w.count(1)
	w.text(topic)
	w.count(1)
	w.int32(0)
	w.int64(t.groupOffset)
	w.int32(-1) // leader epoch
	w.text("")
	w.tags()
	w.tags()
	w.tags()
	r := &reader{rest: t.ask(w.whole()), what: "TxnOffsetCommit"}
	r.tags()
	r.int32() // throttle
	r.count()
	r.text()
	r.count()
	r.int32()
	return r.int16()
}

func (t *transactor) end() int16 {
	w := request(keyEndTxn, 5)
	w.text(t.id)
	w.int64(t.producerID)
	w.int16(t.epoch)
	w.int8(1) // commit
	w.tags()
	r := &reader{rest: t.ask(w.whole()), what: "EndTxn"}
	r.tags()
	r.int32() // throttle
	code := r.int16()
	if code == none {
		t.producerID, t.epoch = r.int64(), r.int16()
	}
	return code
}
