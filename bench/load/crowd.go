package main

// A crowd: very many groups that stay when their connections close, and very many offsets.

import (
	"fmt"
	"sync"
)

const (
	crowdAtOnce       = 16
	offsetsInARequest = 1_000
)

// crowd makes `groups` groups of `size` members, each member with one committed offset.
func crowd(address string, groups, size int) map[string]any {
	name := newGroupName()
	findCoordinator(address, name)
	names := make(chan string)
	var wait sync.WaitGroup
	for worker := 0; worker < crowdAtOnce; worker++ {
		wait.Add(1)
		go func() {
			defer wait.Done()
			var lines []*conn
			for i := 0; i < size; i++ {
				lines = append(lines, dial(address))
			}
			for group := range names {
				settleAndCommit(lines, group)
			}
		}()
	}
	for g := 0; g < groups; g++ {
		names <- fmt.Sprintf("%s-%d", name, g)
	}
	close(names)
	wait.Wait()
	return map[string]any{"groups": groups, "members": groups * size, "offsets": groups * size}
}

func settleAndCommit(lines []*conn, group string) {
	var all []*member
	for _, line := range lines {
		all = append(all, &member{conn: line, group: group, sessionMs: patientSessionMs})
	}
	untilStable(all, betweenPolls)
	var wait sync.WaitGroup
	for i, m := range all {
		wait.Add(1)
		go func(i int, m *member) {
			defer wait.Done()
			m.commit(m.commitFrame(i, ""))
		}(i, m)
	}
	wait.Wait()
}

// history commits `offsets` offset records in all: `groups` groups without members, of `partitions` partitions each,
// one after the other, a thousand offsets a request, again and again.
func history(address string, groups, partitions, offsets int) map[string]any {
	name := newGroupName()
	findCoordinator(address, name)
	line := dial(address)
	written := 0
	for round := int64(1); written < offsets; round++ {
		for g := 0; g < groups && written < offsets; g++ {
			commitAll(line, fmt.Sprintf("%s-%d", name, g), partitions, round)
			written += partitions
		}
	}
	return map[string]any{"records": written, "last_group": fmt.Sprintf("%s-%d", name, groups-1)}
}

// commitAll commits one offset for each of the partitions on behalf of nobody in particular.
func commitAll(line *conn, group string, partitions int, offset int64) {
	for from := 0; from < partitions; from += offsetsInARequest {
		to := min(from+offsetsInARequest, partitions)
		w := request(keyOffsetCommit, 9)
		w.text(group)
		w.int32(-1) // no generation: a consumer without a group
		w.text("")
		w.null() // instance id
		w.count(1)
		w.text(topic)
		w.count(to - from)
		for p := from; p < to; p++ {
			w.int32(int32(p))
			w.int64(offset)
			w.int32(-1) // leader epoch
			w.text("")
			w.tags()
		}
		w.tags()
		w.tags()
		line.askToCommit(w.whole())
	}
}
