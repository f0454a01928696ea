package main

// A storm: many groups rebalance at once, while members of other groups go on beating.

import (
	"fmt"
	"sort"
	"sync"
	"sync/atomic"
	"time"
)

const (
	watchers        = 50
	watcherGroup    = 10
	betweenWatches  = 10 * time.Millisecond
	betweenStorming = 250 * time.Millisecond // how often a member of a storming group asks how its group is
)

// storm returns the waits of the watchers' heartbeats while `groups` groups of `size` take in one member more each.
func storm(address string, groups, size int) map[string]any {
	storming := parties(address, groups, size)
	watching := stableGroups(address, watchers, watcherGroup)
	var over int32
	waits := watch(watching, &over)
	begun := time.Now()
	var wait sync.WaitGroup
	for _, party := range storming {
		wait.Add(1)
		go func(party []*member) {
			defer wait.Done()
			untilStable(party, betweenStorming)
		}(party)
	}
	wait.Wait()
	took := time.Since(begun)
	atomic.StoreInt32(&over, 1)
	all := waits()
	return map[string]any{
		"seconds": took.Seconds(), "beats": len(all),
		"p50_ms": quantile(all, 0.50), "p99_ms": quantile(all, 0.99), "max_ms": all[len(all)-1],
	}
}

// parties returns settled groups, each with one member more that has not joined yet; some form at the same time.
func parties(address string, groups, size int) [][]*member {
	made := make([][]*member, groups)
	name := newGroupName()
	findCoordinator(address, name)
	turns := make(chan bool, crowdAtOnce)
	var wait sync.WaitGroup
	for g := range made {
		wait.Add(1)
		turns <- true
		go func(g int) {
			defer wait.Done()
			var party []*member
			for i := 0; i < size; i++ {
				party = append(party, newMember(address, fmt.Sprintf("%s-storm-%d", name, g)))
			}
			untilStable(party, betweenPolls)
			made[g] = append(party, newMember(address, party[0].group))
			<-turns
		}(g)
	}
	wait.Wait()
	return made
}

// watch lets members beat at their pace until `over`; the function it returns gives the sorted waits in ms.
//
// A wait is counted from when the heartbeat was due: one that is late because the last was answered late counts.
func watch(all []*member, over *int32) func() []float64 {
	took := make([][]float64, len(all))
	var wait sync.WaitGroup
	for i, m := range all {
		wait.Add(1)
		go func(i int, m *member) {
			defer wait.Done()
			due := time.Now().Add(time.Duration(i) * betweenWatches / time.Duration(len(all)))
			for atomic.LoadInt32(over) == 0 {
				time.Sleep(time.Until(due))
				if code := m.heartbeat(); code != none {
					fail(fmt.Errorf("Heartbeat answered error %d in a stable group", code))
				}
				took[i] = append(took[i], float64(time.Since(due).Microseconds())/1000)
				due = due.Add(betweenWatches)
			}
		}(i, m)
	}
	return func() []float64 {
		wait.Wait()
		var waits []float64
		for _, of := range took {
			waits = append(waits, of...)
		}
		sort.Float64s(waits)
		return waits
	}
}

// beatsFor returns the waits of watchers' heartbeats for a while in which the caller disturbs the broker itself.
func beatsFor(address string, measured time.Duration) map[string]any {
	watching := stableGroups(address, watchers, watcherGroup)
	var over int32
	waits := watch(watching, &over)
	time.Sleep(measured)
	atomic.StoreInt32(&over, 1)
	all := waits()
	return map[string]any{
		"beats": len(all), "p50_ms": quantile(all, 0.50), "p99_ms": quantile(all, 0.99), "max_ms": all[len(all)-1],
	}
}
