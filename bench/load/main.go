// load puts the work of many group members on one broker and prints one line of JSON.
//
//	load -address HOST:PORT -mode heartbeats -members 50 -group 10 -warm 200000 -seconds 8
//	load -address HOST:PORT -mode commits -members 50 -group 10 -warm 50000 -seconds 8
//	load -address HOST:PORT -mode members -members 500
//	load -address HOST:PORT -mode storm -groups 100 -group 50
//	load -address HOST:PORT -mode beats -seconds 20
//	load -address HOST:PORT -mode transactions -members 10 -warm 2000 -seconds 8
//	load -address HOST:PORT -mode crowd -groups 10000 -group 10
//	load -address HOST:PORT -mode coordinator -name GROUP
//	load -address HOST:PORT -mode history -groups 100 -partitions 100 -offsets 1200000
//
// heartbeats, commits: members in groups of `-group` beat or commit one after the other as fast as they are
// answered, each on its own connection; what is counted begins after `-warm` requests. members: the time from
// the first join until all of them are in one stable generation, and again after one more has joined. storm: how
// long heartbeats of others wait while many groups rebalance at once; beats: while nothing of ours happens.
// transactions: producers that commit 100 records and one offset at a time. crowd: groups that stay. history: offset records and nothing else.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sort"
	"sync"
	"sync/atomic"
	"time"
)

func fail(err error) {
	fmt.Fprintln(os.Stderr, "load:", err)
	os.Exit(1)
}

func main() {
	address := flag.String("address", "127.0.0.1:9092", "the broker")
	mode := flag.String("mode", "heartbeats", "heartbeats or members")
	members := flag.Int("members", 50, "how many members")
	name := flag.String("name", "bench", "a group (coordinator)")
	size := flag.Int("group", 10, "how many members a group has")
	groups := flag.Int("groups", 100, "how many groups (storm, crowd, history)")
	partitions := flag.Int("partitions", 100, "how many partitions a group commits (history)")
	offsets := flag.Int("offsets", 1200000, "how many offset records in all (history)")
	warm := flag.Int64("warm", 200000, "requests before the counting starts (heartbeats, commits)")
	seconds := flag.Float64("seconds", 8, "how long to count (heartbeats, commits, beats)")
	flag.StringVar(&clientID, "client", clientID, "the client id: member ids begin with it, and records hold both")
	flag.Parse()
	measured := time.Duration(*seconds * float64(time.Second))

	var out map[string]any
	switch *mode {
	case "heartbeats":
		out = heartbeats(*address, *members, *size, *warm, measured)
	case "commits":
		out = commits(*address, *members, *size, *warm, measured)
	case "members":
		out = formation(*address, *members)
	case "transactions":
		out = transactions(*address, *members, *warm, measured)
	case "coordinator":
		findCoordinator(*address, *name)
		out = map[string]any{"group": *name}
	case "storm":
		out = storm(*address, *groups, *size)
	case "beats":
		out = beatsFor(*address, measured)
	case "crowd":
		out = crowd(*address, *groups, *size)
	case "history":
		out = history(*address, *groups, *partitions, *offsets)
	default:
		fail(fmt.Errorf("no such mode: %s", *mode))
	}
	line, err := json.Marshal(out)
	if err != nil {
		fail(err)
	}
	fmt.Println(string(line))
}

func newGroupName() string { return fmt.Sprintf("bench-%d", time.Now().UnixNano()) }

// heartbeats returns how many heartbeats a second the broker answered, and how long they took.
func heartbeats(address string, count, size int, warm int64, measured time.Duration) map[string]any {
	all := stableGroups(address, count, size)
	var beats int64
	eachUntil(all, beatOnce, func(int) bool { return atomic.AddInt64(&beats, 1) > warm })
	return rateOf(all, beatOnce, measured)
}

// rateOf returns how often a second the members had their work answered, and how long the answers took.
func rateOf(all []*member, work func(int, *member), measured time.Duration) map[string]any {
	begun := time.Now()
	end := begun.Add(measured)
	took := make([][]time.Duration, len(all))
	eachUntil(all, work, func(i int) bool {
		took[i] = append(took[i], time.Since(begun))
		return time.Now().After(end)
	})
	lasted := time.Since(begun)

	total, waits := waitsOf(took)
	return map[string]any{
		"per_second": float64(total) / lasted.Seconds(), "requests": total, "seconds": lasted.Seconds(),
		"p50_ms": quantile(waits, 0.50), "p99_ms": quantile(waits, 0.99),
	}
}

// stableGroups returns the members of groups that have settled.
func stableGroups(address string, count, size int) []*member {
	name := newGroupName()
	var all []*member
	for len(all) < count {
		var group []*member
		groupName := fmt.Sprintf("%s-%d", name, len(all))
		coordinator := findCoordinator(address, groupName)
		for i := 0; i < size && len(all)+len(group) < count; i++ {
			group = append(group, newMember(coordinator, groupName))
		}
		untilStable(group, betweenPolls)
		all = append(all, group...)
	}
	return all
}

func beatOnce(_ int, m *member) {
	if code := m.heartbeat(); code != none {
		fail(fmt.Errorf("Heartbeat answered error %d in a stable group", code))
	}
}

// eachUntil lets every member do its work again and again until `enough`, asked after each answer, says so.
func eachUntil(all []*member, work func(int, *member), enough func(i int) bool) {
	var wait sync.WaitGroup
	for i, m := range all {
		wait.Add(1)
		go func(i int, m *member) {
			defer wait.Done()
			for {
				work(i, m)
				if enough(i) {
					return
				}
			}
		}(i, m)
	}
	wait.Wait()
}

// waitsOf turns the moments at which each member had its answers into the waits between them.
func waitsOf(moments [][]time.Duration) (int, []float64) {
	var waits []float64
	for _, of := range moments {
		last := time.Duration(0)
		for _, at := range of {
			waits = append(waits, float64((at-last).Microseconds())/1000)
			last = at
		}
	}
	sort.Float64s(waits)
	return len(waits), waits
}

func quantile(sorted []float64, q float64) float64 {
	return sorted[int(q*float64(len(sorted)-1))]
}

// formation returns how long a group of `count` takes to become stable, and again when one more joins.
func formation(address string, count int) map[string]any {
	name := newGroupName()
	findCoordinator(address, name)
	var all []*member
	for i := 0; i < count; i++ {
		all = append(all, newMember(address, name))
	}
	newcomer := newMember(address, name)

	first := untilStable(all, betweenPolls)
	again := untilStable(append(all, newcomer), betweenPolls)
	for _, m := range append(all, newcomer) {
		m.socket.Close()
	}
	return map[string]any{"members": count, "first_s": first.Seconds(), "one_more_s": again.Seconds()}
}

// untilStable runs the members until all are settled in one generation; returns how long that took.
//
// Those that are in already learn of a newcomer from a heartbeat, which they send every `pace`: a consumer sends
// one every 3 s, and the waiting in between would hide the broker's part.
func untilStable(all []*member, pace time.Duration) time.Duration {
	var wait sync.WaitGroup
	var settled int64
	for _, m := range all {
		if m.generation > 0 {
			settled++
		}
	}
	begun := time.Now()
	for _, m := range all {
		wait.Add(1)
		go func(m *member) {
			defer wait.Done()
			if m.generation == 0 {
				m.settle()
				atomic.AddInt64(&settled, 1)
			}
			m.follow(&settled, int64(len(all)), pace)
		}(m)
	}
	wait.Wait()
	took := time.Since(begun)
	for _, m := range all {
		if m.generation != all[0].generation {
			fail(fmt.Errorf("the group is stable in two generations, %d and %d", all[0].generation, m.generation))
		}
	}
	return took
}

// follow beats, and rejoins when told to, until as many as wanted have settled.
func (m *member) follow(settled *int64, wanted int64, pace time.Duration) {
	for {
		switch code := m.heartbeat(); code {
		case none:
			if atomic.LoadInt64(settled) >= wanted {
				return
			}
			time.Sleep(pace)
		case rebalanceInProgress, illegalGeneration:
			atomic.AddInt64(settled, -1)
			m.settle()
			atomic.AddInt64(settled, 1)
		default:
			fail(fmt.Errorf("Heartbeat answered error %d", code))
		}
	}
}
